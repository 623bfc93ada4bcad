"""When a Notice may be sent by mail or webhook, and when it is retried.

Pure: the clock, the zone and a person's choices are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo

from reservations.notifications.text.notice_forms import CHANNELS, form_of
from telemetry.protocol.back_off import pause_after

RETRY_SECONDS = (60, 300, 1800, 7200, 21_600)
"""Waits between the attempts of one message. After the last one it has failed."""
MOST_TRIES = len(RETRY_SECONDS) + 1


def channels_of(kind: str, chosen: Mapping[str, object]) -> tuple[str, ...]:
    """Return by which channels a kind goes out beside the page.

    Args:
        chosen: {kind: [channel]} of one User; a kind that is missing has its default.

    >>> channels_of("released", {}), channels_of("job_done", {})
    (('mail', 'webhook'), ('webhook',))
    >>> channels_of("released", {"released": []}), channels_of("booking_started", {})
    ((), ())
    """
    wanted = chosen.get(kind)
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return tuple(channel for channel in CHANNELS if channel in wanted)
    return form_of(kind).channels


def quiet_until(
    at: datetime, *, begin: time | None, end: time | None, zone: tzinfo
) -> datetime | None:
    """Return when the quiet hours around an instant end. None outside of them.

    Times are those of the site's wall clock, past midnight if ``end`` is not after
    ``begin``. Equal times mean no quiet hours. If the change to summer time skips the
    end, the first instant after the change counts.

    >>> night = dict(begin=time(22), end=time(7), zone=UTC)
    >>> quiet_until(datetime(2026, 3, 2, 23, tzinfo=UTC), **night)
    datetime.datetime(2026, 3, 3, 7, 0, tzinfo=datetime.timezone.utc)
    >>> quiet_until(datetime(2026, 3, 2, 12, tzinfo=UTC), **night) is None
    True
    """
    if begin is None or end is None or begin == end:
        return None
    local = at.astimezone(zone)
    wall = local.time()
    if begin < end:
        inside, days = begin <= wall < end, 0
    else:
        inside, days = wall >= begin or wall < end, int(wall >= begin)
    if not inside:
        return None
    day = local.date() + timedelta(days=days)
    return datetime.combine(day, end, tzinfo=zone).astimezone(UTC)


def next_try(at: datetime, *, tries: int) -> datetime | None:
    """Return when to try again after this many attempts. None: no more."""
    if tries >= MOST_TRIES:
        return None
    return at + timedelta(seconds=pause_after(RETRY_SECONDS, tries))


def is_stale(kind: str, *, told_at: datetime, now: datetime) -> bool:
    """Return whether a Notice is too old to be useful."""
    limit = form_of(kind).stale_seconds
    return limit is not None and now - told_at > timedelta(seconds=limit)
