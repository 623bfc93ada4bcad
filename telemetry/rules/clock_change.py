"""Clock times around the change to and from summer time."""

from datetime import UTC, datetime, timedelta, tzinfo

MINUTE = timedelta(minutes=1)


def occurs(typed: datetime, zone: tzinfo) -> bool:
    """Return whether a naive clock time exists in a zone.

    >>> from zoneinfo import ZoneInfo
    >>> berlin = ZoneInfo("Europe/Berlin")
    >>> occurs(datetime(2027, 3, 28, 2, 30), berlin)
    False
    >>> occurs(datetime(2026, 10, 25, 2, 30), berlin)
    True
    """
    there = typed.replace(tzinfo=zone).astimezone(UTC).astimezone(zone)
    return there.replace(tzinfo=None, fold=0) == typed.replace(fold=0)


def nearest_clock_times(typed: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """Return the last whole minute before a missing clock time, and the first after.

    Cost: a step for each minute that the clock skips, a day of minutes at most.

    >>> from zoneinfo import ZoneInfo
    >>> berlin = ZoneInfo("Europe/Berlin")
    >>> found = nearest_clock_times(datetime(2027, 3, 28, 2, 30), berlin)
    >>> [f"{at:%H:%M}" for at in found]
    ['01:59', '03:00']
    """
    before = after = typed.replace(second=0, microsecond=0)
    while not occurs(before, zone):
        before -= MINUTE
    while not occurs(after, zone):
        after += MINUTE
    return before, after
