"""Sum months, so that a report of years reads thousands of rows, not millions.

The present month is summed every ten minutes. A past month is summed every hour until
its last late entries have come (a Reservation may last 31 days, and its summary and
late hours are settled a day or two after). A second process finds the row changed and
writes nothing.
"""

import logging
from datetime import date, datetime, timedelta

from django.db import transaction
from django.db.models import Min
from django.utils import timezone

from reservations.models import Allocation, MonthUse, RolledMonth
from reservations.reports.month_bookings import month_bookings
from reservations.reports.rules import (
    Key,
    ReportSums,
    month_bounds,
    month_of,
    month_sums,
    next_month,
)
from reservations.rules.window import instant, unix, whole_second
from telemetry.rules.isolated_steps import isolated

AGAIN = timedelta(minutes=10)
AGAIN_PAST = timedelta(hours=1)
FINAL_AFTER = timedelta(days=34)
MOST_MONTHS = 3
"""Months summed in one call. The next call handles the next ones."""
ROWS_AT_ONCE = 2000
log = logging.getLogger(__name__)


def roll_months(now: datetime) -> int:
    """Sum the months that are due. Return how many. Safe to run twice and
    concurrently.
    """
    at = whole_second(now)
    rolled = 0
    for month in due_months(at)[:MOST_MONTHS]:
        with isolated(log, "the month %s is not added up", month):
            rolled += roll_month(month, now=at)
    return rolled


def due_months(now: datetime) -> list[date]:
    """Return the months to sum: the present one first, then the newest."""
    zone = timezone.get_default_timezone()
    present = month_of(now, zone)
    first = Allocation.objects.aggregate(first=Min("start"))["first"]
    if first is None:
        return []
    month = min(month_of(first, zone), present)
    notes = {note.month: note for note in RolledMonth.objects.all()}
    due = []
    while month <= present:
        note = notes.get(month)
        wait = AGAIN if month == present else AGAIN_PAST
        if note is None or (not note.final and now - note.rolled_at >= wait):
            due.append(month)
        month = next_month(month)
    return due[::-1]


def roll_month(month: date, *, now: datetime) -> bool:
    """Sum one month. False: another worker was faster."""
    note, _made = RolledMonth.objects.get_or_create(
        month=month, defaults={"rolled_at": instant(0)}
    )
    start, end = month_bounds(month, timezone.get_default_timezone())
    sums = month_sums(month_bookings(start, end), start=start, end=end, now=unix(now))
    with transaction.atomic(durable=True):
        moved = RolledMonth.objects.filter(pk=note.pk, rolled_at=note.rolled_at).update(
            rolled_at=now, final=instant(end) + FINAL_AFTER <= now
        )
        if moved:
            _write(month, sums)
    return bool(moved)


def _write(month: date, sums: dict[Key, ReportSums]) -> None:
    """Store the month's rows. Unchanged rows are not written."""
    names = list(ReportSums.__dataclass_fields__)
    stored = {
        (membership, gpu): (pk, ReportSums(*values))
        for pk, membership, gpu, *values in MonthUse.objects.filter(month=month)
        .order_by()
        .values_list("pk", "membership_id", "gpu_id", *names)
    }
    old = [pk for key, (pk, was) in stored.items() if sums.get(key) != was]
    for place in range(0, len(old), ROWS_AT_ONCE):
        MonthUse.objects.filter(pk__in=old[place : place + ROWS_AT_ONCE]).delete()
    MonthUse.objects.bulk_create(
        (
            MonthUse(
                month=month,
                membership_id=membership,
                gpu_id=gpu,
                **{name: getattr(own, name) for name in names},
            )
            for (membership, gpu), own in sorted(sums.items(), key=_by_key)
            if stored.get((membership, gpu), (0, None))[1] != own
        ),
        batch_size=ROWS_AT_ONCE,
    )


def _by_key(item: tuple[Key, ReportSums]) -> tuple[int, int]:
    (membership, gpu), _sums = item
    return membership or 0, gpu
