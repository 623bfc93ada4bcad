"""Measure the opening of the calendar: a course books its Gpus within one minute.

    python -m bench.contention [--students 300] [--gpus 150] [--seconds 60]
                               [--webs 2] [--database sqlite|postgresql|both] [--json]

Starts a separate broker, database and web processes. 300 students look at the calendar,
preview and book over HTTP. Half of them want the same hours on a tenth of the Gpus and
come in the first ten seconds. Then the database is checked by the bench's own
arithmetic: no overlap, no quota and no cap exceeded, no answer but 200, 201 and 409, no
deadlock. Exit 1 if one of these fails. Students run as threads of this process and
share its processors with the server, so the times are an upper bound.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any

from bench.rig import opening as opening
from bench.rig.postgres import postgres

DATABASES = ("sqlite", "postgresql")


def main() -> None:
    """Run on each database in a separate process. Exit 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", type=int, default=300)
    parser.add_argument("--gpus", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--webs", type=int, default=2)
    parser.add_argument("--database", choices=[*DATABASES, "both"], default="both")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.database == "both":
        sys.exit(max(_again(asked, name) for name in DATABASES))
    with ExitStack() as stack:
        os.environ.pop("DATABASE_URL", None)
        if asked.database == "postgresql":
            os.environ["DATABASE_URL"] = stack.enter_context(postgres())
        found = measure(asked)
    print(json.dumps(found) if asked.json else told_of(found), flush=True)
    sys.exit(0 if not found["broken"] else 1)


def _again(asked: argparse.Namespace, name: str) -> int:
    """Run this bench for one database."""
    options = [
        part
        for option in ("students", "gpus", "seconds", "webs")
        for part in (f"--{option}", str(getattr(asked, option)))
    ]
    options += ["--json"] if asked.json else []
    return subprocess.run(
        [sys.executable, "-m", "bench.contention", "--database", name, *options],
        check=False,
    ).returncode


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Start everything, let the students book, and check the result."""
    # Sets the environment for itself and its children, so not before main().
    from bench.rig import booking_lab

    # With the site's default rate limit.
    os.environ.pop("BOOK_RATE_PER_MINUTE")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, booking_lab.VAR, ignore_errors=True)
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection

        from telemetry.models import Gpu

        call_command("migrate", verbosity=0)
        now = datetime.now(UTC)
        students = opening.make_course(asked.students, asked.gpus, now=now)
        gpu_ids = list(Gpu.objects.order_by("pk").values_list("pk", flat=True))
        connection.close()
        broker = booking_lab.start_broker()
        stack.callback(broker.wait, 10)
        stack.callback(broker.terminate)
        webs = stack.enter_context(booking_lab.Webs(asked.webs))
        load = os.getloadavg()[0]
        told, took = opening.open_calendar(
            students,
            gpu_ids,
            webs.ports,
            hour=now.replace(minute=0, second=0, microsecond=0),
            seconds=asked.seconds,
        )
        cpu = webs.cpu_seconds()
        found = figures(students, told) | {
            "database": connection.vendor,
            "load_before": round(load, 1),
            "took_seconds": round(took, 1),
            "web_cpu_seconds": round(cpu, 1),
        }
        with suppress(OSError):
            connection.close()
    return found


def figures(
    students: list[opening.Student], told: list[opening.Told]
) -> dict[str, Any]:
    """Return the measurements, and under ``broken`` the failed checks."""
    statuses = Counter(status for one in told for status in one.statuses)
    seconds: dict[str, list[float]] = {}
    for one in told:
        for what, took in one.seconds.items():
            seconds.setdefault(what, []).extend(took)
    strange = {s: n for s, n in statuses.items() if s not in (200, 201, 409)}
    broken = [f"{n} answers {s}" for s, n in sorted(strange.items())]
    broken += [f"student {o.student.number}: {o.error}" for o in told if o.error]
    broken += opening.over_quota() + opening.over_caps()
    if double := opening.overlaps():
        broken.append(f"{double} overlaps")
    if dead := deadlocks():
        broken.append(f"{dead} deadlocks")
    return {
        "students": len(students),
        "bookings": sum(one.booked for one in told),
        "refusals": dict(
            Counter(c for one in told for c in one.refusals).most_common()
        ),
        "milliseconds": {what: spread(took) for what, took in sorted(seconds.items())},
        "fairness": opening.fairness(told, opening.granted_hours(students)),
        "broken": broken,
    }


def spread(seconds: list[float]) -> dict[str, float]:
    """Return number, median and 95th percentile in ms, and the worst."""
    ranked = sorted(1000 * value for value in seconds)
    return {
        "n": len(ranked),
        "p50": round(statistics.median(ranked), 1),
        "p95": round(ranked[int(0.95 * (len(ranked) - 1))], 1),
        "worst": round(ranked[-1], 1),
    }


def deadlocks() -> int:
    """Return the deadlocks that the server counted. SQLite has none (one writer at a
    time).
    """
    from django.db import connection

    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(cursor.fetchone()[0])


def told_of(found: dict[str, Any]) -> str:
    """Return the figures as text for people."""
    fair = found["fairness"]
    groups = ", ".join(f"{mean:.1f}" for mean in fair["groups"])
    lines = [
        f"{found['students']} students on {found['database']}, load "
        f"{found['load_before']}: {found['bookings']} bookings, last answer after "
        f"{found['took_seconds']} s, {found['web_cpu_seconds']} s CPU of the web",
        *(
            f"  {what:<9}{row['n']:>6} x  p50 {row['p50']:>7} ms  "
            f"p95 {row['p95']:>7} ms  worst {row['worst']:>7} ms"
            for what, row in found["milliseconds"].items()
        ),
        "  refused: "
        + (", ".join(f"{n} {code}" for code, n in found["refusals"].items()) or "none"),
        f"  GPU-hours a student: {fair['least']:.1f} to {fair['most']:.1f}, mean "
        f"{fair['mean']:.2f}, Jain {fair['jain']:.3f}; first quarter to click "
        f"{fair['first_quarter']:.2f}, last {fair['last_quarter']:.2f}; wanted the hot "
        f"hours {fair['hot']:.2f}, others {fair['others']:.2f}",
        f"  mean by group (0 and 1 have half the quota): {groups}",
        *(f"  DOES NOT HOLD: {line}" for line in found["broken"][:20]),
    ]
    if not found["broken"]:
        lines.append(
            "  holds: no overlap, no quota or cap exceeded, no 500, no deadlock"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
