"""The first process of a terminal's job: real shells on real terminals."""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from placement.agent.access import terminal_host
from placement.agent.access.terminal_host import busy_group, terminal_environment
from placement.agent.process.job_process import CODE_DIR
from placement.planner.launch.recipes import WORKSPACE, recipe_command
from tests.placement.nodes import PATIENCE_SECONDS
from tests.placement.workspace.workspace_nodes import require_tmux

TMUX = "/usr/bin:/bin"
UID, MOST = 1871, 20
"""A user without other processes, and how many it may have."""


class TerminalPage:
    """One page's connection."""

    def __init__(self, path, columns=80, rows=24):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.socket.settimeout(PATIENCE_SECONDS)
        self.seen = b""
        self.resize(columns, rows)

    def resize(self, columns, rows):
        self.send(b"s", struct.pack(">HH", columns, rows))

    def type(self, text):
        self.send(b"d", text.encode())

    def send(self, kind, content):
        self.socket.sendall(struct.pack(">cH", kind, len(content)) + content)

    def until(self, pattern):
        end = time.monotonic() + PATIENCE_SECONDS
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, self.seen[-2000:]
            data = self.socket.recv(65536)
            assert data, ("closed", self.seen[-2000:])
            self.seen += data
        self.seen = self.seen[found.end() :]
        return found

    def until_it_answers(self):
        """Ask until the shell answers: Ctrl+C drops what was typed before it."""
        end = time.monotonic() + PATIENCE_SECONDS
        self.socket.settimeout(1)
        while not re.search(rb"up-2\r\n", self.seen):
            assert time.monotonic() < end, self.seen[-2000:]
            self.type("echo up-$((1+1))\r")
            with contextlib.suppress(TimeoutError):
                self.seen += self.socket.recv(65536)
        self.socket.settimeout(PATIENCE_SECONDS)

    def until_closed(self):
        # The host may not have read all that was sent.
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(65536):
                continue


@contextlib.contextmanager
def host(folder, path=TMUX, become="", **more):
    """Run it as the shim does, with a listening socket as descriptor 3.

    `become` is code that it runs first.
    """
    there = folder / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(there))
    listener.listen()
    for name in (".bashrc", ".bash_profile"):
        (folder / name).write_text("PS1='ready> '\n")
    words = recipe_command(
        WORKSPACE.name, {"app": "terminal"}, gpu_count=1, python=sys.executable
    )
    # As a program that was started in the background.
    code = (
        "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"os.dup2({listener.fileno()}, 3); {become}os.execv({words[0]!r}, {words})"
    )
    env = {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(CODE_DIR)} | more
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=env, pass_fds=(listener.fileno(), 3)
    )
    listener.close()
    try:
        yield process, there
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


@pytest.fixture
def without_tmux(tmp_path):
    """Return a PATH with the few programs that these tests call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sleep", "stty", "yes", "env", "head"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    return str(folder)


def test_a_page_gets_a_shell_of_its_size_without_the_portals_variables(
    tmp_path, without_tmux
):
    with host(tmp_path, without_tmux, GPUPORTAL_JOB="7") as (process, there):
        page = TerminalPage(there, 100, 30)
        # Ctrl+C before the shell is ready must not end it.
        page.type("\x03")
        page.until_it_answers()
        page.type("stty size; env\r")
        page.until(rb"30 100\r\n")
        page.until(rb"GPUPORTAL_JOB=7|ready> ")
        page.resize(120, 40)
        page.type("stty size; echo [$PYTHONPATH] [$TERM]\r")
        page.until(rb"40 120\r\n\[\] \[xterm-256color\]\r\n")
        page.type("yes | head -n 1; echo [${PIPESTATUS[0]}]\r")
        page.until(rb"y\r\n\[141\]")
        page.type("exit\r")
        page.until_closed()
        assert process.wait(PATIENCE_SECONDS) == 0


def test_ctrl_c_stops_a_flood_while_nobody_reads(tmp_path, without_tmux):
    with host(tmp_path, without_tmux) as (_, there):
        page = TerminalPage(there)
        page.until(rb"ready> ")
        page.type("yes flood\r")
        page.until(rb"(flood\r\n){100}")
        page.type("\x03")
        page.until(rb"ready> ")
        page.type("echo over-$((1+1))\r")
        page.until(rb"over-2\r\n")


def test_a_wrong_first_message_or_size_starts_no_shell(tmp_path, without_tmux):
    with host(tmp_path, without_tmux) as (process, there):
        for columns, rows in ((0, 24), (80, 1), (65535, 24)):
            TerminalPage(there, columns, rows).until_closed()
        other = TerminalPage(there)
        other.until(rb"ready> ")
        other.send(b"s", b"abc")
        other.until_closed()
        assert process.wait(PATIENCE_SECONDS) == 0, "its only shell has ended"


def test_a_session_in_tmux_outlives_its_page_and_ends_with_its_last_shell(tmp_path):
    require_tmux()
    with host(tmp_path) as (process, there):
        first = TerminalPage(there)
        first.until(rb"ready> ")
        first.type("kept=here; cd /; sleep 300\r")
        first.until(rb"sleep 300")
        first.socket.close()
        second = TerminalPage(there, 90, 20)
        second.until(rb"sleep 300")
        second.type("\x03")
        second.until(rb"ready> ")
        second.type("echo still-$kept\r")
        second.until(rb"still-here")
        second.type("exit\r")
        second.until_closed()
        assert process.wait(PATIENCE_SECONDS) == 0


def test_term_reaches_the_program_in_the_foreground_before_the_end(tmp_path):
    with host(tmp_path) as (process, there):
        page = TerminalPage(there)
        page.until(rb"ready> ")
        page.type("sh -c 'trap \"echo saved > saved; exit\" TERM; echo be''gun; ")
        page.type("while :; do sleep 0.1; done'\r")
        page.until(rb"begun")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "saved").read_text() == "saved\n"


BOMB = """
import os, time
for made in range(100):
    try:
        child = os.fork()
    except BlockingIOError:
        print("no", "more", flush=True)
        break
    if child == 0:
        break
time.sleep(300)
"""


@pytest.fixture(params=[False, True], ids=["plain", "tmux"])
def crowded(request, tmp_path, without_tmux):
    """Run a terminal of a user without an account, who may have `MOST` processes."""
    if request.param:
        require_tmux()
    if os.geteuid() != 0:
        pytest.skip("needs root, to run as another user")
    uid = UID + request.param
    limited = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NPROC, ({MOST}, {MOST}));"
        f"os.setgroups([]); os.setresgid(*[{uid}] * 3); os.setresuid(*[{uid}] * 3);"
    )
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)
    with host(tmp_path, TMUX if request.param else without_tmux, limited) as found:
        yield found
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == uid:
                os.kill(int(folder.name), signal.SIGKILL)


def test_a_fork_bomb_is_explained_and_stop_ends_it(tmp_path, crowded):
    (process, there), bomb = crowded, tmp_path / "bomb.py"
    bomb.write_text(BOMB)
    page = TerminalPage(there)
    page.until(rb"ready> ")
    page.type(f"{sys.executable} {bomb}\r")
    page.until(rb"no more")
    second = TerminalPage(there)
    second.until(rb"too many processes \(at most %d\)" % MOST)
    second.until_closed()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0


def test_a_shell_that_waits_for_a_command_is_not_busy(tmp_path):
    (tmp_path / "7").mkdir()
    stat = tmp_path / "7" / "stat"
    stat.write_text("7 (a ) b) S 1 7 7 34816 7 0\n")
    assert busy_group(7, tmp_path) == 0
    stat.write_text("7 (a ) b) S 1 7 7 34816 9 0\n")
    assert busy_group(7, tmp_path) == 9
    stat.write_text("7 (a ) b) S 1 7 7 0 -1 0\n")
    assert busy_group(7, tmp_path) == 0
    assert busy_group(8, tmp_path) == 0
    kept = terminal_environment({"PYTHONPATH": "/portal", "A": "1"}, "/bin/sh")
    assert kept == {
        "A": "1",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "SHELL": "/bin/sh",
    }
    assert terminal_host.login_shell("/bin/false") in terminal_host.FALLBACK_SHELLS
    assert terminal_host.login_shell(os.path.realpath("/bin/sh")) != "/bin/false"
