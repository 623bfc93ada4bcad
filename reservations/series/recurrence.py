"""Local days and times of a Series of bookings, DST included. Pure.

Every occurrence begins at the same wall-clock time and lasts the same number of
seconds. When the clock jumps forward, a time that the day lacks is read with the offset
before the jump: 02:30 becomes 03:30 (RFC 5545, 3.3.5). When the clock goes back, a time
that comes twice means the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from itertools import islice
from zoneinfo import ZoneInfo

from dateutil.rrule import DAILY, WEEKLY, rrule

from reservations.rules.errors import Refusal
from reservations.rules.figures import date_text
from reservations.rules.window import DAY_SECONDS, Window, whole_second
from telemetry.protocol.sentences import sentence

LONGEST_DAYS = 366
MOST_TIMES = 366
MONDAY_TO_FRIDAY = range(5)


class Repeat(StrEnum):
    """The interval of a Series."""

    DAILY = "daily"
    WEEKDAYS = "weekdays"
    WEEKLY = "weekly"

    @property
    def words(self) -> str:
        """Return it for a sentence."""
        return {
            "daily": sentence("every day"),
            "weekdays": sentence("Monday to Friday"),
        }.get(self.value, sentence("every week"))


@dataclass(eq=False)
class SeriesInvalid(Refusal):
    """The repetition has a field that cannot be used."""

    code = "series-invalid"
    title = sentence("Not a series")
    field: str
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "The repetition’s “{field}” {why}.", field=self.field, why=self.why
        )


@dataclass(eq=False)
class SeriesConflict(Refusal):
    """Some days cannot be booked, and the request does not leave them out."""

    code = "series-conflict"
    title = sentence("Some days are refused")
    days: tuple[str, ...]
    of: int
    first_why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "{refused} of {of} days are refused, the first one {day}: "
            "{first_why} Nothing was booked. Skip the refused days, or "
            "change the time.",
            refused=len(self.days),
            of=self.of,
            day=self.days[0],
            first_why=self.first_why,
        )


PASSING = frozenset(
    {
        "beyond-horizon",
        "too-many-reservations",
        "too-many-flex",
        "quota-exceeded",
        "group-quota-exceeded",
        "pool-quota-exceeded",
    }
)
"""Codes of refusals that may disappear before the start."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The days and times of a Series.

    Attributes:
        until: the last possible local day. None: only ``times`` ends it.
        times: the greatest number of days.
    """

    repeat: Repeat
    first_day: date
    local_start: time
    zone: str
    duration_seconds: int
    until: date | None = None
    times: int | None = None

    def check(self) -> None:
        """Refuse a rule that never ends, never begins, or overlaps itself.

        Raises:
            SeriesInvalid: names the field.
        """
        if self.until is None and self.times is None:
            raise SeriesInvalid(
                field="until", why=sentence("or a number of times is needed")
            )
        if self.times is not None and not 1 <= self.times <= MOST_TIMES:
            raise SeriesInvalid(
                field="times",
                why=sentence("is not 1 to {most}", most=MOST_TIMES),
            )
        if self.until is not None and self.until < self.first_day:
            raise SeriesInvalid(field="until", why=sentence("is before the first day"))
        last = self.first_day + timedelta(days=LONGEST_DAYS)
        if self.until is not None and self.until > last:
            raise SeriesInvalid(
                field="until",
                why=sentence("is more than {longest} days ahead", longest=LONGEST_DAYS),
            )
        if self.repeat is not Repeat.WEEKLY and self.duration_seconds > DAY_SECONDS:
            raise SeriesInvalid(
                field="end", why=sentence("is after the next one's start")
            )
        if self.duration_seconds < 1:
            raise SeriesInvalid(field="end", why=sentence("is not after the start"))
        if next(self.days(), None) is None:
            raise SeriesInvalid(field="until", why=sentence("has no day left"))

    def days(self) -> Iterator[date]:
        """Yield its local days in order, at most a year of them."""
        last = self.first_day + timedelta(days=LONGEST_DAYS)
        found = rrule(
            WEEKLY if self.repeat is Repeat.WEEKLY else DAILY,
            dtstart=datetime.combine(self.first_day, time()),
            until=datetime.combine(min(last, self.until or last), time()),
            byweekday=MONDAY_TO_FRIDAY if self.repeat is Repeat.WEEKDAYS else None,
        )
        return (at.date() for at in islice(found, self.times))

    def window(self, day: date) -> Window:
        """Return the Window of one local day, in UTC."""
        local = datetime.combine(day, self.local_start, ZoneInfo(self.zone))
        start = local.astimezone(UTC)
        return Window(start, start + timedelta(seconds=self.duration_seconds))

    @property
    def words(self) -> str:
        """Return "every week at 09:00, 4 times"."""
        end = (
            sentence("{times} times", times=self.times)
            if self.times or self.until is None
            else sentence("until {until}", until=date_text(self.until))
        )
        return sentence(
            "{words} at {local_start}, {end}",
            words=self.repeat.words,
            local_start=f"{self.local_start:%H:%M}",
            end=end,
        )


def rule_from(
    *,
    repeat: str,
    start: datetime,
    end: datetime,
    zone: str,
    until: date | None,
    times: int | None,
) -> Rule:
    """Return the checked Rule whose first occurrence was drawn on the calendar.

    Raises:
        SeriesInvalid.
    """
    begin = whole_second(start)
    local = begin.astimezone(ZoneInfo(zone))
    try:
        how = Repeat(repeat)
    except ValueError as error:
        raise SeriesInvalid(
            field="repeat", why=sentence("is not a known value")
        ) from error
    rule = Rule(
        repeat=how,
        first_day=local.date(),
        local_start=local.time(),
        zone=zone,
        duration_seconds=int((whole_second(end) - begin).total_seconds()),
        until=until,
        times=times,
    )
    rule.check()
    return rule
