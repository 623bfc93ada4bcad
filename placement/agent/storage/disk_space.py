"""Disk space on the node: whether a Job has room, a reserve for its end, a full disk.

`check_room` refuses a Job before it starts if its checkpoint would not fit. A full disk
may only harm the Job that filled it. The shim reserves the space for its last status
files in advance, and a log that cannot be written does not end a Job.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placement.agent.job_folder import write_json
from placement.planner.values.humanize import gib_at_least
from placement.protocol.node_refusals import OrderRefused

KEPT_BYTES = {"status": 32 * 1024, "stop": 4096}
"""More than ``<name>.json`` takes, with the twenty last lines of a status."""
FULL_BYTES = 64 * 1024
"""With less than this free a disk is called full."""
LAST_WORDS_SECONDS = 30.0
LOOK_SECONDS = 0.2


def check_room(needed_bytes: int, folder: Path, job: int) -> None:
    """Refuse if the disk has too little space, before it is full.

    Raises:
        OrderRefused: ``storage``, with the available space.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize - FULL_BYTES
    if needed_bytes > free:
        raise OrderRefused(
            "storage",
            f"the node has no room for the checkpoint of job {job}: it takes "
            f"{gib_at_least(needed_bytes)}, {max(0, free) // 2**20} MiB are free",
        )


def reserve_space(folder: Path) -> None:
    """Reserve space for the files on why a Job stops and how it ended.

    Raises:
        OSError: the disk is full.
    """
    for name, size_bytes in KEPT_BYTES.items():
        path = folder / f"{name}.room"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(handle, 0, size_bytes)
        finally:
            os.close(handle)


def write_with_reserve(folder: Path, name: str, body: Mapping[str, Any]) -> None:
    """Write ``<name>.json``; on a full disk over the room that was put aside for it.

    That takes nothing more of the disk: who else writes there, the Job itself while
    it ends, cannot be faster.

    Raises:
        OSError: there is no room, and none was put aside or it is used already.
    """
    try:
        write_json(folder / f"{name}.json", body)
    except OSError as full:
        kept = folder / f"{name}.room"
        if not kept.is_file():
            raise
        _write_over(kept, json.dumps(body).encode())
        kept.replace(folder / f"{name}.json")
        complain(f"{name}.json went over its reserve: {full}")


def _write_over(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))
    finally:
        os.close(handle)


def write_end_with_reserve(folder: Path, name: str, body: Mapping[str, Any]) -> None:
    """Write a Job's end with the room put aside; wait where even that is gone.

    Raises:
        OSError: there was no room for half a minute.
    """
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while True:
        try:
            write_with_reserve(folder, name, body)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise
            complain(f"its end cannot be written yet: {error}")
            time.sleep(LOOK_SECONDS)
    for kept in KEPT_BYTES:
        (folder / f"{kept}.room").unlink(missing_ok=True)


def write_log_line(log: int, text: str) -> None:
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


def disk_full_text(folder: Path) -> str:
    """Return a sentence if the disk of a folder is full; "" if it is not."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize >= FULL_BYTES:
        return ""
    return "the disk of the node is full"


def open_file_full_text(handle: int) -> bool:
    """Whether the disk of an open file is full."""
    disk = os.fstatvfs(handle)
    return disk.f_bavail * disk.f_frsize < FULL_BYTES


def folder_problem(error: OSError) -> str:
    """Return the problem of a Job's folder, without its path."""
    return f"the node cannot keep the job: {error.strerror or error}"
