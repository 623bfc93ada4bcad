"""The first process of a job whose program a node's connections reach.

It runs as the student. The shim gives it a listening socket that only the node worker
can reach, so the node never follows a path that a student could have changed. The
program listens on another socket, in a folder that only the student can enter.

Each connection carries one request. Its head loses the header Authorization, and gets
the program's token as that header if the program has one. Everything after the head is
passed on unchanged in both directions.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence

LISTENER = 3
"""The descriptor of the socket that the shim opened."""
MOST_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
READY_SECONDS = 60.0
"""How long a connection waits for a program that starts."""
LOOK_SECONDS = 0.1
MOST_WAITING = 64
"""Connections that wait for a program that starts. More of them are closed at once."""
PIECE_BYTES = 64 * 1024
OURS = ("PYTHONPATH", "OMP_NUM_THREADS")
"""Variables of the portal's own programs, which a student's program must not get."""


def with_token(head: bytes, authorization: str) -> bytes:
    """Return a request's head with the header Authorization of the program, if any.

    >>> with_token(b"GET / HTTP/1.1\\r\\nHost: a\\r\\nauthorization: b", "token c")
    b'GET / HTTP/1.1\\r\\nHost: a\\r\\nAuthorization: token c'
    """
    first, *fields = head.split(b"\r\n")
    kept = [
        field
        for field in fields
        if field.partition(b":")[0].strip().lower() != b"authorization"
    ]
    own = [f"Authorization: {authorization}".encode()] if authorization else []
    return b"\r\n".join([first, *kept, *own])


class ProgramHost:
    """Passes the node's connections on to the program."""

    def __init__(
        self,
        socket_path: str,
        *,
        authorization: str = "",
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        """Keep where the program listens.

        Args:
            socket_path: its Unix socket.
            authorization: the value of its header Authorization. "": none.
            ready_seconds: how long a connection waits for it.
        """
        self.socket_path, self.authorization = socket_path, authorization
        self.ready_seconds = ready_seconds
        self._waiting = 0

    async def pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection. A broken one is closed."""
        with contextlib.suppress(
            OSError,
            TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            there, to_there = await self._connect(reader)
            try:
                changed = with_token(head.removesuffix(b"\r\n\r\n"), self.authorization)
                to_there.write(changed + b"\r\n\r\n")
                await _splice((reader, to_there), (there, writer))
            finally:
                to_there.close()
        writer.close()

    async def _connect(
        self, peer: asyncio.StreamReader
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the program, which may still be starting.

        Raises:
            OSError: there is no connection, the peer has gone, or too many wait.
            TimeoutError: the program did not start in time.
        """
        if self._waiting >= MOST_WAITING:
            raise ConnectionRefusedError("too many connections wait for the program")
        self._waiting += 1
        try:
            async with asyncio.timeout(self.ready_seconds):
                while not peer.at_eof():
                    try:
                        return await asyncio.open_unix_connection(self.socket_path)
                    except (FileNotFoundError, ConnectionRefusedError):
                        await asyncio.sleep(LOOK_SECONDS)
            raise ConnectionAbortedError("the peer has gone")
        finally:
            self._waiting -= 1


async def _splice(
    *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Copy both directions until one of them ends."""
    tasks = [asyncio.create_task(_copy(*way)) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PIECE_BYTES):
        writer.write(data)
        await writer.drain()


def run_program(
    words: Sequence[str],
    environ: Mapping[str, str],
    host: ProgramHost,
    *,
    folder: str | None = None,
) -> int:
    """Run a program and pass connections on until it ends.

    Args:
        words: its argv.
        environ: its environment, which loses what only the portal's programs need.
        host: passes connections on to it.
        folder: where it starts. None: where this process runs.

    Returns:
        its exit status, above 128 for a signal.
    """
    own = {name: value for name, value in environ.items() if name not in OURS}
    program = subprocess.Popen(words, env=own, cwd=folder, stdin=subprocess.DEVNULL)
    status = asyncio.run(_host(program, host))
    return status if status >= 0 else 128 - status


async def _host(program: subprocess.Popen[bytes], host: ProgramHost) -> int:
    """Pass connections on until the program has ended. Return its exit status."""
    # The group gets TERM from the shim, the program too. Its end is this one's end.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    listener = socket.socket(fileno=LISTENER)
    server = await asyncio.start_unix_server(
        host.pass_on, sock=listener, limit=MOST_HEAD_BYTES
    )
    async with server:
        return await asyncio.to_thread(program.wait)
