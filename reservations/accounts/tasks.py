"""Tasks that pages about accounts queue for a worker."""

from celery import shared_task
from django.utils import timezone

from reservations.accounts import invitation_mail
from reservations.accounts.passwords import password_mail


@shared_task(name="reservations.tasks.invite")  # type: ignore[untyped-decorator]
def invite(user_ids: list[int], actor_id: int | None) -> int:
    """Invite people by mail. Links are created here, so none is in the queue."""
    return invitation_mail.send(
        user_ids=user_ids, actor_id=actor_id, now=timezone.now()
    )


@shared_task(name="reservations.tasks.mail_password_link")  # type: ignore[untyped-decorator]
def mail_password_link(address: str) -> int:
    """Mail links to a new password. Links are created here, so none is in the queue."""
    return password_mail.send_links(address=address, now=timezone.now())


@shared_task(name="reservations.tasks.mail_password_notice")  # type: ignore[untyped-decorator]
def mail_password_notice(user_pk: int) -> bool:
    """Tell a person by mail that their password was changed."""
    return password_mail.send_notice(user_pk=user_pk, now=timezone.now())
