"""The no-shows of a User, and the shorter horizon that follows from them."""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from reservations.models import Reservation
from reservations.rules.fairness.no_shows import Strike, relevant_seconds, strike_of
from reservations.rules.policy import Policy


def recent_no_shows(
    user_pk: int, *, now: datetime, policy: Policy
) -> tuple[datetime, ...]:
    """Return when a User did not come, over all Memberships, as far as it matters."""
    since = now - timedelta(seconds=relevant_seconds(policy))
    rows = _no_shows(user=user_pk, since=since, now=now)
    return tuple(at for (at,) in rows if at is not None)


def _no_shows(
    *, user: int, since: datetime, now: datetime
) -> QuerySet[Reservation, Any]:
    rows = Reservation.objects.filter(
        user_id=user, no_show=True, ended_at__gt=since, ended_at__lte=now
    )
    return rows.order_by("ended_at").values_list("ended_at")


def user_strike(user_pk: int, *, now: datetime, policy: Policy) -> Strike | None:
    """Return the strike that is in force for a User, over all Memberships."""
    no_shows = recent_no_shows(user_pk, now=now, policy=policy)
    return strike_of(no_shows, now=now, policy=policy)


def strike_for(
    user_pk: int, start: datetime, *, now: datetime, policy: Policy
) -> Strike | None:
    """Return it where it could matter for a start: else nothing is read."""
    if start <= now + timedelta(seconds=policy.strike_horizon_seconds):
        return None
    return user_strike(user_pk, now=now, policy=policy)
