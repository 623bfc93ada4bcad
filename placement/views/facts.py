"""A Job and its surroundings as pages and their scripts read them."""

from datetime import datetime

from django.utils import timezone

from placement.domain.lifecycle import JobState
from placement.domain.plan import Plan
from placement.live import job_message
from placement.models import Job, StoredPlan
from reservations.models import Reservation
from reservations.snapshots.calendar import iso

WAY = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING)


def job_facts(job: Job) -> dict[str, object]:
    """Return what changes while a Job lives, its steps and its Window."""
    row = job.reservation
    return job_message(job)["job"] | {
        "reservation": {
            "id": row.pk,
            "start": iso(row.start),
            "end": iso(row.end),
            "state": row.state,
        },
        "steps": [step | {"at": _iso(step["at"])} for step in job_steps(job)],
    }


def job_steps(job: Job) -> list[dict[str, object]]:
    """Return the way of a Job: its states in order, with the time each began.

    Steps it has not reached have no time; an end takes the last place, "done"
    standing in while the Job lives.
    """
    began: dict[str, datetime] = {}
    for event in job.events.all():
        began.setdefault(event.new, event.at)
    words = [state for state in WAY if job.state in WAY or state in began]
    if JobState.STOPPING in began or job.state == JobState.STOPPING:
        words.append(JobState.STOPPING)
    words.append(JobState.DONE if job.state in JobState.live() else JobState(job.state))
    return [
        {"word": word.value, "at": began.get(word), "current": word == job.state}
        for word in words
    ]


def job_events(job: Job) -> list[dict[str, object]]:
    """Return the moves of a Job, oldest first."""
    return [
        {
            "at": iso(event.at),
            "new": event.new,
            "actor": event.actor,
            "reason": event.reason,
        }
        for event in job.events.all()
    ]


def plan_table(stored: StoredPlan | None) -> str:
    """Return a stored Plan as text; "" where there is none."""
    return Plan.from_json(stored.plan).table() if stored else ""


def reservation_words(row: Reservation) -> str:
    """Return a Reservation as one line of a list; allocations prefetched."""
    gpus = [a.gpu for a in row.allocations.all()]
    start, end = timezone.localtime(row.start), timezone.localtime(row.end)
    last = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%a %d %b %H:%M}"
    names = ", ".join(str(gpu) for gpu in gpus[:4])
    more = f" and {len(gpus) - 4} more" if len(gpus) > 4 else ""
    purpose = f", {row.purpose}" if row.purpose else ""
    return f"#{row.pk}: {names}{more}, {start:%a %d %b %H:%M} to {last}{purpose}"


def _iso(at: object) -> str | None:
    return iso(at) if isinstance(at, datetime) else None
