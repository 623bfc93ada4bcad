"""Turn minutes and hours into the points of a chart: bands of min, mean and max, with
gaps.

A chart needs no more points than it has pixels. Rows are added up into buckets (counts
and sums, so a bucket's mean is the mean of its samples and not of its minutes). A
bucket without a sample is a gap.

Minutes are used while they are kept and few enough to add up during a request, hours
otherwise. A 2-year chart of a node with 8 Gpus is 140,000 hour rows, or 8.4 million
minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from telemetry.rules.rollup import EMPTY, MINUTE_SECONDS, MinuteTotals, merge

MOST_POINTS = 1000
MOST_GPU_CURVES = 16
"""GPUs of a node with a curve of their own in its charts."""
HOUR_SECONDS = 3600
DAY_SECONDS = 24 * HOUR_SECONDS
MOST_MINUTE_ROWS = 150_000
"""Most minute rows that one chart adds up (0.3 s on SQLite). Beyond that it uses
hours."""
STEPS_SECONDS = (
    *(minutes * MINUTE_SECONDS for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR_SECONDS for hours in (1, 2, 3, 6, 12, 24)),
)
"""Widths of a bucket that are easy to read on an axis."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Which rows a chart adds up, and into buckets of what width."""

    row_seconds: int
    """60: minutes, 3600: hours."""
    step_seconds: int
    """A multiple of the above."""

    @property
    def hourly(self) -> bool:
        """Whether hour rows are used."""
        return self.row_seconds >= HOUR_SECONDS


def tier_for(
    *, start: int, end: int, points: int, gpus: int, minutes_since: int
) -> Tier:
    """Return the finest tier that shows [start, end) with so many points.

    There is one more if the first bucket begins before the start, but never more than
    `MOST_POINTS`.

    Args:
        start: Unix seconds, like end and minutes_since.
        gpus: how many Gpus' rows are added up.
        minutes_since: minutes older than this are not kept any more.
    """
    span_seconds = max(MINUTE_SECONDS, end - start)
    wanted = math.ceil(span_seconds / max(1, min(points, MOST_POINTS - 1)))
    rows = gpus * span_seconds / MINUTE_SECONDS
    hourly = (
        start < minutes_since or rows > MOST_MINUTE_ROWS or wanted > HOUR_SECONDS // 2
    )
    least = HOUR_SECONDS if hourly else MINUTE_SECONDS
    wanted = max(wanted, least)
    for step in STEPS_SECONDS:
        if step >= wanted:
            return Tier(least, step)
    return Tier(least, math.ceil(wanted / DAY_SECONDS) * DAY_SECONDS)


class ChartSeries(TypedDict):
    """Columns of equal length. None is a gap."""

    step_seconds: int
    at: list[int]
    """Start of each step, in Unix seconds."""
    n: list[int]
    """Number of samples."""
    util_min_pct: list[float | None]
    util_avg_pct: list[float | None]
    util_max_pct: list[float | None]
    memory_avg_bytes: list[float | None]
    memory_max_bytes: list[float | None]
    power_avg_watts: list[float | None]
    temperature_max_celsius: list[float | None]
    energy_joules: list[float | None]


def step_seconds_for(span_seconds: int, points: int) -> int:
    """Return the width of a bucket: the fewest whole minutes that give at most so many
    points.

    >>> step_seconds_for(86_400, 1000), step_seconds_for(3600, 1000)
    (120, 60)
    """
    points = max(1, min(points, MOST_POINTS))
    minutes = math.ceil(span_seconds / MINUTE_SECONDS / points)
    return max(1, minutes) * MINUTE_SECONDS


def series(
    rows: Iterable[tuple[int, MinuteTotals]],
    *,
    start: int,
    end: int,
    step_seconds: int,
) -> ChartSeries:
    """Return the columns of [start, end), Unix seconds. Buckets begin at multiples of
    the step.

    `rows`: (Unix seconds at which the row begins, totals), in any order.
    """
    first = start // step_seconds * step_seconds
    starts = list(range(first, end, step_seconds))
    buckets = [EMPTY] * len(starts)
    for at, totals in rows:
        place = (at - first) // step_seconds
        if 0 <= place < len(buckets):
            buckets[place] = merge(buckets[place], totals)
    return {
        "step_seconds": step_seconds,
        "at": starts,
        "n": [b.n for b in buckets],
        "util_min_pct": [b.util_min_pct for b in buckets],
        "util_avg_pct": [_short(b.util_mean_pct) for b in buckets],
        "util_max_pct": [b.util_max_pct for b in buckets],
        "memory_avg_bytes": [_short(b.memory_mean_bytes) for b in buckets],
        "memory_max_bytes": [b.memory_max_bytes for b in buckets],
        "power_avg_watts": [_short(b.power_mean_watts) for b in buckets],
        "temperature_max_celsius": [b.temperature_max_celsius for b in buckets],
        "energy_joules": [_short(b.energy_joules) for b in buckets],
    }


def _short(value: float | None) -> float | None:
    """Round to one decimal: a chart shows no more, and the answer is half as long."""
    return None if value is None else round(value, 1)
