"""The tick of following running Jobs: how far they are, and what came of their Plans.

1. read how far each running Job says it is, and tell its pages
2. begin the outcome of each Job with a Plan, and keep what it holds and steps
3. begin those of Jobs that ran between two looks
4. settle outcomes of Jobs that have ended
5. delete results that are older than the site keeps them

Only logs that have grown are read, and only their ends. Safe to run twice and at the
same time; one bad row never blocks the rest.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.conf import settings
from django.db import DatabaseError
from django.db.models import Q
from redis import Redis, RedisError

from placement.jobs import job_broadcast
from placement.jobs.nodes import log_store, result_files
from placement.models import Job, PlanOutcome
from placement.planner.values.errors import PlacementError
from placement.plans import plan_outcome
from placement.protocol.job_lifecycle import JobState
from placement.rules.log_progress import followed, told_by
from placement.rules.log_text import numbers_of
from telemetry.live.broadcast import DETAIL

TAIL_BYTES = 64 * 1024
"""What is read of a log's end: programs print other things between their steps."""
MOST_JOBS = 500
LAST_LOOK = timedelta(seconds=20)
MISSED = timedelta(minutes=30)
FOLLOWED = (JobState.RUNNING, JobState.STOPPING)
_ERRORS = (
    DatabaseError,
    PlacementError,
    ArithmeticError,
    LookupError,
    ValueError,
    TypeError,
    OSError,
)
Held = dict[int, dict[str, int]]
"""Bytes that each Job's processes hold, by Gpu UUID."""
Row = TypeVar("Row")

logger = logging.getLogger(__name__)


def follow(now: datetime) -> dict[str, int]:
    """Run every step once; how many rows each one changed."""
    jobs = list(_running(now))
    held = held_by_jobs(_nodes(jobs))
    return {
        "progress": _each(jobs, _progress, now),
        "measured": _each(
            [job for job in jobs if job.plan_id and job.started_at],
            lambda job, at: _measure(job, held.get(job.pk, {}), at),
            now,
        ),
        "missed": _each(_missed(now), _begin, now),
        "settled": _each(plan_outcome.due(now), plan_outcome.settle, now),
        "dropped": result_files.drop_due(now),
        "logs_dropped": log_store.drop_due(now),
    }


def _each(
    rows: Iterable[Row], step: Callable[[Row, datetime], bool], now: datetime
) -> int:
    done = 0
    for row in rows:
        try:
            done += step(row, now)
        except _ERRORS:
            logger.exception("following %s failed", row)
    return done


def _running(now: datetime) -> Iterable[Job]:
    """Jobs that run, and those that have ended just now: their logs' ends come last."""
    return (
        Job.objects.filter(Q(state__in=FOLLOWED) | Q(ended_at__gt=now - LAST_LOOK))
        .exclude(kind=Job.Kind.SERVE)
        .select_related("node", "plan", "reservation__membership")
        .order_by("pk")[:MOST_JOBS]
    )


# --- how far it is ---


def _progress(job: Job, now: datetime) -> bool:
    """Read a log's end where it has grown since the last look."""
    written = log_store.written_at(job)
    if written is None or (
        job.progress_at is not None and written < job.progress_at.timestamp()
    ):
        return False
    told = told_by(log_store.tail(job, TAIL_BYTES).data.splitlines())
    before = job_broadcast.seen_of(job)
    if told is None or (before is not None and before.told == told):
        return False
    # The log's own time: it came up later than it was written.
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


# --- what comes of its Plan ---


def _nodes(jobs: Iterable[Job]) -> set[str]:
    """Return the nodes that Jobs with a Plan run on."""
    found = set()
    for job in jobs:
        if job.plan is not None:
            shards = job.plan.plan.get("shards", ())
            found |= {job.node.name, *(s.get("node") or job.node.name for s in shards)}
    return found


def held_by_jobs(nodes: Iterable[str]) -> Held:
    """Return what nodes say that Jobs' processes hold now; {} while they are silent."""
    names = sorted(nodes)
    if not names:
        return {}
    try:
        with Redis.from_url(settings.REDIS_URL) as client:
            texts: Any = client.mget([DETAIL + name for name in names])
    except RedisError as error:
        logger.warning("what jobs hold is not known: %s", error)
        return {}
    held: Held = defaultdict(lambda: defaultdict(int))
    for text in texts:
        for uuid, gpu in (json.loads(text)["gpus"] if text else {}).items():
            for process in gpu.get("processes") or ():
                if process.get("job") is not None:
                    own = held[process["job"]]
                    own[uuid] += process.get("memory_bytes") or 0
    return held


def _measure(job: Job, held: dict[str, int], now: datetime) -> bool:
    outcome = PlanOutcome.objects.filter(job=job).first() or plan_outcome.begin(
        job, now=now
    )
    if outcome is None or outcome.settled_at is not None:
        return False
    return plan_outcome.look(outcome, held, _last_step(job), now)


def _missed(now: datetime) -> Iterable[Job]:
    """Jobs with a Plan that ran and ended, and that nobody looked at while they did."""
    return (
        Job.objects.filter(
            plan__isnull=False,
            outcome=None,
            started_at__isnull=False,
            ended_at__gt=now - MISSED,
        )
        .exclude(kind=Job.Kind.SERVE)
        .select_related("plan")
        .order_by("pk")[:MOST_JOBS]
    )


def _begin(job: Job, now: datetime) -> bool:
    return plan_outcome.begin(job, now=now) is not None


def _last_step(job: Job) -> float | None:
    for line in reversed(log_store.tail(job, TAIL_BYTES).data.splitlines()):
        numbers = numbers_of(line)
        if numbers is not None:
            return numbers["step"]
    return None
