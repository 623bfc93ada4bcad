"""What people hold at present, over all their Memberships."""

from collections.abc import Collection
from typing import Any

from django.db.models import QuerySet

from reservations.models import Allocation, CoUser
from reservations.rules.gaps import is_gap
from reservations.rules.lifecycle import Kind, State
from reservations.rules.request import Holding
from reservations.rules.window import Window


def own_holdings(user_pk: int, *, ignoring: int | None = None) -> tuple[Holding, ...]:
    """Return a User's live Reservations, over all Memberships, and shared ones."""
    return holdings_of([user_pk], ignoring=ignoring).get(user_pk, ())


def holdings_of(
    user_pks: Collection[int], *, ignoring: int | None = None
) -> dict[int, tuple[Holding, ...]]:
    """Return each User's live Reservations, by User; no entry: none.

    Those that others share with them follow, marked ``shared``.
    """
    users = list(user_pks)
    rows = [
        (*row, shared)
        for shared, found in (
            (False, _live(users=users, ignoring=ignoring or 0)),
            (True, _shared(users=users, ignoring=ignoring or 0)),
        )
        for row in found
    ]
    held: dict[int, dict[int, tuple[Window, Kind, set[int], bool]]] = {}
    for user, pk, start, end, booked, kind, gpu, shared in rows:
        if is_gap(start, booked):
            continue
        own = held.setdefault(user, {})
        if pk not in own:
            # Staying on yields to one's own next booking like to anybody's.
            own[pk] = (Window(start, min(end, booked)), Kind(kind), set(), shared)
        own[pk][2].add(gpu)
    return {
        user: tuple(
            Holding(pk, window, frozenset(gpus), kind, shared)
            for pk, (window, kind, gpus, shared) in own.items()
        )
        for user, own in held.items()
    }


def _live(*, users: Collection[int], ignoring: int) -> QuerySet[Allocation, Any]:
    rows = Allocation.objects.filter(
        reservation__user_id__in=users, reservation__state__in=State.live()
    )
    if ignoring:
        rows = rows.exclude(reservation_id=ignoring)
    return rows.order_by("reservation_id").values_list(
        "reservation__user_id",
        "reservation_id",
        "reservation__start",
        "reservation__end",
        "reservation__booked_end",
        "reservation__kind",
        "gpu_id",
    )


def _shared(*, users: Collection[int], ignoring: int) -> QuerySet[CoUser, Any]:
    rows = CoUser.objects.sharing().filter(
        user_id__in=users, reservation__state__in=State.live()
    )
    if ignoring:
        rows = rows.exclude(reservation_id=ignoring)
    return rows.order_by("reservation_id").values_list(
        "user_id",
        "reservation_id",
        "reservation__start",
        "reservation__end",
        "reservation__booked_end",
        "reservation__kind",
        "reservation__allocations__gpu_id",
    )
