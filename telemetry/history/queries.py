"""Turn stored minutes and hours into the columns of a chart. The database adds them up.

The input is a QuerySet of rows: a Gpu's, a Node's, or those that another app picked.
This module puts them into buckets, so that a chart of two years loads a thousand rows
and not a million.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import BigIntegerField, Func, Min

from telemetry.models import (
    Gpu,
    HourDue,
    Node,
    SampleHour,
    SampleMinute,
    TelemetryPolicy,
)
from telemetry.models.samples import TotalsQuerySet
from telemetry.rules.chart_series import (
    HOUR_SECONDS,
    ChartSeries,
    Tier,
    series,
    tier_for,
)
from telemetry.rules.rollup import MinuteTotals

LATE_SECONDS = 24 * HOUR_SECONDS
"""An hour that is not rolled up for longer than this does not block the hours after
it."""


@dataclass(frozen=True)
class Subject:
    """The subject of a history: its rows of both tiers, and its number of Gpus."""

    name: str
    minutes: TotalsQuerySet
    hours: TotalsQuerySet
    gpus: int


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """A time span in Unix seconds, and the number of points."""

    start: int
    end: int
    points: int


class Bucket(Func):
    """Unix seconds of the bucket of a time: `Bucket("minute_at", step)`."""

    output_field = BigIntegerField()

    def __init__(self, column: str, step_seconds: int) -> None:
        super().__init__(column, step_seconds)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """SQLite divides integers to integers."""
        sql, params = compiler.compile(self.source_expressions[0])
        step = int(self.source_expressions[1].value)  # type: ignore[attr-defined]
        return f"CAST(strftime('%%s', {sql}) AS INTEGER) / {step} * {step}", params

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """PostgreSQL has Unix time as the epoch of EXTRACT."""
        sql, params = compiler.compile(self.source_expressions[0])
        step = int(self.source_expressions[1].value)  # type: ignore[attr-defined]
        epoch = f"CAST(EXTRACT(EPOCH FROM {sql}) AS BIGINT)"
        return f"{epoch} / {step} * {step}", params


def of_gpu(gpu: Gpu) -> Subject:
    """Return the history of one Gpu."""
    return Subject(
        name=str(gpu),
        minutes=SampleMinute.objects.filter(gpu=gpu),
        hours=SampleHour.objects.filter(gpu=gpu),
        gpus=1,
    )


def of_node(node: Node) -> Subject:
    """Return the history of a Node: of all Gpus that are or were in it."""
    return Subject(
        name=node.name,
        minutes=SampleMinute.objects.filter(gpu__node=node),
        hours=SampleHour.objects.filter(gpu__node=node),
        gpus=max(1, node.gpus.count()),
    )


def read_history(
    subject: Subject, asked: HistoryRange, *, now: datetime
) -> ChartSeries:
    """Return the columns of a chart: at most `points` and `series.MOST_POINTS`.

    Hours are used up to the last one that is rolled up, minutes from there on.
    """
    kept = TelemetryPolicy.current().to_keeping()
    tier = tier_for(
        start=asked.start,
        end=asked.end,
        points=asked.points,
        gpus=subject.gpus,
        minutes_since=int(now.timestamp()) - kept.minute_seconds,
    )
    return series(
        _rows(subject, asked, tier, now),
        start=asked.start,
        end=asked.end,
        step_seconds=tier.step_seconds,
    )


def _rows(
    subject: Subject, asked: HistoryRange, tier: Tier, now: datetime
) -> Iterator[tuple[int, MinuteTotals]]:
    start = asked.start // tier.step_seconds * tier.step_seconds
    if not tier.hourly:
        yield from _read(subject.minutes, "minute_at", start, asked.end, tier)
        return
    rolled = int(rolled_until(now).timestamp())
    yield from _read(subject.hours, "hour_at", start, min(asked.end, rolled), tier)
    yield from _read(subject.minutes, "minute_at", max(start, rolled), asked.end, tier)


def _read(
    rows: TotalsQuerySet, column: str, start: int, end: int, tier: Tier
) -> Iterator[tuple[int, MinuteTotals]]:
    if start >= end:
        return
    within = rows.filter(
        **{
            f"{column}__gte": datetime.fromtimestamp(start, UTC),
            f"{column}__lt": datetime.fromtimestamp(end, UTC),
        }
    ).annotate(bucket=Bucket(column, tier.step_seconds))
    for (bucket,), totals in within.added_up("bucket"):
        yield bucket, totals


def rolled_until(now: datetime) -> datetime:
    """Return the instant up to which the hours are rolled up."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    lately = HourDue.objects.filter(hour_at__gte=now - timedelta(seconds=LATE_SECONDS))
    due = lately.aggregate(first=Min("hour_at"))["first"]
    return min(hour, due or hour)
