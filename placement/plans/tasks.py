"""What pages of plans queue for a worker."""

from celery import shared_task
from django.utils import timezone

from placement.plans.refinement import follow_in_turn


@shared_task(name="placement.tasks.refine")
def refine(refinement_id: int) -> str:
    """Follow one Refinement: whose turn it is. Seconds: on its own queue (settings)."""
    return follow_in_turn(refinement_id=refinement_id, clock=timezone.now)
