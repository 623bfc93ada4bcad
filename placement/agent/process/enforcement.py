"""Execute the web's orders against an intruder's process.

Each order is one file, `<NODE_DIR>/responses/<nonce>.json`, written by the order
desk and executed by a thread of the node worker, so that a restart between TERM
and KILL loses neither the KILL nor the report of its result.

The order may be outdated by the time it is read. So everything is checked again just
before each signal: the process (held by a pidfd, so that its number cannot be reused),
its uid, its start time, that it is not a Job of the portal, and that the driver still
shows it on that Gpu. If one of them differs, nothing is done.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placement.agent.job_folder import NodeView, read_json, write_json
from placement.agent.process.device_holders import holders_of
from placement.agent.process.terminals import write_to_user
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.process_commands import (
    LOWEST_UID,
    NOBODY_UID,
    ProcessFact,
    ProcessOrder,
    ProcessOrderKind,
    ResponseOutcome,
    parse_process_order,
    terminal_text,
)
from telemetry.agent.process_owners import JobRegistry, boot_at
from telemetry.proc_stat import read_stat, read_uids

STEP_SECONDS = 0.5
LOOK_SECONDS = 8.0
"""Time limit of one reading of the Gpus. A driver that hangs proves nothing."""
SAME_START_SECONDS = 1.5
"""The kernel reports the boot's time in whole seconds and moves it with the clock."""
KILL_SECONDS = 10.0
"""A killed process ends at once, unless it is inside the driver."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
BASE_DIR = Path(__file__).resolve().parents[3]

Tell = Callable[[dict[str, Any]], bool]
"""Appends one fact. False: the broker did not accept it."""
logger = logging.getLogger(__name__)


class Differs(Exception):
    """The node's state differs from the order, so nothing is done."""

    def __init__(self, outcome: ResponseOutcome, reason: str) -> None:
        self.outcome = outcome
        self.reason = reason
        super().__init__(reason)


def read_gpus(node: NodeView) -> list[bytes]:
    """Return the roster and one Sample, read from the driver in a killable child.

    Raises:
        OSError, subprocess.SubprocessError: no answer.
    """
    command = [sys.executable, "-m", "telemetry.agent.sampler", "--once"]
    command += ["--node", node.name, "--backend", node.backend]
    if node.sim_dir is not None:
        command += ["--state-dir", str(node.sim_dir)]
    done = subprocess.run(
        command, cwd=BASE_DIR, capture_output=True, timeout=LOOK_SECONDS, check=True
    )
    return done.stdout.splitlines()


def pids_on(node: NodeView, gpu_uuid: str) -> set[int]:
    """Return the processes on a Gpu, as the driver tells them.

    Raises:
        Differs: no answer, or no such Gpu.
    """
    try:
        # The roster comes first, the Sample last.
        sample = json.loads(read_gpus(node)[-1])
        gpus = {gpu["uuid"]: gpu for gpu in sample["gpus"]}
        # Left out: the card does not report processes, which proves nothing.
        return {int(process["pid"]) for process in gpus[gpu_uuid]["processes"]}
    except (
        OSError,
        subprocess.SubprocessError,
        ValueError,
        LookupError,
        TypeError,
    ) as error:
        raise Differs(
            ResponseOutcome.REFUSED,
            f"who uses the GPU cannot be read: {type(error).__name__}",
        ) from error


class Enforcer:
    """Executes the orders against processes. `step` processes all of them once."""

    def __init__(
        self,
        node: NodeView,
        *,
        look: Callable[[NodeView, str], set[int]] = pids_on,
        write: Callable[[int, str], int] = write_to_user,
        holders: Callable[[int, int], set[int]] = holders_of,
    ) -> None:
        self.node = node
        self.folder = node.node_dir / "responses"
        self._holders = holders
        self._look = look
        self._write = write
        self._lock = threading.Lock()
        """The gate's thread drops orders while another one executes them."""

    def accept(self, order: ProcessOrder, payload: str) -> None:
        """Store an order that the desk has checked."""
        self._store_order(order, {"payload": payload, "phase": "new"})

    def accept_from_gate(self, order: ProcessOrder, device: int) -> None:
        """Keep an order of this node's own gate: the grant of the process's user has
        ended. It is not reported, because the web did not send it.

        Args:
            device: number of the device file that the process holds.
        """
        if self._file(order.nonce).exists():
            return  # it was ordered before a restart, and goes on
        payload = order.payload()
        self._store_order(order, {"payload": payload, "phase": "new", "device": device})

    def withdraw(self, uid: int, device: int) -> int:
        """Drop the gate's orders against a user who may open the device again. Return
        how many there were."""
        dropped = 0
        with self._lock:
            for path in self.folder.glob("*.json"):
                state = read_json(path)
                if state.get("device") == device and _uid_in(state) == uid:
                    path.unlink(missing_ok=True)
                    dropped += 1
        return dropped

    def _store_order(self, order: ProcessOrder, state: dict[str, Any]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self._file(order.nonce), state)

    def run(self, stop: threading.Event, tell: Tell) -> None:
        """Execute orders until `stop` is set."""
        while not stop.wait(STEP_SECONDS):
            try:
                self.step(time.time(), tell)
            except Exception:
                # The thread must continue, because a KILL may be due.
                logger.exception("a look at the responses failed; it looks again")

    def step(self, now: float, tell: Tell) -> None:
        """Process every order once. One bad file never blocks the rest."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                with self._lock:
                    self._advance(path, now, tell)
            except (OSError, ValueError, KeyError, OrderRefused) as error:
                logger.error("response %s dropped: %s", path.name, error)
                path.unlink(missing_ok=True)

    def _file(self, nonce: str) -> Path:
        return self.folder / f"{nonce}.json"

    def _advance(self, path: Path, now: float, tell: Tell) -> None:
        state = read_json(path)
        if not state:
            return
        if "fact" not in state:
            order = parse_process_order(state["payload"])
            fact = self._take_action(order, state, now)
            if fact is None:
                write_json(path, state)
                return
            logger.warning("%s pid %s: %s", order.kind, order.pid, fact.outcome)
            state["fact"] = fact.message()
            write_json(path, state)
        if "device" in state or tell(state["fact"]):
            path.unlink(missing_ok=True)

    def _take_action(
        self, order: ProcessOrder, state: dict[str, Any], now: float
    ) -> ProcessFact | None:
        """Take the next action. None: it is not over yet, and `state` is updated."""
        try:
            return self._next_action(order, state, now)
        except Differs as found:
            outcome = found.outcome
            if state["phase"] != "new" and outcome is ResponseOutcome.GONE:
                ended = state["phase"] == "killing"
                outcome = ResponseOutcome.KILLED if ended else ResponseOutcome.STOPPED
            return ProcessFact(order.nonce, outcome, now, found.reason)
        except TimeoutError:
            return None  # who holds the device was not found out: look again
        except PermissionError:
            why = "this node's worker may not signal processes of other users"
            return ProcessFact(order.nonce, ResponseOutcome.REFUSED, now, why)

    def _next_action(
        self, order: ProcessOrder, state: dict[str, Any], now: float
    ) -> ProcessFact | None:
        phase = state["phase"]
        if phase == "new" and now >= order.expires_at:
            raise Differs(
                ResponseOutcome.REFUSED, "the order expired before it was done"
            )
        handle = _hold(order.pid)
        try:
            self._check_identity(order)
            waits_for = {"new": 0.0, "stopping": order.grace_seconds}
            due_at = state.get("at", 0.0) + waits_for.get(phase, KILL_SECONDS)
            if now < due_at:
                return None
            if phase == "killing":
                why = f"it still runs {KILL_SECONDS:.0f} s after SIGKILL"
                return ProcessFact(order.nonce, ResponseOutcome.FAILED, now, why)
            self._check_gpu(order, state.get("device"))
            # The reading took time, so check again while the process is held.
            self._check_identity(order)
            if order.kind is ProcessOrderKind.WARN:
                told = self._write(order.uid, terminal_text(order.text))
                outcome = (
                    ResponseOutcome.WARNED if told else ResponseOutcome.NO_TERMINAL
                )
                return ProcessFact(order.nonce, outcome, now, f"{told} terminals")
            number = signal.SIGTERM if phase == "new" else signal.SIGKILL
            signal.pidfd_send_signal(handle, number)
            state["phase"] = "stopping" if phase == "new" else "killing"
            state["at"] = now
            return None
        except ProcessLookupError as error:
            raise Differs(ResponseOutcome.GONE, "it has ended") from error
        finally:
            os.close(handle)

    def _check_identity(self, order: ProcessOrder) -> None:
        """Raise Differs unless the process is the one in the order."""
        found = read_stat(order.pid)
        if found is None or found.dead:
            raise Differs(ResponseOutcome.GONE, "it has ended")
        started_at = boot_at() + found.start_ticks / TICKS_PER_SECOND
        if abs(started_at - order.started_at) > SAME_START_SECONDS:
            raise Differs(
                ResponseOutcome.GONE, "its number belongs to another process now"
            )
        uids = uids_of(order.pid)
        if 0 in uids:
            raise Differs(ResponseOutcome.REFUSED, "it belongs to root")
        if set(uids) != {order.uid}:
            raise Differs(ResponseOutcome.REFUSED, "it belongs to another user now")
        if order.uid < LOWEST_UID or order.uid == NOBODY_UID:
            raise Differs(ResponseOutcome.REFUSED, "it belongs to a system account")
        registry = JobRegistry(self.node.node_dir)
        registry.refresh(time.monotonic())
        if registry.job_of(order.pid, found) is not None:
            raise Differs(ResponseOutcome.REFUSED, "it is a job of the portal")

    def _check_gpu(self, order: ProcessOrder, device: int | None) -> None:
        if device is not None:
            if order.pid not in self._holders(order.uid, device):
                raise Differs(ResponseOutcome.GONE, "it no longer holds the GPU")
            return
        if order.pid not in self._look(self.node, order.gpu_uuid):
            raise Differs(ResponseOutcome.GONE, "it no longer uses the GPU")


def _uid_in(state: dict[str, Any]) -> int | None:
    """Return the uid that a stored command names; None if it is not a command."""
    try:
        return parse_process_order(str(state.get("payload"))).uid
    except OrderRefused:
        return None


def _hold(pid: int) -> int:
    """Return a pidfd, so that the number cannot become another process's."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise Differs(ResponseOutcome.GONE, "it has ended") from error


def uids_of(pid: int) -> tuple[int, ...]:
    """Return real, effective, saved and file system uid (proc(5), "Uid").

    Raises:
        Differs: the process is gone.
    """
    uids = read_uids(pid)
    if len(uids) != 4:
        raise Differs(ResponseOutcome.GONE, "it has ended")
    return uids
