"""The flex that a User may displace."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet

from reservations.models import Reservation
from reservations.rules.calendar import FlexInfo
from reservations.rules.fairness.preemption import Displacer
from reservations.rules.lifecycle import State


def takeable_flex(
    pks: Collection[int], taker: Displacer, *, names: bool
) -> dict[int, FlexInfo]:
    """Return the given flex Reservations that are neither frozen nor the taker's
    own.
    """
    rows = list(
        _unfrozen(pks=list(pks), frozen=taker.frozen_until, taker=taker.user_pk)
    )
    paused = _paused({row[11] for row in rows}, taker)
    # Plain values, because there may be thousands.
    return {
        pk: FlexInfo(
            reservation_pk=pk,
            membership_pk=member,
            account_pk=account,
            account=title or name,
            start=start,
            end=end,
            cost_gpu_seconds=cost,
            booked_at=booked,
            user=(shown or login) if names else "",
            user_pk=user,
            paused_until=paused.get(user),
            planned=bool(
                planned and plan_end and start == plan_start and end <= plan_end
            ),
        )
        for (
            pk,
            member,
            account,
            title,
            name,
            start,
            end,
            cost,
            booked,
            shown,
            login,
            user,
            planned,
            plan_start,
            plan_end,
        ) in rows
    }


def _unfrozen(
    *, pks: Collection[int], frozen: datetime, taker: int
) -> QuerySet[Reservation, Any]:
    return (
        Reservation.objects.filter(pk__in=pks, state=State.CONFIRMED, start__gt=frozen)
        .exclude(user_id=taker)
        .order_by()
        .values_list(
            "pk",
            "membership_id",
            "membership__account_id",
            "membership__account__title",
            "membership__account__name",
            "start",
            "end",
            "cost_gpu_seconds",
            "created_at",
            "user__display_name",
            "user__username",
            "user_id",
            "waited__planned",
            "waited__expected_start",
            "waited__expected_end",
        )
    )


def _paused(owners: Collection[int], taker: Displacer) -> dict[int, datetime]:
    """Return, by owner, until when the taker cannot displace them again.

    Displacing a booking and returning the time is free if the owner gets it again, but
    each time sends notices. So it is possible once per pause.
    """
    if not owners or not taker.pause_seconds or not taker.user_pk:
        return {}
    pause = timedelta(seconds=taker.pause_seconds)
    since = taker.now - pause
    given_back = Q(displaced_by__cancelled_at__gt=since) | Q(
        displaced_by__late_returns__returned_at__gt=since
    )
    rows = (
        Reservation.objects.filter(
            given_back,
            state=State.DISPLACED,
            user_id__in=owners,
            displaced_by__user_id=taker.user_pk,
        )
        .order_by()
        .values_list(
            "user_id",
            "displaced_by__cancelled_at",
            "displaced_by__late_returns__returned_at",
        )
    )
    found: dict[int, datetime] = {}
    for owner, *times in rows:
        until = max(at for at in times if at is not None) + pause
        found[owner] = max(until, found.get(owner, until))
    return found
