"""Measure the cost of a chart of the past.

    python bench/history.py [--gpus 8] [--years 2]

Fills a separate database (SQLite in a temporary folder, or DATABASE_URL) with hours of
years and minutes of a month for one node, then reads every range of the page three
times and prints the middle one: wall time, CPU of this process, rows added up, points
sent.
"""

import argparse
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
RANGES = {
    "1 h": 1,
    "24 h": 24,
    "7 d": 168,
    "30 d": 720,
    "90 d": 2160,
    "1 y": 8760,
    "2 y": 17520,
}
POINTS = 900


def main() -> None:
    """Set up, fill, read, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--years", type=float, default=2)
    parser.add_argument("--minute-days", type=int, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuportal-bench-") as folder:
        os.environ["GPUPORTAL_VAR"] = folder
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuportal.settings")
        import django

        django.setup()
        from django.core.management import call_command
        from django.utils import timezone

        call_command("migrate", verbosity=0)
        now = timezone.now().replace(second=0, microsecond=0)
        node = fill(asked.gpus, asked.years, asked.minute_days, now)
        print(f"{asked.gpus} GPUs, {asked.years:g} years of hours, ", end="")
        print(f"{asked.minute_days} days of minutes, {POINTS} points asked")
        print(f"{'range':>6} {'rows':>5} {'step':>7} {'points':>6} {'wall':>9}")
        for name, hours in RANGES.items():
            print(f"{name:>6} {measure(node, hours, now)}")
        rolled(now)


def fill(gpus: int, years: float, minute_days: int, now: Any) -> Any:
    """Make one node with its past."""
    from telemetry.models import Gpu, Node, Pool, SampleHour, SampleMinute

    node = Node.objects.create(name="bench")
    pool = Pool.objects.create(gpu_class="bench", weight=1)
    cards = Gpu.objects.bulk_create(
        Gpu(uuid=f"GPU-{i}", node=node, pool=pool, index=i, memory_total_bytes=2**36)
        for i in range(gpus)
    )
    hour = now.replace(minute=0)

    def columns(n: int, util: int) -> dict[str, Any]:
        return {
            "n": n,
            "util_n": n,
            "util_sum_pct": n * util,
            "util_min_pct": util - 5,
            "util_max_pct": util + 5,
            "idle_n": 0,
            "memory_n": n,
            "memory_sum_bytes": n * 2**35,
            "memory_max_bytes": 2**35,
            "power_n": n,
            "power_sum_watts": n * 250,
            "process_n": n,
            "energy_joules": n * 250,
        }

    for card in cards:
        SampleHour.objects.bulk_create(
            (
                SampleHour(
                    gpu=card,
                    hour_at=hour - timedelta(hours=i),
                    **columns(3600, 5 + i % 90),
                )
                for i in range(1, int(years * 8760))
            ),
            batch_size=2000,
        )
        SampleMinute.objects.bulk_create(
            (
                SampleMinute(
                    gpu=card,
                    minute_at=now - timedelta(minutes=i),
                    **columns(60, 5 + i % 90),
                )
                for i in range(1, minute_days * 1440)
            ),
            batch_size=2000,
        )
    return node


def measure(node: Any, hours: int, now: Any) -> str:
    """Return the middle one of three reads of one range."""
    from telemetry.history import queries as history

    asked = history.HistoryRange(
        int(now.timestamp()) - hours * 3600, int(now.timestamp()), POINTS
    )
    walls = []
    for _ in range(3):
        begun = time.perf_counter()
        found = history.read_history(history.of_node(node), asked, now=now)
        walls.append(time.perf_counter() - begun)
    rows = "hour" if found["step_seconds"] >= 3600 else "min"
    step, points = found["step_seconds"], len(found["at"])
    return f"{rows:>5} {step:>5} s {points:>6} {median(walls) * 1000:>6.0f} ms"


def rolled(now: Any) -> None:
    """Print the cost of rolling up one hour."""
    from telemetry.history.hourly_rollup import mark_hours_due, roll_hours

    mark_hours_due([now - timedelta(hours=2)])
    begun = time.perf_counter()
    roll_hours(now=now)
    print(f"one hour rolled up: {(time.perf_counter() - begun) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
