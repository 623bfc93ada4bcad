"""Measure how much early returns by one person delay the bookings of others.

Two public traces, thinned by job to about 85 % of four GPUs, become people who plan: a
job that was submitted at t requests at t a start two days later. One more person holds
two of the four GPUs from 62 to 26 hours ahead, day after day, and gives every hour back
26 hours before it begins, so that it costs nothing. Printed are the hours by which the
others' starts are later than requested: without that person, with them, and with them
under the rule of ``reservations.rules.fairness.early_returns``.

    python -m bench.early_returns PHILLY.csv.gz THETA.csv.gz
"""

from __future__ import annotations

import gzip
import sys
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

from reservations.reports.replay.trace import TraceJob, read_trace
from reservations.rules.fairness.early_returns import (
    WINDOW_SECONDS,
    EarlyReturns,
    ReturnedTooMuch,
    check_returns,
)
from reservations.rules.policy import Policy
from reservations.rules.window import Window

GPUS, HOARDED, WEIGHT = 4, 2, 10
LOAD = 0.85
HOUR = 3600
LEAD, FIRST, LAST = 48 * HOUR, 26 * HOUR, 62 * HOUR
"""Others plan two days ahead. The hoarder books at LAST and gives back at FIRST."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Gpus:
    """Booked spans of each Gpu, in order of time."""

    spans: list[list[tuple[int, int]]] = field(
        default_factory=lambda: [[] for _ in range(GPUS)]
    )

    def free(self, gpu: int, start: int, end: int) -> bool:
        """Return whether a Gpu is free in a span."""
        return all(over <= start or end <= begin for begin, over in self.spans[gpu])

    def book(self, count: int, wanted: int, seconds: int) -> int:
        """Book so many Gpus at the earliest start from ``wanted`` on. Return the
        start.
        """
        ends = {over for spans in self.spans for _, over in spans if over > wanted}
        for start in (wanted, *sorted(ends)):
            chosen = [g for g in range(GPUS) if self.free(g, start, start + seconds)]
            if len(chosen) >= count:
                for gpu in chosen[:count]:
                    insort(self.spans[gpu], (start, start + seconds))
                return start
        raise AssertionError("after the last end everything is free")


def thinned(jobs: Sequence[TraceJob]) -> list[TraceJob]:
    """Return narrow jobs, drawn by their number, that fill LOAD of the Gpus."""
    narrow = [job for job in jobs if job.gpus <= HOARDED]
    span = max(job.submit_s for job in jobs)
    need = sum(job.gpus * _seconds(job) for job in narrow) / span
    keep = min(1.0, LOAD * GPUS / need)
    return [j for j in narrow if crc32(j.job_id.encode()) / 2**32 < keep]


def _seconds(job: TraceJob) -> int:
    """Return whole hours as requested, a day at most."""
    return min(-(-job.req_s // HOUR), 24) * HOUR


def replay(jobs: Sequence[TraceJob], policy: Policy | None) -> tuple[list[float], int]:
    """Return the others' delays in hours, and the weighted GPU-hours hoarded.

    Args:
        policy: the rule that limits returns; None: there is no hoarder.
    """
    gpus, delays, hoarded = Gpus(), [], 0
    returned: list[tuple[int, int]] = []
    hours = iter(range(0, max(job.submit_s for job in jobs), HOUR))
    hour = next(hours)
    held: list[tuple[int, int, int]] = []
    for job in jobs:
        while policy is not None and hour is not None and hour <= job.submit_s:
            for gpu, begin, over in [h for h in held if h[1] - hour <= FIRST]:
                gpus.spans[gpu].remove((begin, over))
                held.remove((gpu, begin, over))
                returned.append((hour, WEIGHT * (over - begin)))
            if _may(returned, hour, policy):
                for gpu in range(HOARDED):
                    span = (hour + LAST, hour + LAST + HOUR)
                    if gpus.free(gpu, *span):
                        insort(gpus.spans[gpu], span)
                        held.append((gpu, *span))
                        hoarded += WEIGHT
            hour = next(hours, None)
        wanted = -(-(job.submit_s + LEAD) // HOUR) * HOUR
        start = gpus.book(job.gpus, wanted, _seconds(job))
        delays.append((start - wanted) / HOUR)
    return delays, hoarded


def _may(returned: Sequence[tuple[int, int]], now: int, policy: Policy) -> bool:
    """Return whether the rule lets the hoarder, who uses nothing, book at LAST."""
    lately = sum(cost for at, cost in returned if now - at < WINDOW_SECONDS)
    moment = BEGIN + timedelta(seconds=now)
    start = moment + timedelta(seconds=LAST)
    try:
        check_returns(
            Window(start, start + timedelta(hours=1)),
            EarlyReturns(lately, 0, policy.quota_gpu_seconds),
            now=moment,
            policy=policy,
        )
    except ReturnedTooMuch:
        return False
    return True


def main(paths: Sequence[str]) -> int:
    """Print a table for each trace."""
    if not paths:
        print("usage: python -m bench.early_returns TRACE.csv.gz ...", file=sys.stderr)
        return 2
    free = Policy(free_return_permille=100_000)
    for name in paths:
        with gzip.open(name, "rt", encoding="utf-8", newline="") as lines:
            jobs = thinned(read_trace(lines))
        print(f"{Path(name).name}: {len(jobs)} bookings on {GPUS} GPUs")
        for title, policy in (
            ("nobody hoards", None),
            ("returns are free", free),
            ("returns are limited", Policy()),
        ):
            delays, hoarded = replay(jobs, policy)
            late = sorted(delays)
            print(
                f"  {title:<20} mean delay {sum(late) / len(late):7.2f} h, "
                f"later than asked {sum(d > 0 for d in late) / len(late):6.1%}, "
                f"95 % within {late[int(0.95 * len(late))]:6.1f} h, "
                f"hoarded {hoarded:6d} credits"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
