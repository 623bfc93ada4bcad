"""The tick that follows running Jobs.

It does four things:

1. read the progress of each running Job, and send it to its pages
2. read the numbers of logs that have grown
3. delete results and logs past the site's retention
4. read the curves of event files that have arrived

Safe to run twice and concurrently. One bad row never blocks the rest.
"""

import logging
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from django.db.models import Q

from placement.jobs import job_broadcast
from placement.jobs.nodes import log_store, result_files, run_curves
from placement.models import Job, JobQuerySet
from placement.rules.log_progress import followed, read_progress
from telemetry.rules.isolated_steps import RowSteps

TAIL_BYTES = 64 * 1024
"""Bytes that are read of a log's end. Programs print other lines between steps."""
MOST_JOBS = 500
LAST_LOOK = timedelta(seconds=20)
FOLLOWED = (Job.State.RUNNING, Job.State.STOPPING)
Row = TypeVar("Row")

logger = logging.getLogger(__name__)
each_job = RowSteps(logger, "job")


def run_steps(now: datetime) -> dict[str, int]:
    """Run every step once. Return how many rows each one changed."""
    return {
        "progress": each_job(running(now)[:MOST_JOBS], _progress, now),
        "numbers": _read_numbers(now),
        "dropped": result_files.drop_due(now),
        "logs_dropped": log_store.drop_due(now),
        "curves": run_curves.read_due(now),
    }


def running(now: datetime) -> JobQuerySet:
    """Return running Jobs, and those that just ended, because the log's end is late."""
    return (
        Job.objects.filter(Q(state__in=FOLLOWED) | Q(ended_at__gt=now - LAST_LOOK))
        .exclude(kind__in=Job.Kind.endless())
        .select_related("node", "plan", "reservation__membership")
        .order_by("pk")
    )


def _read_numbers(now: datetime) -> int:
    """Read new parts of logs for their numbers, so that pages need not.

    Return of how many Jobs. A shorter part comes before a longer one.
    """
    left = log_store.SCAN_BYTES

    def read(job: Job, now: datetime) -> bool:
        nonlocal left
        new = log_store.numbers(job, left).new_bytes
        left -= new
        return new > 0

    grown = [
        job for job in running(now)[:MOST_JOBS] if log_store.has_unread_numbers(job)
    ]
    return each_job(sorted(grown, key=log_store.size), read, now)


def _progress(job: Job, now: datetime) -> bool:
    """Read the end of a log that has grown since the last run."""
    written = log_store.written_at(job)
    if written is None or (
        job.progress_at is not None and written < job.progress_at.timestamp()
    ):
        return False
    told = read_progress(log_store.tail(job, TAIL_BYTES).data.splitlines())
    before = job_broadcast.last_progress(job)
    if told is None or (before is not None and before.told == told):
        return False
    # The log's own time, because it arrived later than it was written.
    seen = followed(before, told, min(written, now.timestamp()))
    fields = {
        "progress_done": told.done,
        "progress_total": told.total,
        "progress_at": now,
        "progress_from": seen.first_done,
        "progress_from_at": datetime.fromtimestamp(seen.first_at, UTC),
    }
    changed = Job.objects.filter(pk=job.pk, attempt=job.attempt).update(**fields)
    for name, value in fields.items():
        setattr(job, name, value)
    if changed:
        job_broadcast.publish_progress(job)
    return bool(changed)
