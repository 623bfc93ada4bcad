"""Tasks that pages about accounts queue for a worker."""

import logging
from typing import Any

from celery import shared_task
from django.utils import timezone
from kombu.exceptions import OperationalError

from reservations.accounts import invitation_mail
from reservations.accounts.passwords import password_mail
from reservations.accounts.sign_up import sign_up_mail

log = logging.getLogger(__name__)


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


@shared_task(name="reservations.tasks.mail_sign_up")  # type: ignore[untyped-decorator]
def mail_sign_up(address: str, language: str) -> bool:
    """Mail a link to sign up. It is created here, so none is in the queue."""
    return sign_up_mail.send(typed=address, language=language, now=timezone.now())


@shared_task(name="reservations.tasks.mail_password_notice")  # type: ignore[untyped-decorator]
def mail_password_notice(user_pk: int) -> bool:
    """Tell a person by mail that their password was changed."""
    return password_mail.send_notice(user_pk=user_pk, now=timezone.now())


@shared_task(name="reservations.tasks.mail_lock_notice")  # type: ignore[untyped-decorator]
def mail_lock_notice(user_pk: int) -> bool:
    """Tell a person by mail that wrong codes locked their authenticator app."""
    return password_mail.send_lock_notice(user_pk=user_pk, now=timezone.now())


@shared_task(name="reservations.tasks.mail_address_notice")  # type: ignore[untyped-decorator]
def mail_address_notice(user_pk: int, address: str) -> bool:
    """Tell a person at their previous address that it was changed."""
    return password_mail.send_address_notice(
        user_pk=user_pk, address=address, now=timezone.now()
    )


def queue_notice(task: Any, *values: Any) -> None:
    """Queue a mail that only tells. Without the broker there is none."""
    try:
        task.delay(*values)
    except OperationalError:
        log.warning("no mail to user %s: no broker", values[0])
