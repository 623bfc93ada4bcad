"""The tick of the outcomes of Plans.

1. begin the outcome of each running Job with a Plan, and record its memory and steps 2.
begin those of Jobs that ran between two ticks 3. settle outcomes of Jobs that have
ended

Safe to run twice and concurrently. One bad row never blocks the rest.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from redis import Redis, RedisError

from placement.jobs.nodes import log_store
from placement.jobs.tick.progress_tick import MOST_JOBS, TAIL_BYTES, each_job, running
from placement.models import Job, PlanOutcome
from placement.plans import plan_outcome
from placement.rules.log_text import numbers_of
from telemetry.live.broadcast import DETAIL

MISSED = timedelta(minutes=30)
Held = dict[int, dict[str, int]]
"""Bytes held by each Job's processes, by Gpu UUID."""

logger = logging.getLogger(__name__)


def measure(now: datetime) -> dict[str, int]:
    """Run every step once. Return how many rows each one changed."""
    planned = running(now).filter(plan__isnull=False)
    # As in RowSteps: the columns of all tables only if there are rows.
    jobs = list(planned[:MOST_JOBS]) if planned.exists() else []
    held = held_by_jobs(_nodes(jobs))
    return {
        "measured": each_job(
            [job for job in jobs if job.started_at],
            lambda job, at: _measure(job, held.get(job.pk, {}), at),
            now,
        ),
        "missed": each_job(_missed(now), _begin_outcome, now),
        "settled": each_job(plan_outcome.due(now), plan_outcome.settle_outcome, now),
    }


def _nodes(jobs: Iterable[Job]) -> set[str]:
    """Return the nodes that Jobs with a Plan run on."""
    found = set()
    for job in jobs:
        if job.plan is not None:
            shards = job.plan.plan.get("shards", ())
            found |= {job.node.name, *(s.get("node") or job.node.name for s in shards)}
    return found


def held_by_jobs(nodes: Iterable[str]) -> Held:
    """Return the memory that nodes report for Jobs' processes. {}: they are silent."""
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
    return plan_outcome.record_use(outcome, held, _last_step(job), now)


def _missed(now: datetime) -> Iterable[Job]:
    """Return Jobs with a Plan that ran and ended between two ticks."""
    return (
        Job.objects.filter(
            plan__isnull=False,
            outcome=None,
            started_at__isnull=False,
            ended_at__gt=now - MISSED,
        )
        .exclude(kind__in=Job.Kind.endless())
        .select_related("plan")
        .order_by("pk")[:MOST_JOBS]
    )


def _begin_outcome(job: Job, now: datetime) -> bool:
    return plan_outcome.begin(job, now=now) is not None


def _last_step(job: Job) -> float | None:
    for line in reversed(log_store.tail(job, TAIL_BYTES).data.splitlines()):
        numbers = numbers_of(line)
        if numbers is not None:
            return numbers["step"]
    return None
