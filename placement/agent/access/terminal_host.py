"""The first process of a terminal's job: it runs shells for the page of a reservation.

It runs as the student. The shim gives it a listening socket that only the node worker
can reach. Each connection is one open page. It sends the messages of
``protocol/terminal_messages.py``. The other direction carries what the terminal prints,
unchanged. Where the node has tmux, all pages of a terminal show one session, and the
session outlives the pages. Without tmux every page is a separate shell that ends with
it.

The job ends when its last shell has ended. At SIGTERM the programs in the foreground of
the shells get SIGTERM too, and the job ends when they have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pty
import pwd
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from placement.agent.access.program_host import LISTENER, OURS
from placement.protocol.terminal_messages import (
    HEAD_BYTES,
    KEYS,
    SIZE,
    unpack_head,
    unpack_size,
)

SESSION = "gp"
"""The name of the session in tmux."""
SIZE_SECONDS = 10.0
"""How long a page may take to send its size."""
FIRST_OUTPUT_SECONDS = 3.0
"""How long typed keys wait for the first output of a shell."""
HANGUP_SECONDS = 2.0
USUAL_SIGNALS = (
    *(signal.SIGPIPE, signal.SIGXFSZ),
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
"""Signals with their usual effect in a shell. Python ignores the first two, and a
program that was started in the background ignores SIGINT. Shells pass that on."""
LOOK_SECONDS = 0.1
PIECE_BYTES = 16 * 1024
NO_SHELLS = ("nologin", "false")
FALLBACK_SHELLS = ("/bin/bash", "/bin/sh")


def login_shell(named: str) -> str:
    """Return the shell of an account, or bash where it may not log in or has none.

    >>> login_shell("/usr/sbin/nologin") in FALLBACK_SHELLS
    True
    """
    usable = named and Path(named).name not in NO_SHELLS and os.access(named, os.X_OK)
    return (
        named if usable else next(p for p in FALLBACK_SHELLS if os.access(p, os.X_OK))
    )


def terminal_environment(environ: Mapping[str, str], shell: str) -> dict[str, str]:
    """Return the environment of a shell, from the job's."""
    kept = {name: value for name, value in environ.items() if name not in OURS}
    kept.pop("PYTHONUNBUFFERED", None)  # of the log, which no shell writes
    return kept | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "SHELL": shell}


def no_shell(error: OSError) -> str:
    """Return why no shell could be started."""
    if error.errno != errno.EAGAIN:
        return f"no shell can be started: {error.strerror}"
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    bound = "" if most == resource.RLIM_INFINITY else f" (at most {most})"
    return (
        f"no shell can be started, because your account has too many processes{bound}. "
        "Press Stop to end this terminal with all that runs in it."
    )


def busy_group(shell_pid: int, proc: Path = Path("/proc")) -> int:
    """Return the process group in the foreground of a shell's terminal.

    It is 0 while the shell waits for a command, and after its end. From proc(5): the
    third, fourth and sixth fields behind the name are process group, session and
    foreground group.
    """
    try:
        fields = (proc / str(shell_pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    group, foreground = int(fields[2]), int(fields[5])
    return foreground if foreground > 0 and foreground != group else 0


class TmuxSession:
    """The one session of a terminal in tmux, whose server is the job's own."""

    def __init__(self, program: str, folder: str, environ: Mapping[str, str]) -> None:
        self.words = [program, "-u", "-S", str(Path(folder, "tmux"))]
        self.environ = environ

    def client(self) -> list[str]:
        """Return the command that attaches to the session, and makes it if missing."""
        return [*self.words, "new-session", "-A", "-s", SESSION]

    def shells(self) -> list[int]:
        """Return the process ids of its shells. []: the session has ended.

        Raises:
            OSError: the account has too many processes.
        """
        told = subprocess.run(
            [*self.words, "list-panes", "-a", "-F", "#{pane_pid}"],
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        return (
            [int(word) for word in told.stdout.split()] if not told.returncode else []
        )


class TerminalHost:
    """Runs shells for the connections of pages."""

    def __init__(
        self, shell: Sequence[str], environ: Mapping[str, str], tmux: TmuxSession | None
    ) -> None:
        self.words = list(tmux.client() if tmux else shell)
        self.environ, self.tmux = dict(environ), tmux
        self.children: set[int] = set()
        self._told: set[int] = set()
        self.over = asyncio.Event()

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one page until it or its shell ends, or the job does."""
        with contextlib.suppress(
            OSError,
            TimeoutError,
            ValueError,
            asyncio.IncompleteReadError,
            asyncio.CancelledError,
        ):
            async with asyncio.timeout(SIZE_SECONDS):
                kind, content = await _message(reader)
            if kind == SIZE:
                await self._run(window_size(content), reader, writer)
        writer.close()

    async def _run(
        self,
        size: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            pid, master = pty.fork()
        except OSError as error:
            writer.write(f"gpuportal: {no_shell(error)}\r\n".encode())
            await writer.drain()
            return
        if pid == 0:
            try:
                for usual in USUAL_SIGNALS:
                    signal.signal(usual, signal.SIG_DFL)
                os.execve(self.words[0], self.words, self.environ)
            finally:
                os._exit(127)
        self.children.add(pid)
        try:
            fcntl.ioctl(master, termios.TIOCSWINSZ, size)
            await _splice(master, reader, writer)
        finally:
            os.close(master)
            await asyncio.to_thread(_reap, pid)
            self.children.discard(pid)
            if not self.children and await self._shells() == []:
                self.over.set()

    async def _shells(self) -> list[int] | None:
        """Return the process ids of all shells; None: they are not known now."""
        if self.tmux is None:
            return list(self.children)
        try:
            return await asyncio.to_thread(self.tmux.shells)
        except OSError:
            return None

    async def end_after(self, asked: asyncio.Event) -> None:
        """Wait for a signal. End the programs in the foreground, and then the job."""
        await asked.wait()
        while True:
            groups = [busy_group(pid) for pid in await self._shells() or ()]
            busy = {group for group in groups if group}
            if not busy:
                break
            _tell(busy - self._told)
            self._told |= busy
            await asyncio.sleep(LOOK_SECONDS)
        self.over.set()


def window_size(size: bytes) -> bytes:
    """Return the size in a message as the ``winsize`` of tty_ioctl(4).

    Raises:
        ValueError: it is no size, or one that no page has.

    >>> struct.unpack("HHHH", window_size(struct.pack(">HH", 80, 24)))
    (24, 80, 0, 0)
    """
    columns, rows = unpack_size(size)
    return struct.pack("HHHH", rows, columns, 0, 0)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind, length_bytes = unpack_head(await reader.readexactly(HEAD_BYTES))
    return kind, await reader.readexactly(length_bytes)


async def _splice(
    master: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry both directions of a terminal until one of them ends."""
    loop = asyncio.get_running_loop()
    printed = asyncio.StreamReader(limit=PIECE_BYTES)
    out, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(printed),
        os.fdopen(os.dup(master), "rb", 0),
    )
    begun = asyncio.Event()

    async def pass_output() -> None:
        # The other side of the terminal is closed: Linux answers EIO.
        with contextlib.suppress(OSError):
            while data := await printed.read(PIECE_BYTES):
                begun.set()
                writer.write(data)
                await writer.drain()

    async def pass_keys() -> None:
        # A shell that is still starting would be ended by an early Ctrl+C.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_OUTPUT_SECONDS):
                await begun.wait()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                kind, content = await _message(reader)
                if kind == SIZE:
                    fcntl.ioctl(master, termios.TIOCSWINSZ, window_size(content))
                elif kind == KEYS:
                    await _type(master, content)

    tasks = [asyncio.create_task(pass_output()), asyncio.create_task(pass_keys())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        out.close()


async def _type(master: int, data: bytes) -> None:
    """Write keys to a terminal, and wait while its program does not read them."""
    loop = asyncio.get_running_loop()
    while data:
        try:
            data = data[os.write(master, data) :]
        except BlockingIOError:
            ready = loop.create_future()
            loop.add_writer(master, _resolve, ready)
            try:
                await ready
            finally:
                loop.remove_writer(master)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _reap(pid: int) -> None:
    """Hang up a shell whose page is gone, and wait for its end."""
    try:
        os.kill(pid, signal.SIGHUP)
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([watched], [], [], HANGUP_SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    finally:
        os.close(watched)


def _tell(groups: Iterable[int]) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)


async def _host(host: TerminalHost) -> None:
    loop = asyncio.get_running_loop()
    # Its thread begins now: when the account has too many processes, none can.
    loop.set_default_executor(ThreadPoolExecutor(1))
    await asyncio.to_thread(int)
    asked = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, asked.set)
    ending = asyncio.create_task(host.end_after(asked))
    listener = socket.socket(fileno=LISTENER)
    listener.set_inheritable(False)
    async with await asyncio.start_unix_server(host.serve, sock=listener):
        await host.over.wait()
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)


def main() -> int:
    """Run a terminal until its last shell has ended."""
    try:
        named = pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        named = ""  # an id of the portal, which has no account
    shell = login_shell(named)
    environ = terminal_environment(os.environ, shell)
    program = shutil.which("tmux", path=environ["PATH"])
    with contextlib.suppress(OSError):  # the job's folder, if the home is away
        os.chdir(environ["HOME"])
    with tempfile.TemporaryDirectory(prefix="gp-") as folder:
        tmux = TmuxSession(program, folder, environ) if program else None
        asyncio.run(_host(TerminalHost([shell, "-i"], environ, tmux)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
