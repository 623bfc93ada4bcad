"""Memory and disk of the machine itself: what offloading to them can use.

Linux says how much memory programs can still take without swapping (`MemAvailable` of
/proc/meminfo). A container may have less: the limit of its control group, minus what
the group uses and the kernel cannot give back (cgroup v2, `memory.max`,
`memory.current`, and `inactive_file` of `memory.stat`).
"""

from __future__ import annotations

import os
from pathlib import Path

from telemetry.proc_stat import PROC
from telemetry.protocol.hardware import HostCapacity

CGROUP = Path("/sys/fs/cgroup")
KIB_BYTES = 1024


def host_capacity(
    folder: Path | None, *, proc: Path = PROC, cgroup: Path = CGROUP
) -> HostCapacity:
    """Measure the machine. Every value that cannot be read is None.

    Args:
        folder: the folder of the jobs; None if the node runs no jobs.
    """
    known = _numbers(proc / "meminfo")
    total, free = (
        None if key not in known else known[key] * KIB_BYTES
        for key in ("MemTotal", "MemAvailable")
    )
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    if total is not None and limit is not None and used is not None:
        given_back = _numbers(cgroup / "memory.stat").get("inactive_file", 0)
        total = min(total, limit)
        left = max(0, limit - max(0, used - given_back))
        free = None if free is None else min(free, left)
    return HostCapacity(
        memory_total_bytes=total,
        memory_free_bytes=free,
        disk_free_bytes=_disk_free_bytes(folder),
    )


def _disk_free_bytes(folder: Path | None) -> int | None:
    """Return what users without privileges can still write, in bytes."""
    if folder is None:
        return None
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _numbers(path: Path) -> dict[str, int]:
    """Return the lines "name: number" or "name number" of a file of the kernel."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    rows = [line.replace(":", " ").split() for line in lines]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    """Return the number in a file; None: it is not there, or says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
