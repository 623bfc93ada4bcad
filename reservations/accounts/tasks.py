"""Tasks that pages about accounts queue for a worker."""

from celery import shared_task
from django.utils import timezone

from reservations.accounts import invitation_mail


@shared_task(name="reservations.tasks.invite")  # type: ignore[untyped-decorator]
def invite(user_ids: list[int], actor_id: int | None) -> int:
    """Invite people by mail. Links are created here, so none is in the queue."""
    return invitation_mail.send(
        user_ids=user_ids, actor_id=actor_id, now=timezone.now()
    )
