"""Make the account of a person who proved a mail address of a listed domain.

A mail address never finds a person who exists already. It can only refuse a second
account.
"""

import logging
import secrets
from collections.abc import Mapping
from datetime import datetime

from django.contrib.auth.password_validation import validate_password
from django.db import transaction
from django.views.decorators.debug import sensitive_variables

from reservations.accounts import group_members
from reservations.accounts.identities.queries import identity_sources
from reservations.accounts.sign_up.queries import holder_of, stored_domains
from reservations.accounts.sign_up.rules import (
    LINK_LIFE,
    MOST_MAILS,
    MOST_MAILS_IN_ALL,
    WINDOW,
    MailAddress,
    entry_of,
    read_address,
    user_names,
)
from reservations.accounts.tree.service import lock_tree
from reservations.models import Account, ApiToken, SignUp, SignUpDomain, User
from reservations.rules.errors import NotAllowed, NotFound
from reservations.rules.review import PreviewStale, mark_of
from reservations.store.audit_log import audit_act
from reservations.store.unix_logins import SYSTEM_ACCOUNTS, login_fault
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence

log = logging.getLogger(__name__)
LONGEST_USER_NAME = 150


def make_link(address: MailAddress, *, now: datetime) -> tuple[SignUp, str] | None:
    """Count a mail, and make the link that it has.

    Returns:
        The row, and the text of the link. The text is "" if the address has an account,
        which the mail says. None: no mail may be sent.
    """
    with transaction.atomic(durable=True):
        # So two requests at once cannot exceed the limits.
        lock_tree()
        if entry_of(address.domain, stored_domains()) is None:
            return None
        recent = SignUp.objects.filter(created_at__gt=now - WINDOW)
        if recent.filter(address=str(address)).count() >= MOST_MAILS:
            return None
        if recent.count() >= MOST_MAILS_IN_ALL:
            log.warning("no mail to sign up: %s an hour are sent", MOST_MAILS_IN_ALL)
            return None
        text = secrets.token_urlsafe(32)
        row = SignUp.objects.create(
            address=str(address),
            link_hash=ApiToken.hash_token(text),
            created_at=now,
            expires_at=now + LINK_LIFE,
        )
        known = holder_of(address) is not None
    return row, "" if known else text


def sign_up_of(text: str, *, now: datetime) -> SignUp:
    """Return the sign-up with the text of a link.

    Raises:
        NotFound: unknown, used or expired, or the domain was taken off the list.
    """
    found = SignUp.objects.filter(
        link_hash=ApiToken.hash_token(text), used_at=None, expires_at__gt=now
    ).first()
    if found is None or _entry_for(found) is None:
        raise NotFound(what=sentence("such link, or it is used or too old"))
    return found


def _entry_for(row: SignUp) -> SignUpDomain | None:
    return entry_of(row.address.rpartition("@")[2], stored_domains())


def next_user_name(address: MailAddress) -> str:
    """Return the user name that a new person with an address gets.

    Raises:
        NotAllowed: the address has an account, or other people have its user names.
    """
    if holder_of(address) is not None:
        raise NotAllowed(
            act=sentence(
                "make a second account: this mail address has one. Sign in instead, or "
                "contact the lab admin"
            )
        )
    names = user_names(address)
    # The first name may be the one that another person has at a provider. It would
    # keep them from signing in.
    for name in names[1:] if identity_sources() else names:
        made = User(username=name)
        if (
            len(name) <= LONGEST_USER_NAME
            and not SYSTEM_ACCOUNTS.fullmatch(name)
            and login_fault(made, ("username",)) is None
        ):
            return name
    raise NotAllowed(
        act=sentence(
            "make an account with this address: another person has its user name. "
            "Contact the lab admin"
        )
    )


@sensitive_variables("text", "password")
def accept(*, text: str, name: str, password: str, now: datetime) -> User:
    """Make the person of a link, who then is in the group of the domain.

    Args:
        name: for display.

    Raises:
        NotFound: see ``sign_up_of``.
        NotAllowed: see ``next_user_name``.
        ValidationError: the password is too weak.
    """
    with transaction.atomic(durable=True):
        lock_tree()
        row = sign_up_of(text, now=now)
        entry = _entry_for(row)
        assert entry is not None
        address = read_address(row.address)
        user = User(
            username=next_user_name(address),
            display_name=name,
            email=row.address,
            # It is the name of a mailbox and not of a Unix account.
            name_from_provider=True,
        )
        validate_password(password, user)
        user.set_password(password)
        user.save()
        row.used_at, row.user = now, user
        row.save(update_fields=["used_at", "user"])
        SignUp.objects.filter(address=row.address, used_at=None).delete()
        audit_act(
            verb="sign-up.made",
            subject=f"user:{user.pk}",
            actor=user,
            now=now,
            domain=entry.domain,
        )
    _join(user, entry, now)
    return user


def _join(user: User, entry: SignUpDomain, now: datetime) -> None:
    """Add a new person to the group of the domain. A failure does not end the sign-up.

    Without a group the person signs in, and a head or the admin adds them.
    """
    account = entry.account
    if account is None or account.archived_at is not None:
        return
    try:
        group_members.admit(
            account=account,
            user=user,
            reason=sentence("signed up with a mail address of {domain}", domain=entry),
            now=now,
        )
    except CodedError as error:
        log.warning("user %s is not in %s: %s", user.pk, account.name, error)
        audit_act(
            verb="sign-up.group-failed",
            subject=f"user:{user.pk}",
            actor=None,
            now=now,
            account=account.pk,
            reason=str(error),
        )


def domains_mark(wanted: Mapping[str, int | None]) -> str:
    """Return the mark of a change from the stored list to another one."""
    return mark_of([_plain(stored_domains()), dict(wanted)])


def _plain(rows: Mapping[str, SignUpDomain]) -> dict[str, int | None]:
    return {entry: row.account_id for entry, row in rows.items()}


def save_domains(
    wanted: Mapping[str, int | None], *, mark: str, actor: User, now: datetime
) -> None:
    """Replace the list of domains. Links of a domain that was removed stop working.

    Args:
        wanted: the group that people join, by domain.
        mark: of the preview that was shown (``domains_mark``).

    Raises:
        PreviewStale: the list was changed since the preview.
    """
    with transaction.atomic(durable=True):
        lock_tree()
        if domains_mark(wanted) != mark:
            raise PreviewStale(
                why=sentence("The list was changed since this was shown. Check it.")
            )
        before = _plain(stored_domains())
        if before == dict(wanted):
            return
        SignUpDomain.objects.exclude(domain__in=wanted).delete()
        for domain, account_pk in wanted.items():
            SignUpDomain.objects.update_or_create(
                domain=domain, defaults={"account_id": account_pk}
            )
        names = dict(Account.objects.order_by().values_list("pk", "name"))
        audit_act(
            verb="sign-up.domains-changed",
            subject="site:sign-up",
            actor=actor,
            now=now,
            before={domain: names.get(pk or 0) for domain, pk in before.items()},
            after={domain: names.get(pk or 0) for domain, pk in wanted.items()},
        )
