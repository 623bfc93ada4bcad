"""Wind down what Memberships hold when their right to book is over.

Bookings ahead are cancelled at no cost. Running ones are released as by the operator,
and their Jobs stop with their grace. Vouchers are revoked. Waiting requests and series
end. Each row is changed in its own transaction by compare-and-set, so this is safe to
run twice.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from reservations.booking import release
from reservations.models import (
    Allocation,
    CoUser,
    Membership,
    Notice,
    Reservation,
    Series,
    Voucher,
    WaitingRequest,
)
from reservations.notifications import live
from reservations.notifications.service import notify
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.store import ledger, locks
from reservations.store.audit_log import audit_act
from telemetry.rules.isolated_steps import isolated

LIVE = [state.value for state in State.live()]
MOST_ROWS = 200
"""Rows of one kind that one tick winds down."""
log = logging.getLogger(__name__)


def wind_down(
    of: QuerySet[Membership], *, at: datetime, policy: Policy, reason: str
) -> bool:
    """End the bookings, requests and vouchers of Memberships.

    Args:
        of: which Memberships. The query runs again as rows are wound down.

    Returns:
        Whether nothing live is left.
    """
    of = of.order_by().values("pk")  # type: ignore[assignment]
    held = Reservation.objects.live().filter(membership__in=of)
    rows = list(held.order_by("pk").values_list("pk", "state")[:MOST_ROWS])
    for pk, state in rows:
        act = _release if state == State.ACTIVE else _cancel
        with isolated(log, "reservation %s is not wound down", pk):
            act(pk, at, policy, reason)
    end_wishes(of, at=at, reason=reason)
    return not held.exists()


def _release(pk: int, at: datetime, policy: Policy, reason: str) -> None:
    row = release.release(
        reservation_id=pk, user=None, now=at, reason=reason, permille=0
    )
    with transaction.atomic(durable=True):
        _notify_owner(row, "released", at)


def _cancel(pk: int, at: datetime, policy: Policy, reason: str) -> None:
    with transaction.atomic(durable=True):
        row = locks.load_reservation(pk, lock=True)
        moved = row.state == State.CONFIRMED and Reservation.objects.move(
            pk, old=State.CONFIRMED, new=State.CANCELLED, cancelled_at=at
        )
        if not moved:
            return
        Allocation.objects.filter(reservation=row).update(live=False)
        ledger.release_hold(row, now=at, reason=reason)
        ledger.audit("cancelled", row, actor=None, now=at, reason=reason)
        _notify_owner(row, "cancelled", at)
        row.refresh_from_db()
        gpu_ids = list(row.allocations.values_list("gpu_id", flat=True))
        live.publish_reservation(row, gpu_ids=gpu_ids, policy=policy, gone=True)


def _notify_owner(row: Reservation, what: str, at: datetime) -> None:
    notify(
        user=row.user,
        kind=Notice.Kind.COURSE_ENDING,
        reservation=row,
        detail={"what": what, "account": str(row.membership.account)},
        now=at,
        key=f"wound-down:{row.pk}",
    )


def end_wishes(
    of: QuerySet[Membership], *, at: datetime, reason: str, owed: bool = True
) -> None:
    """End waiting requests and series; revoke Vouchers if requested."""
    of = of.order_by().values("pk")  # type: ignore[assignment]
    wishes: Sequence[tuple[str, Iterable[int]]] = (
        (
            "token",
            _pks(
                Voucher.objects.filter(
                    membership__in=of, used_for=None, revoked_at=None
                )
            ),
        ),
        ("waiting", _pks(WaitingRequest.objects.waiting().filter(membership__in=of))),
        (
            "series",
            _pks(Series.objects.filter(membership__in=of, state=Series.State.RUNNING)),
        ),
    )
    for what, pks in wishes if owed else wishes[1:]:
        for pk in pks:
            with transaction.atomic(durable=True):
                if _end_one(what, pk, at):
                    audit_act(
                        verb=f"{what}.ended",
                        subject=f"{what}:{pk}",
                        actor=None,
                        now=at,
                        reason=reason,
                    )


def _pks(rows) -> list[int]:  # type: ignore[no-untyped-def]
    return list(rows.order_by("pk").values_list("pk", flat=True)[:MOST_ROWS])


def _end_one(what: str, pk: int, at: datetime) -> bool:
    if what == "token":
        owed = Voucher.objects.filter(pk=pk, used_for=None, revoked_at=None)
        return owed.update(revoked_at=at) == 1
    if what == "waiting":
        state = WaitingRequest.State
        return WaitingRequest.objects.move(
            pk, old=state.WAITING, new=state.CANCELLED, ended_at=at, planned=False
        )
    return Series.objects.end(pk, at=at)


def end_sharing(*, user_pk: int, account_pk: int, at: datetime) -> None:
    """End the co-use of Reservations that members of the left Account share."""
    CoUser.objects.sharing().filter(
        user_id=user_pk, reservation__membership__account_id=account_pk
    ).update(removed_at=at)
