"""The room of a quota in any rolling 7 days that touch a request.

See docs/design/fair-booking.md#terms, docs/design/fair-booking.md#rule-1. A request is
firm if, with it, every window of 7 x 24 h that touches it holds at most Q of firm cost.
The cost inside the window [t, t + 7 d) is piecewise linear in t and bends only where a
Spend enters or leaves it, so its maximum is at one of those t.

Cost: O(n log n) of the n Spends within 7 days of the request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from reservations.rules.prices import Rate, cost_gpu_seconds
from reservations.rules.window import WEEK_SECONDS, Window, instant, unix

PERMILLE = 1000


@dataclass(frozen=True, slots=True)
class Spend:
    """Firm cost, spread evenly from ``start`` to ``end`` (Unix seconds)."""

    start: int
    end: int
    rate_permille: int
    """Thousandths of weighted Gpus: weight x Gpus x 1000, times the part of the
    price that an hour given back late still costs."""
    pool_pk: int = 0
    """The Pool of its Gpus. 0: no Pool has a quota."""

    @classmethod
    def held(cls, window: Window, *, rate: int) -> Spend:
        """Return the cost of holding ``rate`` weighted Gpus over a Window."""
        return cls(unix(window.start), unix(window.end), rate * PERMILLE)


def spends_at(start: int, end: int, *, rate: Rate, pool_pk: int = 0) -> list[Spend]:
    """Return the cost from ``start`` to ``end`` (Unix seconds) as even parts.

    The flat rate covers all of it. Peak hours add to it.
    """
    if isinstance(rate, int):
        return [Spend(start, end, rate * PERMILLE, pool_pk)]
    return [
        Spend(start, end, rate.flat * PERMILLE, pool_pk),
        *(
            Spend(low, high, more * PERMILLE, pool_pk)
            for peak, more in rate.extras
            for low, high in peak.spans(start, end)
        ),
    ]


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """A quota of a Membership, or of an Account above it, and the cost that counts."""

    account: str
    """Name for people."""
    quota_gpu_seconds: int
    spends: tuple[Spend, ...]
    own: bool = True
    """Whether it is the requester's Membership. False: an Account on its path."""
    pool_pk: int = 0
    """Only cost on this Pool's Gpus counts. 0: on all Gpus."""
    pool: str = ""
    """Name of that Pool."""
    person: bool = False
    """Whether it counts all Memberships of one person."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The 7 days with the highest cost."""

    held_gpu_seconds: int
    """Rounded up, because a thousandth too much is too much."""
    start: datetime
    end: datetime


class SpendTotals:
    """Prefix sums of Spends, which answer every window."""

    def __init__(self, spends: Iterable[Spend]) -> None:
        bends: dict[int, int] = {}
        for spend in spends:
            bends[spend.start] = bends.get(spend.start, 0) + spend.rate_permille
            bends[spend.end] = bends.get(spend.end, 0) - spend.rate_permille
        self._bends = sorted(bends)
        self._rates = list(accumulate(bends[at] for at in self._bends))
        self._sums = [0]
        for place in range(len(self._bends) - 1):
            span = self._bends[place + 1] - self._bends[place]
            self._sums.append(self._sums[-1] + span * self._rates[place])

    def _until(self, at: int) -> int:
        """Return thousandths of weighted GPU-seconds spent before an instant."""
        place = bisect_right(self._bends, at) - 1
        if place < 0:
            return 0
        return self._sums[place] + self._rates[place] * (at - self._bends[place])

    def between(self, start: int, end: int) -> int:
        """Return thousandths of weighted GPU-seconds within [start, end)."""
        return self._until(end) - self._until(start)

    def peak(self, window: Window) -> Peak:
        """Return the fullest 7 days among those that touch the Window."""
        first = unix(window.start) - WEEK_SECONDS + 1
        last = unix(window.end) - 1
        starts = {first, last}
        for bend in self._bends:
            starts |= {bend, bend - WEEK_SECONDS}
        value, at = max(
            (self.between(t, t + WEEK_SECONDS), -t)
            for t in starts
            if first <= t <= last
        )
        held = -(-value // PERMILLE)
        return Peak(held, instant(-at), instant(-at + WEEK_SECONDS))


def peak_with(info: QuotaInfo, window: Window, *, rate: Rate) -> Peak:
    """Return the fullest 7 days that touch a request, the request included."""
    own = spends_at(unix(window.start), unix(window.end), rate=rate)
    return SpendTotals([*info.spends, *own]).peak(window)


def headroom_gpu_seconds(info: QuotaInfo, window: Window) -> int:
    """Return the headroom of the fullest 7 days that touch the Window.

    Negative if the quota was lowered below the held time.
    """
    return (
        info.quota_gpu_seconds - SpendTotals(info.spends).peak(window).held_gpu_seconds
    )


def fits(info: QuotaInfo, window: Window, *, rate: Rate) -> bool:
    """Return whether the request fits into the quota."""
    peak = peak_with(info, window, rate=rate)
    return peak.held_gpu_seconds <= info.quota_gpu_seconds


def fitting_gpu_seconds(
    infos: Sequence[QuotaInfo],
    window: Window,
    *,
    rate: Rate,
    grid_seconds: int,
    rates: Mapping[int, Rate] | None = None,
) -> int:
    """Return the cost of the longest beginning of a request that would fit.

    A longer request from the same start never has less cost in any window, so bisection
    over the grid finds it. 0: nothing fits from this start.

    Args:
        rates: by Pool, the weighted Gpus of the request.
    """
    of = rates or {}
    low, high = 0, window.seconds // grid_seconds
    while low < high:
        middle = (low + high + 1) // 2
        part = Window.of(window.start, seconds=middle * grid_seconds)
        if all(fits(i, part, rate=of.get(i.pool_pk, rate)) for i in infos):
            low = middle
        else:
            high = middle - 1
    if not low:
        return 0
    longest = Window.of(window.start, seconds=low * grid_seconds)
    return cost_gpu_seconds(longest, rate=rate)


@dataclass(frozen=True, slots=True)
class BandPoint:
    """The maximum, over one step of time, of the cost in 7 days that touch it."""

    at: datetime
    held_gpu_seconds: int
    left_gpu_seconds: int
    """Never below zero."""


def band(
    info: QuotaInfo, *, start: datetime, steps: int, step_seconds: int
) -> list[BandPoint]:
    """Return the quota's course over time, as a band for bookings."""
    load = SpendTotals(info.spends)
    points = []
    for number in range(steps):
        step = Window.of(
            instant(unix(start) + number * step_seconds), seconds=step_seconds
        )
        held = load.peak(step).held_gpu_seconds
        points.append(
            BandPoint(step.start, held, max(info.quota_gpu_seconds - held, 0))
        )
    return points
