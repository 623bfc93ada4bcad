"""Limits on time and memory of one served model.

Time: each load and each run has a deadline. The server asks ONNX Runtime to end a run
that exceeds it (``RunOptions.terminate``). If that has no effect, because one operator
never returns or the load itself hangs, the parent process (server_guard.py) ends the
server. It reads the deadline from memory that both share.

Memory: RLIMIT_DATA (setrlimit(2)). It needs no privilege, so it works at each isolation
level. It fails one allocation of one run, where a control group would kill the process
with all its models. It counts private writable memory only: RLIMIT_AS would also count
the address space that CUDA reserves, and files that are mapped.
"""

from __future__ import annotations

import mmap
import os
import resource
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SLACK_BYTES = 2**30
"""Memory of the process besides its models: libraries, requests, answers."""
CUDA_SLACK_BYTES = 6 * 2**30
"""`SLACK_BYTES` with CUDA's libraries and its host buffers."""
OBEY_SECONDS = 3.0
"""From the request to end a run until the process is killed."""
_HEAD = struct.Struct("dH")
NOTE_BYTES = 4096
NOTE_VARIABLE = "GPUPORTAL_RUN_NOTE"
"""The descriptor of the note, in the server's environment."""


@dataclass(frozen=True)
class TimeLimits:
    """Time limits of one operation, in seconds."""

    load: float = 120.0
    """Reading and preparing a file."""
    try_run: float = 10.0
    """One run on random inputs when the model is added."""
    tries: float = 60.0
    """All of those together."""
    run: float = 10.0
    """One run for requests. ``slowest`` times the slowest test run if that is
    longer.
    """
    slowest: float = 4.0


class RunNote:
    """The server's present operation and its deadline, in memory shared with its
    parent.

    Writing it costs less than a microsecond.
    """

    def __init__(self, handle: int | None = None) -> None:
        """Create it, or open the one of a descriptor."""
        if handle is None:
            handle = os.memfd_create("run-note")
            os.ftruncate(handle, NOTE_BYTES)
        self.handle = handle
        self._memory = mmap.mmap(handle, NOTE_BYTES)

    def begin(self, path: str, until: float) -> None:
        """Write a model's file and its deadline (monotonic, in seconds)."""
        name = path.encode()[: NOTE_BYTES - _HEAD.size]
        self._memory[_HEAD.size : _HEAD.size + len(name)] = name
        # The deadline comes last, because it makes the rest valid.
        _HEAD.pack_into(self._memory, 0, until, len(name))

    def end(self) -> None:
        """Nothing runs."""
        _HEAD.pack_into(self._memory, 0, 0.0, 0)

    def read(self) -> tuple[str, float]:
        """Return the file and its deadline. ("", 0.0): nothing runs."""
        until, length = _HEAD.unpack_from(self._memory, 0)
        name = self._memory[_HEAD.size : _HEAD.size + length]
        return name.decode(errors="replace"), until

    @contextmanager
    def during(self, path: str, seconds: float) -> Iterator[float]:
        """Record the action inside the block; yield its deadline."""
        until = time.monotonic() + seconds
        self.begin(path, until)
        try:
            yield until
        finally:
            self.end()


def data_bytes() -> int:
    """Return what RLIMIT_DATA counts of this process (proc(5), VmData)."""
    return _kib(Path("/proc/self/status"), "VmData:") * 1024


def available_bytes() -> int:
    """Return the memory that the machine has available without swapping."""
    return _kib(Path("/proc/meminfo"), "MemAvailable:") * 1024


def _kib(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise OSError(f"no {name} in {path}")


def bound_process(room_bytes: int, *, cuda: bool) -> int:
    """Limit this process for good. Return the limit in bytes.

    It is the memory of its models and some slack, and never more than three quarters of
    the machine's available memory.
    """
    slack_bytes = CUDA_SLACK_BYTES if cuda else SLACK_BYTES
    most = data_bytes() + min(room_bytes, available_bytes() * 3 // 4) + slack_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return most


@contextmanager
def bounded(memory_bytes: int, *, cuda: bool) -> Iterator[None]:
    """Let the process grow by twice an estimate and some slack inside the block.

    Allocations of other threads also fail beyond it while the block lasts. The slack is
    for them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    slack_bytes = CUDA_SLACK_BYTES if cuda else SLACK_BYTES
    most = data_bytes() + 2 * memory_bytes + slack_bytes
    for ceiling in (soft, hard):
        if ceiling != resource.RLIM_INFINITY:
            most = min(most, ceiling)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
