"""What beat asks for every second, and what pages ask for."""

from celery import shared_task
from django.utils import timezone

from placement.jobs.nodes import log_store
from placement.jobs.tick import job_tick
from placement.jobs.tick.progress_tick import follow as follow_jobs
from placement.plans.tasks import refine
from placement.rebalance import rebalance_tick
from placement.serving.endpoint_move import tick as move_served

# Celery finds the tasks of this module; those of capabilities are among them.
__all__ = ["follow", "limit_logs", "look_again", "refine", "tick"]


@shared_task(name="placement.tasks.tick")
def tick() -> dict[str, int]:
    """Run the tick of Jobs (see ``jobs.tick.job_tick`` for its steps)."""
    return job_tick.tick(timezone.now())


@shared_task(name="placement.tasks.look_again")
def look_again() -> dict[str, int]:
    """Look again at running Jobs (see ``rebalance.rebalance_tick`` and
    ``serve_moving``)."""
    now = timezone.now()
    return rebalance_tick.look_again(now) | move_served(now)


@shared_task(name="placement.tasks.follow")
def follow() -> dict[str, int]:
    """Follow running Jobs: progress, what came of plans
    (``jobs.tick.progress_tick``)."""
    return follow_jobs(timezone.now())


@shared_task(name="placement.tasks.limit_logs")
def limit_logs() -> dict[str, int]:
    """Keep each person's stored logs within the policy (``logs.keep_within``)."""
    return log_store.keep_within(timezone.now())
