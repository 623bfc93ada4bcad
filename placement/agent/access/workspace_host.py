"""The first process of a workspace's job: it runs the program and passes connections.

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
import os
import pwd
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placement.agent.process.program_lookup import SYSTEM_PATH, checked_argv
from placement.planner.launch.workspace_apps import (
    WORKSPACE_APPS,
    AppPlace,
    WorkspaceApp,
)
from placement.protocol.job_lifecycle import CANNOT_START
from telemetry.protocol.codec import Malformed, decode

LISTENER = 3
"""The descriptor of the socket that the shim opened."""
SOCKET_NAME = "app.sock"
TOKEN_NAME = "token"
SERVERS = Path(__file__).parent
"""The folder of the servers that an environment's Python runs."""
MOST_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
READY_SECONDS = 60.0
"""How long a connection waits for a program that starts."""
LOOK_SECONDS = 0.1
PIECE_BYTES = 64 * 1024
OURS = ("PYTHONPATH", "OMP_NUM_THREADS")
"""Variables of the portal's own programs, which a student's program must not get."""


class ProgramMissing(Exception):
    """The environment has no such program. The text says how to install it."""


class FolderMissing(Exception):
    """The folder that the program is to show is not on this node."""


def shown_folder(entered: str, home: str) -> str:
    """Return the path of the folder that a program is to show.

    Args:
        entered: by its owner. "": the home.
        home: the job's HOME. Where the home is not mounted, it is the job's folder.

    Raises:
        FolderMissing: it is not a folder on this node.
    """
    if not entered.startswith("/") and (missing := _missing_home()):
        raise FolderMissing(
            f"Your home {missing} is not on this node. Ask the lab admin to mount it, "
            "or enter the absolute path of another folder."
        )
    path = Path(home, entered.removeprefix("~/") if entered != "~" else "")
    if not path.is_dir():
        raise FolderMissing(f"There is no folder {path} on this node.")
    return str(path)


def _missing_home() -> str:
    """Return the account's home if it is not on this node, else ""."""
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""  # an account of the portal, whose home is the job's folder
    return "" if Path(home).is_dir() else home


def app_command(
    app: WorkspaceApp, place: AppPlace, environ: Mapping[str, str]
) -> list[str]:
    """Return the argv of a program.

    Args:
        app: the program.
        place: its paths.
        environ: with the job's PATH.

    Raises:
        ProgramMissing: the environment does not have it.
        OSError: the environment's folder is not trusted.
    """
    folder = environ["PATH"].removesuffix(SYSTEM_PATH).rstrip(":")
    more = app.root_arguments if os.geteuid() == 0 else ()
    words = [app.program]
    if app.server:
        words = ["python", str(SERVERS / app.server)]
    words += [*app.arguments(place), *more]
    needed = () if app.of_node else (app.program,)
    try:
        return checked_argv(words, needed, folder)
    except FileNotFoundError:
        if app.instead is not None:
            with contextlib.suppress(ProgramMissing):
                return app_command(app.instead, place, environ)
        raise _missing(app, folder, environ) from None


def _missing(
    app: WorkspaceApp, folder: str, environ: Mapping[str, str]
) -> ProgramMissing:
    """Return what says that a program is missing, and how to install it."""
    place = folder.removesuffix("/bin")
    where = place or "the system's PATH"
    if app.of_node and place:
        where = f"{place} or the system's PATH"
    how = app.install.format(
        python=f"{folder}/python" if folder else "python3",
        folder=place or f"{environ['HOME']}/.local",
    )
    name = "" if place or not app.of_node else ", and name this folder as environment"
    return ProgramMissing(
        f"{app.program} is not installed in {where}. Install it on this node: "
        f"{how}{name}"
    )


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


class WorkspaceHost:
    """Passes the node's connections on to the program."""

    def __init__(self, app: WorkspaceApp, socket_path: str, token: str) -> None:
        self.app, self.socket_path = app, socket_path
        self.authorization = app.authorization.format(token=token)

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
            there, to_there = await self._connect()
            try:
                changed = with_token(head.removesuffix(b"\r\n\r\n"), self.authorization)
                to_there.write(changed + b"\r\n\r\n")
                await _splice((reader, to_there), (there, writer))
            finally:
                to_there.close()
        writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the program, which may still be starting. Raises OSError."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                try:
                    return await asyncio.open_unix_connection(self.socket_path)
                except (FileNotFoundError, ConnectionRefusedError):
                    await asyncio.sleep(LOOK_SECONDS)


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


async def _host(program: subprocess.Popen[bytes], host: WorkspaceHost) -> int:
    """Pass connections on until the program has ended. Return its exit status."""
    # The group gets TERM from the shim, the program too. Its end is this one's end.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    listener = socket.socket(fileno=LISTENER)
    server = await asyncio.start_unix_server(
        host.pass_on, sock=listener, limit=MOST_HEAD_BYTES
    )
    async with server:
        return await asyncio.to_thread(program.wait)


def main(argv: Sequence[str]) -> int:
    """Run a workspace: ``workspace_host SETTINGS`` with the recipe's settings."""
    try:
        given = decode(dict[str, Any], argv[1])
        app = WORKSPACE_APPS[str(given["app"])]
    except (IndexError, KeyError, Malformed):
        sys.stderr.write("usage: workspace_host SETTINGS\n")
        return 2
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="ws-") as folder:
        try:
            place = AppPlace(
                socket=str(Path(folder, SOCKET_NAME)),
                token_file=str(Path(folder, TOKEN_NAME)),
                folder=shown_folder(str(given.get("folder", "")), os.environ["HOME"]),
            )
            words = app_command(app, place, os.environ)
        except (ProgramMissing, FolderMissing, OSError) as problem:
            sys.stderr.write(f"gpuportal: {problem}\n")
            return CANNOT_START
        Path(place.token_file).write_text(token)  # its folder is closed to others
        environ = {k: v for k, v in os.environ.items() if k not in OURS}
        if app.token_variable:
            environ[app.token_variable] = token
        program = subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL)
        host = WorkspaceHost(app, place.socket, token)
        status = asyncio.run(_host(program, host))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
