"""The use of a Job's Gpus, counted by telemetry, so far or in total."""

from datetime import datetime

from placement.models import Job
from reservations.models import Allocation
from telemetry.history import stored_usage as summaries
from telemetry.history.stored_usage import count_usage, stored_usage
from telemetry.rules.usage_summary import GpuSpan, Usage


def spans_of(job: Job, *, now: datetime) -> list[GpuSpan]:
    """Return the Job's Gpus and the time in which it ran, until now if it runs.

    Never outside the Reservation's Allocations, because the next holder's use of a Gpu
    is not this Job's.
    """
    if job.started_at is None:
        return []
    end = job.ended_at or now
    rows = Allocation.objects.filter(
        reservation=job.reservation_id, gpu__node__in=job.node_ids()
    ).order_by("gpu_id")
    return [
        GpuSpan(gpu_id, max(start, job.started_at), min(until, end))
        for gpu_id, start, until in rows.values_list("gpu_id", "start", "end")
    ]


def ask_summary(job: Job, *, now: datetime) -> None:
    """Have the use of an ended Job counted, in the transaction of its end."""
    summaries.ask_summary(
        reservation_id=job.reservation_id,
        job_id=job.pk,
        spans=spans_of(job, now=now),
        now=now,
    )


def job_usage(job: Job, *, now: datetime) -> Usage | None:
    """Return the use of a Job, so far if it runs. None: it has not begun."""
    spans = [span for span in spans_of(job, now=now) if span.seconds]
    if not spans:
        return None
    kept = stored_usage(reservation_id=job.reservation_id, job_id=job.pk)
    return kept or count_usage(spans)
