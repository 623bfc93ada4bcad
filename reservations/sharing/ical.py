"""A calendar as text (RFC 5545): enough of it to be subscribed to. Pure.

Lines end in CR LF and are folded at 75 octets, never inside a character. No names
and no free text leave the site this way: whoever has the address can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

MOST_OCTETS = 75
_STAMP = "%Y%m%dT%H%M%SZ"
_ESCAPES = str.maketrans({"\\": "\\\\", ";": "\\;", ",": "\\,", "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class CalendarEvent:
    """One Reservation of a calendar.

    Attributes:
        uid: the same for ever, and nobody else's.
        sequence: grows with every change.
        tentative: it may still be taken.
    """

    uid: str
    start: datetime
    end: datetime
    summary: str
    location: str
    changed_at: datetime
    sequence: int = 0
    tentative: bool = False


def calendar_text(events: Iterable[CalendarEvent], *, name: str) -> str:
    """Return a whole calendar object."""
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//GPU Portal//calendar//EN",
        "METHOD:PUBLISH",
        f"X-WR-CALNAME:{_text(name)}",
        "REFRESH-INTERVAL;VALUE=DURATION:PT15M",
        *(line for event in events for line in _event(event)),
        "END:VCALENDAR",
    ]
    return "".join(part for line in lines for part in folded(line))


def _event(event: CalendarEvent) -> Iterator[str]:
    yield "BEGIN:VEVENT"
    yield f"UID:{_text(event.uid)}"
    yield f"DTSTAMP:{_stamp(event.changed_at)}"
    yield f"DTSTART:{_stamp(event.start)}"
    yield f"DTEND:{_stamp(event.end)}"
    yield f"SEQUENCE:{event.sequence}"
    yield f"SUMMARY:{_text(event.summary)}"
    yield f"LOCATION:{_text(event.location)}"
    yield f"STATUS:{'TENTATIVE' if event.tentative else 'CONFIRMED'}"
    yield "TRANSP:TRANSPARENT"
    yield "END:VEVENT"


def folded(line: str) -> Iterator[str]:
    """Yield a content line in pieces of at most 75 octets, each with its CR LF.

    A piece that goes on begins with a space, which counts (RFC 5545, 3.1).
    """
    piece, size = "", 0
    for char in line:
        octets = len(char.encode())
        if size + octets > MOST_OCTETS:
            yield piece + "\r\n"
            piece, size = " ", 1
        piece += char
        size += octets
    yield piece + "\r\n"


def _text(value: str) -> str:
    """Escape a TEXT value (RFC 5545, 3.3.11); other controls are left out."""
    kept = "".join(c for c in value if c == "\n" or c.isprintable())
    return kept.translate(_ESCAPES)


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime(_STAMP)
