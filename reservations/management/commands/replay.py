"""`manage.py replay`: the effect that a policy would have had on a trace of jobs."""

import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from django.core.management.base import BaseCommand, CommandError, CommandParser

from reservations.reports.replay.engine import replay
from reservations.reports.replay.measures import Measures, measure
from reservations.reports.replay.queue_orders import (
    NAMES,
    default_half_life_seconds,
    order_of,
)
from reservations.reports.replay.trace import (
    TraceInvalid,
    TraceJob,
    bounded_lines,
    read_trace,
)
from reservations.rules.policy import Policy
from telemetry.protocol.coded_error import EXIT_REFUSED, CodedError, one_line

LINES = (
    ("mean wait", "wait_mean_hours", "h"),
    ("median wait", "wait_p50_hours", "h"),
    ("99 % waited at most", "wait_p99_hours", "h"),
    ("worst user's mean wait", "worst_user_wait_hours", "h"),
    ("bounded slowdown", "bounded_slowdown", ""),
    ("utilization", "utilization", ""),
    ("Jain's index, flat", "jain_flat", ""),
    ("Jain's index, tree", "jain_tree", ""),
    ("unserved entitlement", "unserved_entitlement", ""),
)


class Command(BaseCommand):
    """Reads a file and prints figures. It needs no database."""

    help = "Replay a job trace (CSV or CSV.gz) through the site's booking rules."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the trace, the cluster and the rule."""
        parser.add_argument("trace", metavar="TRACE", help="CSV or CSV.gz")
        parser.add_argument("--gpus", type=int, required=True, metavar="N")
        parser.add_argument("--policy", choices=NAMES, default="firm-flex")
        parser.add_argument(
            "--half-life",
            type=float,
            default=None,
            metavar="H",
            help="hours after which past use counts half (default: 14 d, or a seventh "
            "of a shorter trace)",
        )
        parser.add_argument(
            "--quota",
            type=float,
            default=None,
            metavar="H",
            help="GPU-hours of firm time per member in any 7 days "
            "(default: an equal part of half of what there is)",
        )
        parser.add_argument(
            "--gaps",
            type=float,
            default=0.0,
            metavar="PERCENT",
            help="percent of the jobs that can be interrupted and so may run on "
            "GPUs held for others, chosen by a hash of the job_id (default: 0)",
        )
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        """Replay and print. Bad input: one line, and exit 2."""
        try:
            jobs = self._jobs(Path(options["trace"]))
            figures, seconds = self._figures(jobs, options)
        except (CodedError, OSError, EOFError) as error:
            name = getattr(error, "strerror", None)
            text = f"{options['trace']}: {name}" if name else str(error)
            raise CommandError(one_line(text), returncode=EXIT_REFUSED) from error
        per_second = figures.jobs / max(seconds, 1e-9)
        if options["json"]:
            found = asdict(figures) | {"jobs_per_second": round(per_second, 1)}
            self.stdout.write(json.dumps({"policy": options["policy"], **found}))
            return
        self.stdout.write(
            f"{figures.jobs:,} jobs on {options['gpus']} GPUs, {options['policy']}: "
            f"{per_second:,.0f} jobs/s"
        )
        for title, field, unit in LINES:
            value = getattr(figures, field)
            self.stdout.write(f"  {title:<24}{value:>10.4f} {unit}".rstrip())

    def _jobs(self, path: Path) -> list[TraceJob]:
        with _opened(path) as lines:
            return read_trace(lines)

    def _figures(
        self, jobs: list[TraceJob], options: dict[str, Any]
    ) -> tuple[Measures, float]:
        """Return the figures, and the CPU seconds of the replay itself."""
        if options["gpus"] < 1:
            raise TraceInvalid(f"--gpus is {options['gpus']}: at least one is needed")
        if not 0 <= options["gaps"] <= 100:
            raise TraceInvalid(f"--gaps is {options['gaps']:g}: 0 to 100 percent")
        policy, quota = Policy(), None
        if options["half_life"] is not None:
            seconds = _seconds("--half-life", options["half_life"])
            policy = replace(policy, half_life_seconds=seconds)
        else:
            shorter = default_half_life_seconds(jobs, policy)
            policy = replace(policy, half_life_seconds=shorter)
        if options["quota"] is not None:
            quota = _seconds("--quota", options["quota"])
        began = time.process_time()
        order = order_of(
            options["policy"],
            jobs,
            gpus=options["gpus"],
            policy=policy,
            quota_gpu_seconds=quota,
        )
        runs = replay(
            jobs,
            gpus=options["gpus"],
            order=order,
            pauses=_sample_filter(options["gaps"]) if options["gaps"] else None,
        )
        took = time.process_time() - began
        return measure(runs, gpus=options["gpus"]), took


def _sample_filter(percent: float) -> Callable[[TraceJob], bool]:
    """Return a function that says whether a job is in a sample of this many percent."""
    return lambda job: crc32(job.job_id.encode()) < percent / 100 * 2**32


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[str]]:
    """Return the lines of a text file, compressed or not."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    opener = gzip.open if packed else open
    with opener(path, "rt", encoding="utf-8", newline="") as lines:
        yield bounded_lines(lines)


def _seconds(name: str, hours: float) -> int:
    if not 0 < hours < 1e7:
        raise TraceInvalid(f"{name} is {hours:g}: above 0 and below 10,000,000 hours")
    return max(1, round(hours * 3600))
