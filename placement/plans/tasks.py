"""Tasks that pages of plans queue for a worker."""

from celery import shared_task
from django.utils import timezone

from placement.plans.refinement import make_next_refinement


@shared_task(name="placement.tasks.refine")
def refine(refinement_id: int) -> str:
    """Compute the next Refinement. It takes seconds, so it has its own queue
    (settings).
    """
    return make_next_refinement(refinement_id=refinement_id, clock=timezone.now)
