"""Hours out of minutes, once they are over and again when late minutes come.

Who stores minutes says which hours have changed (`mark_hours_due`), in the same
transaction. Who rolls an hour up locks that note, counts, and deletes it, in one
transaction: whatever is stored later writes it anew, so no late minute is
forgotten, and two that roll up at once wait for each other and write the same.
A row is only ever replaced by one of as many samples: when the minutes of an
hour are pruned, its rows stand.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import DatabaseError, models, transaction
from django.utils import timezone

from telemetry.models import AccountHour, HourDue, SampleHour, SampleMinute
from telemetry.models.samples import ADDED_UP
from telemetry.rules.rollup import MinuteTotals

HOUR = timedelta(hours=1)
MOST_HOURS = 48
"""Hours rolled up in one call; the next call takes the next ones."""
INSERT_ROWS = 500
DELETE_ROWS = 10_000

AccountPool = tuple[int, int]
"""An Account's primary key (the calendar's) and a Pool's."""
Held = Mapping[AccountPool, tuple[MinuteTotals, int]]
"""What Gpus did while an Account held them, and Gpus x seconds held."""

logger = logging.getLogger(__name__)
Row = TypeVar("Row", SampleHour, AccountHour)


def mark_hours_due(minutes: Iterable[datetime]) -> None:
    """Say that these minutes have changed. To be called in their transaction.

    An update and not "do nothing" where the note is there already: it waits for
    whoever is rolling that hour up, and then writes the note again.
    """
    hours = {at.replace(minute=0, second=0, microsecond=0) for at in minutes}
    now = timezone.now()
    HourDue.objects.bulk_create(
        (
            HourDue(tier=tier, hour_at=hour, changed_at=now)
            for hour in sorted(hours)
            for tier in HourDue.Tier.values
        ),
        update_conflicts=True,
        unique_fields=["tier", "hour_at"],
        update_fields=["changed_at"],
    )


def roll_hours(*, now: datetime) -> int:
    """Roll up the due hours of Gpus that are over; how many hours."""
    return _each_due(HourDue.Tier.GPU, _roll_gpus, now)


def roll_account_hours(*, now: datetime, held: Callable[[datetime], Held]) -> int:
    """Roll up the due hours of Accounts that are over; how many hours.

    Args:
        held: tells what was held in the hour that begins then; the calendar's
            floor knows. Called in the transaction.
    """
    return _each_due(
        HourDue.Tier.ACCOUNT, lambda hour: _write_accounts(hour, held(hour)), now
    )


def _each_due(
    tier: HourDue.Tier, roll: Callable[[datetime], None], now: datetime
) -> int:
    """Run `roll` for each due hour, each in a transaction of its own."""
    over = HourDue.objects.filter(tier=tier, hour_at__lte=now - HOUR)
    rolled = 0
    for hour in list(over.values_list("hour_at", flat=True)[:MOST_HOURS]):
        try:
            rolled += _roll_due(tier, hour, roll)
        except DatabaseError:
            # One hour that cannot be written must not hold up those after it.
            logger.exception("the %s hour of %s is not rolled up", tier, hour)
    return rolled


@transaction.atomic(durable=True)
def _roll_due(
    tier: HourDue.Tier, hour: datetime, roll: Callable[[datetime], None]
) -> bool:
    notes = HourDue.objects.select_for_update().filter(tier=tier, hour_at=hour)
    note = notes.first()
    if note is None:
        return False
    roll(hour)
    note.delete()
    return True


def _roll_gpus(hour: datetime) -> None:
    minutes = SampleMinute.objects.filter(
        minute_at__gte=hour, minute_at__lt=hour + HOUR
    )
    stored = dict(SampleHour.objects.filter(hour_at=hour).values_list("gpu_id", "n"))
    _upsert(
        SampleHour,
        (
            SampleHour(gpu_id=gpu_id, hour_at=hour, **asdict(totals))
            for (gpu_id,), totals in minutes.added_up("gpu_id")
            if totals.n >= stored.get(gpu_id, 0)
        ),
        by=["gpu", "hour_at"],
    )


def _write_accounts(hour: datetime, held: Held) -> None:
    rows = AccountHour.objects.filter(hour_at=hour)
    stored = {
        (account, pool): n
        for account, pool, n in rows.values_list("account_id", "pool_id", "n")
    }
    _upsert(
        AccountHour,
        (
            AccountHour(
                account_id=account,
                pool_id=pool,
                hour_at=hour,
                held_seconds=seconds,
                **asdict(totals),
            )
            for (account, pool), (totals, seconds) in sorted(
                held.items(), key=lambda item: item[0]
            )
            if totals.n >= stored.get((account, pool), 0)
        ),
        by=["account_id", "pool", "hour_at"],
        more=["held_seconds"],
    )


def _upsert(
    model: type[Row], rows: Iterable[Row], *, by: list[str], more: Iterable[str] = ()
) -> None:
    model._default_manager.bulk_create(
        rows,
        batch_size=INSERT_ROWS,
        update_conflicts=True,
        unique_fields=by,
        update_fields=[*ADDED_UP, *more],
    )


def prune_hours(*, now: datetime, keep_days: int) -> int:
    """Delete hours older than so many days; how many rows."""
    limit = now - timedelta(days=keep_days)
    return sum(
        delete_in_pieces(model._default_manager.filter(hour_at__lt=limit))
        for model in (SampleHour, AccountHour)
    )


def delete_in_pieces(rows: models.QuerySet[Any]) -> int:
    """Delete rows, the oldest first and some at a time; how many."""
    deleted = 0
    while keys := list(rows.values_list("pk", flat=True)[:DELETE_ROWS]):
        deleted += rows.model._default_manager.filter(pk__in=keys).delete()[0]
    return deleted
