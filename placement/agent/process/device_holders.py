"""Which processes of a user hold a device file open.

    python -m placement.agent.process.device_holders UID DEVICE

Read from ``/proc/<pid>/fd``, by device number and not by name: a user can give a file
another name in a mount namespace. To look at an open file can block for as long as a
file server is away, so a child does it, which is ended after some seconds.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from telemetry.proc_stat import PROC, read_uids

LOOK_SECONDS = 8.0
MINOR_BITS = 20
BASE_DIR = Path(__file__).resolve().parents[3]
NO_FILES = ("socket:", "pipe:", "anon_inode:")
"""Beginnings of links to what is no file. A name cannot begin like this."""


def holders_of(uid: int, device: int) -> set[int]:
    """Return the processes of a user that have a device open.

    Args:
        uid: the real one.
        device: the kernel's number, ``major << 20 | minor``.

    Raises:
        TimeoutError: the look took too long, or failed.
    """
    command = [sys.executable, "-m", "placement.agent.process.device_holders"]
    try:
        done = subprocess.run(
            [*command, str(uid), str(device)],
            cwd=BASE_DIR,
            capture_output=True,
            timeout=LOOK_SECONDS,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise TimeoutError(f"who holds the device cannot be read: {error}") from error
    return {int(word) for word in done.stdout.split()}


def find_holders(uid: int, device: int, proc: Path = PROC) -> set[int]:
    """Look now, in this process. May block on an open file of a file server."""
    wanted = os.makedev(device >> MINOR_BITS, device & (1 << MINOR_BITS) - 1)
    return {
        int(path.name)
        for path in proc.iterdir()
        if path.name.isdecimal()
        and read_uids(int(path.name), proc)[:1] == (uid,)
        and _holds(path / "fd", wanted)
    }


def _holds(folder: Path, wanted: int) -> bool:
    try:
        links = list(folder.iterdir())
    except OSError:
        return False  # the process has ended
    return any(_is_device(link, wanted) for link in links)


def _is_device(link: Path, wanted: int) -> bool:
    try:
        if str(link.readlink()).startswith(NO_FILES):
            return False
        found = link.stat()
    except OSError:
        return False  # closed this moment
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == wanted


if __name__ == "__main__":
    print(*sorted(find_holders(int(sys.argv[1]), int(sys.argv[2]))))
