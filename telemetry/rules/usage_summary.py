"""The usage of spans of Gpu time: the summary of a Reservation or a Job.

It is computed from minutes. A minute belongs to a span if its middle is in it. The 95th
percentile is that of the minutes' mean utilization in whole percent, weighted by
samples (nearest rank), because minutes have sums and not every sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from telemetry.rules.rollup import MinuteTotals

JOULES_PER_KWH = 3_600_000
P95_RATIO = 0.95


@dataclass(frozen=True, slots=True)
class GpuSpan:
    """One Gpu from one instant to another, half-open."""

    gpu_id: int
    start: datetime
    end: datetime

    @property
    def seconds(self) -> int:
        """Length; 0 if it ends before it begins."""
        return max(0, int((self.end - self.start).total_seconds()))


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals over some spans, with what a summary shows."""

    totals: MinuteTotals
    util_p95_pct: float | None
    gpu_seconds: int
    """Gpus x seconds of the spans, sampled or not."""

    @property
    def energy_kwh(self) -> float | None:
        """Energy in kilowatt-hours; None: no Gpu reported it."""
        joules = self.totals.energy_joules
        return None if joules is None else joules / JOULES_PER_KWH

    @property
    def seen_ratio(self) -> float | None:
        """Share of the time with samples, at one sample a second; at most 1."""
        if not self.gpu_seconds:
            return None
        return min(1.0, self.totals.n / self.gpu_seconds)


def percentile(counts: Mapping[float, int], ratio: float) -> float | None:
    """Return the nearest-rank percentile of values with their counts.

    >>> percentile({10: 94, 90: 6}, 0.95), percentile({10: 95, 90: 5}, 0.95)
    (90, 10)
    """
    total = sum(counts.values())
    if total <= 0:
        return None
    rank = max(1, math.ceil(ratio * total))
    passed = 0
    for value in sorted(counts):
        passed += counts[value]
        if passed >= rank:
            return value
    return max(counts)


def p95(counts: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the 95th percentile of (value, count). Unknown values do not count."""
    summed: dict[float, int] = {}
    for value, times in counts:
        if value is not None:
            summed[value] = summed.get(value, 0) + times
    return percentile(summed, P95_RATIO)
