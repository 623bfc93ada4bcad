"""Measure the load of open boards on Slurm's controller, and the age of its facts.

    python bench/slurm/slurm_board.py [--viewers 200] [--seconds 120]

A live Slurm (slurmctld, two slurmd), and a portal beside it: web, ingest, worker and
beat. Its nodes can be booked, so the portal reads Slurm for the board and compares its
reservations. Nobody has the board open in the first run, and all viewers have it open
in the second one. Requests are those that ``sdiag`` counts, without its own. An age is
that of a fact when it reaches an open board.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.fanout import PAGES_PER_PERSON, wait_for_port
from bench.rig.cluster import make_cluster, process, setup, valkey
from tests.telemetry.slurm.slurm_processes import (
    SlurmProcesses,
    free_ports,
    slurm_processes,
)

START_SECONDS = 180.0
OWN_REQUEST = "REQUEST_STATS_INFO"
_COUNT = re.compile(r"^\s+([A-Z_]+)\s*\(\s*\d+\) count:(\d+)", re.MULTILINE)


def requests_of(slurm: SlurmProcesses) -> dict[str, int]:
    """Return how many requests of each type the controller has answered."""
    text = slurm.run("sdiag").partition("by message type")[2].partition("by user")[0]
    found = {name: int(count) for name, count in _COUNT.findall(text)}
    found.pop(OWN_REQUEST, None)
    return found


def per_minute(
    before: dict[str, int], after: dict[str, int], seconds: float
) -> dict[str, float]:
    """Return the requests a minute between two counts, without those that are none."""
    rates = {
        name: (count - before.get(name, 0)) * 60 / seconds
        for name, count in after.items()
    }
    return {name: rate for name, rate in sorted(rates.items()) if rate}


def wait_for_reading() -> None:
    """Wait until the portal has read Slurm."""
    from telemetry.models import SlurmCluster

    deadline = time.monotonic() + START_SECONDS
    while not SlurmCluster.objects.filter(read_at__isnull=False).exists():
        if time.monotonic() > deadline:
            raise SystemExit("the portal does not read Slurm")
        time.sleep(0.5)


def measure(options: argparse.Namespace, slurm: SlurmProcesses, session: str) -> None:
    """Run the portal, once without viewers and once with them. Print the table."""
    (port,) = free_ports(1)
    web = ("-m", "uvicorn", "--lifespan", "off", "--log-level", "error")
    celery = ("-m", "celery", "-A", "gpuportal")
    beat = ("-l", "WARNING", "--pidfile=", "-s", f"{os.environ['GPUPORTAL_VAR']}/beat")
    with ExitStack() as stack:
        served = ("--port", str(port), "gpuportal.asgi:application")
        stack.enter_context(process(*web, *served))
        wait_for_port(port, START_SECONDS)
        for words in (
            ("manage.py", "ingest"),
            (*celery, "worker", "-Q", "control", "-c", "2", "-l", "WARNING"),
            (*celery, "beat", *beat),
        ):
            stack.enter_context(process(*words))
        wait_for_reading()
        before = requests_of(slurm)
        time.sleep(options.seconds)
        alone = per_minute(before, requests_of(slurm), options.seconds)
        viewers = ("--role", "clients", "--clients", str(options.viewers))
        more = ("--port", str(port), "--session", session)
        seconds = ("--seconds", str(options.seconds))
        pages = stack.enter_context(
            process("bench/fanout.py", *viewers, *more, *seconds)
        )
        assert pages.stdout is not None
        for word in ("open", "begin"):
            line = pages.stdout.readline().strip()
            if line != word:
                raise SystemExit(f"the viewers said {line!r} and not {word!r}")
        before = requests_of(slurm)
        told = json.loads(pages.stdout.readline())
        watched = per_minute(before, requests_of(slurm), options.seconds)
    report(options, alone, watched, told)


def report(
    options: argparse.Namespace,
    alone: dict[str, float],
    watched: dict[str, float],
    told: dict[str, float],
) -> None:
    """Print the measurements."""
    print(
        f"{options.viewers} viewers, {options.seconds:.0f} s each, {os.cpu_count()} "
        f"cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}"
    )
    print(f"{'requests a minute':36}{'nobody':>10}{'viewers':>10}")
    for name in sorted({*alone, *watched}):
        print(f"{name:36}{alone.get(name, 0):>10.1f}{watched.get(name, 0):>10.1f}")
    total = sum(alone.values()), sum(watched.values())
    print(f"{'all':36}{total[0]:>10.1f}{total[1]:>10.1f}")
    print(
        f"age of Slurm's facts on {told['frames']} delivered frames: "
        f"p50 {told['p50']:.1f} s, p95 {told['p95']:.1f} s"
    )


def main() -> None:
    """Start Slurm and the portal, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurm-board-") as var, ExitStack() as on:
        slurm = on.enter_context(slurm_processes())
        os.environ |= {
            "SLURM_CLUSTER": "lab",
            "SLURM_BOOK": "yes",
            "SLURM_CONF": str(slurm.conf),
        }
        setup(var)
        from telemetry import paths

        session = make_cluster(0, 0, options.viewers // PAGES_PER_PERSON + 1)
        on.enter_context(valkey(paths.embedded_socket()))
        slurm.submit("--gres=gpu:a100:2", "--nodelist=gp1")
        measure(options, slurm, session)


if __name__ == "__main__":
    main()
