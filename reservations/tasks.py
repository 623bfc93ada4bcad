"""What beat asks for every second."""

from celery import shared_task
from django.utils import timezone

from reservations import services


@shared_task(name="reservations.tasks.tick")  # type: ignore[untyped-decorator]
def tick() -> dict[str, int]:
    """Run the calendar's tick (see ``services.tick`` for its steps)."""
    return services.tick(timezone.now())
