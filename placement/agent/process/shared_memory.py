"""Remove the files that a Job's user left in /dev/shm, outside the Job's folder.

Shared memory of data loaders and NCCL outlives the processes that created it, and uses
the node's memory. It is removed when none of the user's processes runs any more. While
another Job, an ssh session or a notebook of the user runs, it stays.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from placement.agent.process.unix_user import UnixIdentity
from placement.agent.storage import folder_tree
from telemetry.proc_stat import PROC, process_table

SHARED = Path("/dev/shm")


def clear(identity: UnixIdentity | None, shared: Path = SHARED) -> int:
    """Remove a user's files, if none of the user's processes runs. Return how many."""
    if identity is None or _runs(identity.uid):
        return 0
    try:
        handle = os.open(shared, folder_tree.FOLDER)
    except OSError:
        return 0
    done = 0
    try:
        with os.scandir(handle) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            with contextlib.suppress(OSError):  # gone, or a new one of that name
                found = os.stat(name, dir_fd=handle, follow_symlinks=False)
                if found.st_uid == identity.uid:
                    folder_tree.remove(shared / name)
                    done += 1
    finally:
        os.close(handle)
    return done


def _runs(uid: int) -> bool:
    for item in process_table():
        with contextlib.suppress(OSError):
            if not item.dead and (PROC / str(item.pid)).stat().st_uid == uid:
                return True
    return False
