"""A User's choices of mail and webhook notices."""

import secrets
from collections.abc import Collection, Mapping
from datetime import datetime, time

from django.db import transaction

from reservations.models import Notice, NoticeSettings, User
from reservations.notifications import webhook
from reservations.notifications.channels import settings_of
from reservations.notifications.delivery_rules import channels_of
from reservations.notifications.message_rendering import ALL_KINDS
from reservations.notifications.service import notify
from reservations.notifications.text.notice_forms import CHANNELS
from reservations.rules.errors import NotFound
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import sentence


def choose(
    *,
    user: User,
    chosen: Mapping[str, Collection[str]],
    quiet_from: time | None,
    quiet_until: time | None,
    now: datetime,
) -> NoticeSettings:
    """Store the channels of each kind, and the quiet hours.

    Args:
        chosen: {kind: channels}. A missing kind is sent by none.
    """
    kept = {
        kind: [channel for channel in CHANNELS if channel in chosen.get(kind, ())]
        for kind in Notice.Kind.values
    }
    differing = {
        kind: channels
        for kind, channels in kept.items()
        if tuple(channels) != channels_of(kind, {})
    }
    return _save_preferences(
        user,
        "notices.chosen",
        now,
        chosen=differing,
        quiet_from=quiet_from,
        quiet_until=quiet_until,
    )


def mute(*, user: User, until: datetime | None, now: datetime) -> NoticeSettings:
    """Send nothing but Notices on the page until then. None: no longer."""
    return _save_preferences(user, "notices.muted", now, muted_until=until)


def unsubscribe(*, user: User, kind: str, now: datetime) -> NoticeSettings:
    """End mails of a kind, or of all (``letters.ALL_KINDS``). Idempotent."""
    before = settings_of(user).chosen
    kinds = Notice.Kind.values if kind == ALL_KINDS else [Notice.Kind(kind).value]
    chosen = dict(before)
    for one in kinds:
        chosen[one] = [c for c in channels_of(one, before) if c != "mail"]
    return _save_preferences(user, "notices.unsubscribed", now, chosen=chosen)


def set_webhook(
    *,
    user: User,
    url: str,
    now: datetime,
    format_name: str = NoticeSettings.Format.PORTAL,
) -> str:
    """Store an address. Return its new secret, this once.

    Args:
        format_name: the format of its receiver. Chat services check no signature, so
            they have no secret and "" is returned.

    Raises:
        WebhookRefused: the portal does not call that address.
    """
    webhook.check(url)
    nonce = secrets.token_hex(16)
    _save_preferences(
        user,
        "notices.webhook-set",
        now,
        webhook_url=url,
        webhook_format=format_name,
        webhook_nonce=nonce,
        webhook_failures=0,
        webhook_disabled_at=None,
    )
    if format_name != NoticeSettings.Format.PORTAL:
        return ""
    return webhook.secret_of(user.pk, nonce)


def enable_webhook(*, user: User, now: datetime) -> NoticeSettings:
    """Switch a webhook on again after too many failures.

    Raises:
        NotFound: the User has no webhook.
    """
    if not settings_of(user).webhook_url:
        raise NotFound(what=sentence("webhook of yours"))
    return _save_preferences(
        user,
        "notices.webhook-on",
        now,
        webhook_failures=0,
        webhook_disabled_at=None,
    )


def drop_webhook(*, user: User, now: datetime) -> NoticeSettings:
    """Delete the address and its secret."""
    return _save_preferences(
        user,
        "notices.webhook-dropped",
        now,
        webhook_url="",
        webhook_format=NoticeSettings.Format.PORTAL,
        webhook_nonce="",
        webhook_failures=0,
        webhook_disabled_at=None,
    )


@transaction.atomic(durable=True)
def try_channels(*, user: User, now: datetime) -> bool:
    """Send a test by every open channel. False: less than a minute after the last one.

    It is a Notice like any other, so the test takes the same way as real ones.
    """
    told = notify(
        user=user,
        kind=Notice.Kind.TRIAL,
        detail={"url": "/me/notices/"},
        now=now,
        key=now.strftime("%Y-%m-%dT%H:%M"),
    )
    return told is not None


@transaction.atomic(durable=True)
def _save_preferences(
    user: User, verb: str, now: datetime, **fields: object
) -> NoticeSettings:
    kept, _ = NoticeSettings.objects.update_or_create(user=user, defaults=fields)
    audit_act(verb=verb, subject=f"user:{user.pk}", actor=user, now=now)
    return kept
