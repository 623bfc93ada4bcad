"""Peak hours as text, for operators to type and pages to show. Pure.

    Mon-Fri 9-18; Sat 10-14

Spans of whole hours on the site's clock, half-open, 0 to 24. A span that ends at or
before its start runs over midnight into the next day. Days: one, several or spans of
them, separated by commas. Without days it is every day.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from itertools import groupby

from reservations.rules.prices import WEEK_HOURS, PeakHours
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LONGEST_TEXT = 400
"""Characters: seven days with an hour on and off each."""
_DAY = "|".join(DAYS)
_PART = re.compile(
    rf"(?:(?P<days>(?:{_DAY})(?:\s*[-,]\s*(?:{_DAY}))*)\s+)?"
    r"(?P<hours>\d+(?::00)?\s*-\s*\d+(?::00)?(?:\s*,\s*\d+(?::00)?\s*-\s*\d+(?::00)?)*)",
    re.I,
)


class PeakTextInvalid(CodedError):
    """The text does not name hours of the week. The sentence names the wrong part."""

    code = "peak-hours-invalid"
    title = sentence("These peak hours cannot be read")
    status = HTTPStatus.UNPROCESSABLE_ENTITY


def read_hours(text: str) -> int:
    """Return the mask of a text; 0 for an empty one.

    Raises:
        PeakTextInvalid: with a sentence for the form.

    >>> read_hours("Mon 0-2, 23-1") == 1 | 2 | 1 << 23 | 1 << 24
    True
    """
    if len(text) > LONGEST_TEXT:
        raise PeakTextInvalid(
            sentence("At most {longest} characters.", longest=LONGEST_TEXT)
        )
    mask = 0
    for part in re.split(r"[;\n]", text.replace("–", "-")):
        part = part.strip()
        if not part:
            continue
        found = _PART.fullmatch(part)
        if found is None:
            raise PeakTextInvalid(
                sentence(
                    "“{part}” is not understood: write days and whole hours, "
                    "as in “Mon-Fri 9-18; Sat 10-14”.",
                    part=part,
                )
            )
        for day in _days(found["days"]):
            for span in found["hours"].replace(":00", "").split(","):
                mask |= _hours_of_span(day, span)
    return mask


def _days(text: str | None) -> list[int]:
    if text is None:
        return list(range(7))
    found = []
    for part in re.sub(r"\s", "", text).split(","):
        first, *last = (DAYS.index(name.capitalize()) for name in part.split("-"))
        if len(last) > 1:
            raise PeakTextInvalid(
                sentence(
                    "“{part}” has more than two hours. Write a span as 9-18.", part=part
                )
            )
        count = (last[0] - first) % 7 if last else 0
        found += [(first + more) % 7 for more in range(count + 1)]
    return found


def _hours_of_span(day: int, text: str) -> int:
    first, last = (int(number) for number in text.split("-"))
    if first > 23 or last > 24:
        raise PeakTextInvalid(
            sentence("“{text}”: hours go from 0 to 24.", text=text.strip())
        )
    if first == last:
        raise PeakTextInvalid(
            sentence("“{text}” is an empty span. All day is 0-24.", text=text.strip())
        )
    count = (last - first) % 24 or 24
    hours = (day * 24 + first + more for more in range(count))
    return sum(1 << hour % WEEK_HOURS for hour in hours)


def hours_text(mask: int) -> str:
    """Return the text of a mask, with equal days joined. ``read_hours`` reads it.

    >>> hours_text(read_hours("sat,mon-fri 9-18"))
    'Mon-Sat 9-18'
    """
    days = [_spans_of(mask >> 24 * day & 0xFFFFFF) for day in range(7)]
    parts = []
    for spans, group in groupby(range(7), key=lambda day: days[day]):
        same = list(group)
        if spans:
            ends = {DAYS[same[0]]: None, DAYS[same[-1]]: None}
            parts.append(f"{'-'.join(ends)} {spans}")
    return "; ".join(parts)


def _spans_of(hours: int) -> str:
    found: list[list[int]] = []
    for hour in range(24):
        if not hours >> hour & 1:
            continue
        if found and found[-1][1] == hour:
            found[-1][1] = hour + 1
        else:
            found.append([hour, hour + 1])
    return ", ".join(f"{first}-{last}" for first, last in found)


def peak_text(peak: PeakHours | None) -> str:
    """Say when a Pool costs more.

    >>> peak_text(PeakHours(2, read_hours("Sat 10-14"), "Europe/Berlin"))
    '2 times in Sat 10-14 (Europe/Berlin)'
    """
    if peak is None:
        return sentence("none")
    return sentence(
        "{factor} times in {hours} ({zone})",
        factor=peak.factor,
        hours=hours_text(peak.mask),
        zone=peak.zone,
    )


_WORDS = re.compile(r"(\d+) times in (.+) \([^()]*\)")


def read_peak_text(text: str) -> tuple[int, str]:
    """Return the factor and the hours that ``peak_text`` wrote to the audit log.

    >>> read_peak_text("2 times in Sat 10-14 (Europe/Berlin)"), read_peak_text("none")
    ((2, 'Sat 10-14'), (1, ''))
    """
    found = _WORDS.fullmatch(text)
    return (int(found[1]), found[2]) if found else (1, "")
