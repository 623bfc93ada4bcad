"""A User's channels besides the page, and the deliveries that they queue."""

from datetime import datetime

from django.utils import timezone

from reservations.models import Delivery, GroupChat, Notice, NoticeSettings, User
from reservations.notifications import mail
from reservations.notifications.delivery_rules import (
    channels_of,
    quiet_until,
)
from reservations.notifications.reader_locale import zone_of
from reservations.notifications.text.notice_forms import form_of

MAIL, WEBHOOK = Delivery.Channel.MAIL, Delivery.Channel.WEBHOOK
GROUP = Delivery.Channel.GROUP


def settings_of(user: User) -> NoticeSettings:
    """Return a User's channels, or unsaved defaults."""
    found = NoticeSettings.objects.filter(user=user).first()
    return found or NoticeSettings(user=user)


def open_channels(user: User, how: NoticeSettings) -> set[str]:
    """Return the channels that can reach this User now."""
    found: set[str] = set()
    if user.email and mail.configured():
        found.add(MAIL)
    if how.webhook_url and how.webhook_disabled_at is None:
        found.add(WEBHOOK)
    return found if user.is_active else set()


def muted(how: NoticeSettings, at: datetime) -> bool:
    """Return whether only the page may notify at that time."""
    return how.muted_until is not None and how.muted_until > at


def wanted_channels(kind: str, how: NoticeSettings) -> tuple[str, ...]:
    """Return the channels besides the page that a User wants for a kind."""
    return channels_of(kind, how.chosen)


def after_quiet(how: NoticeSettings, at: datetime) -> datetime:
    """Return the first instant from then on that is not in quiet hours."""
    zone = zone_of(how.user.time_zone) or timezone.get_default_timezone()
    end = quiet_until(at, begin=how.quiet_from, end=how.quiet_until, zone=zone)
    return at if end is None else end


def chat_of(notice: Notice) -> GroupChat | None:
    """Return the chat of the group that a Notice concerns, if it is on.

    This is the group that pays for the booking, or that sends a test message.
    """
    if notice.kind == Notice.Kind.TRIAL:
        account_pk = notice.detail.get("group")
    elif form_of(notice.kind).to_group and notice.reservation is not None:
        account_pk = notice.reservation.membership.account_id
    else:
        return None
    chats = GroupChat.objects.select_related("account")
    return chats.filter(account_id=account_pk, webhook_disabled_at=None).first()


def queue(notice: Notice, *, now: datetime) -> None:
    """Queue the deliveries of a new Notice, inside its transaction."""
    if chat_of(notice) is not None:
        Delivery.objects.create(notice=notice, channel=GROUP, next_at=now)
    if notice.kind == Notice.Kind.TRIAL and "group" in notice.detail:
        return
    how = settings_of(notice.user)
    if muted(how, now):
        return
    chosen = set(wanted_channels(notice.kind, how)) & open_channels(notice.user, how)
    at = after_quiet(how, now)
    Delivery.objects.bulk_create(
        Delivery(notice=notice, channel=channel, next_at=at)
        for channel in sorted(chosen)
    )
