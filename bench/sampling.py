"""Measure one full Sample: CPU, NVML calls, memory, wall time.

    python -m bench.sampling

Over the simulated driver of the tests (a C compiler is needed), with two processes on
every Gpu, owners looked up, in a child process like the real one. CPU and calls are
means of many Samples. The probe's clock advances by a second with each, so that values
that are read every ten seconds are included at their rate. Wall time is the median with
the driver's modelled latencies. gpustat and nvitop are measured too if they are
installed. Targets are those of the design (telemetry, section 2), measured on a machine
of two cores, so trust ratios more than numbers.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

BASE_DIR = Path(__file__).resolve().parent.parent
SAMPLES = 300
WALL_SAMPLES = 12
PEERS = ("gpustat", "nvitop")


class Target(NamedTuple):
    """The target value; None: no target for this size."""

    cpu_ms: float | None
    calls: float | None
    rss_mib: float | None
    wall_ms: float | None


TARGETS = {
    8: Target(cpu_ms=1.0, calls=160, rss_mib=45, wall_ms=None),
    64: Target(cpu_ms=None, calls=None, rss_mib=45, wall_ms=150),
}


# --- in the child ---------------------------------------------------------------


def sample_with(reader: str, count: int) -> dict[str, float]:
    """Take `count` Samples and report their cost. Runs in the child."""
    take = {"portal": _portal, "gpustat": _gpustat, "nvitop": _nvitop}[reader]()
    take()
    take()
    walls = []
    cpu_at = time.process_time()
    for _ in range(count):
        began_at = time.perf_counter()
        take()
        walls.append(time.perf_counter() - began_at)
    cpu_seconds = (time.process_time() - cpu_at) / count
    return {
        "cpu_ms": cpu_seconds * 1000,
        "wall_ms": statistics.median(walls) * 1000,
        "rss_mib": _peak_rss_mib(),
    }


def _portal() -> Any:
    import telemetry.agent.stream_sender  # noqa: F401  (the child has its Redis client loaded)
    from telemetry.agent.probe import NvmlProbe
    from telemetry.agent.reader_threads import Lanes
    from telemetry.protocol.sample import NodeSample

    seconds = [0.0]
    probe = NvmlProbe("bench", clock=lambda: seconds[0])
    probe.open()
    lanes = Lanes(probe.read_gpu, answered_at=probe.answered_at)

    def take() -> None:
        seconds[0] += 1.0
        probe.begin(time.time())
        found = lanes.read(probe.uuids, within_seconds=5)
        assert len(found) == len(probe.uuids)
        for uuid in found:
            probe.take_xids(uuid)
        NodeSample(
            node="bench", at=time.time(), gpus=tuple(found.values())
        ).to_message()

    return take


def _gpustat() -> Any:
    import gpustat

    return lambda: gpustat.new_query().jsonify()


def _nvitop() -> Any:
    from nvitop import Device, take_snapshots

    devices = Device.all()
    return lambda: take_snapshots(devices, gpu_processes=True)


def _peak_rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("no VmHWM in /proc/self/status")


# --- in the parent --------------------------------------------------------------


def measure(reader: str, gpus: int) -> dict[str, float]:
    """Return the cost of one Sample of so many Gpus by one reader."""
    from tests.nvml_sim.nvmlsim import Sim

    with Sim(gpus, model="a100") as sim, tempfile.TemporaryDirectory() as folder:
        for index in range(gpus):
            for pid in (os.getpid(), os.getppid()):
                sim.add(f"gpu {index}", "proc", f"pid:{pid} mem:4GiB sm:40")
        # New readings for every Sample, although they are taken faster than at 1 Hz.
        sim.set("", sample_period="0.001")
        fast = _run(reader, SAMPLES if reader == "portal" else 20, sim.env())
        trace = Path(folder) / "trace"
        _run(reader, 20, sim.env(NVML_SIM_TRACE=str(trace)))
        calls_20 = _lines(trace)
        trace.unlink()
        _run(reader, 10, sim.env(NVML_SIM_TRACE=str(trace)))
        calls = (calls_20 - _lines(trace)) / 10
        sim.set("", latency="realistic")
        slow = _run(reader, WALL_SAMPLES, sim.env())
    return {**fast, "wall_ms": slow["wall_ms"], "calls": calls}


def _run(reader: str, count: int, env: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.sampling", "--child", reader, str(count)],
        env=env,
        cwd=BASE_DIR,
        stdout=subprocess.PIPE,
        check=True,
    )
    values: dict[str, float] = json.loads(done.stdout)
    return values


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _cell(value: float, target: float | None, *, digits: int) -> str:
    shown = f"{value:.{digits}f}"
    if target is None:
        return shown
    return f"{shown} ({'ok' if value <= target else 'OVER'} {target:g})"


def main() -> int:
    """Print the table. The exit code is 1 if a target is missed."""
    from tests.nvml_sim.nvmlsim import NoCompiler, build

    try:
        build()
    except NoCompiler as error:
        print(f"bench/sampling.py: {error}", file=sys.stderr)
        return 1
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python", end=" ")
    print(f"{platform.python_version()}, load {os.getloadavg()[0]:.1f}\n")
    print("| one full Sample | Gpus | CPU ms | NVML calls | RSS MiB | wall ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    good = True
    readers = ["portal", *(x for x in PEERS if importlib.util.find_spec(x))]
    for gpus, target in TARGETS.items():
        for reader in readers:
            cost = measure(reader, gpus)
            limit = target if reader == "portal" else Target(None, None, None, None)
            cells = [
                _cell(cost["cpu_ms"], limit.cpu_ms, digits=2),
                _cell(cost["calls"], limit.calls, digits=0),
                _cell(cost["rss_mib"], limit.rss_mib, digits=1),
                _cell(cost["wall_ms"], limit.wall_ms, digits=0),
            ]
            good = good and not any("OVER" in cell for cell in cells)
            print(f"| {reader} | {gpus} | {' | '.join(cells)} |", flush=True)
    missing = [x for x in PEERS if x not in readers]
    if missing:
        print(f"\nnot installed, so not beside it: {', '.join(missing)}")
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(sample_with(sys.argv[2], int(sys.argv[3]))))
    else:
        sys.exit(main())
