"""The sampling child: reads every Gpu of this machine once a second.

    python -m telemetry.sampler --node N --backend auto|nvml|simulated
        --state-dir D --redis URL [--once]

One process, started and watched by `supervise.py`, because a call into a hung
driver can only be ended by ending its process. No Django, no Celery, no secret.

It keeps to an absolute schedule and skips what it missed. A roster goes out at
the start, on every change, when the broker is back, and every 30 s; a Sample
each second. Each second one line of JSON goes to stdout: the heartbeat. It ends
by itself when its parent is gone, on SIGTERM, and when only a new process can
help (every Gpu hung, or a driver reload with threads stuck in it).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from telemetry.domain.errors import ProbeUnavailable
from telemetry.domain.hardware import NODE_NAME, Backend, Isolation, NodeInfo
from telemetry.domain.sample import GpuReading, NodeSample
from telemetry.lanes import Lanes
from telemetry.sender import Sender

INTERVAL_SECONDS = 1.0
READ_WITHIN_SECONDS = 0.8
ROSTER_EVERY_SECONDS = 30.0
OPEN_WITHIN_SECONDS = 30.0
"""Starting NVML can hang for a while; after this long the process is of no use."""
OPEN_AGAIN_SECONDS = (2.0, 5.0, 10.0, 30.0)
ALL_HUNG_SECONDS = 20.0

EXIT_OK = 0
EXIT_UNAVAILABLE = 3
"""`--once` found nothing to read."""
EXIT_RESTART = 75
"""Only a new process can help (EX_TEMPFAIL of sysexits.h)."""


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
    def stale(self) -> bool:
        """Whether `mend` has something to do."""

    def open(self) -> NodeInfo:
        """Start. Raises ProbeUnavailable."""

    def close(self) -> None:
        """Stop."""

    def mend(self) -> None:
        """Start anew after a driver reload. Raises ProbeUnavailable."""

    def begin(self, at: float) -> None:
        """Once before the Gpus of a Sample are read."""

    def read(self, at: float) -> NodeSample:
        """All Gpus, one after the other."""

    def read_gpu(self, uuid: str) -> GpuReading:
        """One Gpu; may be called from several threads for different Gpus."""


def make_probe(
    backend: str,
    *,
    node: str,
    state_dir: Path | None,
    node_dir: Path | None,
    isolation: Isolation,
) -> Probe:
    """Open a probe and return it. Raises ProbeUnavailable.

    `auto` takes NVML where a driver answers, otherwise simulated Gpus where the
    state folder has some for this node.
    """
    from telemetry.probe import NvmlProbe
    from telemetry.simulated import SimulatedProbe

    def nvml() -> Probe:
        probe = NvmlProbe(node, node_dir=node_dir, isolation=isolation)
        probe.open()
        return probe

    def simulated() -> Probe:
        if state_dir is None:
            raise ProbeUnavailable(backend="simulated", why="no --state-dir given")
        probe = SimulatedProbe(state_dir, node, node_dir=node_dir, isolation=isolation)
        probe.open()
        return probe

    if backend == Backend.NVML:
        return nvml()
    if backend == Backend.SIMULATED:
        return simulated()
    try:
        return nvml()
    except ProbeUnavailable as real:
        try:
            return simulated()
        except ProbeUnavailable as error:
            raise ProbeUnavailable(backend="auto", why=f"{real}; {error}") from error


class Restart(Exception):
    """Only a new process can help; the text says why."""


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
    ) -> None:
        self._open_probe = open_probe
        self._node = node
        self._sender = sender
        self._heartbeat = heartbeat
        self._stop = stop
        self._parent_pid = parent_pid
        self._seq = 0
        self._roster: NodeInfo | None = None
        self._roster_at = float("-inf")
        self._connected = True
        self._answered_at = time.monotonic()
        self._state = "opening"
        self._why = ""

    def run(self) -> None:
        """Sample until told to stop. Raises Restart."""
        probe = self._wait_for_probe()
        if probe is None:
            return
        lanes = Lanes(probe.read_gpu)
        self._answered_at = time.monotonic()
        # On the whole second, like every other node: the frame that goes out a
        # third of a second later then has the newest of each.
        self._stop.wait(INTERVAL_SECONDS - time.time() % INTERVAL_SECONDS)
        next_at = time.monotonic()
        while not self._over():
            self._tick(probe, lanes)
            next_at += INTERVAL_SECONDS
            now = time.monotonic()
            if now > next_at:  # missed ticks are skipped, not made up for
                next_at += (now - next_at) // INTERVAL_SECONDS * INTERVAL_SECONDS
                next_at += INTERVAL_SECONDS
            self._stop.wait(next_at - now)
        if not lanes.stuck:
            probe.close()

    def _tick(self, probe: Probe, lanes: Lanes) -> None:
        """1 mend  2 read  3 send roster and Sample  4 heartbeat  5 give up?"""
        started = time.monotonic()
        if probe.stale:
            self._mend(probe, lanes)
        at = time.time()
        probe.begin(at)
        uuids = probe.uuids
        readings = lanes.read(uuids, within_seconds=READ_WITHIN_SECONDS)
        took_seconds = time.monotonic() - started
        self._seq += 1
        self._send_roster(probe.info, started, at)
        self._sender.put(
            NodeSample(
                node=self._node,
                at=at,
                gpus=tuple(readings.values()),
                seq=self._seq,
                load1=os.getloadavg()[0],
                took_seconds=took_seconds,
            ).to_message()
        )
        hung = lanes.hung()
        if not self._why:
            self._state = "hung" if hung else "ok"
        self._beat(backend=probe.backend, gpus=len(uuids), hung=sorted(hung))
        if len(hung) < len(uuids):
            self._answered_at = started
        elif started - self._answered_at > ALL_HUNG_SECONDS:
            raise Restart(f"all {len(uuids)} GPUs hang")

    def _send_roster(self, info: NodeInfo, now: float, at: float) -> None:
        connected = self._sender.connected
        back, self._connected = connected and not self._connected, connected
        due = now - self._roster_at >= ROSTER_EVERY_SECONDS
        if due or back or info is not self._roster:
            self._roster, self._roster_at = info, now
            self._sender.put(info.to_message(at=at))

    def _mend(self, probe: Probe, lanes: Lanes) -> None:
        """Start the driver's library anew, unless a thread is still inside it."""
        if lanes.stuck:
            raise Restart("the driver was reloaded while a GPU hung")
        try:
            self._in_time(probe.mend)
        except ProbeUnavailable as error:
            self._state, self._why = "unavailable", str(error)
        else:
            self._why = ""

    def _wait_for_probe(self) -> Probe | None:
        """Open the probe, trying again for as long as there is nothing to read."""
        tries = 0
        while not self._over():
            try:
                probe: Probe = self._in_time(self._open_probe)
            except ProbeUnavailable as error:
                self._state, self._why = "unavailable", str(error)
                pause = OPEN_AGAIN_SECONDS[min(tries, len(OPEN_AGAIN_SECONDS) - 1)]
                tries += 1
                again_at = time.monotonic() + pause
                while not self._over() and time.monotonic() < again_at:
                    self._beat()
                    self._stop.wait(INTERVAL_SECONDS)
            else:
                self._why = ""
                return probe
        return None

    def _in_time(self, call: Callable[[], Any]) -> Any:
        """Run a call that may hang on a thread; heartbeats go on meanwhile.

        Raises Restart when it takes longer than OPEN_WITHIN_SECONDS.
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
                    raise Restart("stopped while the driver was starting")
                if time.monotonic() > gives_up_at:
                    raise Restart(f"the driver hangs for {OPEN_WITHIN_SECONDS:.0f} s")
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


def write_heartbeat(facts: dict[str, Any]) -> None:
    """One line on stdout; a reader that is gone or asleep is not waited for."""
    try:
        os.write(1, json.dumps(facts, default=str).encode() + b"\n")
    except BlockingIOError:
        return
    except BrokenPipeError:
        os._exit(EXIT_OK)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Command line of the child."""
    parser = argparse.ArgumentParser(prog="telemetry.sampler", description=__doc__)
    parser.add_argument("--node", required=True)
    parser.add_argument(
        "--backend", choices=("auto", *(x.value for x in Backend)), default="auto"
    )
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--node-dir", type=Path)
    parser.add_argument(
        "--redis",
        default=os.environ.get("GPUPORTAL_NODE_REDIS_URL", ""),
        help="address of the broker; default: GPUPORTAL_NODE_REDIS_URL, which "
        "keeps a password out of the process list",
    )
    parser.add_argument(
        "--isolation", choices=[x.value for x in Isolation], default="none"
    )
    parser.add_argument(
        "--parent", type=int, help="end when the parent is not this pid"
    )
    parser.add_argument("--once", action="store_true", help="print one Sample as JSON")
    arguments = parser.parse_args(argv)
    if not NODE_NAME.fullmatch(arguments.node):
        parser.error(f"--node {arguments.node!r}: letters, digits, - and _ only")
    if not arguments.redis and not arguments.once:
        parser.error("--redis or GPUPORTAL_NODE_REDIS_URL is needed")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code is one of EXIT_*."""
    arguments = parse_arguments(argv)

    def open_probe() -> Probe:
        return make_probe(
            arguments.backend,
            node=arguments.node,
            state_dir=arguments.state_dir,
            node_dir=arguments.node_dir,
            isolation=Isolation(arguments.isolation),
        )

    if arguments.once:
        return _once(open_probe)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if stat.S_ISFIFO(os.fstat(1).st_mode):
        os.set_blocking(1, False)
    sender = Sender(arguments.redis, arguments.node)
    sampler = Sampler(
        open_probe,
        node=arguments.node,
        sender=sender,
        heartbeat=write_heartbeat,
        stop=stop,
        parent_pid=arguments.parent or os.getppid(),
    )
    try:
        sampler.run()
    except Restart as error:
        if stop.is_set():
            return EXIT_OK
        print(f"sampler: {error}", file=sys.stderr, flush=True)
        return EXIT_RESTART
    sender.close(within_seconds=1.0)
    return EXIT_OK


def _once(open_probe: Callable[[], Probe]) -> int:
    try:
        probe = open_probe()
    except ProbeUnavailable as error:
        print(f"sampler: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    print(probe.info.to_message(at=time.time()).decode())
    print(probe.read(time.time()).to_message().decode())
    probe.close()
    return EXIT_OK


if __name__ == "__main__":
    # Threads may be stuck in the driver for ever: leave without them.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
