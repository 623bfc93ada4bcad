"""From rows to what pages and programs show of Jobs."""

from collections import Counter
from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.utils import timezone

from placement.domain.errors import PlanInvalid
from placement.domain.lifecycle import JobState
from placement.domain.plan import Plan
from placement.models import Job, JobEvent, StoredPlan
from reservations.models import Reservation

SILENT_SECONDS = 15.0
_PATH = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING)


def job_facts(job: Job) -> dict[str, object]:
    """Return what changes while a Job lives, ready for JSON."""
    reservation = job.reservation
    return {
        "id": job.pk,
        "name": job.name,
        "kind": job.kind,
        "recipe": job.recipe,
        "state": job.state,
        "reason": job.reason,
        "owner": job.owner.username,
        "node": job.node.name,
        "attempt": job.attempt,
        "exit_code": job.exit_code,
        "exit_signal": job.exit_signal,
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "stop_at": iso(job.stop_at),
        "ended_at": iso(job.ended_at),
        "log_bytes": job.log_bytes,
        "silent_since": iso(silent_since(job, timezone.now())),
        "reservation": {
            "id": reservation.pk,
            "start": iso(reservation.start),
            "end": iso(reservation.end),
        },
        "steps": [{**step, "at": iso(step["at"])} for step in job_steps(job)],  # type: ignore[arg-type]
    }


def silent_since(job: Job, now: datetime) -> datetime | None:
    """Return since when the node of a running Job says nothing of it.

    Silence is ours, not the Job's: its shim keeps it and its end by itself.
    """
    if job.state not in {JobState.RUNNING, JobState.STOPPING} or job.seen_at is None:
        return None
    silent = now - job.seen_at > timedelta(seconds=SILENT_SECONDS)
    return job.seen_at if silent else None


def job_steps(job: Job) -> list[dict[str, object]]:
    """Return the way of a Job: word, time (None: not reached), whether it is there."""
    times = {
        JobState.QUEUED: job.created_at,
        JobState.STARTING: job.started_at if job.attempt == 0 else _first_order(job),
        JobState.RUNNING: job.started_at,
    }
    words: list[tuple[str, datetime | None]] = [
        (state.value, times[state]) for state in _PATH
    ]
    ended = job.state not in JobState.live()
    if job.stop_at is not None:
        words.append((JobState.STOPPING.value, job.stop_at))
    last = job.state if ended else JobState.DONE.value
    if job.state == JobState.STOPPING or (job.stop_at and not ended):
        last = JobState.STOPPED.value
    words.append((last, job.ended_at if ended else None))
    return [
        {"word": word, "at": at, "current": word == job.state} for word, at in words
    ]


def _first_order(job: Job) -> datetime | None:
    # In Python, so that a list which has fetched the events asks nothing more.
    times = [event.at for event in job.events.all() if event.new == JobState.STARTING]
    return times[-1] if times else None


def job_events(job: Job) -> list[dict[str, object]]:
    """Return every move of a Job, ready for JSON."""
    rows: QuerySet[JobEvent] = job.events.all()
    return [
        {
            "at": iso(row.at),
            "old": row.old,
            "new": row.new,
            "actor": row.actor,
            "reason": row.reason,
        }
        for row in rows
    ]


def plan_table(stored: StoredPlan) -> str:
    """Return a stored Plan as its text table; a Plan of an old form says so."""
    try:
        return Plan.from_json(stored.plan).table()
    except PlanInvalid as error:
        return f"This plan can no longer be read: {error}"


def reservation_words(reservation: Reservation) -> str:
    """Return one line that tells a Reservation from the others of its holder."""
    start, end = (timezone.localtime(at) for at in (reservation.start, reservation.end))
    nodes = Counter(
        row.gpu.node.name for row in reservation.allocations.all() if row.live
    )
    gpus = ", ".join(f"{count} × {name}" for name, count in sorted(nodes.items()))
    same_day = start.date() == end.date()
    until = f"{end:%H:%M}" if same_day else f"{end:%a} {end.day} {end:%b %H:%M}"
    purpose = f" · {reservation.purpose}" if reservation.purpose else ""
    return (
        f"#{reservation.pk} · {start:%a} {start.day} {start:%b %H:%M} to {until} · "
        f"{gpus or 'no GPU'}{purpose}"
    )


def iso(at: datetime | None) -> str | None:
    """Return an instant in UTC with a Z."""
    return at.isoformat().replace("+00:00", "Z") if at else None
