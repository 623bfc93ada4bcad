"""The owner of a process, from the shims' registry, login slices, containers' labels,
uids.

Runs in the sampling child: no Django, no Celery. Owners are kept per process,
identified by pid *and* start time, because the kernel uses pids again. A process that
is gone or hidden has an Owner without a uid, never the owner of an earlier process.

The registry is `<node_dir>/jobs/<job>-<attempt>/shim.json` with `pid` and `start_ticks`
of the shim, `pgid` and `leader_start_ticks` of the job's process group. A process
belongs to a job if it, or one of its ancestors, is in that group or is that shim. The
group alone is not enough, because `torchrun` puts each worker into a session of its
own.

The reported login is that of the login session in which the process runs, or that of
its container's label, or else that of its uid. The reported uid is the process's own.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from telemetry.agent.containers import ContainerUsers, read_place
from telemetry.agent.slow_answers import WAIT_SECONDS, SlowAnswer, SlowAnswers
from telemetry.proc_stat import PROC, ProcStat, read_stat, read_uids
from telemetry.protocol.sample import COMMAND_LENGTH, USER_LENGTH

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
MOST_ANCESTORS = 32
MOST_KEPT = 4096
REGISTRY_EVERY_SECONDS = 2.0
IDENTITY_EVERY_SECONDS = 10.0
"""How often to read a process again: it may run another program or change its user
under the same pid."""
_ENTRY = re.compile(r"(\d{1,18})-\d{1,9}(?:-[0-9a-f]{1,32})?")


def boot_at(proc: Path = PROC) -> float:
    """Return the Unix seconds at which the machine started (`btime` in /proc/stat)."""
    for line in (proc / "stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    raise OSError(f"no btime in {proc / 'stat'}")


def boot_id(proc: Path = PROC) -> str:
    """Return the identity of this boot of the machine; "" if the kernel hides it."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def shorten(command: bytes) -> str:
    """Return a command line on one line, without the program's folders, cut at
    `COMMAND_LENGTH`.

    >>> shorten(b"/opt/venv/bin/python\\0-m\\0torch.distributed.run\\0train.py\\0")
    'python -m torch.distributed.run train.py'
    """
    words = command.rstrip(b"\0").decode("utf-8", "replace").split("\0")
    words[0] = words[0].rpartition("/")[2] or words[0]
    text = printable(" ".join(words))
    most = COMMAND_LENGTH
    return text if len(text) <= most else f"{text[: most - 1]}…"


def printable(text: str) -> str:
    """Replace control characters, line breaks and direction marks by spaces."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of a process. `None`: it is gone, or /proc hides it."""

    uid: int | None = None
    user: str | None = None
    """Login to which it is attributed; None if unknown, or not known yet."""
    command: str = ""
    started_at: float | None = None
    start_ticks: int | None = None
    job: int | None = None


NOBODY = Owner()
DEFUNCT = Owner()
"""Owner of a zombie: it has ended and was not reaped yet."""


class UserNames:
    """Maps uids to login names without ever delaying a Sample."""

    def __init__(self, wait_seconds: float = WAIT_SECONDS) -> None:
        self._answers = SlowAnswers[int](
            _login_name, name="user-names", wait_seconds=wait_seconds
        )

    def name(self, uid: int) -> str | None:
        """Return the login name; None while it is not known (yet)."""
        return self.answer(uid).value

    def answer(self, uid: int) -> SlowAnswer:
        """Return the login name and whether it is known by now."""
        return self._answers.get(uid)

    def refresh(self, at: float) -> None:
        """Forget all names from time to time, because accounts are made and renamed."""
        self._answers.refresh(at)


def _login_name(uid: int) -> str | None:
    try:
        return printable(pwd.getpwuid(uid).pw_name)[:USER_LENGTH]
    except KeyError:
        return None


@dataclass(frozen=True, slots=True)
class ShimEntry:
    """One job of the registry."""

    job: int
    pid: int
    start_ticks: int
    pgid: int | None
    leader_start_ticks: int | None


class JobRegistry:
    """The jobs whose shims run on this node, read again every few seconds."""

    def __init__(self, node_dir: Path | None) -> None:
        self._folder = node_dir / "jobs" if node_dir else None
        self._read_at = float("-inf")
        self.version = 0
        """Grows with every change of the registry."""
        self._shims: dict[int, ShimEntry] = {}
        self._groups: dict[int, ShimEntry] = {}

    def refresh(self, at: float) -> None:
        """Read the folder again if it was not read recently. `at`: monotonic
        seconds.
        """
        if self._folder is None or at - self._read_at < REGISTRY_EVERY_SECONDS:
            return
        self._read_at = at
        entries = list(self._entries(self._folder))
        shims = {entry.pid: entry for entry in entries}
        if shims == self._shims:
            return
        self.version += 1
        self._shims = shims
        self._groups = {entry.pgid: entry for entry in entries if entry.pgid}

    @staticmethod
    def _entries(folder: Path) -> Iterator[ShimEntry]:
        try:
            paths = list(folder.iterdir())
        except OSError:
            return
        for path in paths:
            match = _ENTRY.fullmatch(path.name)
            entry = _shim_entry(int(match[1]), path / "shim.json") if match else None
            if entry is not None:
                yield entry

    def job_of(self, pid: int, stat: ProcStat, proc: Path = PROC) -> int | None:
        """Return a process's job, by its own or an ancestor's group, or by its shim."""
        if not self._shims:
            return None
        for _ in range(MOST_ANCESTORS):
            entry = self._groups.get(stat.pgid) or self._groups.get(stat.session)
            if entry is not None and _is_still_leader(entry, proc):
                return entry.job
            shim = self._shims.get(pid)
            if shim is not None and shim.start_ticks == stat.start_ticks:
                return shim.job
            pid = stat.ppid
            parent = read_stat(pid, proc) if pid > 1 else None
            if parent is None:
                return None
            stat = parent
        return None


def _is_still_leader(entry: ShimEntry, proc: Path) -> bool:
    """Return whether the group is still the job's, and not that of a later process.

    The kernel does not reuse a pid while a group of that number exists. So a group
    without a leader is still the job's.
    """
    if entry.pgid is None or entry.leader_start_ticks is None:
        return False
    leader = read_stat(entry.pgid, proc)
    return leader is None or leader.start_ticks == entry.leader_start_ticks


def _shim_entry(job: int, path: Path) -> ShimEntry | None:
    """Read one shim.json; None while it is missing or half written."""
    try:
        values = json.loads(path.read_bytes())
        pgid, leader = values.get("pgid"), values.get("leader_start_ticks")
        return ShimEntry(
            job=job,
            pid=int(values["pid"]),
            start_ticks=int(values["start_ticks"]),
            pgid=None if pgid is None else int(pgid),
            leader_start_ticks=None if leader is None else int(leader),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(slots=True)
class _CachedOwner:
    """An Owner, and when its parts were read."""

    owner: Owner
    start_ticks: int
    identity_at: float
    registry_version: int
    settled: bool
    """False if a name is still being looked up or the process was just ending."""


class ProcessOwners:
    """Maps pids to Owners, which are kept as long as the process lives."""

    def __init__(self, node_dir: Path | None = None, proc: Path = PROC) -> None:
        self._proc = proc
        self._names = UserNames()
        self._containers = ContainerUsers()
        # If the node itself runs in a container, that container is its machine.
        self._own_container = read_place(os.getpid(), proc).container
        self._registry = JobRegistry(node_dir)
        self._kept: dict[int, _CachedOwner] = {}
        self._boot_at = boot_at(proc)
        self._now = 0.0

    def refresh(self, at: float) -> None:
        """Prepare a Sample: read the registry if it is due. `at`: monotonic seconds."""
        self._now = at
        self._registry.refresh(at)
        self._names.refresh(at)
        self._containers.refresh(at)
        if len(self._kept) > MOST_KEPT:
            self._kept.clear()

    def owner(self, pid: int) -> Owner:
        """Return the current owner of a process; NOBODY if it is gone, DEFUNCT for a
        zombie."""
        stat = read_stat(pid, self._proc)
        if stat is None or stat.dead:
            self._kept.pop(pid, None)
            return DEFUNCT if stat else NOBODY
        kept = self._kept.get(pid)
        version = self._registry.version
        if (
            kept is not None
            and kept.start_ticks == stat.start_ticks
            and kept.registry_version == version
            and self._now - kept.identity_at < IDENTITY_EVERY_SECONDS
            and kept.settled
        ):
            return kept.owner
        uid, command = self._identity(pid, stat)
        login = self._login(pid, uid)
        owner = Owner(
            uid=uid,
            user=login.value,
            command=command,
            started_at=self._boot_at + stat.start_ticks / TICKS_PER_SECOND,
            start_ticks=stat.start_ticks,
            job=self._registry.job_of(pid, stat, self._proc),
        )
        self._kept[pid] = _CachedOwner(
            owner, stat.start_ticks, self._now, version, settled=login.known
        )
        return owner

    def _login(self, pid: int, uid: int | None) -> SlowAnswer:
        """Return the login by the login session, the container's label, or the uid."""
        place = read_place(pid, self._proc)
        if place.slice_uid is not None:
            return self._names.answer(place.slice_uid)
        if place.container not in (None, self._own_container):
            return self._containers.user(place.container or "")
        return SlowAnswer(known=False) if uid is None else self._names.answer(uid)

    def _identity(self, pid: int, stat: ProcStat) -> tuple[int | None, str]:
        uids = read_uids(pid, self._proc)
        try:
            command = (self._proc / str(pid) / "cmdline").read_bytes()
        except OSError:
            uids = ()
        if not uids:
            return None, printable(stat.comm)[:COMMAND_LENGTH]
        return uids[0], shorten(command) if command else printable(stat.comm)
