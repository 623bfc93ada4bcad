"""When a cause becomes a finding, and when the finding is over.

A cause that lasts one sample is noise. Detectors count, over fresh samples only, how
long a cause persists (`persistence.py`), and report it once it passes the policy's
threshold. Here a reported finding opens at once, and closes when its cause was gone for
some seconds, so that nothing flickers. See docs/design/telemetry.md#findings.
reservations/presence/gpu_findings.py decides the state of a Gpu with the calendar,
hardware_rules.py judges the card's own reports, and alert_rules.py has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from telemetry.protocol.gpu_state import GpuState
from telemetry.rules.alert_rules import alert_rules, rules_reported_once
from telemetry.rules.persistence import ReadingTrail
from telemetry.rules.thresholds import JudgePolicy

REPEAT_SECONDS = 60.0
"""How often an open finding is reported again."""
UNSEEN_SECONDS = 4 * REPEAT_SECONDS
"""A finding that was not reported again for so long has lost its detector."""

BLIND = frozenset({GpuState.STALE, GpuState.UNKNOWN})
"""States without information. They neither open nor close findings."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a Gpu or a Node, for an Alert."""

    rule: str
    reservation_id: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    trail: ReadingTrail | None = field(default=None, compare=False)
    """The readings that caused it."""
    of_node: bool = field(default=False, compare=False)
    """Whether the node's Alert covers it. Then it gets no Alert."""


class FindingAct(Enum):
    """Kinds of steps for a finding."""

    OPEN = auto()
    REPEAT = auto()
    CLOSE = auto()


@dataclass(frozen=True, slots=True)
class FindingStep:
    """One step for one finding."""

    act: FindingAct
    finding: Finding


@dataclass(slots=True)
class _FindingWatch:
    """One rule on one Gpu or Node. Times are a steady clock's seconds."""

    finding: Finding
    seen: bool
    since: float
    """When the present observation (the cause, or its absence) began."""
    told_at: float | None = None
    """When it was last reported; None: no finding is open."""


Place = TypeVar("Place", bound=Hashable)


class RuleClock(Generic[Place]):
    """Turns the findings of each place (a Gpu or a Node) and second into steps.

    Holds one Watch per rule that a place met recently. So it has at most places x rules
    entries, and none for a healthy Gpu.
    """

    def __init__(self, policy: Callable[[], JudgePolicy] = JudgePolicy) -> None:
        self._policy = policy
        self._watches: dict[Place, dict[str, _FindingWatch]] = {}

    def due_steps(
        self, place: Place, standing: Iterable[Finding], *, at: float
    ) -> Iterator[FindingStep]:
        """Yield the steps for the present findings of a place.

        Do not call it while nothing is known of the place.
        """
        found = {finding.rule: finding for finding in standing}
        watches = self._watches.get(place)
        if watches is None:
            if not found:
                return
            watches = self._watches[place] = {}
        for rule, finding in found.items():
            watch = watches.setdefault(
                rule, _FindingWatch(finding, seen=True, since=at)
            )
            watch.finding = finding
        for rule, watch in list(watches.items()):
            act = self._next_act(watch, seen=rule in found, at=at)
            if act is not None:
                yield FindingStep(act, watch.finding)
            if not watch.seen and watch.told_at is None:
                del watches[rule]
        if not watches:
            self._watches.pop(place, None)

    def adopt(self, place: Place, rule: str, *, at: float) -> None:
        """Take over a finding that was open before this process began."""
        if rule not in rules_reported_once():
            watch = _FindingWatch(Finding(rule), seen=True, since=at, told_at=at)
            self._watches.setdefault(place, {}).setdefault(rule, watch)

    def keep_only(self, places: set[Place]) -> None:
        """Forget removed places."""
        for place in self._watches.keys() - places:
            del self._watches[place]

    def _next_act(
        self, watch: _FindingWatch, *, seen: bool, at: float
    ) -> FindingAct | None:
        if watch.seen != seen:
            watch.seen, watch.since = seen, at
        if watch.told_at is None:
            if seen:
                watch.told_at = at
                return FindingAct.OPEN
            return None
        if not seen and at - watch.since >= self._patience_seconds(watch.finding.rule):
            watch.told_at = None
            return FindingAct.CLOSE
        if seen and at - watch.told_at >= REPEAT_SECONDS:
            watch.told_at = at
            return FindingAct.REPEAT
        return None

    def _patience_seconds(self, rule: str) -> float:
        policy = self._policy()
        known = alert_rules().get(rule)
        if known is not None and known.hardware:
            return policy.hardware_closes_after_seconds
        return policy.closes_after_seconds
