"""Samples seen through the calendar: what Gpus did while somebody held them.

A minute belongs to whoever held the Gpu when it began. Allocations of one Gpu
never overlap, so no minute counts twice.
"""

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F

from reservations.domain.lifecycle import State
from reservations.models import Allocation
from telemetry.domain.rollup import EMPTY, MinuteTotals
from telemetry.models import SampleHour, SampleMinute
from telemetry.models.samples import TotalsQuerySet

HOUR = timedelta(hours=1)
HELD = [
    state.value
    for state in sorted(State.holding() | {State.REFUNDED})
    if state is not State.CONFIRMED
]
"""States of what was held. What was booked and never began held nothing."""
_ALLOCATION = "gpu__allocations"
_RESERVATION = f"{_ALLOCATION}__reservation"
_ACCOUNT = f"{_RESERVATION}__membership__account"


def held_minutes(**of: Any) -> TotalsQuerySet:
    """Minutes of Gpus while they were held.

    Args:
        of: conditions on the Allocation, such as `reservation=7`.
    """
    return SampleMinute.objects.filter(**_held("minute_at"), **_named(of))


def held_hours(**of: Any) -> TotalsQuerySet:
    """Hours of Gpus that were held when the hour began."""
    return SampleHour.objects.filter(**_held("hour_at"), **_named(of))


def _held(column: str) -> dict[str, Any]:
    return {
        f"{_ALLOCATION}__start__lte": F(column),
        f"{_ALLOCATION}__end__gt": F(column),
        f"{_RESERVATION}__state__in": HELD,
    }


def _named(of: dict[str, Any]) -> dict[str, Any]:
    return {f"{_ALLOCATION}__{name}": value for name, value in of.items()}


def held_in_hour(hour: datetime) -> dict[tuple[int, int], tuple[MinuteTotals, int]]:
    """By (Account, Pool): what their Gpus did in an hour, and Gpus x seconds held."""
    seconds: dict[tuple[int, int], int] = defaultdict(int)
    # Bounded on both sides: an index on the end serves it.
    rows = (
        Allocation.objects.filter(
            start__lt=hour + HOUR, end__gt=hour, reservation__state__in=HELD
        )
        .order_by()
        .values_list(
            "reservation__membership__account_id", "gpu__pool_id", "start", "end"
        )
    )
    for account, pool, start, end in rows:
        held = min(end, hour + HOUR) - max(start, hour)
        seconds[account, pool] += int(held.total_seconds())
    if not seconds:
        return {}
    minutes = held_minutes().filter(minute_at__gte=hour, minute_at__lt=hour + HOUR)
    totals = {
        (account, pool): total
        for (account, pool), total in minutes.added_up(_ACCOUNT, "gpu__pool")
    }
    return {key: (totals.get(key, EMPTY), held) for key, held in seconds.items()}


def account_minutes(account_pks: Collection[int]) -> TotalsQuerySet:
    """Minutes of Gpus while one of these Accounts held them."""
    return held_minutes(reservation__membership__account__in=account_pks)
