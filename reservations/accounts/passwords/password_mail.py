"""Mails about sign-ins: a link to a new password, and news that a person should know.

The news are that the password or the mail address was changed, and that wrong codes
locked the authenticator app.

The link is Django's: a signature over the password, the last sign-in and the time. So
it works once, ends with the next sign-in, and no row stores it.
"""

import logging
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.forms import PasswordResetForm
from django.contrib.auth.tokens import default_token_generator
from django.db import transaction
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from django.utils.translation import gettext, gettext_lazy

from reservations.accounts import invitation_mail
from reservations.accounts.second_factors.rules import LOCKED
from reservations.models import AuditEntry, User
from reservations.notifications import mail
from reservations.notifications.reader_locale import with_language_of
from reservations.rules.window import unix
from reservations.store.audit_log import audit_act

MAILED = "password.reset-mailed"
MOST_MAILS = 3
WINDOW = timedelta(hours=1)
"""At most ``MOST_MAILS`` links go to a person within this time."""
log = logging.getLogger(__name__)


def possible() -> bool:
    """Return whether people can have a link to a new password by mail."""
    return bool(settings.LOGIN_SETTINGS.passwords) and invitation_mail.possible()


def send_links(*, address: str, now: datetime) -> int:
    """Mail a link to every person with an address who has a password.

    Nothing is sent to people who were switched off, who sign in with an identity
    provider only, or who got ``MOST_MAILS`` links within ``WINDOW``.

    Returns:
        How many mails the server accepted.
    """
    sent = 0
    for found in PasswordResetForm().get_users(address):
        user = User.objects.get(pk=found.pk)
        if not _may_mail(user, now):
            continue
        link = reverse(
            "password-reset-choose",
            args=[
                urlsafe_base64_encode(force_bytes(user.pk)),
                default_token_generator.make_token(user),
            ],
        )
        with with_language_of(user):
            words = gettext(
                "A new password was requested for the user name %(user)s at the GPU "
                "Portal.\n\nChoose it here. The link works once, for "
                "%(minutes)s minutes:\n%(link)s\n\nIf you did not request it, do "
                "nothing. Your password stays as it is.\n"
            )
            text = words % {
                "user": user.username,
                "minutes": settings.PASSWORD_RESET_TIMEOUT // 60,
                "link": settings.PORTAL_URL + link,
            }
            subject = gettext("A new password for the GPU Portal")
        sent += _send(user, subject, text, f"reset-{user.pk}-{unix(now)}", now)
    return sent


def send_notice(*, user_pk: int, now: datetime) -> bool:
    """Tell a person that their password was changed. Return whether a mail was sent."""
    return _tell(
        user_pk,
        "password",
        gettext_lazy("Your password for the GPU Portal was changed"),
        gettext_lazy(
            "The password of the user name %(user)s at the GPU Portal was changed. All "
            "browsers were signed out.\n\nIf you did not do this, tell the lab admin "
            "at once.\n"
        ),
        now,
    )


def send_lock_notice(*, user_pk: int, now: datetime) -> bool:
    """Tell a person that wrong codes locked their authenticator app."""
    return _tell(
        user_pk,
        "locked",
        gettext_lazy("Wrong codes for your sign-in at the GPU Portal"),
        gettext_lazy(
            "Somebody entered wrong codes for the user name %(user)s at the GPU "
            "Portal. The authenticator app is locked for %(minutes)s minutes. A "
            "passkey or a recovery code still works.\n\nIf this was not you, somebody "
            "knows your password. Change it, and tell the lab admin.\n"
        ),
        now,
    )


def send_address_notice(*, user_pk: int, address: str, now: datetime) -> bool:
    """Tell a person at their previous address that the lab admin changed it."""
    return bool(address) and _tell(
        user_pk,
        "address",
        gettext_lazy("Your mail address at the GPU Portal was changed"),
        gettext_lazy(
            "The lab admin changed the mail address of the user name %(user)s at the "
            "GPU Portal. Mail no longer goes to this address.\n\nIf you did not ask "
            "for it, tell the lab admin at once.\n"
        ),
        now,
        to=address,
    )


def _tell(
    user_pk: int, about: str, subject: Any, text: Any, now: datetime, *, to: str = ""
) -> bool:
    """Mail news in a person's language, if they have an address."""
    user = User.objects.filter(pk=user_pk, erased_at=None).first()
    if user is None or not (to or user.email) or not mail.configured():
        return False
    with with_language_of(user):
        values = {"user": user.username, "minutes": LOCKED.seconds // 60}
        return _send(
            user, str(subject), text % values, f"{about}-{user.pk}-{unix(now)}", now, to
        )


def _may_mail(user: User, now: datetime) -> bool:
    """Count a link, unless the person has got enough of them. One at a time."""
    with transaction.atomic(durable=True):
        people = User.objects.select_for_update(no_key=True, of=("self",))
        if people.filter(pk=user.pk, erased_at=None).first() is None:
            return False
        rows = AuditEntry.objects.filter(
            verb=MAILED, subject=f"user:{user.pk}", at__gt=now - WINDOW
        )
        if rows.count() >= MOST_MAILS:
            return False
        audit_act(verb=MAILED, subject=f"user:{user.pk}", actor=None, now=now)
    return True


def _send(
    user: User,
    subject: str,
    text: str,
    message_id: str,
    now: datetime,
    to: str = "",
) -> bool:
    try:
        mail.send(
            to=to or user.email, subject=subject, text=text, message_id=message_id
        )
    except mail.MailFailed as error:
        log.warning("no mail about the sign-in of user %s: %s", user.pk, error.why)
        audit_act(
            verb="password.mail-failed",
            subject=f"user:{user.pk}",
            actor=None,
            now=now,
            reason=error.why,
        )
        return False
    return True
