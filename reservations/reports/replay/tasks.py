"""Tasks that pages of replays queue for a worker."""

from celery import shared_task
from django.utils import timezone

from reservations.reports.replay import service as replays


@shared_task(name="reservations.tasks.replay_past")  # type: ignore[untyped-decorator]
def replay_past(pk: int) -> str:
    """Compare two policies on the site's own past. It ends after a time limit."""
    return replays.make_replay(pk=pk, clock=timezone.now)
