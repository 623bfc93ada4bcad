"""The chat of a group, which its heads choose: notices of its bookings go there."""

import secrets
from datetime import datetime

from django.db import transaction

from reservations.models import Account, GroupChat, Notice, NoticeSettings, User
from reservations.notifications import webhook
from reservations.notifications.service import notify
from reservations.rules.errors import NotAllowed, NotFound
from reservations.store.account_tree import headed_accounts
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import sentence


def may_set_chat(
    user: User, account: Account, headed: frozenset[int] | None = None
) -> bool:
    """Return whether a User may choose the chat of an Account, as its head or operator.

    Args:
        headed: the Accounts that the User is head of. None: they are read.
    """
    if account.archived_at is not None:
        return False
    if user.is_operator or not user.is_active:
        return user.is_operator
    return account.pk in (headed_accounts(user) if headed is None else headed)


def set_chat(
    *, user: User, account_id: int, url: str, format_name: str, now: datetime
) -> str:
    """Store the address of a group's chat. Return its signing secret, this once.

    Chat services check no signature. For them there is no secret, and "" is returned.

    Raises:
        NotAllowed: the User may not choose it.
        WebhookRefused: the portal does not call that address.
    """
    account = _account_with_chat_right(user, account_id)
    webhook.check(url)
    nonce = secrets.token_hex(16)
    with transaction.atomic(durable=True):
        GroupChat.objects.update_or_create(
            account=account,
            defaults={
                "webhook_url": url,
                "webhook_format": NoticeSettings.Format(format_name),
                "webhook_nonce": nonce,
                "webhook_failures": 0,
                "webhook_disabled_at": None,
            },
        )
        _audit("group.chat-set", account, user, now)
    if format_name != NoticeSettings.Format.PORTAL:
        return ""
    return webhook.group_secret_of(account.pk, nonce)


@transaction.atomic(durable=True)
def enable_chat(*, user: User, account_id: int, now: datetime) -> None:
    """Switch a chat on again after too many failures.

    Raises:
        NotAllowed: the User does not head the group.
        NotFound: the group has no chat.
    """
    account = _account_with_chat_right(user, account_id)
    own = GroupChat.objects.filter(account=account)
    if not own.update(webhook_failures=0, webhook_disabled_at=None):
        raise NotFound(what=f"chat of {account}")
    _audit("group.chat-on", account, user, now)


@transaction.atomic(durable=True)
def drop_chat(*, user: User, account_id: int, now: datetime) -> None:
    """Delete the address and its secret.

    Raises:
        NotAllowed: the User may not choose it.
    """
    account = _account_with_chat_right(user, account_id)
    if GroupChat.objects.filter(account=account).delete()[0]:
        _audit("group.chat-dropped", account, user, now)


@transaction.atomic(durable=True)
def try_chat(*, user: User, account_id: int, now: datetime) -> bool:
    """Send a test message to the chat. False: less than a minute after the last one.

    Raises:
        NotAllowed: the User does not head the group.
        NotFound: the group has no active chat.
    """
    account = _account_with_chat_right(user, account_id)
    if not GroupChat.objects.filter(account=account, webhook_disabled_at=None).exists():
        raise NotFound(what=f"chat of {account}")
    told = notify(
        user=user,
        kind=Notice.Kind.TRIAL,
        detail={"url": f"/group/?account={account.pk}", "group": account.pk},
        now=now,
        key=f"group:{account.pk}:{now:%Y-%m-%dT%H:%M}",
    )
    return told is not None


def _account_with_chat_right(user: User, account_id: int) -> Account:
    account = Account.objects.filter(pk=account_id).first()
    if account is None or not may_set_chat(user, account):
        raise NotAllowed(act=sentence("choose the chat of this group"))
    return account


def _audit(verb: str, account: Account, user: User, now: datetime) -> None:
    audit_act(verb=verb, subject=f"account:{account.pk}", actor=user, now=now)
