"""The co-users of Reservations, and the Series of Reservations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from reservations.models import CoUser, Occurrence, Reservation, User


@dataclass(frozen=True, slots=True)
class OwnExtras:
    """The fields of a Reservation that only one reader's calendar has."""

    shared: bool = False
    """Whether another person shares it with the reader."""
    co_users: tuple[tuple[int, str, str], ...] = ()
    """The people with whom the reader shares it: (User, name)."""
    series_pk: int | None = None


def usable_by(user: User) -> Q:
    """Return the Reservations in which a User may run processes: own and shared
    ones.
    """
    shared = CoUser.objects.sharing().filter(user=user).order_by()
    return Q(user=user) | Q(pk__in=shared.values("reservation_id"))


def may_use(row: Reservation, user_pk: int) -> bool:
    """Return whether a User owns a Reservation or shares it now."""
    if row.user_id == user_pk:
        return True
    return CoUser.objects.sharing().filter(reservation=row, user_id=user_pk).exists()


def co_users_of(reservation_pks: Collection[int]) -> dict[int, frozenset[int | str]]:
    """Return, by Reservation, its co-users by key and by login."""
    if not reservation_pks:
        return {}
    rows = (
        CoUser.objects.sharing()
        .filter(reservation_id__in=reservation_pks)
        .order_by()
        .values_list("reservation_id", "user_id", "user__username", "user__unix_user")
    )
    found: dict[int, frozenset[int | str]] = {}
    for pk, user, username, unix_user in rows:
        signs = frozenset[int | str]({user, unix_user or username})
        found[pk] = found.get(pk, frozenset()) | signs
    return found


def co_user_pks(reservation_pks: Collection[int]) -> dict[int, frozenset[int]]:
    """Return, by Reservation, its co-users by key."""
    return {
        pk: frozenset(sign for sign in signs if isinstance(sign, int))
        for pk, signs in co_users_of(reservation_pks).items()
    }


def own_extras(user_pk: int, start: datetime, end: datetime) -> dict[int, OwnExtras]:
    """Return the additional fields of a reader's calendar, between two instants."""
    near = Q(reservation__start__lt=end, reservation__end__gt=start)
    rows = (
        CoUser.objects.sharing()
        .filter(near, Q(user_id=user_pk) | Q(reservation__user_id=user_pk))
        .order_by("reservation_id", "pk")
        .values_list(
            "reservation_id", "user_id", "user__display_name", "user__username"
        )
    )
    shared: set[int] = set()
    people: dict[int, list[tuple[int, str, str]]] = {}
    for pk, other, shown, login in rows:
        if other == user_pk:
            shared.add(pk)
        else:
            people.setdefault(pk, []).append((other, shown or login, login))
    # By the few Series, not by all Reservations that this User ever booked.
    days = Occurrence.objects.filter(near, series__user_id=user_pk).order_by()
    series = {
        pk: number
        for pk, number, holder in days.values_list(
            "reservation_id", "series_id", "reservation__user_id"
        )
        if holder == user_pk
    }
    return {
        pk: OwnExtras(pk in shared, tuple(people.get(pk, ())), series.get(pk))
        for pk in shared | people.keys() | series.keys()
    }
