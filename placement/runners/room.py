"""Room on the node's disk: kept for a Job's end, and words for when there is none.

A full disk must cost the Job that filled it, and no other: the shim has written
aside what its last words need, and what it cannot write into a log is not a
reason to end a Job.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

RESERVE = "reserve"
RESERVE_BYTES = 32 * 1024
"""More than ``status.json`` with its twenty last lines."""
FULL_BYTES = 64 * 1024
"""With less than this free a disk is called full."""
LAST_WORDS_SECONDS = 30.0
LOOK_SECONDS = 0.2


def put_aside(folder: Path) -> None:
    """Take the room that the Job's end will need.

    Raises:
        OSError: there is none.
    """
    handle = os.open(folder / RESERVE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(handle, 0, RESERVE_BYTES)
    finally:
        os.close(handle)


def release(folder: Path) -> None:
    """Give back the room that was put aside, for words that cannot wait."""
    with contextlib.suppress(FileNotFoundError):
        (folder / RESERVE).unlink()


def insist(folder: Path, write: Callable[[], None]) -> None:
    """Write a Job's end with the room put aside; wait where even that is gone.

    Raises:
        OSError: there was no room for half a minute.
    """
    release(folder)
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while True:
        try:
            return write()
        except OSError as error:
            if time.monotonic() > deadline:
                raise
            complain(f"its end cannot be written yet: {error}")
            time.sleep(LOOK_SECONDS)


def say(log: int, text: str) -> None:
    """Write a line of the portal's into a log, where there is room for it."""
    try:
        os.write(log, text.encode(errors="replace"))
    except OSError as error:
        complain(f"not in the log, {error.strerror}: {text.rstrip()}")


def complain(text: str) -> None:
    """Tell the shim's own diary, which may be on the same disk."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def full_words(folder: Path) -> str:
    """Say that the disk of a folder is full; "" where it is not."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize >= FULL_BYTES:
        return ""
    return "the disk of the node is full"


def why(error: OSError) -> str:
    """Return what went wrong with a Job's folder, without its path."""
    return f"the node cannot keep the job: {error.strerror or error}"
