"""Energy that a Gpu used between two samples.

The card's own counter (nvmlDeviceGetTotalEnergyConsumption, NVML API reference,
"Device Queries") counts since the driver was loaded, so only differences mean
anything, and a difference below zero means that the driver was reloaded. Cards
without a counter are integrated: mean power of two samples times the seconds
between them (the trapezoid rule).

Joules follow from the samples alone, so a second reading of the same stream gives the
same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from telemetry.protocol.hardware import MOST_WATTS
from telemetry.protocol.sample import GpuReading

SAMPLE_SECONDS = 1.0
"""Time that a sample stands for if the previous one is unknown."""
STALE_SECONDS = 3.0
"""Power is assumed to last from one sample to the next up to this time
(docs/design/telemetry.md#stale: stale after 3 missed samples)."""
COUNTER_GAP_SECONDS = 60.0
"""A counter's difference over a longer gap is dropped, because the time of the use is
unknown. Gaps stay gaps."""


@dataclass(slots=True)
class EnergyMeter:
    """The last samples of one Gpu."""

    at: float | None = None
    """Unix seconds of the last sample."""
    power_watts: float | None = None
    counter_joules: float | None = None
    counter_at: float = 0.0

    def joules_since_last(
        self, at: float, *, counter_joules: float | None, power_watts: float | None
    ) -> float | None:
        """Return joules since the previous sample, never below 0; None if unknown."""
        if self.at is not None and at < self.at:
            return None
        by_power = self._by_power(at, power_watts)
        gap_seconds = at - self.counter_at
        followed = (
            self.counter_joules is not None and gap_seconds <= COUNTER_GAP_SECONDS
        )
        if counter_joules is None:
            # The next reading of the counter will include this second.
            joules = None if followed else by_power
        else:
            joules = by_power
            if followed:
                assert self.counter_joules is not None
                told = counter_joules - self.counter_joules
                if 0 <= told <= MOST_WATTS * max(gap_seconds, SAMPLE_SECONDS):
                    joules = told
            self.counter_joules, self.counter_at = counter_joules, at
        self.at, self.power_watts = at, power_watts
        return joules

    def _by_power(self, at: float, power_watts: float | None) -> float | None:
        if power_watts is None:
            return None
        passed_seconds = None if self.at is None else at - self.at
        if passed_seconds is None or passed_seconds > STALE_SECONDS:
            return power_watts * SAMPLE_SECONDS
        before = power_watts if self.power_watts is None else self.power_watts
        return (before + power_watts) / 2 * passed_seconds


class EnergyMeters:
    """One meter per Gpu, by its primary key."""

    def __init__(self) -> None:
        self._meters: dict[int, EnergyMeter] = {}

    def joules_since_last(
        self, gpu_id: int, at: float, reading: GpuReading
    ) -> float | None:
        """Return joules of a Gpu since its previous sample; None if unknown."""
        if not reading.answers:
            return None
        meter = self._meters.setdefault(gpu_id, EnergyMeter())
        return meter.joules_since_last(
            at,
            counter_joules=reading.energy_joules,
            power_watts=reading.power_watts,
        )

    def keep_only(self, gpu_ids: Collection[int]) -> None:
        """Forget the meters of removed Gpus."""
        for gone in self._meters.keys() - set(gpu_ids):
            del self._meters[gone]
