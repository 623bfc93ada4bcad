"""Tasks of beat, and tasks that pages queue."""

from celery import shared_task
from django.utils import timezone

from placement import tick as steps
from placement.jobs.nodes import log_store
from placement.plans.tasks import refine

# Celery finds the tasks in this module, including those of capabilities.
__all__ = ["follow", "limit_logs", "look_again", "refine", "tick"]


@shared_task(name="placement.tasks.tick")
def tick() -> dict[str, int]:
    """Start and stop Jobs that are due (``placement/tick.py``)."""
    return steps.tick(timezone.now())


@shared_task(name="placement.tasks.look_again")
def look_again() -> dict[str, int]:
    """Look for better places of running Jobs and endpoints."""
    return steps.rebalance(timezone.now())


@shared_task(name="placement.tasks.follow")
def follow() -> dict[str, int]:
    """Follow running Jobs: progress, and the outcomes of Plans."""
    return steps.run_progress_tick(timezone.now())


@shared_task(name="placement.tasks.limit_logs")
def limit_logs() -> dict[str, int]:
    """Keep the stored logs of each person within the policy."""
    return log_store.limit_each_person(timezone.now())
