"""A fortnight of hour rows and of summaries behind the demo lab's charts.

They follow the drawn reservations, as do the minutes of the last day. Telemetry's tick
rolls those minutes up into the hours of that day.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuportal.demo.lab import LOST
from gpuportal.demo.minutes import MINUTES_SPAN
from gpuportal.demo.past_bookings import DraftBooking
from gpuportal.demo.sample_totals import columns, sample_totals
from placement.models import Job
from reservations.models import Reservation
from reservations.rules.lifecycle import State
from telemetry.history.hourly_rollup import mark_hours_due
from telemetry.models import AccountHour, Gpu, SampleHour, UsageSummary
from telemetry.rules.rollup import EMPTY, MinuteTotals, merge, merge_all

HOUR = timedelta(hours=1)
Booked = Sequence[tuple[DraftBooking, Reservation]]


@dataclass(frozen=True)
class HourPart:
    """The use of one Gpu in a part of an hour, and its holder."""

    account: int
    totals: MinuteTotals
    seconds: int


def write_hours(
    booked: Booked, *, first: datetime, now: datetime, chance: random.Random
) -> None:
    """Write hour rows of Gpus and of Accounts from `first` to a day ago."""
    last = (now - MINUTES_SPAN).replace(minute=0)
    gpus = {gpu.pk: gpu for gpu in Gpu.objects.select_related("node", "pool")}
    parts = _parts(booked, gpus, first, last, chance)
    rows: list[SampleHour] = []
    accounts: dict[tuple[int, int, datetime], tuple[MinuteTotals, int]] = {}
    for gpu in gpus.values():
        if (gpu.node.name, gpu.index) == LOST:
            continue
        hour = first
        while hour < last:
            own = parts.get((gpu.pk, hour), [])
            rest = 3600 - sum(part.seconds for part in own)
            totals = merge_all(
                [*(p.totals for p in own), sample_totals(gpu, None, rest)]
            )
            rows.append(SampleHour(gpu=gpu, hour_at=hour, **columns(totals)))
            for part in own:
                key = (part.account, gpu.pool_id, hour)
                before, held = accounts.get(key, (EMPTY, 0))
                accounts[key] = (merge(before, part.totals), held + part.seconds)
            hour += HOUR
    SampleHour.objects.bulk_create(rows, batch_size=500)
    AccountHour.objects.bulk_create(
        (
            AccountHour(
                account_id=account,
                pool_id=pool,
                hour_at=hour,
                held_seconds=held,
                **columns(totals),
            )
            for (account, pool, hour), (totals, held) in accounts.items()
        ),
        batch_size=500,
    )
    minutes = int((now - last).total_seconds()) // 60
    mark_hours_due(last + timedelta(minutes=n) for n in range(0, minutes, 30))


def _parts(
    booked: Booked,
    gpus: dict[int, Gpu],
    first: datetime,
    last: datetime,
    chance: random.Random,
) -> dict[tuple[int, datetime], list[HourPart]]:
    """Return, by Gpu and hour, the parts of the hour that were held."""
    found: dict[tuple[int, datetime], list[HourPart]] = defaultdict(list)
    for draft, row in booked:
        for hour, seconds in _hours(max(draft.start, first), min(draft.end, last)):
            for held in draft.gpus:
                util = draft.util_pct if draft.came else 0.0
                shown = min(100.0, max(0.0, util + chance.gauss(0, 3) if util else 0.0))
                totals = sample_totals(gpus[held.pk], shown, seconds)
                account = row.membership.account_id
                found[held.pk, hour].append(HourPart(account, totals, seconds))
    return found


def _hours(start: datetime, end: datetime) -> Iterator[tuple[datetime, int]]:
    """Yield the hours that a span touches, with the seconds in each."""
    hour = start.replace(minute=0)
    while hour < end:
        seconds = min(end, hour + HOUR) - max(start, hour)
        yield hour, int(seconds.total_seconds())
        hour += HOUR


def write_summaries(booked: Booked, jobs: Sequence[Job]) -> None:
    """Write the summaries of past reservations and jobs."""
    gpus = {gpu.pk: gpu for gpu in Gpu.objects.select_related("node")}
    drafts = {row.pk: draft for draft, row in booked if row.state == State.ENDED}
    rows: list[UsageSummary] = []
    for pk, draft in drafts.items():
        rows += _summary(draft, gpus, draft.start, draft.end, reservation_id=pk)
    for job in jobs:
        if job.started_at is not None and job.ended_at is not None:
            rows += _summary(
                drafts[job.reservation_id],
                gpus,
                job.started_at,
                min(job.ended_at, drafts[job.reservation_id].end),
                reservation_id=job.reservation_id,
                job_id=job.pk,
            )
    UsageSummary.objects.bulk_create(rows, batch_size=500)


def _summary(
    draft: DraftBooking,
    gpus: dict[int, Gpu],
    start: datetime,
    end: datetime,
    *,
    reservation_id: int,
    job_id: int | None = None,
) -> Iterator[UsageSummary]:
    seconds = int((end - start).total_seconds())
    util = draft.util_pct if draft.came else None
    single = {g.pk: sample_totals(gpus[g.pk], util, seconds) for g in draft.gpus}
    for gpu_id, totals in [*single.items(), (None, merge_all(single.values()))]:
        yield UsageSummary(
            kind="reservation" if job_id is None else "job",
            reservation_id=reservation_id,
            job_id=job_id,
            gpu_id=gpu_id,
            from_at=start,
            to_at=end,
            n=totals.n,
            util_n=totals.util_n,
            util_sum_pct=totals.util_sum_pct,
            util_p95_pct=None if not totals.n else min(100.0, (util or 0) + 4),
            idle_n=totals.idle_n,
            memory_max_bytes=totals.memory_max_bytes,
            energy_joules=totals.energy_joules,
            gpu_seconds=totals.n,
        )
