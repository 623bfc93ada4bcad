"""Summaries: requested when something ends, filled in by telemetry's tick.

The apps above know when a Reservation or a Job ends and which Gpus it had. They request
the summary in the transaction that ends it, so no end is missed. The tick counts twice:
soon after the end, when the last minute is stored, and once more when no late sample
can come (the raw streams go back an hour).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, FloatField, Min, Q
from django.db.models.functions import Cast, NullIf, Round

from telemetry.models import SampleMinute, UsageSummary
from telemetry.rules.rollup import MinuteTotals, merge_all
from telemetry.rules.usage_summary import GpuSpan, Usage, p95

FIRST_LOOK = timedelta(seconds=90)
"""Seconds after the end at which ingest has stored the last minute."""
LAST_LOOK = timedelta(minutes=70)
"""Seconds after the end at which no late sample can come."""
HALF_A_MINUTE = timedelta(seconds=30)
MOST_SUMMARIES = 200
SAME = ("kind", "reservation_id", "job_id")
"""Columns with equal values in all rows of one summary."""


@transaction.atomic
def ask_summary(
    *,
    reservation_id: int,
    spans: Sequence[GpuSpan],
    job_id: int | None = None,
    now: datetime,
) -> None:
    """Request the usage summary of a Reservation or a Job. It is kept forever.

    A second request replaces the spans. Without a span nothing is kept, because it
    never had a Gpu.
    """
    kind = UsageSummary.Kind.RESERVATION if job_id is None else UsageSummary.Kind.JOB
    key = {"kind": kind, "reservation_id": reservation_id, "job_id": job_id}
    spans = [span for span in spans if span.seconds]
    UsageSummary.objects.filter(**key).delete()
    if not spans:
        return
    by_gpu: dict[int | None, list[GpuSpan]] = defaultdict(list)
    for span in spans:
        by_gpu[span.gpu_id].append(span)
    by_gpu[None] = spans
    UsageSummary.objects.bulk_create(
        UsageSummary(
            **key,
            gpu_id=gpu_id,
            from_at=min(span.start for span in own),
            to_at=max(span.end for span in own),
            gpu_seconds=sum(span.seconds for span in own),
            next_at=now + FIRST_LOOK,
        )
        for gpu_id, own in by_gpu.items()
    )


def fill_summaries(*, now: datetime) -> int:
    """Count the summaries that are due. Return how many. Counting twice is harmless."""
    due = UsageSummary.objects.filter(next_at__lte=now).order_by().values_list(*SAME)
    first = due.annotate(first=Min("next_at")).order_by("first")
    keys = [row[: len(SAME)] for row in first[:MOST_SUMMARIES]]
    for key in keys:
        with transaction.atomic(durable=True):
            _fill(dict(zip(SAME, key, strict=True)), now)
    return len(keys)


def _fill(key: dict[str, object], now: datetime) -> None:
    rows = list(UsageSummary.objects.select_for_update().filter(**key).order_by("pk"))
    found = _count(
        GpuSpan(row.gpu_id, row.from_at, row.to_at)
        for row in rows
        if row.gpu_id is not None
    )
    for row in rows:
        own = [
            (totals, value)
            for gpu_id, parts in found.items()
            if row.gpu_id in (None, gpu_id)
            for totals, value in parts
        ]
        _write(row, own, now)


def _write(
    row: UsageSummary, own: list[tuple[MinuteTotals, float | None]], now: datetime
) -> None:
    totals = merge_all(totals for totals, _value in own)
    last_look = row.to_at + LAST_LOOK
    row.next_at = None if now >= last_look else last_look
    if totals.n >= row.n:
        row.n, row.util_n, row.idle_n = totals.n, totals.util_n, totals.idle_n
        row.util_sum_pct = totals.util_sum_pct
        row.util_p95_pct = p95((value, part.util_n) for part, value in own)
        row.memory_max_bytes = totals.memory_max_bytes
        row.energy_joules = totals.energy_joules
    row.save()


def count_usage(spans: Sequence[GpuSpan]) -> Usage:
    """Return the usage of these spans from the stored minutes, with one query."""
    parts = [part for own in _count(spans).values() for part in own]
    return Usage(
        totals=merge_all(totals for totals, _value in parts),
        util_p95_pct=p95((value, totals.util_n) for totals, value in parts),
        gpu_seconds=sum(span.seconds for span in spans),
    )


def stored_usage(*, reservation_id: int, job_id: int | None = None) -> Usage | None:
    """Return the stored summary; None if there is none or it was not counted yet."""
    kind = UsageSummary.Kind.RESERVATION if job_id is None else UsageSummary.Kind.JOB
    row = UsageSummary.objects.filter(
        kind=kind, reservation_id=reservation_id, job_id=job_id, gpu=None
    ).first()
    if row is None or (row.next_at is not None and not row.n):
        return None
    return usage_of(row)


def usage_of(row: UsageSummary) -> Usage:
    """Return a stored summary as a value."""
    return Usage(
        totals=MinuteTotals(
            n=row.n,
            util_n=row.util_n,
            util_sum_pct=row.util_sum_pct,
            idle_n=row.idle_n,
            memory_max_bytes=row.memory_max_bytes,
            energy_joules=row.energy_joules,
        ),
        util_p95_pct=row.util_p95_pct,
        gpu_seconds=row.gpu_seconds,
    )


def _count(
    spans: Iterable[GpuSpan],
) -> dict[int, list[tuple[MinuteTotals, float | None]]]:
    """Return, by Gpu, the totals of minutes grouped by their mean utilization in
    percent.

    The database adds them up. The result has at most 102 rows a Gpu, however long the
    spans are.
    """
    condition = _minutes_within(spans)
    if condition is None:
        return {}
    told = Cast(NullIf(F("util_n"), 0), FloatField())
    mean = Round(F("util_sum_pct") / told, output_field=FloatField())
    minutes = SampleMinute.objects.filter(condition).annotate(mean_pct=mean)
    found: dict[int, list[tuple[MinuteTotals, float | None]]] = defaultdict(list)
    for (gpu_id, value), totals in minutes.added_up("gpu_id", "mean_pct"):
        found[gpu_id].append((totals, value))
    return found


def _minutes_within(spans: Iterable[GpuSpan]) -> Q | None:
    """Return the filter for minutes whose middle is in one of the spans; None without a
    span."""
    gpus: dict[tuple[datetime, datetime], set[int]] = defaultdict(set)
    for span in spans:
        if span.seconds:
            gpus[span.start, span.end].add(span.gpu_id)
    found: Q | None = None
    for (start, end), gpu_ids in gpus.items():
        part = Q(
            gpu_id__in=gpu_ids,
            minute_at__gte=start - HALF_A_MINUTE,
            minute_at__lt=end - HALF_A_MINUTE,
        )
        found = part if found is None else found | part
    return found
