"""`manage.py sample`: what the Gpus of this machine do, in the terminal."""

import json
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from telemetry.domain.errors import ProbeUnavailable
from telemetry.domain.hardware import GpuInfo, Isolation, NodeInfo
from telemetry.domain.sample import GpuReading, NodeSample
from telemetry.domain.units import UNKNOWN, format_bytes
from telemetry.sampler import Probe, make_probe

EXIT_UNAVAILABLE = 2
CLEAR = "\x1b[H\x1b[2J"
ROW = "{:>3} {:<24.24} {:>6} {:>6} {:>19} {:>6} {:>11}  {}"


class Command(BaseCommand):
    """One reading; with --watch one a second until Ctrl-C."""

    help = "Read the Gpus of this machine once. Exit 2 where there is no driver."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Form and source of the reading."""
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
        backend = "simulated" if options["simulated"] else options["backend"]
        try:
            probe = make_probe(
                backend,
                node=options["node"] or platform.node().partition(".")[0] or "node",
                state_dir=Path(settings.VAR_DIR) / "sim",
                node_dir=None,
                isolation=Isolation.NONE,
            )
        except ProbeUnavailable as error:
            self.stderr.write(str(error))
            sys.exit(EXIT_UNAVAILABLE)
        try:
            self._show(probe, as_json=options["json"], watch=options["watch"])
        except KeyboardInterrupt:
            self.stdout.write("")
        finally:
            probe.close()

    def _show(self, probe: Probe, *, as_json: bool, watch: bool) -> None:
        while True:
            at = time.time()
            probe.begin(at)
            sample = probe.read(at)
            if as_json:
                self.stdout.write(json.dumps(sample.to_dict()))
            else:
                clear = CLEAR if watch and self.stdout.isatty() else ""
                self.stdout.write(clear + table(probe.info, sample))
            self.stdout.flush()
            if not watch:
                return
            time.sleep(max(0.0, at + 1 - time.time()))


def table(info: NodeInfo, sample: NodeSample) -> str:
    """A reading as lines for people. What the card cannot say is a dash."""
    head = ROW.format("", "GPU", "state", "util", "memory", "temp", "power", "users")
    by_uuid = {gpu.uuid: gpu for gpu in info.gpus}
    lines = [
        _line(by_uuid[reading.uuid], reading)
        for reading in sample.gpus
        if reading.uuid in by_uuid
    ]
    driver = f"driver {info.driver_version}" if info.driver_version else "no version"
    return "\n".join([f"{sample.node}  {driver}", head, *lines])


def _line(gpu: GpuInfo, reading: GpuReading) -> str:
    users = sorted({process.user or "?" for process in reading.processes or ()})
    return ROW.format(
        gpu.index,
        printable(gpu.name),
        reading.state.value,
        _figure(reading.util_pct, " %"),
        f"{format_bytes(reading.memory_used_bytes)} / "
        f"{format_bytes(gpu.memory_total_bytes)}",
        _figure(reading.temperature_celsius, " C"),
        f"{_figure(reading.power_watts, '')}/{_figure(gpu.power_limit_watts, ' W')}",
        printable(", ".join(users)) if reading.processes is not None else UNKNOWN,
    ).rstrip()


def _figure(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f}{unit}"


def printable(text: str) -> str:
    """Text of a machine without what a terminal would obey."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", text)
