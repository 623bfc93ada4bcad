"""Samples joined with the calendar: the use of Gpus while they were held.

A minute belongs to the holder of the Gpu at its start. Allocations of one Gpu
never overlap, so no minute counts twice.
"""

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Q

from reservations.models import Account, Allocation, Reservation
from reservations.rules.lifecycle import State
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS
from reservations.store.account_tree import subtree
from telemetry.history.queries import Subject
from telemetry.history.stored_usage import count_usage, stored_usage
from telemetry.models import AccountHour, SampleHour, SampleMinute
from telemetry.models.samples import TotalsQuerySet
from telemetry.rules.rollup import EMPTY, MinuteTotals
from telemetry.rules.usage_summary import GpuSpan, Usage

HOUR = timedelta(hours=1)
LONGEST = timedelta(seconds=LONGEST_POSSIBLE_SECONDS)
HELD = [
    state.value
    for state in sorted(State.holding() | {State.REFUNDED})
    if state is not State.CONFIRMED
]
"""States in which time was held. A booking that never began held nothing."""
_ALLOCATION = "gpu__allocations"
_RESERVATION = f"{_ALLOCATION}__reservation"
_ACCOUNT = f"{_RESERVATION}__membership__account"


def held_minutes(**of: Any) -> TotalsQuerySet:
    """Return the minutes of Gpus while they were held.

    Args:
        of: conditions on the Allocation, such as `reservation=7`.
    """
    return SampleMinute.objects.filter(_held_at("minute_at"), _named(of))


def held_hours(**of: Any) -> TotalsQuerySet:
    """Return the hours of Gpus that were held when the hour began."""
    return SampleHour.objects.filter(_held_at("hour_at"), _named(of))


def _held_at(column: str) -> Q:
    return Q(
        **{
            f"{_ALLOCATION}__start__lte": F(column),
            f"{_ALLOCATION}__end__gt": F(column),
            f"{_RESERVATION}__state__in": HELD,
        }
    )


def _named(of: dict[str, Any]) -> Q:
    return Q(**{f"{_ALLOCATION}__{name}": value for name, value in of.items()})


def _near_filter(start: datetime, end: datetime) -> dict[str, Any]:
    """Return a filter for Allocations that meet [start, end).

    It is bounded on both sides, so that an index range finds them among any number of
    past Reservations.
    """
    return {
        "end__gt": start,
        "start__lt": end,
        "reservation__start__gt": start - LONGEST,
        "reservation__start__lt": end,
    }


def held_in_hour(hour: datetime) -> dict[tuple[int, int], tuple[MinuteTotals, int]]:
    """Return, by (Account, Pool), the use of an hour, and the held Gpus x seconds."""
    seconds: dict[tuple[int, int], int] = defaultdict(int)
    near = _near_filter(hour, hour + HOUR)
    rows = (
        Allocation.objects.filter(**near, reservation__state__in=HELD)
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
    minutes = held_minutes(**near).filter(
        minute_at__gte=hour, minute_at__lt=hour + HOUR
    )
    totals = {
        (account, pool): total
        for (account, pool), total in minutes.added_up(_ACCOUNT, "gpu__pool")
    }
    return {key: (totals.get(key, EMPTY), held) for key, held in seconds.items()}


def of_account(account: Account, *, start: datetime, end: datetime) -> Subject:
    """Return the history of an Account and those below it, between two instants."""
    pks = subtree(account.pk)
    of = {"reservation__membership__account_id__in": pks, **_near_filter(start, end)}
    held = Allocation.objects.filter(**of)
    gpus = held.aggregate(gpus=Count("gpu_id", distinct=True))["gpus"]
    return Subject(
        name=account.name,
        minutes=held_minutes(**of),
        hours=AccountHour.objects.filter(account_id__in=pks),
        gpus=max(1, gpus),
    )


def of_reservation(reservation: Reservation) -> Subject:
    """Return the history of a Reservation's Gpus while it held them."""
    return Subject(
        name=f"reservation {reservation.pk}",
        minutes=held_minutes(reservation=reservation.pk),
        hours=held_hours(reservation=reservation.pk),
        gpus=max(1, reservation.allocations.count()),
    )


def reservation_usage(reservation: Reservation, *, now: datetime) -> Usage | None:
    """Return the use of a Reservation, so far if it is running. None: it has not begun.

    The permanent summary is used if there is one. Otherwise the minutes are counted,
    because it runs, has just ended, or ended before summaries existed.
    """
    if reservation.state not in HELD or reservation.start >= now:
        return None
    kept = stored_usage(reservation_id=reservation.pk)
    if kept is not None:
        return kept
    rows = reservation.allocations.values_list("gpu_id", "start", "end")
    return count_usage(
        [GpuSpan(gpu_id, start, min(end, now)) for gpu_id, start, end in rows]
    )
