"""The Unix socket through which a Job that serves models, or a workspace, is reached.

The shim creates it in the Job's folder, where the Job itself cannot write, and passes
only the listening descriptor to the Job. So the node never follows a path that a
student could have changed. The folder is named through a descriptor, because a socket's
address has space for 107 characters and a folder's path may be longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from placement.agent.job_folder import JobFolder

SERVE = "serve.sock"
"""Of a Job that serves models."""
WORKSPACE = "workspace.sock"
"""Of a Job that is a workspace."""
TEXT = "text.sock"
"""Of a Job that serves a language model."""
BACKLOG = 128
CONNECT_SECONDS = 5.0
"""A Job that is stopped accepts no connections, and its queue fills up."""
RETRY_SECONDS = 0.05


@contextmanager
def short_path(folder: JobFolder, name: str) -> Iterator[str]:
    """Yield a path of the socket that is short enough, valid inside the block."""
    handle = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)


def path_of(folder: JobFolder, name: str = SERVE) -> Path:
    """Return the path of the socket."""
    return folder.path / name


def listen(folder: JobFolder, name: str = SERVE) -> socket.socket:
    """Create the socket, for the node worker's user only. Return it, listening."""
    with contextlib.suppress(FileNotFoundError):
        path_of(folder, name).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with short_path(folder, name) as path:
            listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    return listener


async def connect(folder: JobFolder, name: str = SERVE) -> socket.socket:
    """Connect to a Job's socket. A full queue does not block the event loop.

    Raises:
        OSError: no process listens, or the queue is full for `CONNECT_SECONDS`.
    """
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        asking.setblocking(False)
        with short_path(folder, name) as path:
            await _join_queue(asking, path)
    except BaseException:
        asking.close()
        raise
    return asking


async def _join_queue(asking: socket.socket, path: str) -> None:
    """Connect as soon as the queue has a place.

    A Unix socket whose queue is full refuses with EAGAIN and never becomes writable, so
    ``loop.sock_connect`` is of no use here.
    """
    for _ in range(round(CONNECT_SECONDS / RETRY_SECONDS)):
        try:
            asking.connect(path)
        except BlockingIOError:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return
    raise ConnectionRefusedError("it accepts no connections")
