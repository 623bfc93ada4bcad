"""Linux processes: who lives, who descends from whom, and ending all of them.

A pid alone names nobody for long: it is used again. With its start time (field
22 of /proc/<pid>/stat, in clock ticks since boot; proc(5)) it does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/<pid>/stat that this package needs."""

    pid: int
    state: str
    ppid: int
    pgid: int
    session: int
    start_ticks: int

    @property
    def dead(self) -> bool:
        """Whether it is a zombie: ended, only not yet reaped."""
        return self.state in "ZX"


def stat(pid: int) -> Stat | None:
    """Return one process's Stat, or None where there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command, in brackets, may itself hold brackets and blanks.
    rest = text[text.rindex(")") + 2 :].split()
    return Stat(
        pid=pid,
        state=rest[0],
        ppid=int(rest[1]),
        pgid=int(rest[2]),
        session=int(rest[3]),
        start_ticks=int(rest[19]),
    )


def start_ticks(pid: int) -> int:
    """Return a living process's start time.

    Raises:
        ProcessLookupError: no such process.
    """
    found = stat(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return found.start_ticks


def alive(pid: object, ticks: object) -> bool:
    """Say whether exactly that process (pid and start time) still runs."""
    if not isinstance(pid, int) or not isinstance(ticks, int):
        return False
    found = stat(pid)
    return found is not None and not found.dead and found.start_ticks == ticks


def table() -> dict[int, Stat]:
    """Return every process of the machine."""
    found = (stat(int(path.name)) for path in PROC.iterdir() if path.name.isdecimal())
    return {item.pid: item for item in found if item is not None}


def descendants(root_pid: int) -> list[Stat]:
    """Return all that descend from a process and live, the process left out."""
    children: dict[int, list[Stat]] = {}
    for item in table().values():
        children.setdefault(item.ppid, []).append(item)
    found, todo = [], [root_pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            todo.append(child.pid)
            if not child.dead:
                found.append(child)
    return found


def send(pid: int, sig: int) -> None:
    """Send a signal to a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


def end_descendants(timeout_seconds: float = 10.0) -> bool:
    """Kill every descendant of the calling subreaper; False: some are left.

    All are stopped before any is killed, so that a process which forks faster
    than it is killed cannot win; the rounds end when none is left.
    """
    deadline = time.monotonic() + timeout_seconds
    me = os.getpid()
    while True:
        reap()
        living = descendants(me)
        if not living:
            return True
        if time.monotonic() > deadline:
            return False
        for item in living:
            send(item.pid, signal.SIGSTOP)
        for item in descendants(me):
            send(item.pid, signal.SIGKILL)
        time.sleep(0.005)


def end_all(pids: Iterable[int]) -> None:
    """Kill processes that are not children of the caller."""
    pids = list(pids)
    for sig in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            send(pid, sig)


def reap() -> dict[int, int]:
    """Collect every ended child; return {pid: wait status}."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def become_subreaper() -> None:
    """Have orphaned descendants become children of this process (prctl(2))."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends.

    The kernel forgets the wish when the user changes: ask after setuid.

    Raises:
        ProcessLookupError: the parent is gone already.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise ProcessLookupError(parent_pid)


def environ_holds(pid: int, entry: str) -> bool:
    """Say whether a process was started with an entry in its environment."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return entry.encode() in raw.split(b"\0")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")
