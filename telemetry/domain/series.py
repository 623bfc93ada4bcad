"""Minutes to the points of a chart: bands of min, mean and max, holes kept.

A chart is so many pixels wide; more points than that only cost time. Minutes
are added up into buckets (counts and sums, so a bucket's mean is the mean of its
samples and not of its minutes). A bucket without a sample is a hole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypedDict

from telemetry.domain.rollup import EMPTY, MINUTE_SECONDS, MinuteTotals, merge

MOST_POINTS = 1000


class Series(TypedDict):
    """Columns of equal length; None is a hole."""

    step_seconds: int
    at: list[int]
    """Unix seconds at which each bucket begins."""
    n: list[int]
    util_min_pct: list[float | None]
    util_avg_pct: list[float | None]
    util_max_pct: list[float | None]
    memory_avg_bytes: list[float | None]
    memory_max_bytes: list[float | None]
    power_avg_watts: list[float | None]
    temperature_max_celsius: list[float | None]


def step_seconds_for(span_seconds: int, points: int) -> int:
    """Width of a bucket: whole minutes, the fewest that give so many points.

    >>> step_seconds_for(86_400, 1000), step_seconds_for(3600, 1000)
    (120, 60)
    """
    points = max(1, min(points, MOST_POINTS))
    minutes = math.ceil(span_seconds / MINUTE_SECONDS / points)
    return max(1, minutes) * MINUTE_SECONDS


def series(
    minutes: Iterable[tuple[int, MinuteTotals]],
    *,
    start: int,
    end: int,
    step_seconds: int,
) -> Series:
    """Columns of [start, end), Unix seconds; buckets lie on multiples of the step.

    `minutes`: (Unix seconds of the minute's start, totals), in any order.
    """
    first = start // step_seconds * step_seconds
    starts = list(range(first, end, step_seconds))
    buckets = [EMPTY] * len(starts)
    for at, totals in minutes:
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
    }


def _short(value: float | None) -> float | None:
    """One decimal: a chart shows no more, and the answer is half as long."""
    return None if value is None else round(value, 1)
