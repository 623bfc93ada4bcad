"""When does what one sees become a finding, and when is it over?

What lasts one sample is noise: a finding opens when its cause stands for some
seconds and closes when it was gone for some more, so that nothing flickers.
TELEMETRY.md section 4. Which state a Gpu is in, and what else the calendar makes
of it, is judged on the floor above (reservations/domain/watch.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any

from telemetry.domain.state import GpuState


class Severity(StrEnum):
    """How much a finding matters."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


INTRUDER = "intruder"
SQUATTER = "squatter"
IDLE_HOG = "idle hog"
LOST = "lost"
THROTTLED = "throttled"
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

CAUSES: Mapping[GpuState, str] = {
    GpuState.INTRUDER: INTRUDER,
    GpuState.SQUATTER: SQUATTER,
    GpuState.IDLE: IDLE_HOG,
    GpuState.LOST: LOST,
    GpuState.THROTTLED: THROTTLED,
}
"""States that are findings by themselves."""

OPENS_AFTER_SECONDS: Mapping[str, float] = {
    INTRUDER: 2.0,
    SQUATTER: 10.0,
    # The word comes after a minute: together POLICY.md's 30 min of idleness.
    IDLE_HOG: 29 * 60.0,
    LOST: 3.0,
    THROTTLED: 300.0,
}
"""What is not named here was counted by whoever found it, and opens at once."""
CLOSES_AFTER_SECONDS: Mapping[str, float] = {LOST: 5.0, THROTTLED: 60.0}
OTHERS_CLOSE_AFTER_SECONDS = 15.0

BLIND = frozenset({GpuState.STALE, GpuState.UNKNOWN})
"""States that say nothing: they neither open nor close anything."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an Alert should say of a Gpu."""

    rule: str
    reservation_id: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


def own_finding(state: GpuState) -> Finding | None:
    """The finding that a state is by itself."""
    rule = CAUSES.get(state)
    return Finding(rule) if rule else None


class Act(Enum):
    """What to do about a finding."""

    OPEN = auto()
    REPEAT = auto()
    CLOSE = auto()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do about one finding of one Gpu."""

    act: Act
    finding: Finding


@dataclass(slots=True)
class _Watch:
    """One rule on one Gpu. Times are a steady clock's seconds."""

    finding: Finding
    seen: bool
    since: float
    """When what is seen now (the cause, or its absence) began."""
    told_at: float | None = None
    """When it was told last; None: no finding is open."""


class RuleClock:
    """Turns what stands, per Gpu and second, into steps.

    Holds one Watch per rule that a Gpu has lately met, so it never grows beyond
    Gpus x rules, and costs nothing for a Gpu that is well.
    """

    def __init__(self) -> None:
        self._watches: dict[int, dict[str, _Watch]] = {}

    def see(
        self, gpu_id: int, standing: Iterable[Finding], *, at: float
    ) -> Iterator[Step]:
        """What the findings that stand on a Gpu at an instant ask for.

        Not to be called while the Gpu is blind: then nothing is known.
        """
        found = {finding.rule: finding for finding in standing}
        watches = self._watches.get(gpu_id)
        if watches is None:
            if not found:
                return
            watches = self._watches[gpu_id] = {}
        for rule, finding in found.items():
            watch = watches.setdefault(rule, _Watch(finding, seen=True, since=at))
            watch.finding = finding
        for rule, watch in list(watches.items()):
            act = _act(watch, seen=rule in found, at=at)
            if act is not None:
                yield Step(act, watch.finding)
            if not watch.seen and watch.told_at is None:
                del watches[rule]
        if not watches:
            self._watches.pop(gpu_id, None)

    def adopt(self, gpu_id: int, rule: str, *, at: float) -> None:
        """Take over a finding that was open before this process began."""
        if rule not in STANDING:
            watch = _Watch(Finding(rule), seen=True, since=at, told_at=at)
            self._watches.setdefault(gpu_id, {}).setdefault(rule, watch)

    def keep_only(self, gpu_ids: set[int]) -> None:
        """Forget Gpus that are gone."""
        for gpu_id in self._watches.keys() - gpu_ids:
            del self._watches[gpu_id]


def _act(watch: _Watch, *, seen: bool, at: float) -> Act | None:
    if watch.seen != seen:
        watch.seen, watch.since = seen, at
    rule, lasted_seconds = watch.finding.rule, at - watch.since
    if watch.told_at is None:
        if seen and lasted_seconds >= OPENS_AFTER_SECONDS.get(rule, 0.0):
            watch.told_at = at
            return Act.OPEN
        return None
    patience_seconds = CLOSES_AFTER_SECONDS.get(rule, OTHERS_CLOSE_AFTER_SECONDS)
    if not seen and lasted_seconds >= patience_seconds:
        watch.told_at = None
        return Act.CLOSE
    if seen and at - watch.told_at >= REPEAT_SECONDS:
        watch.told_at = at
        return Act.REPEAT
    return None
