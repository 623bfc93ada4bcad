"""Process lists of a driver older than pynvml's calls.

The bindings know `_v2` and `_v3` of the process calls (driver 510 and later). An older
driver has only the first version, which pynvml no longer wraps. This module calls it
with plain ctypes on the library that is already loaded.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

LIBRARY = "libnvidia-ml.so.1"
ROOM = 128
"""Number of processes for which one call has room."""
SUCCESS = 0


class ProcessV1(ctypes.Structure):
    """nvmlProcessInfo_v1_t of the NVML API Reference."""

    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


class OldProcess(NamedTuple):
    """The two values that an old driver returns, under pynvml's names."""

    pid: int
    usedGpuMemory: int


def running(kind: str, handle: Any) -> list[OldProcess] | None:
    """Return the processes of one kind (`Compute`, `Graphics`); None if unknown."""
    try:
        call = getattr(ctypes.CDLL(LIBRARY), f"nvmlDeviceGet{kind}RunningProcesses")
    except (OSError, AttributeError):
        return None
    count = ctypes.c_uint(ROOM)
    rows = (ProcessV1 * ROOM)()
    if call(handle, ctypes.byref(count), rows) != SUCCESS:
        return None
    return [OldProcess(row.pid, row.usedGpuMemory) for row in rows[: count.value]]
