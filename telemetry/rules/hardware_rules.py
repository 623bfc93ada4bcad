"""What a card reports of itself that an operator should know.

See docs/design/telemetry.md#findings.

Needs no calendar. Counters (ECC, row remapping) are of NVML's "volatile" and
"pending" kind: they go back when the Gpu is reset, and so do the findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from telemetry.protocol.reading import GpuReading, Throttle
from telemetry.rules.finding_rules import (
    BRAKE,
    ECC,
    LOST,
    REMAP_FAILURE,
    REMAP_PENDING,
    THERMAL,
    XID_CRITICAL,
    XID_WARNING,
    Finding,
)
from telemetry.rules.persistence import PersistentCauses
from telemetry.rules.thresholds import JudgePolicy

CLEAN: frozenset[Throttle] = frozenset(Throttle) - {
    Throttle.HW_SLOWDOWN,
    Throttle.HW_THERMAL,
    Throttle.HW_POWER_BRAKE,
}


def causes_of(reading: GpuReading) -> tuple[str, ...]:
    """The rules whose cause one reading shows.

    >>> causes_of(GpuReading("GPU-1", throttle=(Throttle.HW_SLOWDOWN,)))
    ('thermal slowdown',)
    """
    if not reading.answers:
        return (LOST,)
    found = []
    if reading.ecc_uncorrected:
        found.append(ECC)
    if reading.remap_failure:
        found.append(REMAP_FAILURE)
    if reading.remap_pending or reading.retired_pages_pending:
        found.append(REMAP_PENDING)
    throttle = reading.throttle
    if throttle and not CLEAN.issuperset(throttle):
        if Throttle.HW_POWER_BRAKE in throttle:
            found.append(BRAKE)
        # Older drivers say only that the hardware slows the Gpu down.
        if Throttle.HW_THERMAL in throttle or Throttle.HW_POWER_BRAKE not in throttle:
            found.append(THERMAL)
    return tuple(found)


def after_seconds(rule: str, policy: JudgePolicy) -> int:
    """How long the cause of one of these rules has to stand."""
    return {
        LOST: policy.lost_after_seconds,
        THERMAL: policy.thermal_after_seconds,
        BRAKE: policy.brake_after_seconds,
    }.get(rule, policy.counter_after_seconds)


class HardwareWatcher:
    """Counts, per Gpu, how long each cause stands. One per ingest process; keeps
    nothing for a Gpu that is well."""

    def __init__(self, policy: Callable[[], JudgePolicy] = JudgePolicy) -> None:
        self._policy = policy
        self._gpus: dict[int, PersistentCauses] = {}

    def look(
        self, gpu_id: int, reading: GpuReading, *, at: float, told_at: float
    ) -> Iterable[Finding]:
        """The findings that stand.

        Args:
            at: the reading's arrival in seconds of a clock that is never set.
            told_at: the same in Unix seconds.
        """
        causes = causes_of(reading)
        stands = self._gpus.get(gpu_id)
        if not causes:
            if stands is not None:
                del self._gpus[gpu_id]
            return ()
        if stands is None:
            stands = self._gpus[gpu_id] = PersistentCauses()
        stands.see(reading, at=at, told_at=told_at)
        policy = self._policy()
        found = []
        for rule in causes:
            stand = stands.holds(rule)
            if stand.passes(after_seconds(rule, policy), policy.least_samples):
                found.append(Finding(rule, trail=stand.trail))
        return found

    def blind(self, gpu_id: int) -> None:
        """Nothing fresh came of a Gpu."""
        if gpu_id in self._gpus:
            self._gpus[gpu_id].blind()

    def adopt(self, gpu_id: int, rule: str) -> None:
        """Take over a finding that was open before this process began."""
        policy = self._policy()
        self._gpus.setdefault(gpu_id, PersistentCauses()).adopt(
            rule, seconds=after_seconds(rule, policy), samples=policy.least_samples
        )

    def keep_only(self, gpu_ids: set[int]) -> None:
        """Forget Gpus that are gone."""
        for gpu_id in self._gpus.keys() - gpu_ids:
            del self._gpus[gpu_id]


def xid_rule(code: int, policy: JudgePolicy) -> str | None:
    """The rule that an XID belongs to; None: it is counted and nothing else."""
    if code in policy.xid_never:
        return None
    if code in policy.xid_critical:
        return XID_CRITICAL
    return XID_WARNING if code in policy.xid_warning else None
