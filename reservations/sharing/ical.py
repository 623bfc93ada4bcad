"""A calendar that other programs subscribe to (RFC 5545). Pure.

The feed has no names and no free text, because anyone with its address can read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from icalendar import Calendar, Event

REFRESH_EVERY = timedelta(minutes=15)


def calendar_text(events: Iterable[Event], *, name: str) -> bytes:
    """Return a whole calendar object in UTF-8."""
    calendar = Calendar()
    calendar.add("version", "2.0")
    calendar.add("prodid", "-//GPU Portal//calendar//EN")
    calendar.add("method", "PUBLISH")
    calendar.add("x-wr-calname", _without_control_characters(name))
    calendar.add("refresh-interval", REFRESH_EVERY, {"VALUE": "DURATION"})
    for event in events:
        calendar.add_component(event)
    text: bytes = calendar.to_ical()
    return text


def event_of(
    *,
    uid: str,
    start: datetime,
    end: datetime,
    summary: str,
    location: str,
    changed_at: datetime,
    sequence: int = 0,
    tentative: bool = False,
) -> Event:
    """Return the event of one Reservation.

    Args:
        uid: unique, and never changes.
        sequence: grows with every change.
        tentative: another booking may still take the GPUs.
    """
    event = Event()
    event.add("uid", _without_control_characters(uid))
    event.add("dtstamp", changed_at.astimezone(UTC))
    event.add("dtstart", start.astimezone(UTC))
    event.add("dtend", end.astimezone(UTC))
    event.add("sequence", sequence)
    event.add("summary", _without_control_characters(summary))
    event.add("location", _without_control_characters(location))
    event.add("status", "TENTATIVE" if tentative else "CONFIRMED")
    event.add("transp", "TRANSPARENT")
    return event


def _without_control_characters(value: str) -> str:
    """Remove control characters, which a TEXT value must not have (3.3.11)."""
    return "".join(c for c in value if c == "\n" or c.isprintable())
