"""Attribute a process to a User, from the facts that its node reports.

Checked in this order: the portal Job it belongs to, the user slice it runs in, the
label of its container, then its uid (docs/design/telemetry.md#attribution). Nodes run
students' code, so their facts may lead to an accusation but never grant a right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache

from telemetry.protocol.reading import GpuReading, ProcessReading
from telemetry.protocol.units import MIB_BYTES
from telemetry.rules.thresholds import WHITELIST, JudgePolicy

SYSTEM_UID_BELOW = 1000
"""Accounts of the system, not of people (Debian policy manual, 9.2.2)."""
NOBODY_UID = 65_534


@dataclass(frozen=True, slots=True)
class HoldingInfo:
    """The holder of a Gpu, and the Window."""

    reservation_pk: int
    user_pk: int
    username: str
    unix_user: str
    account: str
    start: datetime
    end: datetime
    checked_in: bool = False
    co_users: frozenset[int | str] = frozenset()
    """Users with whom the holder shares it: by key, and by their logins."""

    def is_of(self, owner: int | str | None) -> bool:
        """Whether an owner, as `OwnerLookup.of` returns it, is the holder."""
        if isinstance(owner, str):
            return owner in (self.unix_user, self.username)
        return owner == self.user_pk

    def shared_with(self, owner: int | str | None) -> bool:
        """Whether the holder shares the Gpu with this owner."""
        return owner is not None and owner in self.co_users


@dataclass(frozen=True, slots=True)
class OwnerLookup:
    """Maps processes to people."""

    jobs: Mapping[int, int] = field(default_factory=dict)
    """User by portal Job."""
    logins: Mapping[str, int] = field(default_factory=dict)
    """User by Unix login and by portal name."""
    whitelist: tuple[str, ...] = WHITELIST
    whitelist_bytes: int = JudgePolicy().whitelist_memory_mib * MIB_BYTES

    def of(self, process: ProcessReading) -> int | str | None:
        """Return a User's key, a foreign login, or None: unattributed."""
        if process.job is not None and process.job in self.jobs:
            return self.jobs[process.job]
        if process.user is None:
            return None
        if process.user in self.logins:
            return self.logins[process.user]
        if process.uid is None or not SYSTEM_UID_BELOW <= process.uid != NOBODY_UID:
            return None
        return process.user

    def exempt(self, process: ProcessReading) -> bool:
        """Whether it is a display server or a monitor, by the policy's list.

        The person who starts a program chooses its name. So a process with much
        memory, or an unknown amount, is not exempt by its name.
        """
        held_bytes = process.memory_bytes
        if held_bytes is None or held_bytes > self.whitelist_bytes:
            return False
        program = process.command.split(" ", 1)[0].rpartition("/")[2]
        return bool(program) and _matches_any(program, self.whitelist)


@lru_cache(maxsize=4096)
def _matches_any(program: str, names: tuple[str, ...]) -> bool:
    return any(fnmatchcase(program, name) for name in names)


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """One process of a person who is not the holder."""

    process: ProcessReading
    owner: int | str
    login: str
    """The Unix login, or "job 7"."""


@dataclass(frozen=True, slots=True)
class Presence:
    """The owners of a reading's processes, seen from one holding."""

    holder: bool = False
    strangers: tuple[ForeignProcess, ...] = ()
    unattributed: bool = False
    shared: bool = False
    """Whether a co-user has a process. It is neither a stranger's nor the holder's."""

    @property
    def others(self) -> tuple[str, ...]:
        """Logins of the persons other than the holder, each once."""
        return tuple(sorted({seen.login for seen in self.strangers}))

    @property
    def anybody(self) -> bool:
        """Whether there is any process."""
        return self.holder or self.shared or bool(self.strangers) or self.unattributed


def presence(
    reading: GpuReading, holding: HoldingInfo | None, owners: OwnerLookup
) -> Presence:
    """Sort the processes of a reading into the holder's and others'."""
    holder = unattributed = shared = False
    strangers: list[ForeignProcess] = []
    for process in reading.processes or ():
        owner = owners.of(process)
        if holding is not None and owner is not None and holding.is_of(owner):
            holder = True
        elif holding is not None and holding.shared_with(owner):
            shared = True
        elif owner is None or owners.exempt(process):
            unattributed = True
        else:
            login = process.user or f"job {process.job}"
            strangers.append(ForeignProcess(process, owner, login))
    return Presence(holder, tuple(strangers), unattributed, shared)


def holder_present(
    reading: GpuReading | None, holding: HoldingInfo | None, owners: OwnerLookup
) -> bool:
    """Return whether the holder runs a process, which counts as a check-in."""
    if reading is None or holding is None:
        return False
    return presence(reading, holding, owners).holder
