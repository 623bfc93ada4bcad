"""The Unix socket through which a Job that serves models is asked.

The shim makes it in the Job's folder, where the Job itself cannot write, and passes
the Job only the listening descriptor: the node never follows a path that a student
could have changed. The folder is named through a descriptor of its own, because a
socket's address has room for 107 characters and a folder's path may be longer.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from placement.agent.job_folder import JobFolder

NAME = "serve.sock"
BACKLOG = 128


@contextmanager
def short_path(folder: JobFolder) -> Iterator[str]:
    """Yield a path of the socket that is short enough, good inside the block."""
    handle = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{NAME}"
    finally:
        os.close(handle)


def path_of(folder: JobFolder) -> Path:
    """Where the socket is."""
    return folder.path / NAME


def listen(folder: JobFolder) -> socket.socket:
    """Make the socket, for the node worker's user alone; return it, listening."""
    with contextlib.suppress(FileNotFoundError):
        path_of(folder).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with short_path(folder) as path:
            listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    return listener


def connect(folder: JobFolder) -> socket.socket:
    """Connect to a Job's socket. Raises OSError where nobody listens."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(folder) as path:
            asking.connect(path)
    except OSError:
        asking.close()
        raise
    return asking
