"""When does what one sees become a finding? The rules and their patience.

A state that lasts one sample is noise: every rule asks for it over some seconds
before an Alert opens and over some more before it closes, so that nothing
flickers. TELEMETRY.md section 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from telemetry.domain.state import GpuState

INTRUDER = "intruder"
SQUATTER = "squatter"
IDLE_HOG = "idle hog"
THROTTLED = "throttled"
LOST = "lost"
SILENT = "no sample"
MISSING = "missing after reboot"
CLAIMED_ELSEWHERE = "claimed elsewhere"

STANDING = frozenset({MISSING, CLAIMED_ELSEWHERE, SILENT})
"""Rules that are told once and closed by their opposite, not by silence."""

SILENT_AFTER_SECONDS = 600.0
REPEAT_SECONDS = 60.0
"""How often a finding that stands is told again, so that it is known to stand."""
UNSEEN_SECONDS = 4 * REPEAT_SECONDS
"""A finding that was not told again for so long has lost its finder."""


@dataclass(frozen=True, slots=True)
class StateRule:
    """A state that becomes a finding when it lasts."""

    name: str
    opens_after_seconds: float
    closes_after_seconds: float


STATE_RULES: Mapping[GpuState, StateRule] = {
    GpuState.INTRUDER: StateRule(INTRUDER, 5.0, 15.0),
    GpuState.SQUATTER: StateRule(SQUATTER, 15.0, 15.0),
    GpuState.IDLE: StateRule(IDLE_HOG, 60.0, 15.0),
    GpuState.LOST: StateRule(LOST, 3.0, 5.0),
    GpuState.THROTTLED: StateRule(THROTTLED, 300.0, 60.0),
}

BLIND = frozenset({GpuState.STALE, GpuState.UNKNOWN})
"""States that say nothing: they neither open nor close anything."""


class Step(Enum):
    """What to do about a finding."""

    OPEN = auto()
    REPEAT = auto()
    CLOSE = auto()


@dataclass(slots=True)
class _Watch:
    """One rule on one Gpu. Times are a steady clock's seconds."""

    since: float
    """When the state that is seen now (the rule's, or not) began."""
    seen: bool
    told_at: float | None = None
    """When it was told last; None: no finding is open."""


@dataclass(slots=True)
class RuleClock:
    """Turns states, one per Gpu and second, into steps. Holds one Watch per
    rule that a Gpu has lately met, so it never grows beyond Gpus x rules."""

    _watches: dict[tuple[int, GpuState], _Watch] = field(default_factory=dict)

    def see(
        self, gpu_id: int, state: GpuState, at: float
    ) -> Iterator[tuple[Step, StateRule]]:
        """What the state of a Gpu at a steady clock's instant asks for."""
        if state in BLIND:
            return
        if state in STATE_RULES:
            self._watches.setdefault((gpu_id, state), _Watch(since=at, seen=True))
        for watched, rule in STATE_RULES.items():
            watch = self._watches.get((gpu_id, watched))
            if watch is None:
                continue
            step = _step(watch, rule, seen=watched is state, at=at)
            if step is not None:
                yield step, rule
            if not watch.seen and watch.told_at is None:
                del self._watches[gpu_id, watched]

    def adopt(self, gpu_id: int, rule_name: str, at: float) -> None:
        """Take over a finding that was open before this process began."""
        for state, rule in STATE_RULES.items():
            if rule.name == rule_name:
                watch = _Watch(since=at, seen=True, told_at=at)
                self._watches.setdefault((gpu_id, state), watch)

    def keep_only(self, gpu_ids: set[int]) -> None:
        """Forget Gpus that are gone."""
        for key in [key for key in self._watches if key[0] not in gpu_ids]:
            del self._watches[key]


def _step(watch: _Watch, rule: StateRule, *, seen: bool, at: float) -> Step | None:
    if watch.seen != seen:
        watch.seen, watch.since = seen, at
    lasted_seconds = at - watch.since
    if seen and watch.told_at is None and lasted_seconds >= rule.opens_after_seconds:
        watch.told_at = at
        return Step.OPEN
    if watch.told_at is None:
        return None
    if not seen and lasted_seconds >= rule.closes_after_seconds:
        watch.told_at = None
        return Step.CLOSE
    if seen and at - watch.told_at >= REPEAT_SECONDS:
        watch.told_at = at
        return Step.REPEAT
    return None
