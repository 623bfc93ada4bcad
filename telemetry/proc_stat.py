"""One process of this machine, from /proc/<pid>/stat and /proc/<pid>/status (proc(5)).

The kernel uses pids again. A pid together with the start time names one process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
STAT_BYTES = 4096
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProcStat(NamedTuple):
    """Fields 1 to 6 and 22 of /proc/<pid>/stat."""

    pid: int
    comm: str
    """Name of the program, at most 15 bytes."""
    state: str
    """One letter: R, S, D, T, Z or X, for example."""
    ppid: int
    pgid: int
    session: int
    start_ticks: int
    """Clock ticks from boot to the start. Together with the pid it is the identity."""

    @property
    def dead(self) -> bool:
        """Whether the process has ended and only waits to be reaped."""
        return self.state in "ZX"


def read_stat(pid: int, proc: Path = PROC) -> ProcStat | None:
    """Read one process's stat. None: there is no such process any more."""
    # The sampler does this for every process every second. pathlib doubles the cost.
    try:
        handle = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        raw = os.read(handle, STAT_BYTES)
    except OSError:
        return None  # It ended between the two calls.
    finally:
        os.close(handle)
    # The name is in brackets and may itself contain brackets and spaces.
    head, _, tail = raw.rpartition(b") ")
    values = tail.split()
    if len(values) < 20:
        return None
    return ProcStat(
        pid=pid,
        comm=head.partition(b" (")[2].decode("utf-8", "replace"),
        state=values[0].decode(),
        ppid=int(values[1]),
        pgid=int(values[2]),
        session=int(values[3]),
        start_ticks=int(values[19]),
    )


def cpu_seconds(pid: int, proc: Path = PROC) -> float:
    """Return the CPU time of a process and of the children that it has waited for. 0.0
    if there is no such process.
    """
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return 0.0
    return sum(map(int, stat.rpartition(b") ")[2].split()[11:15])) / TICKS_PER_SECOND


def read_uids(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """Return real, effective, saved and file system uid; () if there is no such
    process.

    The owner of the folder is not used, because it is root for a process that changed
    its user.
    """
    try:
        status = (proc / str(pid) / "status").read_bytes()
    except OSError:
        return ()
    return tuple(
        int(word) for word in status.partition(b"\nUid:")[2].split(b"\n", 1)[0].split()
    )


def process_table(proc: Path = PROC) -> list[ProcStat]:
    """Read every process. A process that ends meanwhile is left out."""
    pids = (int(path.name) for path in proc.iterdir() if path.name.isdecimal())
    found = (read_stat(pid, proc) for pid in pids)
    return [process for process in found if process is not None]


def descendants(pid: int) -> list[ProcStat]:
    """Return the living descendants of a process, parents before children."""
    children: dict[int, list[ProcStat]] = {}
    for process in process_table():
        children.setdefault(process.ppid, []).append(process)
    found = list(children.get(pid, []))
    for process in found:  # grows while it is read
        found += children.get(process.pid, [])
    return [process for process in found if not process.dead]
