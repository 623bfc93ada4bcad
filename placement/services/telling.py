"""What the owner of a Job hears of it: that it ran after a wait, and how it ended.

A stop that somebody or the Reservation's end asked for is no news. Of an array only
the whole is told, once its last Job has ended.
"""

from collections import Counter
from datetime import datetime, timedelta

from placement.domain.lifecycle import JobState
from placement.models import Job
from reservations.services import notices
from telemetry.domain.units import format_duration

WAITED = timedelta(minutes=5)
"""A Job that was launched longer ago waited for its turn or its Reservation."""


def tell_move(job: Job, new: JobState, *, now: datetime) -> None:
    """Tell the owner of a move, in the transaction of the move."""
    if job.array_id is not None:
        if new not in JobState.live():
            _tell_array(job, now)
        return
    if new is JobState.RUNNING and now - job.created_at > WAITED:
        _tell(job, "job_started", f"Job “{job.name}” runs on {job.node.name}.", now)
    elif new is JobState.DONE:
        took = format_duration((now - (job.started_at or now)).total_seconds())
        _tell(job, "job_done", f"Job “{job.name}” is done after {took}.", now)
    elif new in (JobState.FAILED, JobState.LOST):
        kind = "serve_down" if job.kind == Job.Kind.SERVE else "job_failed"
        words = "was lost" if new is JobState.LOST else "failed"
        why = f": {job.reason}" if job.reason else "."
        _tell(job, kind, f"Job “{job.name}” {words}{why}", now)


def _tell_array(job: Job, now: datetime) -> None:
    tasks = Job.objects.filter(array_id=job.array_id)
    if tasks.live().exists():
        return
    states = Counter(tasks.values_list("state", flat=True))
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    bad = states[JobState.FAILED] + states[JobState.LOST]
    notices.tell(
        user=job.owner,
        kind="job_failed" if bad else "job_done",
        reservation=job.reservation,
        detail={
            "url": f"/jobs/?array={job.array_id}",
            "text": f"All jobs of “{job.array}” have ended: {counts}.",
        },
        now=now,
        key=f"array:{job.array_id}:{tasks.count()}",
    )


def _tell(job: Job, kind: str, text: str, now: datetime) -> None:
    notices.tell(
        user=job.owner,
        kind=kind,
        reservation=job.reservation,
        detail={"job": job.pk, "url": f"/jobs/{job.pk}/", "text": text},
        now=now,
        key=f"job:{job.pk}:{job.attempt}:{kind}",
    )
