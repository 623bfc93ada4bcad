"""Members who held Gpus and hardly used them.

Held time is charged anyway. The head of a group may ask these members about it
(docs/design/fair-booking.md#gaming, "fake load against idle release").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LOW_PCT = 15
"""Mean utilization below which held time counts as little used."""
LEAST_GPU_SECONDS = 3600
"""Less held time than this is too little to judge."""


@dataclass(frozen=True, slots=True)
class HeldUse:
    """The use of a person's Gpus while they were held."""

    held_gpu_seconds: int = 0
    util_n: int = 0
    """Samples with known utilization."""
    util_sum_pct: float = 0.0

    @property
    def util_pct(self) -> float | None:
        """Mean utilization, 0 to 100. None: no sample of it exists."""
        return self.util_sum_pct / self.util_n if self.util_n else None

    def low(self, below_pct: float) -> bool:
        """Whether enough time was held and sampled, and little of it used.

        Time without samples counts against nobody.
        """
        util = self.util_pct
        enough = self.held_gpu_seconds >= LEAST_GPU_SECONDS
        return enough and util is not None and util < below_pct

    def __add__(self, other: HeldUse) -> HeldUse:
        """Return the sum of two uses."""
        return HeldUse(
            self.held_gpu_seconds + other.held_gpu_seconds,
            self.util_n + other.util_n,
            self.util_sum_pct + other.util_sum_pct,
        )


def sum_of_uses(uses: Iterable[HeldUse]) -> HeldUse:
    """Return the sum of uses."""
    total = HeldUse()
    for use in uses:
        total = total + use
    return total
