"""Roll samples up into minutes: counts and sums, so that roll-ups of roll-ups stay
exact.

A mean of means is wrong as soon as one minute has fewer samples than another. Added up
counts and sums are right at every level. Every field is counted separately: a card that
cannot report its power leaves a gap in power and in nothing else. A minute without
samples has no row. Gaps stay gaps.

`MinuteTotals` has the field names of the stored row (SampleMinute).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from telemetry.protocol.sample import GpuReading

MINUTE_SECONDS = 60
IDLE_BELOW_PCT = 3
"""docs/design/telemetry.md#findings: utilization under 3 % counts as idle."""


@dataclass(frozen=True, slots=True)
class MinuteTotals:
    """Totals of one Gpu over some samples. The empty value is the neutral element."""

    n: int = 0
    """Samples in which the Gpu answered."""
    util_n: int = 0
    util_sum_pct: float = 0.0
    util_min_pct: float | None = None
    util_max_pct: float | None = None
    idle_n: int = 0
    """Samples with known utilization under the idle threshold."""
    memory_n: int = 0
    memory_sum_bytes: int = 0
    memory_max_bytes: int | None = None
    temperature_max_celsius: int | None = None
    power_n: int = 0
    power_sum_watts: float = 0.0
    process_n: int = 0
    """Samples with at least one process that counts (the holder's)."""
    energy_joules: float | None = None
    """Energy used in these samples; None: the card cannot report it."""

    @property
    def util_mean_pct(self) -> float | None:
        """Mean utilization over the samples that have it; None: a gap."""
        return self.util_sum_pct / self.util_n if self.util_n else None

    @property
    def memory_mean_bytes(self) -> float | None:
        """Mean memory used; None: a gap."""
        return self.memory_sum_bytes / self.memory_n if self.memory_n else None

    @property
    def power_mean_watts(self) -> float | None:
        """Mean power; None: a gap."""
        return self.power_sum_watts / self.power_n if self.power_n else None

    @property
    def idle_ratio(self) -> float | None:
        """Share of the samples with known utilization that were idle."""
        return self.idle_n / self.util_n if self.util_n else None


EMPTY = MinuteTotals()
_Number = TypeVar("_Number", int, float)


def of_reading(
    reading: GpuReading | None,
    *,
    holder_present: bool = False,
    energy_joules: float | None = None,
) -> MinuteTotals:
    """Return the totals of a single sample; empty for a Gpu that did not answer.

    `energy_joules`: used since the previous sample (see `energy.EnergyMeter`).
    """
    if reading is None or not reading.answers:
        return EMPTY
    util, memory, power = (
        reading.util_pct,
        reading.memory_used_bytes,
        reading.power_watts,
    )
    return MinuteTotals(
        n=1,
        util_n=int(util is not None),
        util_sum_pct=util or 0,
        util_min_pct=util,
        util_max_pct=util,
        idle_n=int(util is not None and util < IDLE_BELOW_PCT),
        memory_n=int(memory is not None),
        memory_sum_bytes=memory or 0,
        memory_max_bytes=memory,
        temperature_max_celsius=reading.temperature_celsius,
        power_n=int(power is not None),
        power_sum_watts=power or 0.0,
        process_n=int(holder_present),
        energy_joules=energy_joules,
    )


def merge(a: MinuteTotals, b: MinuteTotals) -> MinuteTotals:
    """Return the totals of both sets of samples together. Associative and
    commutative."""
    return MinuteTotals(
        n=a.n + b.n,
        util_n=a.util_n + b.util_n,
        util_sum_pct=a.util_sum_pct + b.util_sum_pct,
        util_min_pct=_known(min, a.util_min_pct, b.util_min_pct),
        util_max_pct=_known(max, a.util_max_pct, b.util_max_pct),
        idle_n=a.idle_n + b.idle_n,
        memory_n=a.memory_n + b.memory_n,
        memory_sum_bytes=a.memory_sum_bytes + b.memory_sum_bytes,
        memory_max_bytes=_known(max, a.memory_max_bytes, b.memory_max_bytes),
        temperature_max_celsius=_known(
            max, a.temperature_max_celsius, b.temperature_max_celsius
        ),
        power_n=a.power_n + b.power_n,
        power_sum_watts=a.power_sum_watts + b.power_sum_watts,
        process_n=a.process_n + b.process_n,
        energy_joules=_known(operator.add, a.energy_joules, b.energy_joules),
    )


def merge_all(totals: Iterable[MinuteTotals]) -> MinuteTotals:
    """Return the totals of any number of sets of samples together."""
    return reduce(merge, totals, EMPTY)


def minute_start(at: float) -> int:
    """Return the Unix seconds at which the minute of an instant begins.

    >>> minute_start(119.9)
    60
    """
    return int(at // MINUTE_SECONDS) * MINUTE_SECONDS


def _known(
    pick: Callable[[_Number, _Number], _Number], a: _Number | None, b: _Number | None
) -> _Number | None:
    """Apply `pick` to the known ones of both; None if both are unknown."""
    if a is None or b is None:
        return b if a is None else a
    return pick(a, b)
