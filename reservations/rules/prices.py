"""The cost of one second, by the hour of the week. Pure.

See docs/design/fair-booking.md#terms. Cost of holding = ``weight x Gpus x seconds``,
with an optional peak rate. A peak factor is a whole number, so that costs stay whole
weighted GPU-seconds and add up (docs/design/fair-booking.md#i8): the cost of a Window
is the sum, over its pieces of one rate, of ``weight x factor x seconds``. Peak hours
are hours of the local week, each from the full hour of the site's clock. When the clock
is set back an hour of the week comes twice, when it is set forward one is left out.

Cost: a day's peak spans are computed once and cached. Then O(days of the Window).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import chain, pairwise
from zoneinfo import ZoneInfo

from reservations.rules.window import DAY_SECONDS, Window, instant, unix

WEEK_HOURS = 168
MOST_FACTOR = 10
PEAK_LENGTH = 120
"""Characters of ``PeakHours.to_text`` at most."""
_STEP_SECONDS = 900
"""Clocks change at multiples of a quarter of an hour, and so do their UTC offsets."""


@dataclass(frozen=True, slots=True, order=True)
class PeakHours:
    """Hours of the local week in which every second counts ``factor`` times."""

    factor: int
    """2 to 10."""
    mask: int
    """Bit n: the n-th hour of the week. 0 is Monday 0:00 to 1:00."""
    zone: str
    """IANA name of the clock."""

    def __post_init__(self) -> None:
        """Validate the peak.

        Raises:
            ValueError: it covers no hour of the week, or its factor is not above one.
        """
        if not 2 <= self.factor <= MOST_FACTOR:
            raise ValueError(f"a peak factor of {self.factor}")
        if not 0 < self.mask < 1 << WEEK_HOURS:
            raise ValueError("peak hours that are no hours of the week")

    def to_text(self) -> str:
        """Return it as an Allocation keeps it.

        >>> PeakHours(2, 5, "UTC").to_text()
        '2 5 UTC'
        """
        return f"{self.factor} {self.mask:x} {self.zone}"

    def spans(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the peak time in [start, end), in Unix seconds, in order."""
        days = range(start // DAY_SECONDS, -(-end // DAY_SECONDS))
        found: list[tuple[int, int]] = []
        every = chain.from_iterable(_spans(self.mask, self.zone, day) for day in days)
        for low, high in every:
            low, high = max(low, start), min(high, end)
            if low >= high:
                continue
            if found and found[-1][1] == low:
                found[-1] = (found[-1][0], high)
            else:
                found.append((low, high))
        return found


@cache
def read_peak(text: str) -> PeakHours | None:
    """Return what ``PeakHours.to_text`` wrote; None for the empty text.

    Raises:
        ValueError: it did not write this.
    """
    if not text:
        return None
    factor, mask, zone = text.split(" ")
    return PeakHours(int(factor), int(mask, 16), zone)


@lru_cache(maxsize=8192)
def _spans(mask: int, zone: str, day: int) -> tuple[tuple[int, int], ...]:
    """Return the peak spans of one day of UTC, counted from 1970."""
    clock, begin = ZoneInfo(zone), day * DAY_SECONDS
    found: list[tuple[int, int]] = []
    for at in range(begin, begin + DAY_SECONDS, _STEP_SECONDS):
        local = datetime.fromtimestamp(at, UTC).astimezone(clock)
        if not mask >> (local.weekday() * 24 + local.hour) & 1:
            continue
        if found and found[-1][1] == at:
            found[-1] = (found[-1][0], at + _STEP_SECONDS)
        else:
            found.append((at, at + _STEP_SECONDS))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Tariff:
    """The cost of one second of some Gpus together, in weighted GPU-seconds."""

    flat: int = 0
    """At any time: the sum of the weights."""
    extras: tuple[tuple[PeakHours, int], ...] = ()
    """Added in these hours: weight x (factor - 1). In order, none is 0."""

    @classmethod
    def of(cls, weight: int, peak: PeakHours | None) -> Tariff:
        """Return the Tariff of one Gpu."""
        if peak is None:
            return cls(weight)
        return cls(weight, ((peak, weight * (peak.factor - 1)),))

    def __add__(self, other: Tariff) -> Tariff:
        """Return the cost of both together."""
        return self._with_extras(other, 1)

    def __sub__(self, other: Tariff) -> Tariff:
        """Return the cost without that of the other."""
        return self._with_extras(other, -1)

    def _with_extras(self, other: Tariff, sign: int) -> Tariff:
        extras = dict(self.extras)
        for peak, more in other.extras:
            extras[peak] = extras.get(peak, 0) + sign * more
        kept = sorted((peak, more) for peak, more in extras.items() if more)
        return Tariff(self.flat + sign * other.flat, tuple(kept))

    def lighter(self, weight: int) -> Tariff:
        """Return one Gpu's Tariff with another weight and the same peak hours."""
        extras = tuple((peak, weight * (peak.factor - 1)) for peak, _ in self.extras)
        return Tariff(weight, extras)

    def between(self, start: int, end: int) -> int:
        """Return the cost of [start, end), in Unix seconds. 0: it is empty."""
        if end <= start:
            return 0
        cost = self.flat * (end - start)
        for peak, more in self.extras:
            cost += more * sum(high - low for low, high in peak.spans(start, end))
        return cost

    def cost(self, window: Window) -> int:
        """Return the cost of holding over a Window, in weighted GPU-seconds."""
        return self.between(unix(window.start), unix(window.end))

    def pieces(self, window: Window) -> list[tuple[Window, int]]:
        """Return the Window cut into pieces of one rate each, in order.

        >>> from datetime import UTC, datetime
        >>> noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
        >>> at_one = PeakHours(3, 1 << 13, "UTC")
        >>> [(w.seconds, rate) for w, rate in
        ...  Tariff.of(10, at_one).pieces(Window.of(noon, seconds=10800))]
        [(3600, 10), (3600, 30), (3600, 10)]
        """
        start, end = unix(window.start), unix(window.end)
        spans = [
            (low, high, more)
            for peak, more in self.extras
            for low, high in peak.spans(start, end)
        ]
        if not spans:
            return [(window, self.flat)]
        bends = {start, end}
        bends.update(*((low, high) for low, high, _ in spans))
        return [
            (
                Window(instant(low), instant(high)),
                self.flat + sum(more for a, b, more in spans if a <= low and high <= b),
            )
            for low, high in pairwise(sorted(bends))
        ]


Rate = int | Tariff
"""Weighted Gpus: the cost of a second, constant or by the hour."""


def combined_tariff(tariffs: Iterable[Tariff]) -> Tariff:
    """Return the cost of several Gpus together."""
    found = list(tariffs)
    if not any(one.extras for one in found):
        return Tariff(sum(one.flat for one in found))
    return sum(found, start=Tariff())


def tariff_of(rate: Rate) -> Tariff:
    """Return a rate as a Tariff."""
    return Tariff(rate) if isinstance(rate, int) else rate


def cost_gpu_seconds(window: Window, *, rate: Rate) -> int:
    """Return the cost of holding ``rate`` weighted Gpus over a Window.

    >>> from datetime import UTC, datetime
    >>> hour = Window(datetime(2026, 3, 2, 9, tzinfo=UTC),
    ...               datetime(2026, 3, 2, 10, tzinfo=UTC))
    >>> cost_gpu_seconds(hour, rate=20)
    72000
    """
    return window.seconds * rate if isinstance(rate, int) else rate.cost(window)
