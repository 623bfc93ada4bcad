"""Invitations by mail. Links are made and sent in one step, so none is stored."""

import logging
from collections.abc import Sequence
from datetime import datetime

from django.conf import settings
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext

from reservations.accounts import invitations
from reservations.models import Invitation, User
from reservations.notifications import mail as mailing
from reservations.notifications.reader_locale import with_language_of
from reservations.rules.figures import moment_text
from reservations.store.audit_log import audit_act
from telemetry.web.translation import translated

PER_TASK = 5
"""People per task: a slow mail server must not block a worker for long."""
log = logging.getLogger(__name__)


def possible() -> bool:
    """Return whether the site can mail links: it has a mail server and an address."""
    return mailing.configured() and bool(settings.PORTAL_URL)


def link_of(text: str, base: str) -> str:
    """Return the address of a link."""
    return base.rstrip("/") + reverse("welcome", args=[text])


def send(*, user_ids: Sequence[int], actor_id: int | None, now: datetime) -> int:
    """Invite these people by mail. Return how many mails the server accepted.

    The link of a mail that was not accepted ends at once, so the operator sees its
    person as not invited.
    """
    actor = User.objects.filter(pk=actor_id or 0).first()
    sent = 0
    for user, text in invitations.invite(user_ids=user_ids, actor=actor, now=now):
        row = Invitation.objects.get(user=user, used_at=None)
        until = moment_text(row.expires_at, timezone.get_current_timezone())
        try:
            if not user.email:
                raise mailing.MailFailed("there is no mail address", final=True)
            with with_language_of(user):
                subject, mail = _mail_text(user, text, until)
            mailing.send(
                to=user.email,
                subject=subject,
                text=mail,
                message_id=f"invitation-{row.pk}",
            )
            sent += 1
        except mailing.MailFailed as error:
            invitations.revoke(invitation_ids=[row.pk])
            log.warning("user %s is not invited by mail: %s", user.pk, error.why)
            audit_act(
                verb="invitation.mail-failed",
                subject=f"user:{user.pk}",
                actor=actor,
                now=now,
            )
    return sent


def _mail_text(user: User, text: str, until: str) -> tuple[str, str]:
    """Return (subject, text) of the mail, in the active language."""
    words = gettext(
        "You have a new account at the GPU Portal. Your user name is %(name)s.\n\n"
        "Choose your password here. The link works once, until %(until)s:\n"
        "%(link)s\n\n"
        "Anyone who has this link can choose the password. Keep it private.\n"
    )
    values = {
        "name": user.username,
        "until": translated(until),
        "link": link_of(text, settings.PORTAL_URL),
    }
    return gettext("Your account at the GPU Portal"), words % values
