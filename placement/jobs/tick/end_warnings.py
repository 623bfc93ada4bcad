"""Warnings before the Reservation's end stops a Job: at ten minutes and one minute.

The shim writes the same into the Job's log, without the portal.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q

from placement.jobs.job_notices import notify_owner
from placement.models import Job
from placement.protocol.end_notice import WARN_SECONDS, due_warning, remaining_time_text
from reservations.rules.lifecycle import State
from telemetry.protocol.sentences import sentence

MOST_ROWS = 200


def due(now: datetime) -> Iterable[Job]:
    """Return running Jobs whose end is near and whose owner was not warned."""
    soon = now + timedelta(seconds=max(WARN_SECONDS))
    told = Q(warned_end=F("reservation__end")) & Q(warned_seconds=min(WARN_SECONDS))
    rows = Job.objects.select_related("owner", "reservation", "node")
    return rows.filter(
        ~told,
        # A Job in a gap continues in the next one, so only its log is warned.
        backfill=None,
        state=Job.State.RUNNING,
        reservation__state=State.ACTIVE,
        reservation__end__gt=now,
        reservation__end__lte=soon,
    ).order_by("pk")[:MOST_ROWS]


def warn(job: Job, now: datetime) -> bool:
    """Warn the owner, once for each of the two warnings. False: sent before."""
    end = job.reservation.end
    before = job.warned_seconds if job.warned_end == end else None
    seconds = due_warning((end - now).total_seconds(), before)
    if seconds is None:
        return False
    with transaction.atomic():
        taken = Job.objects.filter(
            pk=job.pk, warned_end=job.warned_end, warned_seconds=job.warned_seconds
        ).update(warned_end=end, warned_seconds=seconds)
        if not taken:
            return False
        left = remaining_time_text((end - now).total_seconds())
        text = sentence(
            "Job “{job}” on {node} is stopped in {left}: its reservation ends.",
            job=job.name,
            node=job.node.name,
            left=left,
        )
        key = f"job:{job.pk}:{end.isoformat()}:{seconds}"
        notify_owner(job, "job_warning", text, now=now, key=key)
    return True
