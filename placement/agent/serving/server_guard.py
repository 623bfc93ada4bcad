"""The Job of kind ``serve``: `python -m placement.agent.serving.server_guard SETTINGS`.

Runs the server (server.py) and nothing else. A server that hangs in a model, or dies of
one, is started again without that model: the others are taken again and go on, and the
node hears that the model failed and why. The listening socket stays open meanwhile, so
that requests wait and are not refused.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from placement.agent.serving.model_limits import NOTE_VARIABLE, OBEY_SECONDS, RunNote

LISTENER = 3
LOOK_SECONDS = 0.2
MOST_QUICK = 5
"""Deaths in a row, each within QUICK_SECONDS of the start, that end the Job."""
QUICK_SECONDS = 20.0
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SERVER = (sys.executable, "-m", "placement.agent.serving.server")


class Guard:
    """Keeps one server alive until it is asked to end."""

    def __init__(self, settings: str, *, command: Sequence[str] = SERVER) -> None:
        self.settings, self.command = settings, command
        self.note = RunNote()
        self.failed: dict[str, str] = {}
        """Files that the server hung in or died of, and why."""
        self.server: subprocess.Popen[bytes] | None = None
        self.leaving = False

    def run(self) -> int:
        """Serve until SIGTERM or until the server ends. Return its exit code."""
        signal.signal(signal.SIGTERM, self._terminate_server)
        quick = 0
        while True:
            begun = time.monotonic()
            code = self._serve()
            if self.leaving or code == 0:
                return max(code, 0)
            quick = quick + 1 if time.monotonic() - begun < QUICK_SECONDS else 1
            if quick >= MOST_QUICK:
                self._print_line(f"the server died {quick} times in a row")
                return 1

    def _serve(self) -> int:
        """Run the server once; its exit code, negative for a signal."""
        self.note.end()
        words = [*self.command, self.settings, json.dumps(self.failed)]
        me = os.getpid()
        self.server = server = subprocess.Popen(
            words,
            pass_fds=(LISTENER, self.note.handle),
            env={**os.environ, NOTE_VARIABLE: str(self.note.handle)},
            preexec_fn=lambda: _die_with(me),
        )
        if self.leaving:  # asked between the two
            server.terminate()
        while True:
            try:
                code = server.wait(LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                path, until = self.note.read()
                if path and time.monotonic() > until + OBEY_SECONDS:
                    self._fail(path, "it ran on when it was asked to end")
                    server.kill()
                    code = server.wait()
                    break
        path, _ = self.note.read()
        if path and not self.leaving and path not in self.failed:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self._fail(path, f"the server died of it: {how}")
        return code

    def _fail(self, path: str, why: str) -> None:
        self.failed[path] = why
        self._print_line(f"{Path(path).name}: {why}; the server starts again")

    def _print_line(self, words: str) -> None:
        print(f"serving: {words}", flush=True)

    def _terminate_server(self, _signal: int, _frame: FrameType | None) -> None:
        self.leaving = True
        if self.server is not None:
            self.server.terminate()


def _die_with(parent: int) -> None:
    """Have the kernel kill the server when the guard ends (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main(arguments: list[str]) -> int:
    """Guard the server of one Job."""
    if len(arguments) != 1:
        sys.stderr.write(
            "usage: python -m placement.agent.serving.server_guard SETTINGS\n"
        )
        return 2
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return Guard(arguments[0]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
