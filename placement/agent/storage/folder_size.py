"""How much a Job's own folder holds, measured beside the shim.

A thread walks the folder every few seconds and less often where that takes long, so
that the shim's own clock never waits for a disk. Counted is what the files take on the
disk (stat(2), st_blocks), a file of several names once; links are not followed, and
nothing is opened but folders, by descriptor: names may change under the walk.

This is a watch and no wall: a Job can be over its limit for as long as one look takes.
The wall is a filesystem's own quota where an operator has set one (docs/operations.md).
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from placement.agent.storage.results_reader import FOLDER
from telemetry.protocol.units import format_bytes

LOOK_SECONDS = 2.0
MOST_SHARE = 0.05
"""Of the time goes into looking, where a folder has very many files."""
MOST_DEPTH = 200
BLOCK_BYTES = 512
Count = Callable[[os.stat_result, set[tuple[int, int]]], int]
"""Bytes that one entry counts; the set remembers files that were counted."""


class FoldersTooDeep(Exception):
    """Folders in folders without end: what lies there cannot be counted."""


class FolderWatch:
    """Measures folders until stopped; ``why`` says when they hold too much."""

    def __init__(self, folders: Sequence[Path], most_bytes: int) -> None:
        self.folders, self.most_bytes = folders, most_bytes
        self.used_bytes = 0
        self.why = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FolderWatch:
        """Begin to look, if there is a limit."""
        if self.most_bytes:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look no more."""
        self._stop.set()
        if self.most_bytes:
            self._thread.join(LOOK_SECONDS)

    def _run(self) -> None:
        pause = LOOK_SECONDS
        while not self._stop.wait(pause) and not self.why:
            begun = time.monotonic()
            self.why = self.measure()
            pause = max(LOOK_SECONDS, (time.monotonic() - begun) / MOST_SHARE)

    def measure(self) -> str:
        """Measure once; why the Job is to stop, or nothing."""
        try:
            self.used_bytes = sum(size_bytes(path) for path in self.folders)
        except FoldersTooDeep:
            return f"its folder has folders nested deeper than {MOST_DEPTH}"
        if self.used_bytes <= self.most_bytes:
            return ""
        used, most = format_bytes(self.used_bytes), format_bytes(self.most_bytes)
        return f"its folder holds {used}, and may hold {most}"


def size_bytes(path: Path) -> int:
    """Return the bytes that a folder's files take on the disk; 0 without a folder.

    Raises:
        FoldersTooDeep: see MOST_DEPTH.
    """
    return _open_and_walk(path, _disk_bytes)


def content_bytes(path: Path) -> int:
    """Bytes that a folder's regular files hold; 0 where there is no such folder.

    Raises:
        FoldersTooDeep: see MOST_DEPTH.
    """
    return _open_and_walk(path, _file_bytes)


def _open_and_walk(path: Path, counted: Count) -> int:
    try:
        handle = os.open(path, FOLDER)
    except OSError:
        return 0
    return _walk(handle, counted, set(), 0)


def _disk_bytes(info: os.stat_result, seen: set[tuple[int, int]]) -> int:
    """Return the bytes that one entry takes; 0 for a further name of a file."""
    if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
        if (info.st_dev, info.st_ino) in seen:
            return 0
        seen.add((info.st_dev, info.st_ino))
    return info.st_blocks * BLOCK_BYTES


def _file_bytes(info: os.stat_result, _seen: set[tuple[int, int]]) -> int:
    """Return the size of an entry's content. A copy has one for each name."""
    return info.st_size if stat.S_ISREG(info.st_mode) else 0


def _walk(handle: int, counted: Count, seen: set[tuple[int, int]], depth: int) -> int:
    """Bytes under an open folder, which is closed."""
    total = 0
    try:
        if depth > MOST_DEPTH:
            raise FoldersTooDeep
        with contextlib.suppress(OSError), os.scandir(handle) as entries:
            for entry in entries:
                # Gone or not readable: the next measurement decides.
                with contextlib.suppress(OSError):
                    total += _entry(handle, entry.name, counted, seen, depth)
    finally:
        os.close(handle)
    return total


def _entry(
    handle: int, name: str, counted: Count, seen: set[tuple[int, int]], depth: int
) -> int:
    info = os.stat(name, dir_fd=handle, follow_symlinks=False)
    size = counted(info, seen)
    if stat.S_ISDIR(info.st_mode):
        inner = os.open(name, FOLDER, dir_fd=handle)
        size += _walk(inner, counted, seen, depth + 1)
    return size
