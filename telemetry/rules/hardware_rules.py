"""Findings from a card's own reports.

See docs/design/telemetry.md#findings.

They need no calendar. Counters (ECC, row remapping) are of NVML's "volatile" and
"pending" kind: a reset of the Gpu clears them, and with them the findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from telemetry.protocol.reading import GpuReading
from telemetry.rules.alert_rules import (
    LOST,
    XID_CRITICAL,
    XID_WARNING,
    AlertRule,
    active_rules,
    alert_rules,
)
from telemetry.rules.finding_rules import Finding
from telemetry.rules.persistence import PersistentCauses
from telemetry.rules.thresholds import JudgePolicy


def causes_of(reading: GpuReading) -> tuple[AlertRule, ...]:
    """Return the rules whose cause one reading shows.

    >>> from telemetry.protocol.reading import Throttle
    >>> slow = GpuReading("GPU-1", throttle=(Throttle.HW_SLOWDOWN,))
    >>> [rule.name for rule in causes_of(slow)]
    ['thermal slowdown']
    """
    if not reading.answers:
        # No other value of it is known.
        return (alert_rules()[LOST],)
    return active_rules(reading)


class HardwareWatcher:
    """Counts, per Gpu, how long each cause persists. One per ingest process. A healthy
    Gpu takes no memory."""

    def __init__(self, policy: Callable[[], JudgePolicy] = JudgePolicy) -> None:
        self._policy = policy
        self._gpus: dict[int, PersistentCauses] = {}

    def present_findings(
        self, gpu_id: int, reading: GpuReading, *, at: float, told_at: float
    ) -> Iterable[Finding]:
        """Return the present findings of a Gpu.

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
        stands.begin_look(reading, at=at, told_at=told_at)
        policy = self._policy()
        found = []
        for rule in causes:
            stand = stands.holds(rule.name)
            if stand.passes(rule.after_seconds(policy), policy.least_samples):
                found.append(
                    Finding(rule.name, detail=rule.detail(reading), trail=stand.trail)
                )
        return found

    def note_gap(self, gpu_id: int) -> None:
        """Note that no fresh sample of a Gpu came."""
        if gpu_id in self._gpus:
            self._gpus[gpu_id].note_gap()

    def adopt(self, gpu_id: int, rule: str) -> None:
        """Take over a finding that was open before this process began."""
        known = alert_rules().get(rule)
        if known is None or known.facts is not GpuReading:
            return
        policy = self._policy()
        self._gpus.setdefault(gpu_id, PersistentCauses()).adopt(
            rule, seconds=known.after_seconds(policy), samples=policy.least_samples
        )

    def keep_only(self, gpu_ids: set[int]) -> None:
        """Forget removed Gpus."""
        for gpu_id in self._gpus.keys() - gpu_ids:
            del self._gpus[gpu_id]


def xid_rule(code: int, policy: JudgePolicy) -> str | None:
    """Return the rule to which an XID belongs; None if it is only counted."""
    if code in policy.xid_never:
        return None
    if code in policy.xid_critical:
        return XID_CRITICAL
    return XID_WARNING if code in policy.xid_warning else None
