"""Restart Jobs from their last checkpoint: lost with their node, or failed.

The restart is a new Job that names the Job it resumes from. The earlier Job keeps its
state.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q

from placement.jobs.job_transitions import PORTAL, record_queued
from placement.jobs.nodes import checkpoint_relay, job_nodes
from placement.models import Job, JobPart
from telemetry.protocol.sentences import sentence

MOST_ROWS = 100
HEARD_SECONDS = 30.0
"""A node that was heard within this time is back."""
SAME = (
    "reservation",
    "owner",
    "plan",
    "name",
    "kind",
    "recipe",
    "script",
    "script_folder",
    "arguments",
    "started_with",
    "environment_folder",
    "recipe_settings",
    "node",
    "gpu_count",
    "retry_failed",
    "array",
    "array_index",
    "parameters",
    "may_move",
    "restart",
    "request_id",
)
"""Fields that the restarted Job copies."""


def due(now: datetime) -> Iterable[Job]:
    """Return Jobs that may restart, whose nodes and Reservations are there."""
    rows = Job.objects.to_restart(now).select_related("node", "owner", "reservation")
    silent = JobPart.objects.filter(
        Q(node__last_seen_at=None)
        | Q(node__last_seen_at__lte=now - timedelta(seconds=HEARD_SECONDS))
    )
    return rows.exclude(pk__in=silent.values("job")).filter(
        node__last_seen_at__gt=now - timedelta(seconds=HEARD_SECONDS)
    )[:MOST_ROWS]


def queue_retry(job: Job, now: datetime) -> bool:
    """Queue the restart. False: another worker did."""
    left = job.retries - 1
    try:
        with transaction.atomic():
            again = Job.objects.create(
                **{name: getattr(job, name) for name in SAME},
                retries=left,
                resume_from=checkpoint_relay.handed_back(job),
                created_at=now,
            )
            names = list(job.parts.values_list("node__name", flat=True))
            job_nodes.divide(again, names)
    except IntegrityError:  # one Job goes on from each
        return False
    if job.state == Job.State.LOST:
        reason = sentence(
            "job #{job} was lost with {node}; {left} more retries",
            job=job.pk,
            node=job.node.name,
            left=left,
        )
    else:
        reason = sentence(
            "job #{job} failed; {left} more retries", job=job.pk, left=left
        )
    record_queued(again, at=now, actor=PORTAL, reason=reason)
    return True
