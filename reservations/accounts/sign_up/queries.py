"""Whether people may sign up, and whose an address is."""

from django.conf import settings
from django.db.models import Q

from reservations.accounts import invitation_mail
from reservations.accounts.sign_up.rules import MailAddress, shown_domain
from reservations.models import SignUpDomain, User


def stored_domains() -> dict[str, SignUpDomain]:
    """Return the list of domains, by entry."""
    rows = SignUpDomain.objects.select_related("account")
    return {row.domain: row for row in rows}


def can_be_offered() -> bool:
    """Return whether the site has passwords, a mail server and an address."""
    return bool(settings.LOGIN_SETTINGS.passwords) and invitation_mail.possible()


def is_open() -> bool:
    """Return whether anybody may sign up."""
    return can_be_offered() and SignUpDomain.objects.exists()


def holder_of(address: MailAddress) -> User | None:
    """Return a person who has an address, or who signed up with it before.

    Only the owner of the mailbox learns it. The person is never signed in by it.
    """
    tagged = Q(
        email__istartswith=f"{address.local}+", email__iendswith=f"@{address.domain}"
    )
    has = Q(email__iexact=str(address)) | tagged | Q(sign_ups__address=str(address))
    # An admin or a provider may have stored the letters of another language.
    has |= Q(email__iexact=f"{address.local}@{shown_domain(address.domain)}")
    return User.objects.filter(has, erased_at=None).order_by("pk").first()
