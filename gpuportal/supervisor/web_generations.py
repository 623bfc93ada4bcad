"""The web processes of one port, replaced without refusing a request.

    python -m gpuportal.supervisor.web_generations --root /opt/gpuportal --state FILE
    python -m gpuportal.supervisor.web_generations --reload --state FILE

systemd opens the port (``gpuportal-web.socket``) and starts this process, which starts
web processes that all accept from it. On SIGHUP it starts a new *generation* from the
release that the root leads to now. The old one ends when every process of the new one
is ready. If one of them is not, the old generation goes on, and ``--reload`` prints why
and ends with status 1.

No Django here, and nothing of the release that is served: this process outlives
releases.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from gpuportal import systemd
from gpuportal.supervisor import kernel
from telemetry.protocol.back_off import BackOff

SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
BACKLOG = 2048
"""Connections that wait to be accepted, as uvicorn has it."""
READY_SECONDS = 150.0
"""How long a web process may take to load the application."""
LOOK_SECONDS = 0.05
"""Between two looks while processes start or end."""
IDLE_SECONDS = 5.0
STOP_SECONDS = 5.0
"""How long requests may take when the web is stopped, not replaced."""
RETIRED_SECONDS = 75.0
"""A replaced process that still runs is killed. It drains for 60 seconds itself."""
STEADY_SECONDS = 60.0
QUICK_DEATHS_MAX = 5
RESTART_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
LAUNCH_FAILURES = (OSError, subprocess.SubprocessError)
_numbers = count(1)


@dataclass
class WebProcess:
    """One process of a generation."""

    process: subprocess.Popen[bytes]
    notices: socket.socket
    """Where it reports that it is ready."""
    address: Path
    """Path of that socket. Only the user of this process may write to it."""
    started: float
    """Monotonic."""
    ready: bool = False
    closed: bool = False
    """Whether it accepts no more requests."""
    retired: float | None = None
    """When it was asked to end, monotonic."""

    def look(self) -> None:
        """Read what it has reported."""
        with suppress(BlockingIOError):
            while True:
                said = self.notices.recv(100)
                self.ready |= said == b"READY=1"
                self.closed |= said == b"STOPPING=1"

    @property
    def dead(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def close(self) -> None:
        """Forget it after its end."""
        self.notices.close()
        self.address.unlink(missing_ok=True)


@dataclass
class Generation:
    """The web processes of one release."""

    release: Path
    """Its folder, without links."""
    processes: list[WebProcess] = field(default_factory=list)


class WebGenerations:
    """Keeps one generation, and replaces it on request. Main thread only."""

    def __init__(
        self, *, root: Path, fd: int, workers: int, module: str, state: Path
    ) -> None:
        """Prepare; nothing is started.

        Args:
            root: the release that is served; a link that upgrades change.
            fd: the open port.
            module: what a web process runs, as ``python -m``.
            state: file that tells ``--reload`` the result.
        """
        self._root, self._fd, self._workers = root, fd, workers
        self._module, self._state = module, state
        self._serving = Generation(root.resolve())
        self._retired: list[WebProcess] = []
        self._deaths = BackOff(RESTART_SECONDS)
        self._start_again = 0.0
        self._reloads = 0

    def run(self) -> int:
        """Serve until SIGTERM. Return the exit status."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._serving, why = self._start(self._root.resolve())
        if why:
            # Not a failure if it was asked to stop meanwhile.
            stopped = signal.SIGTERM in signal.sigpending()
            return 0 if stopped else self._give_up(why)
        self._write_state("")
        systemd.ready()
        while True:
            found = signal.sigtimedwait(SIGNALS, self._pause_seconds())
            number = found.si_signo if found else 0
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop()
                return 0
            if number == signal.SIGHUP:
                self._replace()
            self._end_retired()
            if not self._keep_serving():
                return self._give_up("web processes end right after their start")

    # --- generations --------------------------------------------------------------

    def _start(self, release: Path) -> tuple[Generation, str]:
        """Start a generation and wait until it is ready.

        Returns:
            The generation, and why it is not ready. "": it is.
        """
        made = Generation(release)
        try:
            for _ in range(self._workers):
                made.processes.append(self._launch(release))
        except LAUNCH_FAILURES as error:
            self._kill(made)
            return made, f"a web process cannot be started: {error}"
        deadline = time.monotonic() + READY_SECONDS
        while not all(one.ready for one in made.processes):
            for one in made.processes:
                one.look()
                if one.dead:
                    self._kill(made)
                    status = one.process.returncode
                    return made, f"a web process ended with status {status}"
            if time.monotonic() > deadline:
                self._kill(made)
                return made, f"no web process was ready in {READY_SECONDS:.0f} s"
            if signal.sigtimedwait({signal.SIGTERM}, LOOK_SECONDS):
                self._kill(made)
                # Seen again by the caller's loop.
                os.kill(os.getpid(), signal.SIGTERM)
                return made, "the web was stopped"
        return made, ""

    def _replace(self) -> None:
        release = self._root.resolve()
        made, why = self._start(release)
        self._reloads += 1
        if why:
            self._say(f"{release}: {why}; {self._serving.release} goes on")
        else:
            old = self._serving.processes
            for one in old:
                self._retire(one)
            # From here on only the new generation answers.
            deadline = time.monotonic() + STOP_SECONDS
            while not all(one.closed or one.dead for one in old):
                if time.monotonic() > deadline:
                    break
                time.sleep(LOOK_SECONDS)
                for one in old:
                    one.look()
            self._serving = made
            self._deaths.succeeded()
        self._write_state(why)

    def _retire(self, one: WebProcess) -> None:
        one.retired = time.monotonic()
        kernel.send(one.process.pid, signal.SIGTERM)
        self._retired.append(one)

    def _end_retired(self) -> None:
        now = time.monotonic()
        for one in list(self._retired):
            if one.dead:
                one.close()
                self._retired.remove(one)
            elif now - (one.retired or now) > RETIRED_SECONDS:
                one.process.kill()

    def _keep_serving(self) -> bool:
        """Start what has died again. False: it dies again and again."""
        now = time.monotonic()
        for one in [one for one in self._serving.processes if one.dead]:
            status = one.process.returncode
            one.close()
            self._serving.processes.remove(one)
            if now - one.started > STEADY_SECONDS:
                self._deaths.succeeded()
            self._start_again = now + self._deaths.failed()
            self._say(f"a web process ended with status {status}")
        if self._deaths.failures >= QUICK_DEATHS_MAX:
            self._stop()
            return False
        missing = self._workers - len(self._serving.processes)
        if missing and now >= self._start_again:
            # The release that is served, also if the root leads to another one now.
            try:
                for _ in range(missing):
                    made = self._launch(self._serving.release)
                    self._serving.processes.append(made)
            except LAUNCH_FAILURES as error:
                self._start_again = now + self._deaths.failed()
                self._say(f"a web process cannot be started: {error}")
        return True

    def _stop(self) -> None:
        """End all, and requests that take long."""
        left = [*self._serving.processes, *self._retired]
        ended = list(left)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            for one in left:
                kernel.send(one.process.pid, signum)
            deadline = time.monotonic() + STOP_SECONDS
            while not all(one.dead for one in left) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
            left = [one for one in left if not one.dead]
            if not left:
                break
        for one in ended:
            one.close()

    def _kill(self, made: Generation) -> None:
        for one in made.processes:
            one.process.kill()
            one.process.wait()
            one.close()

    # --- one process --------------------------------------------------------------

    def _launch(self, release: Path) -> WebProcess:
        address = self._state.absolute().with_name(
            f"ready-{os.getpid()}-{next(_numbers)}"
        )
        notices = _notices(address)
        die = kernel.die_with_parent(signal.SIGTERM)

        def before_exec() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            die()

        try:
            process = subprocess.Popen(
                [self._python(release), "-m", self._module, "--fd", str(self._fd)],
                cwd=release,
                env=os.environ | {"NOTIFY_SOCKET": str(address)},
                stdin=subprocess.DEVNULL,
                pass_fds=(self._fd,),
                preexec_fn=before_exec,
            )
        except LAUNCH_FAILURES:
            notices.close()
            address.unlink(missing_ok=True)
            raise
        return WebProcess(process, notices, address, time.monotonic())

    def _python(self, release: Path) -> str:
        """Return the release's own Python, or this one if it has none."""
        own = release / ".venv" / "bin" / "python"
        return str(own) if own.exists() else sys.executable

    def _pause_seconds(self) -> float:
        if self._retired or len(self._serving.processes) < self._workers:
            return LOOK_SECONDS
        return IDLE_SECONDS

    # --- what others read ---------------------------------------------------------

    def _write_state(self, why: str) -> None:
        state = {
            "pid": os.getpid(),
            "reloads": self._reloads,
            "release": str(self._serving.release),
            "failure": why,
        }
        draft = self._state.with_suffix(".draft")
        try:
            draft.write_text(json.dumps(state))
            draft.replace(self._state)
        except OSError as error:
            # Those that serve go on. A reload is then not answered.
            self._say(f"{self._state} cannot be written: {error.strerror}")

    def _give_up(self, why: str) -> int:
        self._say(why)
        return 1

    def _say(self, text: str) -> None:
        print(f"web: {text}", file=sys.stderr, flush=True)


def _notices(address: Path) -> socket.socket:
    """Return a socket in a folder, for the user of this process alone.

    An abstract address has no permissions: every user of the machine could send to it.

    Raises:
        OSError: it cannot be made.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        # Left by a process that was killed and had the same number.
        address.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            made.bind(str(address))
        finally:
            os.umask(before)
        address.chmod(0o600)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def read_state(file: Path) -> dict[str, Any]:
    """Return what the process of a state file has written; empty if there is none."""
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        return {}


def reload_web(file: Path) -> str:
    """Have the generation replaced. Return why it was not; "" if it was."""
    before = read_state(file)
    try:
        os.kill(int(before["pid"]), signal.SIGHUP)
    except (KeyError, ValueError, ProcessLookupError):
        return "the web does not run"
    deadline = time.monotonic() + READY_SECONDS + 2 * STOP_SECONDS
    while time.monotonic() < deadline:
        after = read_state(file)
        if after.get("pid") != before["pid"]:
            return "the web was started again meanwhile"
        if after.get("reloads", 0) > before.get("reloads", 0):
            return str(after.get("failure", ""))
        time.sleep(LOOK_SECONDS)
    return "the web does not answer"


def open_socket(path: Path) -> int:
    """Listen on a Unix socket, which every user may connect to; return its descriptor.

    It is for a container, where nothing else opens a port beforehand.

    Raises:
        OSError: the path cannot be used.
    """
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    path.chmod(0o666)
    listening.listen(BACKLOG)
    return listening.detach()


def main() -> int:
    """Serve, or ask the process that serves for a new generation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--state", type=Path, required=True, metavar="FILE")
    parser.add_argument("--reload", action="store_true")
    parser.add_argument("--root", type=Path, default=Path.cwd())
    parser.add_argument("--fd", type=int, default=3, help="the open port")
    parser.add_argument(
        "--uds", type=Path, metavar="FILE", help="a socket to open in place of a port"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--module", default="gpuportal.supervisor.web_process")
    options = parser.parse_args()
    if options.reload:
        why = reload_web(options.state)
        if why:
            print(f"web: {why}", file=sys.stderr)
        return 1 if why else 0
    return WebGenerations(
        root=options.root,
        fd=open_socket(options.uds) if options.uds else options.fd,
        workers=options.workers,
        module=options.module,
        state=options.state,
    ).run()


if __name__ == "__main__":
    sys.exit(main())
