"""Fold the hours of many weeks into one, to show when the cluster is free.

An hour belongs to the weekday and hour of the local time at its begin, so that "Monday
09:00" is 09:00 in summer and in winter. When clocks are set back an hour counts twice,
and when they are set forward one is missing. Shares are relative to the counted hours,
so neither distorts the others. Hours without data are left out. An hour of the week
without any data is a gap and not "free".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from telemetry.protocol.sentences import Sentence, joined, sentence

HOUR_SECONDS = 3600
DAYS = 7
HOURS = 24
WEEK = DAYS * HOURS
DAY_NAMES = (
    *(sentence("Mon"), sentence("Tue"), sentence("Wed"), sentence("Thu")),
    *(sentence("Fri"), sentence("Sat"), sentence("Sun")),
)


@dataclass(frozen=True, slots=True)
class HourUse:
    """One hour of some Gpus: how much of it was used."""

    at: int
    """Unix seconds at which it began."""
    taken: float
    """Gpu time that was used, in any unit."""
    whole: float
    """All Gpu time of the hour, in the same unit; 0: nothing is known."""


@dataclass(frozen=True, slots=True)
class WeekHour:
    """One hour of the week."""

    day: int
    """0 is Monday."""
    hour: int
    free_ratio: float | None
    """Share that was free; None: unknown."""
    weeks: int
    """How many hours were counted."""

    @property
    def words(self) -> Sentence:
        """The hour in words: "Mon 09:00"."""
        return _hour_text(self.day, self.hour)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of consecutive hours of the week."""

    first: WeekHour
    last: WeekHour
    free_ratio: float

    @property
    def words(self) -> Sentence:
        """The stretch in words: "Sun 03:00 to 07:00". The second day is named if it
        differs."""
        end = (self.last.hour + 1) % HOURS
        day = (self.last.day + (1 if end == 0 else 0)) % DAYS
        until: str = f"{end:02}:00"
        if day != self.first.day and not (end == 0 and self.last.day == self.first.day):
            until = _hour_text(day, end)
        return sentence("{begin} to {end}", begin=self.first.words, end=until)


def _hour_text(day: int, hour: int) -> Sentence:
    return joined([DAY_NAMES[day], f"{hour:02}:00"])


def fold(hours: Iterable[HourUse], zone: tzinfo) -> list[WeekHour]:
    """Return the 168 hours of a week in a zone's local time, Monday 00:00 first."""
    taken, whole, counted = [0.0] * WEEK, [0.0] * WEEK, [0] * WEEK
    for hour in hours:
        if hour.whole <= 0:
            continue
        wall = datetime.fromtimestamp(hour.at, UTC).astimezone(zone)
        place = wall.weekday() * HOURS + wall.hour
        taken[place] += min(max(hour.taken, 0.0), hour.whole)
        whole[place] += hour.whole
        counted[place] += 1
    return [
        WeekHour(
            day=place // HOURS,
            hour=place % HOURS,
            free_ratio=1 - taken[place] / whole[place] if whole[place] else None,
            weeks=counted[place],
        )
        for place in range(WEEK)
    ]


def stretches(
    week: Sequence[WeekHour], *, hours: int, most: int, busiest: bool = False
) -> list[Stretch]:
    """Return the freest (or busiest) stretches of so many hours, without overlaps.

    A stretch may cross the end of the week. A stretch with a gap does not count.
    """
    found: list[tuple[float, int]] = []
    for start in range(len(week)):
        ratios = [week[(start + i) % WEEK].free_ratio for i in range(hours)]
        known = [ratio for ratio in ratios if ratio is not None]
        if len(known) == hours:
            found.append((sum(known) / hours, start))
    found.sort(key=lambda item: (item[0] if busiest else -item[0], item[1]))
    chosen: list[Stretch] = []
    used: set[int] = set()
    for ratio, start in found:
        places = {(start + i) % WEEK for i in range(hours)}
        if places & used:
            continue
        used |= places
        chosen.append(Stretch(week[start], week[(start + hours - 1) % WEEK], ratio))
        if len(chosen) == most:
            break
    return chosen
