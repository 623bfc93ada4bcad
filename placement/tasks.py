"""What beat asks for every second, and what pages ask for."""

from celery import shared_task
from django.utils import timezone

from placement import logs
from placement.services import looking, ticking
from placement.services.following import follow as follow_jobs
from placement.services.refining import follow_in_turn
from placement.services.serve_moving import tick as move_served


@shared_task(name="placement.tasks.tick")
def tick() -> dict[str, int]:
    """Run the tick of Jobs (see ``services.ticking`` for its steps)."""
    return ticking.tick(timezone.now())


@shared_task(name="placement.tasks.look_again")
def look_again() -> dict[str, int]:
    """Look again at running Jobs (see ``services.looking`` and ``serve_moving``)."""
    now = timezone.now()
    return looking.look_again(now) | move_served(now)


@shared_task(name="placement.tasks.follow")
def follow() -> dict[str, int]:
    """Follow running Jobs: progress, what came of plans (``services.following``)."""
    return follow_jobs(timezone.now())


@shared_task(name="placement.tasks.limit_logs")
def limit_logs() -> dict[str, int]:
    """Keep each person's stored logs within the policy (``logs.keep_within``)."""
    return logs.keep_within(timezone.now())


@shared_task(name="placement.tasks.refine")
def refine(refinement_id: int) -> str:
    """Follow one Refinement: whose turn it is. Seconds: on its own queue (settings)."""
    return follow_in_turn(refinement_id=refinement_id, clock=timezone.now)
