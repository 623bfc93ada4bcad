"""What is a Gpu doing, judged with the calendar in hand? And what is wrong?

TELEMETRY.md section 4. One reading proves nothing: a word that accuses
somebody, and every Alert, needs several samples in a row. Who owns a process is
asked in this order: the portal Job it belongs to, then its Unix login. A
process of a system account, or one whose owner the node cannot tell, is
unattributed and never an intruder.

`Watcher` remembers, per Gpu, since when each finding stands; time in which no
fresh sample came does not count. It has no clock of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from telemetry.domain.sample import HARM, GpuReading, ProcessReading
from telemetry.domain.state import GpuState

STALE_SECONDS = 3.5
"""Three samples at 1 Hz are missing, with half a second for the way."""
ACCUSE_SECONDS = 4.0
"""How long somebody else's process must stand before it is called one."""
IDLE_WORD_SECONDS = 60.0
"""How long a held Gpu must be idle before its word says so."""
SYSTEM_UID_BELOW = 1000
"""Accounts of the system, not of people (Debian policy manual, 9.2.2)."""
ZOMBIE_BYTES = 2**30
"""Memory without a visible process that is worth a finding."""


class Rule(StrEnum):
    """Findings that need the calendar and have no state word of their own.

    Those that have one (intruder, squatter, idle hog, lost) are opened from the
    word by ``telemetry.domain.rules``.
    """

    NO_SHOW = "no-show"
    OVERRUN = "overrun"
    ZOMBIE_MEMORY = "zombie memory"
    BROKEN_WITH_BOOKINGS = "broken with bookings"


@dataclass(frozen=True, slots=True)
class HoldingInfo:
    """Who holds a Gpu over which Window."""

    reservation_pk: int
    user_pk: int
    username: str
    unix_user: str
    account: str
    start: datetime
    end: datetime
    checked_in: bool = False


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """Thresholds of the site's policy."""

    idle_util_pct: float = 3.0
    no_show_seconds: float = 900.0
    grace_seconds: float = 30.0
    """After the end a Job has this long to stop; until then it is no overrun."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What the database knows of the Gpu itself."""

    maintenance: bool = False
    lost: bool = False
    mig: bool = False
    foreign: bool = False
    """Managed by another system: shown busy, never an intruder."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something an Alert should say."""

    rule: Rule
    reservation_pk: int | None = None
    users: tuple[str, ...] = ()
    """Unix logins or portal names of whoever runs there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The word, and the findings that stand."""

    state: GpuState
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Owners:
    """How processes lead to people."""

    jobs: Mapping[int, int] = field(default_factory=dict)
    """User by portal Job."""
    logins: Mapping[str, int] = field(default_factory=dict)
    """User by Unix login and by portal name."""

    def of(self, process: ProcessReading) -> int | str | None:
        """Return a User's key, a foreign login, or None: unattributed."""
        if process.job is not None and process.job in self.jobs:
            return self.jobs[process.job]
        if process.user is None:
            return None
        if process.user in self.logins:
            return self.logins[process.user]
        if process.uid is None or process.uid < SYSTEM_UID_BELOW:
            return None
        return process.user


@dataclass(frozen=True, slots=True)
class Presence:
    """Whose processes a reading shows, seen from one holding."""

    holder: bool = False
    others: tuple[str, ...] = ()
    unattributed: bool = False

    @property
    def anybody(self) -> bool:
        """Whether there is any process at all."""
        return self.holder or bool(self.others) or self.unattributed


def presence(
    reading: GpuReading, holding: HoldingInfo | None, owners: Owners
) -> Presence:
    """Sort the processes of a reading into the holder's and others'."""
    holder = unattributed = False
    others: list[str] = []
    for process in reading.processes or ():
        owner = owners.of(process)
        logins = (holding.unix_user, holding.username) if holding else ()
        if holding is not None and (
            owner == holding.user_pk or (isinstance(owner, str) and owner in logins)
        ):
            holder = True
        elif owner is None:
            unattributed = True
        else:
            others.append(process.user or f"job {process.job}")
    return Presence(holder, tuple(sorted(set(others))), unattributed)


def holder_present(
    reading: GpuReading | None, holding: HoldingInfo | None, owners: Owners
) -> bool:
    """Say whether the holder runs something: it is what check-in looks for."""
    if reading is None or holding is None:
        return False
    return presence(reading, holding, owners).holder


@dataclass(slots=True)
class _Memory:
    """What the Watcher remembers of one Gpu."""

    reservation_pk: int | None = None
    last_at: datetime | None = None
    stood: dict[str, float] = field(default_factory=dict)
    """Watched seconds each condition has stood without a break."""


class Watcher:
    """Judges one reading after another; one per ingest process."""

    def __init__(self, policy: WatchPolicy) -> None:
        self.policy = policy
        self._gpus: dict[int, _Memory] = {}

    def judge(
        self,
        gpu_pk: int,
        reading: GpuReading | None,
        *,
        age_seconds: float,
        now: datetime,
        facts: GpuFacts,
        owners: Owners,
        holding: HoldingInfo | None,
        before: HoldingInfo | None = None,
    ) -> Verdict:
        """Return the word for a Gpu and what is wrong with it.

        Args:
            reading: the newest one; None: never heard of.
            age_seconds: since it arrived.
            holding: whose Window runs now.
            before: whose Window ended within the last minutes.
        """
        memory = self._gpus.setdefault(gpu_pk, _Memory())
        held_by = holding.reservation_pk if holding else None
        if memory.reservation_pk != held_by:
            memory.reservation_pk = held_by
            memory.stood.clear()
        if facts.maintenance:
            return Verdict(GpuState.MAINTENANCE)
        if reading is None or age_seconds > STALE_SECONDS:
            # Blind: what stood keeps standing, but no time is added to it.
            memory.last_at = None
            return Verdict(GpuState.STALE if reading else GpuState.UNKNOWN)
        passed = _passed_seconds(memory, now)
        broken = facts.lost or not reading.answers
        lost_for = _stands(memory, "lost", broken, passed)
        if broken:
            if holding is None or lost_for < ACCUSE_SECONDS:
                return Verdict(GpuState.LOST)
            finding = Finding(Rule.BROKEN_WITH_BOOKINGS, holding.reservation_pk)
            return Verdict(GpuState.LOST, (finding,))
        if facts.mig:
            return Verdict(GpuState.MIG)
        seen = presence(reading, holding, owners)
        if facts.foreign:
            return Verdict(GpuState.FOREIGN)
        if holding is None:
            return self._unbooked(memory, reading, seen, passed, before, owners, now)
        return self._booked(memory, reading, seen, passed, holding)

    def _unbooked(
        self,
        memory: _Memory,
        reading: GpuReading,
        seen: Presence,
        passed: float,
        before: HoldingInfo | None,
        owners: Owners,
        now: datetime,
    ) -> Verdict:
        findings = []
        zombie = (reading.memory_used_bytes or 0) >= ZOMBIE_BYTES and not seen.anybody
        if _stands(memory, "zombie", zombie, passed) >= ACCUSE_SECONDS:
            findings.append(Finding(Rule.ZOMBIE_MEMORY))
        overrun = before is not None and presence(reading, before, owners).holder
        if overrun and before is not None and len(seen.others) == 1:
            late = (now - before.end).total_seconds() > self.policy.grace_seconds
            if late and _stands(memory, "overrun", True, passed) >= ACCUSE_SECONDS:
                finding = Finding(Rule.OVERRUN, before.reservation_pk, seen.others)
                findings.append(finding)
                return Verdict(GpuState.SQUATTER, tuple(findings))
            return Verdict(GpuState.BUSY, tuple(findings))
        stood = _stands(memory, "squatter", bool(seen.others), passed)
        if seen.others:
            if stood < ACCUSE_SECONDS:
                return Verdict(GpuState.BUSY, tuple(findings))
            return Verdict(GpuState.SQUATTER, tuple(findings))
        if seen.unattributed and _works(reading, self.policy):
            return Verdict(GpuState.BUSY, tuple(findings))
        if reading.processes is None and zombie:
            return Verdict(GpuState.UNKNOWN, tuple(findings))
        return Verdict(GpuState.FREE, tuple(findings))

    def _booked(
        self,
        memory: _Memory,
        reading: GpuReading,
        seen: Presence,
        passed: float,
        holding: HoldingInfo,
    ) -> Verdict:
        policy, pk = self.policy, holding.reservation_pk
        works = _works(reading, policy)
        here = seen.holder or seen.unattributed or reading.processes is None
        came = holding.checked_in or seen.holder
        intruded = _stands(memory, "intruder", bool(seen.others), passed)
        # An unknown utilization is not idleness.
        idle = not works and reading.util_pct is not None and came
        idled = _stands(memory, "idle", idle, passed)
        missed = _stands(memory, "no_show", not came and not seen.anybody, passed)
        findings = []
        if missed >= policy.no_show_seconds:
            findings.append(Finding(Rule.NO_SHOW, pk))
        if seen.others and intruded >= ACCUSE_SECONDS:
            return Verdict(GpuState.INTRUDER, tuple(findings))
        if idle and idled >= IDLE_WORD_SECONDS:
            return Verdict(GpuState.IDLE, tuple(findings))
        if not seen.anybody and not came:
            return Verdict(GpuState.RESERVED, tuple(findings))
        if here and works and HARM & set(reading.throttle or ()):
            return Verdict(GpuState.THROTTLED, tuple(findings))
        return Verdict(GpuState.BUSY, tuple(findings))


def _passed_seconds(memory: _Memory, now: datetime) -> float:
    """Return the watched time since the last fresh sample, a gap counts nothing."""
    last, memory.last_at = memory.last_at, now
    if last is None:
        return 0.0
    return min(max((now - last).total_seconds(), 0.0), STALE_SECONDS)


def _stands(memory: _Memory, name: str, holds: bool, passed: float) -> float:
    """Return for how many watched seconds a condition has stood by now."""
    if not holds:
        memory.stood.pop(name, None)
        return 0.0
    memory.stood[name] = memory.stood.get(name, -passed) + passed
    return memory.stood[name]


def _works(reading: GpuReading, policy: WatchPolicy) -> bool:
    return reading.util_pct is not None and reading.util_pct >= policy.idle_util_pct
