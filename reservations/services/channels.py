"""How one User is told beside the page, and what that queues for a Notice."""

from datetime import datetime

from django.utils import timezone

from reservations import mailing
from reservations.domain.delivering import channels_of, quiet_until
from reservations.domain.time_zones import zone_of
from reservations.models import Delivery, Notice, NoticeSettings, User

MAIL, WEBHOOK = Delivery.Channel.MAIL, Delivery.Channel.WEBHOOK


def settings_of(user: User) -> NoticeSettings:
    """Return how a User wants to be told; unsaved defaults where nothing is kept."""
    found = NoticeSettings.objects.filter(user=user).first()
    return found or NoticeSettings(user=user)


def open_channels(user: User, how: NoticeSettings) -> set[str]:
    """Return the channels that lead anywhere for this User now."""
    found: set[str] = set()
    if user.email and mailing.configured():
        found.add(MAIL)
    if how.webhook_url and how.webhook_disabled_at is None:
        found.add(WEBHOOK)
    return found if user.is_active else set()


def muted(how: NoticeSettings, at: datetime) -> bool:
    """Say whether nothing but the page is wanted then."""
    return how.muted_until is not None and how.muted_until > at


def wanted(kind: str, how: NoticeSettings) -> tuple[str, ...]:
    """Return by which channels a kind is wanted beside the page."""
    return channels_of(kind, how.chosen)


def after_quiet(how: NoticeSettings, at: datetime) -> datetime:
    """Return the first instant from then on that is not quiet."""
    zone = zone_of(how.user.time_zone) or timezone.get_default_timezone()
    end = quiet_until(at, begin=how.quiet_from, end=how.quiet_until, zone=zone)
    return at if end is None else end


def queue(notice: Notice, *, now: datetime) -> None:
    """Write what is to go out of a fresh Notice; inside its transaction."""
    how = settings_of(notice.user)
    if muted(how, now):
        return
    chosen = set(wanted(notice.kind, how)) & open_channels(notice.user, how)
    at = after_quiet(how, now)
    Delivery.objects.bulk_create(
        Delivery(notice=notice, channel=channel, next_at=at)
        for channel in sorted(chosen)
    )
