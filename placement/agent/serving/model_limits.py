"""Time and memory that one served model may take from the others.

Time: each load and each run has a deadline. The server asks ONNX Runtime to end a run
that is over it (``RunOptions.terminate``). What does not obey, because one operator
never returns or the load itself hangs, is ended by the parent process
(server_guard.py), which reads the deadline from memory that both share.

Memory: RLIMIT_DATA (setrlimit(2)). It needs no privilege, so it holds at each isolation
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
"""What the process itself may need beside its models: libraries, requests, answers."""
CUDA_SLACK_BYTES = 6 * 2**30
"""The same with CUDA's libraries and its host buffers."""
OBEY_SECONDS = 3.0
"""From asking a run to end until the process is killed."""
_HEAD = struct.Struct("dH")
NOTE_BYTES = 4096
NOTE_VARIABLE = "GPUPORTAL_RUN_NOTE"
"""The descriptor of the note, in the server's environment."""


@dataclass(frozen=True)
class TimeLimits:
    """How long one thing may take, in seconds."""

    load: float = 120.0
    """Reading a file and making it ready."""
    try_run: float = 10.0
    """One run on made-up inputs when the model is taken."""
    tries: float = 60.0
    """All of those together."""
    run: float = 10.0
    """One run for requests; ``slowest`` times the slowest tried one where longer."""
    slowest: float = 4.0


class RunNote:
    """What the server does just now and until when, in memory shared with its parent.

    Writing it costs less than a microsecond.
    """

    def __init__(self, handle: int | None = None) -> None:
        """Make it, or open the one that a descriptor holds."""
        if handle is None:
            handle = os.memfd_create("run-note")
            os.ftruncate(handle, NOTE_BYTES)
        self.handle = handle
        self._memory = mmap.mmap(handle, NOTE_BYTES)

    def begin(self, path: str, until: float) -> None:
        """Write down a model's file and its deadline (monotonic, in seconds)."""
        name = path.encode()[: NOTE_BYTES - _HEAD.size]
        self._memory[_HEAD.size : _HEAD.size + len(name)] = name
        # The deadline comes last: before it there is nothing to read.
        _HEAD.pack_into(self._memory, 0, until, len(name))

    def end(self) -> None:
        """Nothing runs."""
        _HEAD.pack_into(self._memory, 0, 0.0, 0)

    def read(self) -> tuple[str, float]:
        """Return the file and its deadline; ("", 0.0): nothing runs."""
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
    """Return the memory that the machine can give without swapping."""
    return _kib(Path("/proc/meminfo"), "MemAvailable:") * 1024


def _kib(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise OSError(f"no {name} in {path}")


def bound_process(room_bytes: int, *, cuda: bool) -> int:
    """Bound this process for good; return the bound in bytes.

    It may take the room of its models and some slack, and never more than three
    quarters of what the machine can give now.
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

    Allocations of other threads fail by it too while the block lasts: the slack is
    theirs.
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
