"""`manage.py sample`: show the Gpus of this machine in the terminal."""

import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from telemetry.agent import terminal_view
from telemetry.agent.reader_threads import Lanes
from telemetry.agent.sampler import make_probe
from telemetry.agent.sampling_loop import Probe
from telemetry.protocol.codec import encode
from telemetry.protocol.errors import ProbeUnavailable
from telemetry.protocol.hardware import Isolation
from telemetry.protocol.sample import GpuAnswer, GpuReading, NodeSample

EXIT_UNAVAILABLE = 2
OPEN_WITHIN_SECONDS = 15.0
READ_WITHIN_SECONDS = 3.0
CLEAR = "\x1b[H\x1b[2J"


class Command(BaseCommand):
    """Prints one Sample; with --watch one a second until Ctrl-C."""

    help = "Read the GPUs of this machine once. The exit status is 2 without a driver."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options for form and source."""
        parser.add_argument("--json", action="store_true", help="as nodes send it")
        parser.add_argument("--watch", action="store_true", help="once a second")
        parser.add_argument(
            "--backend", choices=["auto", "nvml", "simulated"], default="nvml"
        )
        parser.add_argument(
            "--simulated", action="store_true", help="same as --backend simulated"
        )
        parser.add_argument("--node", default="", help="which simulated node")

    def handle(self, *args: Any, **options: Any) -> None:
        """Read and print."""
        name = options["node"] or platform.node().partition(".")[0] or "node"
        backend = "simulated" if options["simulated"] else options["backend"]
        try:
            probe = open_in_time(backend, name)
        except ProbeUnavailable as error:
            self.stderr.write(str(error))
            sys.exit(EXIT_UNAVAILABLE)
        lanes = Lanes(probe.read_gpu, answered_at=probe.answered_at)
        try:
            self._show(probe, lanes, name, options)
        except KeyboardInterrupt:
            self.stdout.write("")
        finally:
            lanes.close()
            if not lanes.stuck:
                probe.close()

    def _show(
        self, probe: Probe, lanes: Lanes, node: str, options: dict[str, Any]
    ) -> None:
        while True:
            began_at = time.monotonic()
            sample = take(probe, lanes, node)
            if options["json"]:
                self.stdout.write(encode(sample.message).decode())
            else:
                clear = CLEAR if options["watch"] and self.stdout.isatty() else ""
                paint = (
                    terminal_view.coloured
                    if self._colours(options)
                    else terminal_view.uncoloured
                )
                shown = terminal_view.lines(
                    probe.info, sample, unnamed=probe.unnamed, paint=paint
                )
                self.stdout.write(clear + "\n".join(shown))
            self.stdout.flush()
            if not options["watch"]:
                return
            time.sleep(max(0.0, began_at + 1 - time.monotonic()))
            if probe.stale and not lanes.stuck:
                reopen_after_reload(probe)

    def _colours(self, options: dict[str, Any]) -> bool:
        """Return whether to use colours: on a terminal, unless NO_COLOR is set
        (no-color.org)."""
        if options.get("force_color"):
            return True
        refused = options.get("no_color") or os.environ.get("NO_COLOR")
        return not refused and bool(self.stdout.isatty())


def open_in_time(backend: str, node: str) -> Probe:
    """Open a probe, even if a driver may hang. Raises ProbeUnavailable."""
    opened: list[Probe] = []
    failed: list[ProbeUnavailable] = []

    def run() -> None:
        try:
            probe = make_probe(
                backend,
                node=node,
                state_dir=Path(settings.VAR_DIR) / "sim",
                node_dir=None,
                isolation=Isolation.NONE,
            )
            opened.append(probe)
        except ProbeUnavailable as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="open", daemon=True)
    thread.start()
    thread.join(OPEN_WITHIN_SECONDS)
    if opened:
        return opened[0]
    why = f"the driver does not answer within {OPEN_WITHIN_SECONDS:.0f} s"
    raise failed[0] if failed else ProbeUnavailable(backend=backend, why=why)


def take(probe: Probe, lanes: Lanes, node: str) -> NodeSample:
    """Return one Sample of every Gpu. A Gpu that does not answer in time is hung."""
    at, began_at = time.time(), time.monotonic()
    probe.begin(at)
    found = lanes.read(probe.uuids, within_seconds=READ_WITHIN_SECONDS)
    gpus = (
        found.get(uuid, GpuReading(uuid=uuid, state=GpuAnswer.HUNG))
        for uuid in probe.uuids
    )
    return NodeSample(
        node=node,
        at=at,
        gpus=tuple(gpus),
        load1=os.getloadavg()[0],
        took_seconds=time.monotonic() - began_at,
    )


def reopen_after_reload(probe: Probe) -> None:
    """Restart after a reload of the driver. Until then the Gpus show errors."""
    try:
        probe.reopen()
    except ProbeUnavailable:
        return  # every Gpu's line shows it; the next second tries again
