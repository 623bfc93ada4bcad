"""Whether Linux processes live, and how to end all descendants of one.

The kernel uses pids again. A pid together with the start time (field 22 of
/proc/<pid>/stat, in clock ticks since boot; proc(5)) names one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable

from telemetry.proc_stat import PROC, descendants, read_stat

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def start_ticks(pid: int) -> int:
    """Return a living process's start time.

    Raises:
        ProcessLookupError: no such process.
    """
    found = read_stat(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return found.start_ticks


def alive(pid: object, ticks: object) -> bool:
    """Return whether exactly that process (pid and start time) still runs."""
    if not isinstance(pid, int) or not isinstance(ticks, int):
        return False
    found = read_stat(pid)
    return found is not None and not found.dead and found.start_ticks == ticks


def send(pid: int, sig: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


def end_descendants(timeout_seconds: float = 10.0) -> bool:
    """Kill every descendant of the calling subreaper. False: some are left.

    All are stopped before any is killed, so that a process that forks faster than it is
    killed cannot win. The rounds end when none is left.
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
    """Collect every ended child. Return {pid: wait status}."""
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

    A change of the user cancels this, so call it after setuid.

    Raises:
        ProcessLookupError: the parent has ended already.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise ProcessLookupError(parent_pid)


def environ_holds(pid: int, entry: str) -> bool:
    """Return whether a process was started with an entry in its environment."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return entry.encode() in raw.split(b"\0")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")
