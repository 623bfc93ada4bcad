"""Who held Gpus and hardly used them? Held time is charged anyway; this is for the
head of a group to ask about (docs/design/fair-booking.md#gaming, "fake load against
idle release").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LOW_PCT = 15
"""Mean utilization below which held time counts as little used."""
LEAST_GPU_SECONDS = 3600
"""What was held for less says nothing about anybody."""


@dataclass(frozen=True, slots=True)
class HeldUse:
    """The use of a person's Gpus while they were held."""

    held_gpu_seconds: int = 0
    util_n: int = 0
    """Samples with known utilization."""
    util_sum_pct: float = 0.0

    @property
    def util_pct(self) -> float | None:
        """Mean utilization, 0 to 100; None: nothing was seen of it."""
        return self.util_sum_pct / self.util_n if self.util_n else None

    def low(self, below_pct: float) -> bool:
        """Whether enough was held, seen, and little used. Time in which the portal
        was blind accuses nobody."""
        util = self.util_pct
        enough = self.held_gpu_seconds >= LEAST_GPU_SECONDS
        return enough and util is not None and util < below_pct

    def __add__(self, other: HeldUse) -> HeldUse:
        """Add up two holdings."""
        return HeldUse(
            self.held_gpu_seconds + other.held_gpu_seconds,
            self.util_n + other.util_n,
            self.util_sum_pct + other.util_sum_pct,
        )


def sum_of_uses(uses: Iterable[HeldUse]) -> HeldUse:
    """Add up holdings."""
    total = HeldUse()
    for use in uses:
        total = total + use
    return total
