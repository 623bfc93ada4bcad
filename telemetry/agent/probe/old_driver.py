"""Process lists of a driver older than pynvml's calls.

The bindings know `_v2` and `_v3` of the process calls (driver 510 and later);
a cluster that still runs an older one has only the first version, which pynvml
does not wrap any more. Plain ctypes on the library that is loaded already.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

LIBRARY = "libnvidia-ml.so.1"
ROOM = 128
"""Processes one call has room for."""
SUCCESS = 0


class ProcessV1(ctypes.Structure):
    """nvmlProcessInfo_v1_t of the NVML API Reference."""

    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


class OldProcess(NamedTuple):
    """The two facts an old driver tells, under pynvml's names."""

    pid: int
    usedGpuMemory: int


def running(kind: str, handle: Any) -> list[OldProcess] | None:
    """Processes of one kind (`Compute`, `Graphics`); None: it cannot say."""
    try:
        call = getattr(ctypes.CDLL(LIBRARY), f"nvmlDeviceGet{kind}RunningProcesses")
    except (OSError, AttributeError):
        return None
    count = ctypes.c_uint(ROOM)
    rows = (ProcessV1 * ROOM)()
    if call(handle, ctypes.byref(count), rows) != SUCCESS:
        return None
    return [OldProcess(row.pid, row.usedGpuMemory) for row in rows[: count.value]]
