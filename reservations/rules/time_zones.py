"""Time zones that a User can choose."""

from __future__ import annotations

from functools import cache
from zoneinfo import ZoneInfo, available_timezones


@cache
def zone_names() -> tuple[str, ...]:
    """Return the IANA names "Area/Place" and UTC, sorted."""
    areas = {
        *("Africa", "America", "Antarctica", "Asia", "Atlantic", "Australia"),
        *("Europe", "Indian", "Pacific"),
    }
    names = {name for name in available_timezones() if name.split("/")[0] in areas}
    return ("UTC", *sorted(names))


def zone_of(name: str) -> ZoneInfo | None:
    """Return a zone by its name; None for "" and for a name that is unknown.

    >>> zone_of("Europe/Berlin").key, zone_of(""), zone_of("Nowhere/Land")
    ('Europe/Berlin', None, None)
    """
    return ZoneInfo(name) if name in zone_names() else None
