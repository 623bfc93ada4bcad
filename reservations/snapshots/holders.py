"""Who holds which Gpu: for ingest's judging, the board, and the nodes."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from reservations.domain.lifecycle import State
from reservations.domain.watch import HoldingInfo
from reservations.models import Allocation

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
)

__all__ = ["HoldingInfo", "current_holdings", "next_holdings", "recent_holdings"]


def current_holdings(now: datetime) -> dict[int, HoldingInfo]:
    """Return, by Gpu, the Reservation whose Window runs now.

    By the Window and not by the state: a worker that is down must not turn the
    holder into an intruder at the start.
    """
    rows = Allocation.objects.filter(live=True, start__lte=now, end__gt=now)
    return {gpu: info for gpu, info in _infos(rows.order_by())}


def next_holdings(now: datetime) -> dict[int, HoldingInfo]:
    """Return, by Gpu, the first Reservation that is still to begin."""
    rows = Allocation.objects.filter(live=True, start__gt=now).order_by("-start")
    return {gpu: info for gpu, info in _infos(rows)}


def recent_holdings(now: datetime, *, within_seconds: int) -> dict[int, HoldingInfo]:
    """Return, by Gpu, the last Reservation that ended shortly before now."""
    since = now - timedelta(seconds=within_seconds)
    rows = Allocation.objects.filter(
        end__gt=since,
        end__lte=now,
        reservation__state__in=[State.ACTIVE, State.ENDED, State.RELEASED],
    )
    return {gpu: info for gpu, info in _infos(rows.order_by("end"))}


def _infos(rows) -> Iterable[tuple[int, HoldingInfo]]:  # type: ignore[no-untyped-def]
    for row in rows.values_list(*_FIELDS):
        gpu, pk, user, login, unix_user, account, start, end, checked_in = row
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
            ),
        )
