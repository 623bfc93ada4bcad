"""The loop of the sampling child: once a second read, send, and say so.

It keeps to an absolute schedule and skips what it missed. A roster goes out at
the start, on every change, when the broker is back, and every 30 s, and with it
what troubles the node; a Sample each second. It asks for a new process when
only that can help (every Gpu hung, or a driver reload with threads stuck in it).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from telemetry.agent.reader_threads import Lanes
from telemetry.agent.stream_sender import Sender
from telemetry.protocol.errors import ProbeUnavailable
from telemetry.protocol.hardware import Backend, NodeInfo
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
"""Starting NVML can hang for a while; after this long the process is of no use."""
OPEN_AGAIN_SECONDS = (2.0, 5.0, 10.0, 30.0)
ALL_HUNG_SECONDS = 20.0


class Probe(Protocol):
    """What the sampler needs of a probe; NvmlProbe and SimulatedProbe have it."""

    backend: Backend

    @property
    def info(self) -> NodeInfo:
        """The roster; another object whenever it changed."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """Every Gpu to read."""

    @property
    def unnamed(self) -> tuple[int, ...]:
        """Indices of Gpus that nobody can name: lost before this probe began."""

    @property
    def refused(self) -> str:
        """What the driver refuses for want of rights; "": nothing."""

    @property
    def stale(self) -> bool:
        """Whether `mend` has something to do."""

    @property
    def urgent(self) -> bool:
        """Whether nothing can be read before `mend`."""

    @property
    def stuck(self) -> bool:
        """Whether a thread of the probe's own is inside a driver that hangs."""

    def open(self) -> NodeInfo:
        """Start. Raises ProbeUnavailable."""

    def close(self) -> None:
        """Stop."""

    def mend(self) -> None:
        """Start anew after a driver reload. Raises ProbeUnavailable."""

    def watch(self, uuids: frozenset[str]) -> None:
        """Read the rates of these Gpus' links too: somebody looks at them."""

    def take_xids(self, uuid: str) -> tuple[XidEvent, ...]:
        """Error events of a Gpu since the last time."""

    def begin(self, at: float) -> None:
        """Once before the Gpus of a Sample are read."""

    def read(self, at: float) -> NodeSample:
        """All Gpus, one after the other."""

    def answered_at(self, uuid: str) -> float:
        """When a Gpu came back from a call last (monotonic seconds)."""

    def read_gpu(self, uuid: str) -> GpuReading:
        """One Gpu; may be called from several threads for different Gpus."""


class RestartNeeded(Exception):
    """Only a new process can help; the text says why."""


def no_supervisor() -> bool:
    """Stand for a supervisor where there is none, as in a terminal."""
    return True


class Sampler:
    """The loop. Everything that may hang is done on threads it can leave behind."""

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
    ) -> None:
        self._open_probe = open_probe
        self._node = node
        self._sender = sender
        self._heartbeat = heartbeat
        self._stop = stop
        self._parent_pid = parent_pid
        self._supervised = supervised
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
        """Sample until told to stop. Raises RestartNeeded."""
        probe = self._wait_for_probe()
        if probe is None:
            return
        lanes = Lanes(probe.read_gpu, answered_at=probe.answered_at)
        self._answered_at = time.monotonic()
        # On the whole second, like every other node: the frame that goes out a
        # third of a second later then has the newest of each.
        self._stop.wait(INTERVAL_SECONDS - time.time() % INTERVAL_SECONDS)
        next_at = time.monotonic()
        while not self._over():
            if self._supervised():
                self._tick(probe, lanes)
            else:
                # Whoever takes orders here is stopped or stuck: a Gpu that looks
                # alive would be a lie, for nothing could be done with it.
                self._state = "unsupervised"
                self._beat()
            next_at += INTERVAL_SECONDS
            now = time.monotonic()
            if now > next_at:  # missed ticks are skipped, not made up for
                next_at += (now - next_at) // INTERVAL_SECONDS * INTERVAL_SECONDS
                next_at += INTERVAL_SECONDS
            self._stop.wait(next_at - now)
        lanes.close()
        if not lanes.stuck and not probe.stuck:
            probe.close()

    def _tick(self, probe: Probe, lanes: Lanes) -> None:
        """1 mend  2 read  3 send roster and Sample  4 heartbeat  5 give up?"""
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
        self._sender.follow(uuids)
        self._send_roster(probe.info, started, at)
        self._send_sample(probe, readings, at=at, took_seconds=took_seconds)
        hung = lanes.hung()
        if not self._why:
            self._state = "hung" if hung else "ok"
        all_hang = len(hung) == len(uuids)
        self._tell_how_it_is(readings, all_hang=all_hang, refused=probe.refused, at=at)
        self._beat(backend=probe.backend, gpus=len(uuids), hung=sorted(hung))
        if not all_hang:
            self._answered_at = started
        elif started - self._answered_at > ALL_HUNG_SECONDS:
            raise self._give_up(TroubleState.HUNG, f"all {len(uuids)} GPUs hang")

    def _send_sample(
        self,
        probe: Probe,
        readings: dict[str, GpuReading],
        *,
        at: float,
        took_seconds: float,
    ) -> None:
        """Send what was read, with the Xid events there are."""
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
            self._sender.put(info.to_message(at=at))

    def _tell_how_it_is(
        self,
        readings: dict[str, GpuReading],
        *,
        all_hang: bool,
        refused: str,
        at: float,
    ) -> None:
        if self._why:
            self._tell(TroubleState.RELOADING, self._why, at=at)
        elif all_hang and readings:
            self._tell(TroubleState.HUNG, f"all {len(readings)} GPUs hang", at=at)
        elif any(x.state in (GpuAnswer.OK, GpuAnswer.LOST) for x in readings.values()):
            state = TroubleState.NO_RIGHTS if refused else TroubleState.OK
            self._tell(state, refused, at=at)

    def _tell(self, state: TroubleState, reason: str, *, at: float) -> None:
        """Say how the driver is doing: on every change, and now and then again."""
        now = time.monotonic()
        due = now - self._trouble_at >= ROSTER_EVERY_SECONDS
        if due or self._trouble != (state, reason):
            self._trouble, self._trouble_at = (state, reason), now
            trouble = NodeTrouble(self._node, state, reason, at)
            self._sender.put(trouble.to_message())

    def _give_up(self, state: TroubleState, why: str) -> RestartNeeded:
        self._tell(state, why, at=time.time())
        return RestartNeeded(why)

    def _mend(self, probe: Probe, lanes: Lanes) -> None:
        """Start the driver's library anew, unless a thread is still inside it.

        Then only a new process helps, and it would have to get past the Gpu that
        hangs: a Gpu that came or went is not worth that, the others are read.
        """
        if (lanes.stuck or probe.stuck) and not probe.urgent:
            return
        if lanes.stuck or probe.stuck:
            why = "the driver was reloaded while a GPU hung"
            raise self._give_up(TroubleState.RELOADING, why)
        try:
            self._in_time(probe.mend)
        except ProbeUnavailable as error:
            self._state, self._why = "unavailable", str(error)
        else:
            if not probe.stale:  # else the back-off let it do nothing
                self._why = ""

    def _wait_for_probe(self) -> Probe | None:
        """Open the probe, trying again for as long as there is nothing to read."""
        tries = 0
        while not self._over():
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
                while not self._over() and time.monotonic() < again_at:
                    self._tell(trouble, self._why, at=time.time())
                    self._beat()
                    self._stop.wait(INTERVAL_SECONDS)
            else:
                self._why = ""
                return probe
        return None

    def _in_time(self, call: Callable[[], Any]) -> Any:
        """Run a call that may hang on a thread; heartbeats go on meanwhile.

        Raises RestartNeeded when it takes longer than OPEN_WITHIN_SECONDS.
        """
        outcome: list[Any] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(call())
            except BaseException as error:  # handed on to the caller below
                failure.append(error)

        thread = threading.Thread(target=run, name="open", daemon=True)
        thread.start()
        gives_up_at = time.monotonic() + OPEN_WITHIN_SECONDS
        while thread.is_alive():
            thread.join(INTERVAL_SECONDS)
            if thread.is_alive():
                self._beat(waiting=True)
                if self._over():
                    raise RestartNeeded("stopped while the driver was starting")
                if time.monotonic() > gives_up_at:
                    why = f"the driver hangs for {OPEN_WITHIN_SECONDS:.0f} s"
                    raise self._give_up(TroubleState.HUNG, why)
        if failure:
            raise failure[0]
        return outcome[0]

    def _over(self) -> bool:
        """Whether to end: told so, or nobody is there to tell."""
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
