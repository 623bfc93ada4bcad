"""One transition of one Job: legal by the table, compare-and-set, audited, sent."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from placement.jobs import job_broadcast
from placement.jobs.job_notices import notify_of_move
from placement.jobs.job_usage import ask_summary
from placement.models import Job, JobEvent
from placement.protocol.job_lifecycle import NEXT
from telemetry.protocol.sentences import sentence

PORTAL = "portal"
"""The actor of what no person did."""
MOST_REASON = 400
BEHIND_SECONDS = 60.0


def move(
    job: Job,
    new: Job.State,
    *,
    now: datetime,
    actor: str,
    reason: str = "",
    fields: Mapping[str, object] | None = None,
) -> bool:
    """Change a Job's state. False: another worker was first, or the table forbids it.

    When a Job that ran ends, its usage is counted. Call it in a transaction. The Job's
    pages are notified on commit. The row that was passed in is updated.
    """
    old = Job.State(job.state)
    if new not in NEXT[old]:
        return False
    written: dict[str, Any] = {**(fields or {}), "reason": reason[:MOST_REASON]}
    if not Job.objects.move(job.pk, old=old, new=new, **written):
        return False
    for name, value in {**written, "state": new}.items():
        setattr(job, name, value)
    JobEvent.objects.create(
        job=job, at=now, old=old, new=new, actor=actor, reason=written["reason"]
    )
    if new not in Job.State.live():
        ask_summary(job, now=now)
    notify_of_move(job, new, now=now)
    job_broadcast.publish_job(job.pk)
    return True


def record_queued(job: Job, *, at: datetime, actor: str, reason: str = "") -> None:
    """Begin the history of a new Job. Its pages are notified on commit."""
    JobEvent.objects.create(
        job=job, at=at, old="", new=Job.State.QUEUED, actor=actor, reason=reason
    )
    job_broadcast.publish_job(job.pk)


def record_note(job: Job, *, now: datetime, actor: str, reason: str) -> None:
    """Write into a Job's history what did not change its state. Its pages are notified
    on commit.
    """
    JobEvent.objects.create(
        job=job, at=now, old=job.state, new=job.state, actor=actor, reason=reason
    )
    job_broadcast.publish_job(job.pk)


def instant(unix: float | None, *, earliest: datetime, now: datetime) -> datetime:
    """Return a node's time, limited to the span from its cause to now.

    A node's clock may be wrong, but the order of events must be right. If it is more
    than a minute behind, the time of arrival is used instead.
    """
    if unix is None:
        return now
    try:
        at = datetime.fromtimestamp(unix, UTC)
    except (OverflowError, OSError, ValueError):
        return now
    if at < earliest - timedelta(seconds=BEHIND_SECONDS):
        return now
    return min(max(at, earliest), now)


def end_before_start(job: Job, why: str, *, now: datetime) -> bool:
    """Stop a Job that never began; False: another worker was first.

    Args:
        why: a sentence without its full stop.
    """
    return move(
        job,
        Job.State.STOPPED,
        now=now,
        actor=PORTAL,
        reason=sentence("never started: {why}", why=why),
        fields={"ended_at": now},
    )
