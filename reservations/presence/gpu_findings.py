"""Derive the state of a Gpu and its findings from samples and the calendar.

See docs/design/telemetry.md#findings. One reading proves nothing: an accusing state,
and every finding, needs several fresh samples in a row and the time set in the site's
policies. `attribution.py` finds the owner of a process.

`Watcher` remembers, per Gpu, how long each cause has lasted. Time without a fresh
sample does not count. It has no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from reservations.presence.attribution import (
    ForeignProcess,
    HoldingInfo,
    OwnerLookup,
    Presence,
    holder_present,
    presence,
)
from reservations.presence.intruder_escalation import Suspect
from reservations.rules.booking_alerts import (
    IDLE_HOG,
    INTRUDER,
    OVERRUN,
    SQUATTER,
    GpuUse,
)
from telemetry.protocol.gpu_state import GpuState
from telemetry.protocol.reading import HARM, GpuReading
from telemetry.protocol.units import MIB_BYTES
from telemetry.rules.alert_rules import rules_about
from telemetry.rules.command_line import short_command
from telemetry.rules.finding_rules import Finding
from telemetry.rules.persistence import (
    NOT_STANDING,
    STALE_SECONDS,
    PersistentCause,
    PersistentCauses,
)
from telemetry.rules.thresholds import JudgePolicy

IDLE_WORD_SECONDS = 60.0
"""How long a held Gpu must be idle before its state is "idle"."""
MOST_TOLD = 8
"""The most processes that a finding names."""


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """The thresholds of the telemetry policy, and those of the rules of bookings."""

    judge: JudgePolicy = field(default_factory=JudgePolicy)
    idle_util_pct: float = 3.0
    idle_seconds: float = 1800.0
    """After this time without use the holder is warned, too."""
    no_show_seconds: float = 900.0
    grace_seconds: float = 30.0
    """Time for a Job to stop after the end. Until then it is no overrun."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Facts about the Gpu from the database."""

    maintenance: bool = False
    mig: bool = False
    foreign: bool = False
    """Managed by another system: shown as busy, and never an intruder's."""


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """The state, the present findings, and the processes for the escalation."""

    state: GpuState
    findings: tuple[Finding, ...] = ()
    suspects: tuple[Suspect, ...] = ()


@dataclass(slots=True)
class _Memory:
    """The Watcher's memory of one Gpu."""

    reservation_pk: int | None = None
    stands: PersistentCauses = field(default_factory=PersistentCauses)


@dataclass(frozen=True, slots=True)
class _GpuCheck:
    """One judgement of one Gpu, passed from rule to rule."""

    stands: PersistentCauses
    reading: GpuReading
    owners: OwnerLookup
    policy: WatchPolicy
    now: datetime
    holding: HoldingInfo | None
    before: HoldingInfo | None

    @property
    def works(self) -> bool:
        """Whether the card computes more than an idle one would."""
        util_pct = self.reading.util_pct
        return util_pct is not None and util_pct >= self.policy.idle_util_pct

    @property
    def held_by_unattributed(self) -> bool:
        """Whether unattributed processes hold as much memory as a program that
        computes.

        Only processes and cards that report their memory count.
        """
        held_bytes = 0
        for process in self.reading.processes or ():
            if self.owners.of(process) is not None or self.owners.exempt(process):
                continue
            if process.memory_bytes is not None:
                held_bytes += process.memory_bytes
            elif self.reading.util_pct is None:
                return True
            else:
                held_bytes += self.reading.memory_used_bytes or 0
        return held_bytes >= self.policy.judge.zombie_memory_mib * MIB_BYTES

    def passes(self, stand: PersistentCause, seconds: float) -> bool:
        """Whether a cause has lasted for a time and over enough samples."""
        return stand.passes(seconds, self.policy.judge.least_samples)

    def findings(self, use: GpuUse) -> tuple[list[Finding], PersistentCause]:
        """Check every rule about bookings.

        Returns the findings and how long the GPU has been idle.
        """
        found = []
        idle = NOT_STANDING
        for rule in rules_about(GpuUse):
            assert rule.condition is not None
            stand = self.stands.holds(rule.name, rule.condition(use))
            if rule.name == IDLE_HOG:
                idle = stand
            if self.passes(stand, rule.after_seconds(self.policy)):
                about = self.before if rule.name == OVERRUN else self.holding
                pk = about.reservation_pk if about else None
                found.append(Finding(rule.name, pk, rule.detail(use), stand.trail))
        return found, idle


class Watcher:
    """Judges one reading after another. There is one per ingest process."""

    def __init__(self, policy: WatchPolicy) -> None:
        self.policy = policy
        self._gpus: dict[int, _Memory] = {}

    def adopt(self, gpu_pk: int, rule: str, reservation_pk: int | None) -> None:
        """Take over a finding that was open before this process started."""
        memory = self._gpus.setdefault(gpu_pk, _Memory(reservation_pk))
        memory.stands.adopt(
            rule, seconds=30 * 86_400, samples=self.policy.judge.least_samples
        )

    def judge(
        self,
        gpu_pk: int,
        reading: GpuReading | None,
        *,
        age_seconds: float,
        now: datetime,
        facts: GpuFacts,
        owners: OwnerLookup,
        holding: HoldingInfo | None,
        before: HoldingInfo | None = None,
    ) -> GpuVerdict:
        """Return the state of a Gpu and its findings.

        Args:
            reading: the newest one. None: no reading ever arrived.
            age_seconds: since it arrived.
            holding: the present holder and Window.
            before: the holder whose Window ended within the last minutes.
        """
        memory = self._memory(gpu_pk, holding)
        if facts.maintenance:
            return GpuVerdict(GpuState.MAINTENANCE)
        if reading is None or age_seconds > STALE_SECONDS:
            # Without a sample: findings stay open, but no time is added to them.
            memory.stands.note_gap()
            return GpuVerdict(GpuState.STALE if reading else GpuState.UNKNOWN)
        if not reading.answers:
            memory.stands.note_gap()
            return GpuVerdict(GpuState.LOST)
        if facts.mig:
            return GpuVerdict(GpuState.MIG)
        if facts.foreign:
            return GpuVerdict(GpuState.FOREIGN)
        memory.stands.begin_look(reading, at=now.timestamp() - age_seconds)
        look = _GpuCheck(
            memory.stands, reading, owners, self.policy, now, holding, before
        )
        return _unbooked(look) if holding is None else _booked(look, holding)

    def _memory(self, gpu_pk: int, holding: HoldingInfo | None) -> _Memory:
        held_by = holding.reservation_pk if holding else None
        memory = self._gpus.setdefault(gpu_pk, _Memory(held_by))
        if memory.reservation_pk != held_by:
            memory.reservation_pk = held_by
            memory.stands.clear()
        return memory


def _unbooked(look: _GpuCheck) -> GpuVerdict:
    judge, reading, before = look.policy.judge, look.reading, look.before
    seen = presence(reading, None, look.owners)
    late, others = _split(seen.strangers, before)
    over = before is not None and not _in_grace(look, before)
    use = GpuUse(
        booked=False,
        anybody=seen.anybody,
        strangers=bool(others),
        late=over and bool(late),
        memory_bytes=reading.memory_used_bytes or 0,
        least_memory_bytes=judge.zombie_memory_mib * MIB_BYTES,
        people=partial(_people, others),
        late_people=partial(_people, late),
    )
    findings, _idle = look.findings(use)
    if {SQUATTER, OVERRUN} & {finding.rule for finding in findings}:
        return GpuVerdict(GpuState.SQUATTER, tuple(findings))
    unseen = use.memory_bytes >= use.least_memory_bytes and not seen.anybody
    return GpuVerdict(_unbooked_word(look, seen, unseen), tuple(findings))


def _unbooked_word(look: _GpuCheck, seen: Presence, unseen: bool) -> GpuState:
    """Return the state of an unbooked Gpu without an accusation.

    It is free only if the card reports so: processes, work or memory make it busy, and
    an unreadable value does not count as zero.
    """
    reading = look.reading
    # An empty list of processes is newer than the utilization, which is an average.
    works = look.works and (reading.processes is None or seen.anybody)
    if seen.strangers or works or look.held_by_unattributed:
        return GpuState.BUSY
    known = reading.memory_used_bytes is not None and reading.util_pct is not None
    if unseen or (reading.processes is None and not known):
        return GpuState.UNKNOWN
    return GpuState.FREE


def _in_grace(look: _GpuCheck, before: HoldingInfo) -> bool:
    late_seconds = (look.now - before.end).total_seconds()
    return late_seconds <= look.policy.grace_seconds


def _booked(look: _GpuCheck, holding: HoldingInfo) -> GpuVerdict:
    judge, reading = look.policy.judge, look.reading
    seen = presence(reading, holding, look.owners)
    strangers = seen.strangers
    if look.before is not None and _in_grace(look, look.before):
        # A holder whose time has just ended still has the grace to stop.
        _late, strangers = _split(strangers, look.before)
    came = holding.checked_in or seen.holder
    suspects = _suspects_on_gpu(look, strangers)
    use = GpuUse(
        booked=True,
        came=came,
        anybody=seen.anybody,
        works=None if reading.util_pct is None else look.works,
        strangers=bool(strangers),
        memory_bytes=reading.memory_used_bytes or 0,
        least_memory_bytes=judge.zombie_memory_mib * MIB_BYTES,
        people=partial(_people, strangers),
    )
    findings, idle = look.findings(use)
    if INTRUDER in {finding.rule for finding in findings}:
        return GpuVerdict(GpuState.INTRUDER, tuple(findings), suspects)
    return GpuVerdict(_quiet_word(look, seen, came, idle), tuple(findings))


def _quiet_word(
    look: _GpuCheck, seen: Presence, came: bool, idle: PersistentCause
) -> GpuState:
    """Return the state of a booked Gpu without an intruder."""
    reading = look.reading
    if look.passes(idle, IDLE_WORD_SECONDS):
        return GpuState.IDLE
    if not seen.anybody and not came:
        return GpuState.RESERVED
    known = seen.holder or seen.shared or seen.unattributed
    here = known or reading.processes is None
    if here and look.works and HARM & set(reading.throttle or ()):
        return GpuState.THROTTLED
    return GpuState.BUSY


def _split(
    strangers: Iterable[ForeignProcess], before: HoldingInfo | None
) -> tuple[tuple[ForeignProcess, ...], tuple[ForeignProcess, ...]]:
    """Return the last holder's and co-users' processes, and those of others."""
    last: list[ForeignProcess] = []
    others: list[ForeignProcess] = []
    for seen in strangers:
        mine = before is not None and (
            before.is_of(seen.owner) or before.shared_with(seen.owner)
        )
        (last if mine else others).append(seen)
    return tuple(last), tuple(others)


def _suspects_on_gpu(
    look: _GpuCheck, strangers: Iterable[ForeignProcess]
) -> tuple[Suspect, ...]:
    """Return each stranger's process, with how long this very process was seen."""
    found = []
    for seen in strangers:
        process = seen.process
        key = ("process", process.pid, process.uid, process.started_at)
        stand = look.stands.holds(key)
        found.append(Suspect(process, seen.owner, stand.samples, stand.seconds))
    return tuple(found)


def _people(strangers: Iterable[ForeignProcess]) -> dict[str, Any]:
    """Return the users of the processes, for the operator. Pages may hide names."""
    told = list(strangers)
    return {
        "users": sorted({seen.login for seen in told}),
        "processes": [
            {
                "pid": seen.process.pid,
                "uid": seen.process.uid,
                "user": seen.login,
                "command": short_command(seen.process.command),
                "memory_bytes": seen.process.memory_bytes,
                "started_at": seen.process.started_at,
                "job": seen.process.job,
            }
            for seen in told[:MOST_TOLD]
        ],
    }


__all__ = [
    "GpuFacts",
    "GpuVerdict",
    "HoldingInfo",
    "OwnerLookup",
    "WatchPolicy",
    "Watcher",
    "holder_present",
    "presence",
]
