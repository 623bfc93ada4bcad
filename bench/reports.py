"""Measure a report of a year, and the totals of one of its months.

    python -m bench.reports [--reservations 1000000]

A year of so many reservations of 300 people on 150 GPUs is written into a scratch
SQLite database (or that of DATABASE_URL), as bench/booking.py writes its past. All
months are added up, then each report of the year is read five times. The median is
printed.
"""

import argparse
import shutil
import statistics
import time
from datetime import UTC, datetime, timedelta

from bench.rig import booking_lab

PEOPLE, MACHINES = 300, 150


def main() -> None:
    """Write a year, add it up, read it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reservations", type=int, default=1_000_000)
    asked = parser.parse_args()
    booking_lab.USERS, booking_lab.GPUS = PEOPLE, MACHINES
    try:
        measure(asked.reservations)
    finally:
        shutil.rmtree(booking_lab.VAR, ignore_errors=True)


def measure(reservations: int) -> None:
    """Print a line for each measurement."""
    booking_lab.make_lab()
    from django.db import connection

    from reservations.models import MonthUse
    from reservations.reports.queries import COLUMN, ReportFilter, report
    from reservations.reports.rules import month_of, months_back
    from reservations.reports.service import due_months, roll_month

    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    booking_lab.SPAN_SECONDS = 365 * 24 * booking_lab.HOUR * MACHINES // reservations
    booking_lab.add_history(reservations, before=hour)
    now = hour + timedelta(minutes=1)
    took = []
    for month in due_months(now):
        begun = time.perf_counter()
        roll_month(month, now=now)
        took.append(time.perf_counter() - begun)
    print(
        f"{reservations:,} reservations in a year on {connection.vendor}: a month is "
        f"added up in {statistics.median(took):.1f} s, "
        f"{MonthUse.objects.count():,} rows kept"
    )
    last = month_of(now, UTC)
    year = ReportFilter(first=months_back(last, 11), last=last)
    for by in COLUMN:
        print(f"  a year by {by:<6}{timed(lambda by=by: report(year, by)):8.0f} ms")
    one = ReportFilter(first=last, last=last)
    print(f"  a month by user{timed(lambda: report(one, 'user')):8.0f} ms")


def timed(call) -> float:  # type: ignore[no-untyped-def]
    """Return the milliseconds of the median of five calls."""
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun)
    return 1000 * statistics.median(took)


if __name__ == "__main__":
    main()
