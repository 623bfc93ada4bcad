"""Roll minutes up into hours, when an hour is over and again for late minutes.

Code that stores minutes notes the changed hours in the same transaction
(`mark_hours_due`). The roll-up locks that note, counts, and deletes it in one
transaction. Minutes that are stored later write a new note, so none is forgotten. Two
concurrent roll-ups wait for each other and write the same. A row is replaced only by
one with at least as many samples. So the rows stay when the minutes of an hour are
deleted.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import models, transaction
from django.utils import timezone

from telemetry.models import AccountHour, HourDue, SampleHour, SampleMinute
from telemetry.models.samples import ADDED_UP
from telemetry.rules.isolated_steps import isolated
from telemetry.rules.rollup import MinuteTotals

HOUR = timedelta(hours=1)
MOST_HOURS = 48
"""Most hours rolled up in one call. The next call takes the next ones."""
INSERT_ROWS = 500
DELETE_ROWS = 10_000

AccountPool = tuple[int, int]
"""An Account's primary key (the calendar's) and a Pool's."""
Held = Mapping[AccountPool, tuple[MinuteTotals, int]]
"""Totals of Gpus while an Account held them, and Gpus x seconds held."""

logger = logging.getLogger(__name__)
Row = TypeVar("Row", SampleHour, AccountHour)


def mark_hours_due(minutes: Iterable[datetime]) -> None:
    """Note that these minutes have changed. Call it in their transaction.

    An existing note is updated, not skipped. The update waits for a roll-up of that
    hour, and then writes the note again.
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
    """Roll up the due hours of Gpus that are over. Return how many."""
    return _each_due(HourDue.Tier.GPU, _roll_gpus, now)


def roll_account_hours(*, now: datetime, held: Callable[[datetime], Held]) -> int:
    """Roll up the due hours of Accounts that are over. Return how many.

    Args:
        held: returns the bookings of the hour that begins at its argument. The
            calendar's app provides it. It is called in the transaction.
    """
    return _each_due(
        HourDue.Tier.ACCOUNT, lambda hour: _write_accounts(hour, held(hour)), now
    )


def _each_due(
    tier: HourDue.Tier, roll: Callable[[datetime], None], now: datetime
) -> int:
    """Run `roll` for each due hour, each in a separate transaction."""
    over = HourDue.objects.filter(tier=tier, hour_at__lte=now - HOUR)
    rolled = 0
    for hour in list(over.values_list("hour_at", flat=True)[:MOST_HOURS]):
        # An hour that cannot be written must not block the following ones.
        with isolated(logger, "the %s hour of %s is not rolled up", tier, hour):
            rolled += _roll_due(tier, hour, roll)
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
    """Delete hours older than so many days. Return how many rows."""
    limit = now - timedelta(days=keep_days)
    return sum(
        delete_in_pieces(model._default_manager.filter(hour_at__lt=limit))
        for model in (SampleHour, AccountHour)
    )


def delete_in_pieces(rows: models.QuerySet[Any]) -> int:
    """Delete rows in portions, the oldest first. Return how many."""
    deleted = 0
    while keys := list(rows.values_list("pk", flat=True)[:DELETE_ROWS]):
        deleted += rows.model._default_manager.filter(pk__in=keys).delete()[0]
    return deleted
