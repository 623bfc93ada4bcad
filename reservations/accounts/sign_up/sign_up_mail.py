"""The mail with which a visitor proves an address."""

import logging
from datetime import datetime

from django.conf import settings
from django.urls import reverse
from django.utils import translation
from django.utils.translation import gettext

from reservations.accounts.sign_up import service
from reservations.accounts.sign_up.queries import can_be_offered, holder_of
from reservations.accounts.sign_up.rules import (
    LINK_LIFE,
    AddressInvalid,
    read_address,
)
from reservations.models import SignUp, User
from reservations.notifications import mail
from reservations.notifications.reader_locale import with_language_of

log = logging.getLogger(__name__)


def send(*, typed: str, language: str, now: datetime) -> bool:
    """Mail a link to an address, or that it has an account. Return whether it was sent.

    The mail has nothing that the visitor typed, so it carries no message of theirs.

    Args:
        language: of the page on which the address was typed.
    """
    try:
        address = read_address(typed)
    except AddressInvalid:
        return False
    made = service.make_link(address, now=now) if can_be_offered() else None
    if made is None:
        return False
    row, link = made
    holder = None if link else holder_of(address)
    if holder is not None:
        with with_language_of(holder):
            subject, text = _known_text(holder)
    else:
        known = language in dict(settings.LANGUAGES)
        with translation.override(language if known else settings.LANGUAGE_CODE):
            subject, text = _link_text(link)
    try:
        mail.send(
            to=row.address, subject=subject, text=text, message_id=f"sign-up-{row.pk}"
        )
    except mail.MailFailed as error:
        log.warning("no mail to sign up: %s", error.why)
        # It does not count, and its link is nowhere.
        SignUp.objects.filter(pk=row.pk).delete()
        return False
    return True


def _link_text(link: str) -> tuple[str, str]:
    words = gettext(
        "An account at the GPU Portal was requested for this mail address.\n\n"
        "If it was you, choose your password here. The link works once, for "
        "%(minutes)s minutes:\n%(link)s\n\nIf it was not you, do nothing. No account "
        "is made.\n"
    )
    values = {
        "minutes": LINK_LIFE.seconds // 60,
        "link": settings.PORTAL_URL.rstrip("/") + reverse("sign-up-link", args=[link]),
    }
    return gettext("Your account at the GPU Portal"), words % values


def _known_text(holder: User) -> tuple[str, str]:
    """Return the mail to a person who has an account already."""
    words = gettext(
        "An account at the GPU Portal was requested for this mail address. It has "
        "an account already. Its user name is %(user)s.\n\nSign in here, as "
        "before:\n%(link)s\n\nIf you do not know this account, contact the lab admin.\n"
    )
    values = {
        "user": holder.username,
        "link": settings.PORTAL_URL.rstrip("/") + reverse("login"),
    }
    return gettext("You have an account at the GPU Portal"), words % values
