"""Store the minutes of Gpus."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from django.db import transaction

from telemetry.history.hourly_rollup import delete_in_pieces, mark_hours_due
from telemetry.models import Gpu, HourDue, SampleMinute
from telemetry.rules.rollup import MinuteTotals

INSERT_ROWS = 500
LONGER_IF_DUE = timedelta(days=7)

MinuteKey = tuple[int, int]
"""A Gpu's primary key, and the Unix seconds at which the minute begins."""


@transaction.atomic(durable=True)
def record_minutes(*, totals: Mapping[MinuteKey, MinuteTotals]) -> int:
    """Store minutes. Return how many rows are new or have more samples than before.

    A minute's row follows from the raw stream alone. So an existing row is the same
    minute, counted by another ingest or before a restart. The row with more samples
    wins, and nothing is added twice. Minutes without a sample and minutes of deleted
    Gpus are left out. The hours of the rows become due.
    """
    known = set(Gpu.objects.values_list("pk", flat=True))
    rows = [
        SampleMinute(gpu_id=gpu_id, minute_at=_minute_start(minute), **asdict(total))
        for (gpu_id, minute), total in sorted(totals.items())
        if total.n and gpu_id in known
    ]
    if not rows:
        return 0
    before = _counts(rows)
    SampleMinute.objects.bulk_create(
        rows, batch_size=INSERT_ROWS, ignore_conflicts=True
    )
    changed = [row for row in rows if (row.gpu_id, row.minute_at) not in before]
    changed += [
        row
        for row in rows
        if before.get((row.gpu_id, row.minute_at), row.n) < row.n and _replace(row)
    ]
    mark_hours_due(row.minute_at for row in changed)
    return len(changed)


def _minute_start(minute: int) -> datetime:
    return datetime.fromtimestamp(minute, UTC)


def _counts(rows: list[SampleMinute]) -> dict[tuple[int, datetime], int]:
    """Return the sample counts of the rows that are stored already."""
    minutes = {row.minute_at for row in rows}
    stored = SampleMinute.objects.filter(minute_at__in=minutes)
    return {
        (gpu_id, at): n for gpu_id, at, n in stored.values_list("gpu", "minute_at", "n")
    }


def _replace(row: SampleMinute) -> int:
    """Replace a stored row, if the new one still has more samples."""
    values = {
        field.attname: getattr(row, field.attname)
        for field in SampleMinute._meta.concrete_fields
        if field.name not in {"id", "gpu", "minute_at"}
    }
    stored = SampleMinute.objects.filter(
        gpu_id=row.gpu_id, minute_at=row.minute_at, n__lt=row.n
    )
    return stored.update(**values)


def prune_minutes(*, now: datetime, keep_days: int) -> int:
    """Delete minutes older than so many days, in portions. Return how many.

    Portions never lock the table for long. Minutes of an hour that is not rolled up yet
    are kept a week longer.
    """
    limit = now - timedelta(days=keep_days)
    due = HourDue.objects.order_by("hour_at").values_list("hour_at", flat=True).first()
    if due is not None:
        limit = max(min(limit, due), limit - LONGER_IF_DUE)
    return delete_in_pieces(SampleMinute.objects.filter(minute_at__lt=limit))
