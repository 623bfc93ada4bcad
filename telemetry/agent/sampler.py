"""The sampling child: reads every Gpu of this machine once a second.

    python -m telemetry.agent.sampler --node N --backend auto|nvml|simulated|none
        --state-dir D --redis URL [--once]

A separate process, which `child_supervisor.py` starts and watches, because only the end
of a process ends a call into a hung driver. No Django, no Celery, no secret.

`sampling_loop.py` has the work of each second. Each second it writes its heartbeat, one
line of JSON, to stdout. With --supervised it listens for the supervisor's heartbeat on
stdin and sends nothing while that is silent. It ends if its parent is gone, on SIGTERM,
and if only a new process can help.
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
from typing import Any

from msgspec.structs import replace

from telemetry.agent.host_capacity import host_capacity
from telemetry.agent.sampling_loop import Probe, RestartNeeded, Sampler, no_supervisor
from telemetry.agent.stream_sender import Sender
from telemetry.protocol.errors import ProbeUnavailable
from telemetry.protocol.hardware import NODE_NAME, Backend, Isolation, NotIsolated

PULSE_SILENCE_SECONDS = 4.0
"""The supervisor's heartbeat comes once a second. After this time without one the
supervisor is stopped or stuck.
"""

EXIT_OK = 0
EXIT_UNAVAILABLE = 3
"""`--once` found nothing to read."""
EXIT_RESTART = 75
"""Only a new process can help (EX_TEMPFAIL of sysexits.h)."""


def make_probe(
    backend: str,
    *,
    node: str,
    state_dir: Path | None,
    node_dir: Path | None,
    isolation: Isolation,
    not_isolated: NotIsolated = NotIsolated.UNKNOWN,
) -> Probe:
    """Open a probe and return it. Raises ProbeUnavailable.

    `auto` uses NVML if a driver answers, otherwise simulated Gpus if the state folder
    has some for this node.
    """
    from telemetry.agent.no_gpu_probe import NoGpuProbe
    from telemetry.agent.probe import NvmlProbe
    from telemetry.agent.simulated_probe import SimulatedProbe

    def nvml() -> Probe:
        probe = NvmlProbe(
            node, node_dir=node_dir, isolation=isolation, not_isolated=not_isolated
        )
        probe.open()
        return probe

    def simulated() -> Probe:
        if state_dir is None:
            raise ProbeUnavailable(backend="simulated", why="no --state-dir given")
        probe = SimulatedProbe(
            state_dir,
            node,
            node_dir=node_dir,
            isolation=isolation,
            not_isolated=not_isolated,
        )
        probe.open()
        return probe

    if backend == Backend.NONE:
        return NoGpuProbe(node, isolation=isolation, not_isolated=not_isolated)
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


class Pulse:
    """The supervisor's heartbeat on a pipe. Any byte counts."""

    def __init__(self, handle: int = 0) -> None:
        self._handle = handle
        self._heard_at = time.monotonic()
        os.set_blocking(handle, False)

    def beats(self) -> bool:
        """Return whether a heartbeat came recently. An end of file counts as
        silence.
        """
        try:
            if os.read(self._handle, 4096):
                self._heard_at = time.monotonic()
        except BlockingIOError:
            pass  # nothing new
        return time.monotonic() - self._heard_at < PULSE_SILENCE_SECONDS


def write_heartbeat(facts: dict[str, Any]) -> None:
    """Write one line to stdout, without waiting for a reader that is gone or asleep."""
    try:
        os.write(1, json.dumps(facts, default=str).encode() + b"\n")
    except BlockingIOError:
        return
    except BrokenPipeError:
        os._exit(EXIT_OK)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Command line of the child."""
    parser = argparse.ArgumentParser(
        prog="telemetry.agent.sampler", description=__doc__
    )
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
        "--not-isolated", choices=[x.value for x in NotIsolated], default=""
    )
    parser.add_argument(
        "--parent", type=int, help="end when the parent is not this pid"
    )
    parser.add_argument(
        "--supervised",
        action="store_true",
        help="send only while bytes keep coming on stdin",
    )
    parser.add_argument("--once", action="store_true", help="print one Sample as JSON")
    arguments = parser.parse_args(argv)
    if not NODE_NAME.fullmatch(arguments.node):
        parser.error(f"--node {arguments.node!r}: letters, digits, - and _ only")
    if not arguments.redis and not arguments.once:
        parser.error("--redis or GPUPORTAL_NODE_REDIS_URL is needed")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run the sampler. Returns one of EXIT_*."""
    arguments = parse_arguments(argv)

    def open_probe() -> Probe:
        return make_probe(
            arguments.backend,
            node=arguments.node,
            state_dir=arguments.state_dir,
            node_dir=arguments.node_dir,
            isolation=Isolation(arguments.isolation),
            not_isolated=NotIsolated(arguments.not_isolated),
        )

    if arguments.once:
        return _print_one_sample(open_probe, arguments.node_dir)
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
        supervised=Pulse().beats if arguments.supervised else no_supervisor,
        host=lambda: host_capacity(arguments.node_dir),
    )
    try:
        sampler.run()
    except RestartNeeded as error:
        if stop.is_set():
            return EXIT_OK
        sender.close(within_seconds=1.0)
        print(f"sampler: {error}", file=sys.stderr, flush=True)
        return EXIT_RESTART
    sender.close(within_seconds=1.0)
    return EXIT_OK


def _print_one_sample(open_probe: Callable[[], Probe], node_dir: Path | None) -> int:
    try:
        probe = open_probe()
    except ProbeUnavailable as error:
        print(f"sampler: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    info = probe.info
    info = info if info.host else replace(info, host=host_capacity(node_dir))
    print(info.to_message(at=time.time()).decode())
    print(probe.read(time.time()).to_message().decode())
    probe.close()
    return EXIT_OK


if __name__ == "__main__":
    # Threads may be stuck in the driver forever, so do not wait for them.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
