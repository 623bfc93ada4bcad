"""The loop of the sampling child: once a second read, send, and write a heartbeat.

It keeps an absolute schedule and skips missed seconds. It sends a roster and the node's
trouble at the start, on every change, when the broker is back, and every 30 s, and a
Sample each second. It asks for a new process if only that can help: every Gpu hung, or
the driver was reloaded while threads were stuck in it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace

from telemetry.agent.reader_threads import Lanes
from telemetry.agent.stream_sender import Sender
from telemetry.protocol.errors import ProbeUnavailable
from telemetry.protocol.hardware import Backend, HostCapacity, NodeInfo
from telemetry.protocol.sample import (
    MOST_XIDS,
    GpuAnswer,
    GpuReading,
    NodeSample,
    XidEvent,
)
from telemetry.protocol.trouble import NodeTrouble, TroubleState

INTERVAL_SECONDS = 1.0
READ_WITHIN_SECONDS = 0.8
ROSTER_EVERY_SECONDS = 30.0
OPEN_WITHIN_SECONDS = 30.0
"""Starting NVML can hang for a while. After this time the process is useless."""
OPEN_AGAIN_SECONDS = (2.0, 5.0, 10.0, 30.0)
ALL_HUNG_SECONDS = 20.0


class Probe(Protocol):
    """The interface of NvmlProbe and SimulatedProbe that the sampler needs."""

    backend: Backend

    @property
    def info(self) -> NodeInfo:
        """The roster. It is a new object after each change."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """Every Gpu to read."""

    @property
    def unnamed(self) -> tuple[int, ...]:
        """Indices of Gpus without a UUID: they were lost before this probe began."""

    @property
    def refused(self) -> str:
        """A clause on what the driver refuses for lack of rights; "" if nothing."""

    @property
    def stale(self) -> bool:
        """Whether `reopen` has something to do."""

    @property
    def urgent(self) -> bool:
        """Whether nothing can be read before `reopen`."""

    @property
    def stuck(self) -> bool:
        """Whether a thread of the probe is inside a driver that hangs."""

    def open(self) -> NodeInfo:
        """Start. Raises ProbeUnavailable."""

    def close(self) -> None:
        """Stop."""

    def reopen(self) -> None:
        """Restart after a reload of the driver. Raises ProbeUnavailable."""

    def watch(self, uuids: frozenset[str]) -> None:
        """Also read the link rates of these Gpus, because pages of them are open."""

    def take_xids(self, uuid: str) -> tuple[XidEvent, ...]:
        """Return the error events of a Gpu since the last call."""

    def begin(self, at: float) -> None:
        """Prepare a Sample; called once before its Gpus are read."""

    def read(self, at: float) -> NodeSample:
        """Return a Sample of all Gpus, read one after the other."""

    def answered_at(self, uuid: str) -> float:
        """Return when a Gpu last returned from a call (monotonic seconds)."""

    def read_gpu(self, uuid: str) -> GpuReading:
        """Read one Gpu. May be called from several threads for different Gpus."""


class RestartNeeded(Exception):
    """Only a new process can help. The text gives the reason."""


def no_supervisor() -> bool:
    """Replaces the supervisor if there is none, for example in a terminal."""
    return True


def no_host() -> HostCapacity | None:
    """Replaces the reader of the machine if nobody wants it read."""
    return None


class Sampler:
    """The loop. Everything that may hang runs on threads that it can leave behind."""

    def __init__(
        self,
        open_probe: Callable[[], Probe],
        *,
        node: str,
        sender: Sender,
        heartbeat: Callable[[dict[str, Any]], None],
        stop: threading.Event,
        parent_pid: int | None = None,
        supervised: Callable[[], bool] = no_supervisor,
        host: Callable[[], HostCapacity | None] = no_host,
    ) -> None:
        self._open_probe = open_probe
        self._node = node
        self._sender = sender
        self._heartbeat = heartbeat
        self._stop = stop
        self._parent_pid = parent_pid
        self._supervised = supervised
        self._host = host
        self._seq = 0
        self._roster: NodeInfo | None = None
        self._roster_at = self._trouble_at = float("-inf")
        self._trouble: tuple[TroubleState, str] | None = None
        self._connected = True
        self._answered_at = time.monotonic()
        self._state = "opening"
        self._why = ""
        self._untold: deque[tuple[str, XidEvent]] = deque(maxlen=1024)
        """Xid events of Samples that could not be sent."""

    def run(self) -> None:
        """Sample until a request to stop. Raises RestartNeeded."""
        probe = self._wait_for_probe()
        if probe is None:
            return
        lanes = Lanes(probe.read_gpu, answered_at=probe.answered_at)
        self._answered_at = time.monotonic()
        # Sample on the whole second, as every node does. The frame goes out a third of
        # a second later and then has the newest Sample of each.
        self._stop.wait(INTERVAL_SECONDS - time.time() % INTERVAL_SECONDS)
        next_at = time.monotonic()
        while not self._should_end():
            if self._supervised():
                self._tick(probe, lanes)
            else:
                # The process that takes commands here is stopped or stuck. Gpus must
                # not look alive, because nobody could use them.
                self._state = "unsupervised"
                self._beat()
            next_at += INTERVAL_SECONDS
            now = time.monotonic()
            if now > next_at:  # missed ticks are skipped
                next_at += (now - next_at) // INTERVAL_SECONDS * INTERVAL_SECONDS
                next_at += INTERVAL_SECONDS
            self._stop.wait(next_at - now)
        lanes.close()
        if not lanes.stuck and not probe.stuck:
            probe.close()

    def _tick(self, probe: Probe, lanes: Lanes) -> None:
        """Do the work of one second.

        1 mend 2 read 3 send roster and Sample 4 heartbeat 5 give up?
        """
        started = time.monotonic()
        if probe.stale:
            self._mend(probe, lanes)
        at = time.time()
        probe.watch(self._sender.watched)
        probe.begin(at)
        uuids = probe.uuids
        readings = lanes.read(uuids, within_seconds=READ_WITHIN_SECONDS)
        took_seconds = time.monotonic() - started
        self._seq += 1
        self._sender.follow_gpus(uuids)
        self._send_roster(probe.info, started, at)
        self._send_sample(probe, readings, at=at, took_seconds=took_seconds)
        hung = lanes.hung()
        if not self._why:
            self._state = "hung" if hung else "ok"
        without = probe.backend is Backend.NONE
        all_hang = len(hung) == len(uuids) and not without
        if without:
            self._report_trouble(TroubleState.OK, "", at=at)
        else:
            self._tell_how_it_is(
                readings, all_hang=all_hang, refused=probe.refused, at=at
            )
        self._beat(backend=probe.backend, gpus=len(uuids), hung=sorted(hung))
        if not all_hang:
            self._answered_at = started
        elif started - self._answered_at > ALL_HUNG_SECONDS:
            raise self._restart_error(TroubleState.HUNG, f"all {len(uuids)} GPUs hang")

    def _send_sample(
        self,
        probe: Probe,
        readings: dict[str, GpuReading],
        *,
        at: float,
        took_seconds: float,
    ) -> None:
        """Send the readings with the Xid events."""
        told: list[tuple[str, XidEvent]] = []
        for _ in range(len(self._untold)):
            uuid, event = self._untold.popleft()
            told.append((uuid, event))
        for uuid in readings:
            told.extend((uuid, event) for event in probe.take_xids(uuid))
        for uuid in {uuid for uuid, _ in told}:
            events = [event for key, event in told if key == uuid]
            if uuid in readings:
                now, later = tuple(events[:MOST_XIDS]), events[MOST_XIDS:]
                readings[uuid] = replace(readings[uuid], xids=now)
            else:
                later = events
            self._untold.extend((uuid, event) for event in later)
        sent = [(uuid, x) for uuid, gpu in readings.items() for x in gpu.xids]
        sample = NodeSample(
            node=self._node,
            at=at,
            gpus=tuple(readings.values()),
            seq=self._seq,
            load1=os.getloadavg()[0],
            took_seconds=took_seconds,
        )
        if sent:
            self._sender.put(
                sample.to_message(), lost=lambda: self._untold.extend(sent)
            )
        else:
            self._sender.put(sample.to_message())

    def _send_roster(self, info: NodeInfo, now: float, at: float) -> None:
        connected = self._sender.connected
        back, self._connected = connected and not self._connected, connected
        due = now - self._roster_at >= ROSTER_EVERY_SECONDS
        if due or back or info is not self._roster:
            self._roster, self._roster_at = info, now
            self._trouble_at = float("-inf")  # a new broker knows neither
            # A simulated machine has its own. What is free changes all the time, so
            # it is read when a roster is due and does not make one due.
            told = info if info.host else replace(info, host=self._host())
            self._sender.put(told.to_message(at=at))

    def _tell_how_it_is(
        self,
        readings: dict[str, GpuReading],
        *,
        all_hang: bool,
        refused: str,
        at: float,
    ) -> None:
        if self._why:
            self._report_trouble(TroubleState.RELOADING, self._why, at=at)
        elif all_hang and readings:
            self._report_trouble(
                TroubleState.HUNG, f"all {len(readings)} GPUs hang", at=at
            )
        elif any(x.state in (GpuAnswer.OK, GpuAnswer.LOST) for x in readings.values()):
            state = TroubleState.NO_RIGHTS if refused else TroubleState.OK
            self._report_trouble(state, refused, at=at)

    def _report_trouble(self, state: TroubleState, reason: str, *, at: float) -> None:
        """Report the state of the driver on every change and at regular intervals."""
        now = time.monotonic()
        due = now - self._trouble_at >= ROSTER_EVERY_SECONDS
        if due or self._trouble != (state, reason):
            self._trouble, self._trouble_at = (state, reason), now
            trouble = NodeTrouble(self._node, state, reason, at)
            self._sender.put(trouble.to_message())

    def _restart_error(self, state: TroubleState, why: str) -> RestartNeeded:
        self._report_trouble(state, why, at=time.time())
        return RestartNeeded(why)

    def _mend(self, probe: Probe, lanes: Lanes) -> None:
        """Restart the driver's library, unless a thread is still inside it.

        Then only a new process could help, and it might hang in the same Gpu. A Gpu
        that came or went does not justify that. The other Gpus are read.
        """
        if (lanes.stuck or probe.stuck) and not probe.urgent:
            return
        if lanes.stuck or probe.stuck:
            why = "the driver was reloaded while a GPU hung"
            raise self._restart_error(TroubleState.RELOADING, why)
        try:
            self._in_time(probe.reopen)
        except ProbeUnavailable as error:
            self._state, self._why = "unavailable", str(error)
        else:
            if not probe.stale:  # otherwise the back-off prevented it
                self._why = ""

    def _wait_for_probe(self) -> Probe | None:
        """Open the probe. Try again as long as there is nothing to read."""
        tries = 0
        while not self._should_end():
            try:
                probe: Probe = self._in_time(self._open_probe)
            except ProbeUnavailable as error:
                self._state, self._why = "unavailable", str(error)
                trouble = (
                    TroubleState.NO_GPU if error.no_gpu else TroubleState.NO_DRIVER
                )
                pause = OPEN_AGAIN_SECONDS[min(tries, len(OPEN_AGAIN_SECONDS) - 1)]
                tries += 1
                again_at = time.monotonic() + pause
                while not self._should_end() and time.monotonic() < again_at:
                    self._report_trouble(trouble, self._why, at=time.time())
                    self._beat()
                    self._stop.wait(INTERVAL_SECONDS)
            else:
                self._why = ""
                return probe
        return None

    def _in_time(self, call: Callable[[], Any]) -> Any:
        """Run a call that may hang on a thread, and write heartbeats meanwhile.

        Raises RestartNeeded if it takes longer than OPEN_WITHIN_SECONDS.
        """
        outcome: list[Any] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(call())
            except BaseException as error:  # raised in the caller below
                failure.append(error)

        thread = threading.Thread(target=run, name="open", daemon=True)
        thread.start()
        gives_up_at = time.monotonic() + OPEN_WITHIN_SECONDS
        while thread.is_alive():
            thread.join(INTERVAL_SECONDS)
            if thread.is_alive():
                self._beat(waiting=True)
                if self._should_end():
                    raise RestartNeeded("stopped while the driver was starting")
                if time.monotonic() > gives_up_at:
                    why = f"the driver hangs for {OPEN_WITHIN_SECONDS:.0f} s"
                    raise self._restart_error(TroubleState.HUNG, why)
        if failure:
            raise failure[0]
        return outcome[0]

    def _should_end(self) -> bool:
        """Return whether to end: on request, or because the supervisor is gone."""
        orphaned = self._parent_pid is not None and os.getppid() != self._parent_pid
        return self._stop.is_set() or orphaned

    def _beat(self, **facts: Any) -> None:
        self._heartbeat(
            {
                "state": self._state,
                "why": self._why,
                "seq": self._seq,
                "sent": self._sender.sent,
                "dropped": self._sender.dropped,
                "broker": self._sender.why,
                **facts,
            }
        )
