"""Keep one sampling child alive, and recognise when that is impossible.

Runs on a thread of the node's worker. The child sends a heartbeat once a second. A
child that falls silent is killed and replaced after a growing pause. A child that
survives SIGKILL is in an uninterruptible call of the driver (state D). The node is then
*wedged*, which only a reboot ends. Further children would get stuck in the same call,
so none is started until that one is gone.

The child listens for this thread's heartbeat too. While this process is stopped, nobody
can use the Gpus here, so the child sends nothing that makes them look alive. This
thread sends only what the child cannot send itself: that it hung or is wedged.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from telemetry.agent.isolation import isolation_of, not_isolated_of
from telemetry.agent.stream_sender import Sender
from telemetry.proc_stat import read_stat
from telemetry.protocol.back_off import BackOff
from telemetry.protocol.trouble import NodeTrouble, TroubleState

log = logging.getLogger(__name__)

SILENCE_SECONDS = 10.0
"""A child without a heartbeat for this time is killed."""
HEALTHY_SECONDS = 30.0
"""A child that lived this long resets the pause before the next start."""
BACK_OFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
TERM_SECONDS = 3.0
KILL_SECONDS = 5.0
"""A killed process is gone at once, unless it is in a call of the driver."""
POLL_SECONDS = 0.2
PULSE_EVERY_SECONDS = 1.0
"""How often this thread sends its heartbeat to the child."""
TROUBLE_AGAIN_SECONDS = 30.0
LINE_BYTES = 64 * 1024
BASE_DIR = Path(__file__).resolve().parents[2]


class ChildState(StrEnum):
    """State of the child, as the supervisor sees it."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    """The child has died and is not started again yet."""
    WEDGED = "wedged"
    """The child survived SIGKILL in a call of the driver. No new child is started."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class SamplerStatus:
    """The supervisor's view, for the node's log and diagnostics."""

    state: ChildState
    pid: int | None = None
    restarts: int = 0
    why: str = ""
    heartbeat: dict[str, Any] = field(default_factory=dict)
    """The child's last line: state, seq, gpus, hung, sent, dropped."""


class SamplingSettings(Protocol):
    """The part of NodeSettings that the supervisor needs."""

    @property
    def name(self) -> str:
        """Name the node was enrolled under."""

    @property
    def redis_url(self) -> str:
        """Broker and streams."""

    @property
    def backend(self) -> str:
        """`auto`, `nvml`, `simulated` or `none`."""

    @property
    def sim_dir(self) -> Path | None:
        """Folder of the simulated Gpus."""

    @property
    def node_dir(self) -> Path:
        """Folder of the shims' registry."""

    @property
    def supervisor_pid(self) -> int | None:
        """Process of `manage.py portal`; None in production."""

    @property
    def own_ids(self) -> bool:
        """Whether each person's jobs have a Unix user id that the node gives."""

    @property
    def allow_scripts(self) -> bool:
        """Whether scripts may run without a Unix user of their own."""

    @property
    def isolation(self) -> str:
        """How far jobs are to be kept apart: `auto`, `watched` or `enforced`."""


def child_command(facts: SamplingSettings) -> list[str]:
    """Command line of the child. The environment carries the broker's address."""
    command = [sys.executable, "-m", "telemetry.agent.sampler", "--node", facts.name]
    command += ["--backend", facts.backend, "--isolation", isolation_of(facts)]
    command += ["--not-isolated", not_isolated_of(facts)]
    command += ["--parent", str(os.getpid()), "--node-dir", str(facts.node_dir)]
    command.append("--supervised")
    if facts.sim_dir is not None:
        command += ["--state-dir", str(facts.sim_dir)]
    return command


class SamplerSupervisor:
    """Start the sampling child, watch its heartbeat, and replace it.

    `run` blocks until `stop`. `start` runs it on its own thread. Tests pass `command`
    and `popen` to use a child that behaves in a certain way.
    """

    def __init__(
        self,
        facts: SamplingSettings,
        *,
        silence_seconds: float = SILENCE_SECONDS,
        back_off_seconds: Sequence[float] = BACK_OFF_SECONDS,
        kill_seconds: float = KILL_SECONDS,
        on_status: Callable[[SamplerStatus], None] | None = None,
        command: Sequence[str] | None = None,
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        self._facts = facts
        self._command = list(command) if command else None
        self._silence_seconds = silence_seconds
        self._deaths = BackOff(back_off_seconds)
        self._kill_seconds = kill_seconds
        self._on_status = on_status
        self._popen = popen
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._buffer = b""
        self._pulse_at = float("-inf")
        self._sender: Sender | None = None
        self._trouble_at = float("-inf")
        self.status = SamplerStatus(ChildState.STARTING)

    def start(self) -> threading.Thread:
        """Run on a new thread and return the thread."""
        self._thread = threading.Thread(target=self.run, name="sampler", daemon=True)
        self._thread.start()
        return self._thread

    def stop(self, *, within_seconds: float = TERM_SECONDS + KILL_SECONDS) -> None:
        """End the child and the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(within_seconds)

    def run(self) -> None:
        """Keep a child alive until `stop`."""
        while not self._stop.is_set():
            child = self._spawn()
            if child is not None:
                began_at = time.monotonic()
                why = self._watch(child)
                if time.monotonic() - began_at > HEALTHY_SECONDS:
                    self._deaths.succeeded()
                self._wait_out_wedge(child)
                if not self._stop.is_set():
                    log.warning("sampling child ended: %s", why)
                    self._set_status(ChildState.WAITING, why=why)
            self._stop.wait(self._deaths.failed())
        if self._sender is not None:
            self._sender.close(within_seconds=1.0)
        self._set_status(ChildState.STOPPED)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        """Return a new child, or None if the machine cannot start one now."""
        path = os.pathsep.join(
            filter(None, (str(BASE_DIR), os.environ.get("PYTHONPATH")))
        )
        command = self._command or child_command(self._facts)
        address = {"GPUPORTAL_NODE_REDIS_URL": self._facts.redis_url}
        try:
            child = self._popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **address, "PYTHONPATH": path},
            )
        except OSError as error:
            log.error("cannot start the sampling child: %s", error)
            self._set_status(ChildState.WAITING, why=str(error))
            return None
        if child.stdin is not None:
            os.set_blocking(child.stdin.fileno(), False)
        self._buffer = b""
        self._set_status(ChildState.STARTING, pid=child.pid)
        return child

    def _watch(self, child: subprocess.Popen[bytes]) -> str:
        """Follow the child until it is gone or cannot be ended. Return why it ended."""
        assert child.stdout is not None
        heard_at = time.monotonic()
        while child.poll() is None:
            if self._stop.is_set():
                self._end(child)
                return "stopped"
            self._pulse(child)
            ready, _, _ = select.select([child.stdout], [], [], POLL_SECONDS)
            data = os.read(child.stdout.fileno(), LINE_BYTES) if ready else b""
            if data:
                heard_at = time.monotonic()
                self._read_heartbeat(data, child.pid)
            elif ready:  # end of file: it closed its stdout, so it is ending
                time.sleep(POLL_SECONDS)
            if time.monotonic() - heard_at > self._silence_seconds:
                child.kill()
                self._wait_for_exit(child, self._kill_seconds)
                why = f"silent for {self._silence_seconds:.0f} s"
                self._report(TroubleState.HUNG, f"the sampling child was {why}")
                return f"killed: {why}"
        return f"exit code {child.returncode}"

    def _pulse(self, child: subprocess.Popen[bytes]) -> None:
        """Send a heartbeat to the child without ever waiting for it."""
        now = time.monotonic()
        if child.stdin is None or now - self._pulse_at < PULSE_EVERY_SECONDS:
            return
        self._pulse_at = now
        try:
            os.write(child.stdin.fileno(), b".")
        except (BlockingIOError, BrokenPipeError):
            return  # it is asleep with a full pipe, or ending

    def _report(self, state: TroubleState, reason: str) -> None:
        """Report to the portal what the child can no longer report."""
        if self._sender is None:
            self._sender = Sender(self._facts.redis_url, self._facts.name)
        trouble = NodeTrouble(self._facts.name, state, reason, time.time())
        self._sender.put(trouble.to_message())

    def _read_heartbeat(self, data: bytes, pid: int) -> None:
        """Read the last complete line of the child's output."""
        *lines, rest = (self._buffer + data).split(b"\n")
        self._buffer = rest[-LINE_BYTES:]
        if not lines:
            return
        try:
            facts = json.loads(lines[-1])
        except ValueError:
            return
        if isinstance(facts, dict):
            why = str(facts.get("why") or facts.get("broker") or "")
            self._set_status(ChildState.RUNNING, pid=pid, why=why, heartbeat=facts)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        child.terminate()
        if not self._wait_for_exit(child, TERM_SECONDS):
            child.kill()
            self._wait_for_exit(child, self._kill_seconds)

    @staticmethod
    def _wait_for_exit(child: subprocess.Popen[bytes], within_seconds: float) -> bool:
        try:
            child.wait(within_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _wait_out_wedge(self, child: subprocess.Popen[bytes]) -> None:
        """Wait, without starting another child, until a killed child is gone."""
        while child.poll() is None and not self._stop.is_set():
            stat = read_stat(child.pid)
            if stat is None:
                break
            if self.status.state is not ChildState.WEDGED:
                why = f"child {child.pid} survives SIGKILL (state {stat.state})"
                log.error("node wedged: %s; reboot the node", why)
                self._set_status(ChildState.WEDGED, pid=child.pid, why=why)
                self._trouble_at = float("-inf")
            if time.monotonic() - self._trouble_at >= TROUBLE_AGAIN_SECONDS:
                self._trouble_at = time.monotonic()
                self._report(TroubleState.WEDGED, self.status.why)
            self._stop.wait(self._kill_seconds)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()

    def _set_status(
        self,
        state: ChildState,
        *,
        pid: int | None = None,
        why: str = "",
        heartbeat: dict[str, Any] | None = None,
    ) -> None:
        before = self.status
        self.status = SamplerStatus(
            state=state,
            pid=pid,
            restarts=self._deaths.failures,
            why=why,
            heartbeat=heartbeat or before.heartbeat,
        )
        if state is ChildState.RUNNING and (why, state) != (before.why, before.state):
            log.info("sampling child %s: %s", pid, why or "well")
        if self._on_status is not None:
            self._on_status(self.status)
