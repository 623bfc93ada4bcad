"""The holder of each Gpu: for ingest, the board and the nodes."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from reservations.models import Allocation
from reservations.presence.attribution import HoldingInfo
from reservations.rules.lifecycle import State
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS
from reservations.store.co_users import co_users_of

_FIELDS = (
    "gpu_id",
    "reservation_id",
    "reservation__user_id",
    "reservation__user__username",
    "reservation__user__unix_user",
    "reservation__membership__account__name",
    "start",
    "end",
    "reservation__checked_in_at",
    "reservation__state",
)
BEGUN = (State.ACTIVE, State.ENDED, State.RELEASED)

__all__ = ["HoldingInfo", "current_holdings", "next_holdings", "recent_holdings"]


def current_holdings(now: datetime) -> dict[int, HoldingInfo]:
    """Return, by Gpu, the Reservation whose Window runs now.

    This uses the Window, not the state. Otherwise a worker that is down would turn the
    holder into an intruder at the start.
    """
    # Bounded on both sides: SQLite then searches by the end, not the start.
    soon = now + timedelta(seconds=LONGEST_POSSIBLE_SECONDS)
    rows = Allocation.objects.filter(
        live=True, start__lte=now, end__gt=now, end__lte=soon
    )
    return {gpu: info for gpu, info in _infos(rows.order_by())}


def next_holdings(now: datetime) -> dict[int, HoldingInfo]:
    """Return, by Gpu, the next Reservation."""
    rows = Allocation.objects.filter(live=True, start__gt=now).order_by("-start")
    return {gpu: info for gpu, info in _infos(rows)}


def recent_holdings(now: datetime, *, within_seconds: int) -> dict[int, HoldingInfo]:
    """Return, by Gpu, the last Reservation that ended shortly before now."""
    since = now - timedelta(seconds=within_seconds)
    rows = Allocation.objects.filter(end__gt=since, end__lte=now).order_by("end")
    return {gpu: info for gpu, info in _infos(rows, only=BEGUN)}


def _infos(  # type: ignore[no-untyped-def]
    rows, *, only: Collection[State] | None = None
) -> Iterable[tuple[int, HoldingInfo]]:
    found = list(rows.values_list(*_FIELDS))
    shared = co_users_of({row[1] for row in found})
    for row in found:
        gpu, pk, user, login, unix_user, account, start, end, checked_in, state = row
        if only is not None and state not in only:
            continue
        yield (
            gpu,
            HoldingInfo(
                reservation_pk=pk,
                user_pk=user,
                username=login,
                unix_user=unix_user,
                account=account,
                start=start,
                end=end,
                checked_in=checked_in is not None,
                co_users=shared.get(pk, frozenset()),
            ),
        )
