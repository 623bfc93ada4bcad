"""Give back a Reservation: cancel before the start (with undo), release afterwards."""

from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from reservations.booking import overstay
from reservations.booking.counted_returns import allocations_of
from reservations.booking.service import UNDO_SECONDS, overlap_refusal
from reservations.engines import service as engines
from reservations.models import Allocation, Reservation, User
from reservations.notifications import holder_notices, live
from reservations.rules.charges import FULL_PRICE_PERMILLE, settlement_of
from reservations.rules.decision import flex_ahead
from reservations.rules.errors import NotChangeable, Refusal, TooManyFlex, UndoOver
from reservations.rules.fairness.limits import (
    check_free,
    check_gpus,
    check_limits,
    check_quotas,
)
from reservations.rules.lifecycle import Kind, State
from reservations.rules.overstay_terms import notice_end
from reservations.rules.policy import Policy
from reservations.rules.prices import cost_gpu_seconds
from reservations.rules.request import Request
from reservations.rules.window import Window, whole_second
from reservations.store import ledger, locks
from reservations.store.access import check_may_change
from reservations.store.booking_facts import site_policy
from reservations.store.booking_snapshot import load_membership, request_snapshot
from reservations.store.ledger import rate_of
from telemetry.protocol.sentences import sentence

UNDO_SLACK_SECONDS = 3
"""Added for the network: the button is shown for ten seconds."""


def cancel(
    *, reservation_id: int, user: User, now: datetime, reason: str = ""
) -> Reservation:
    """Give a Reservation back before its start.

    Hours that begin within 24 h may still cost, see ``rules.charges``.

    Raises:
        NotChangeable: it has begun, or is over.
        NotAllowed, ReasonNeeded, NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    with transaction.atomic(durable=True):
        row = locks.load_reservation(reservation_id, lock=True)
        check_may_change(user, row, act=sentence("cancel"), reason=reason)
        if row.state != State.CONFIRMED:
            raise NotChangeable(state=row.state, act=sentence("cancelled"))
        allocations = allocations_of(row)
        Reservation.objects.move(
            row.pk, old=State.CONFIRMED, new=State.CANCELLED, cancelled_at=at
        )
        Allocation.objects.filter(reservation=row).update(live=False)
        ledger.release_hold(row, now=at, reason=sentence("cancelled"))
        whole = Window(row.start, row.end)
        returned = [(allocation, whole) for allocation in allocations]
        ledger.late_return(row, returned, now=at, permille=policy.late_return_permille)
        ledger.early_return(row, returned, by=user, now=at)
        ledger.audit("cancelled", row, actor=user, now=at, reason=reason)
        holder_notices.cancelled(row, by=user, reason=reason, now=at)
        row.refresh_from_db(fields=["state", "version", "cancelled_at"])
        _publish(row, allocations, policy, gone=True)
    return row


def undo_cancel(*, reservation_id: int, user: User, now: datetime) -> Reservation:
    """Undo a cancellation within ten seconds, if nobody took a Gpu meanwhile.

    Raises:
        UndoOver, NotChangeable, GpuTaken, GpuNotBookable.
        NotAllowed, NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    before = locks.load_reservation(reservation_id)
    check_may_change(user, before, act=sentence("undo the cancel of"), reason="undo")
    allocations = allocations_of(before)
    gpu_ids = [a.gpu_id for a in allocations]
    try:
        with transaction.atomic(durable=True):
            membership = load_membership(before.membership_id)
            assert membership is not None
            locked = locks.lock(membership, gpu_ids)
            row = locks.load_reservation(reservation_id, lock=True)
            _check_undo(row, now=at)
            _check_again(row, locked, allocations, now=at, policy=policy)
            ledger.strike_late_hours(row, gpu_ids, Window(row.start, row.end))
            assert row.cancelled_at is not None
            row.early_returns.filter(returned_at=row.cancelled_at).delete()
            Reservation.objects.move(
                row.pk, old=State.CANCELLED, new=State.CONFIRMED, cancelled_at=None
            )
            overstay.shorten_overstays(
                row, locked.gpus, Window(row.start, row.end), now=at, policy=policy
            )
            Allocation.objects.filter(reservation=row).update(live=True)
            ledger.hold(row, now=at, reason=sentence("cancel undone"))
            ledger.audit("cancel-undone", row, actor=user, now=at)
            row.refresh_from_db(fields=["state", "version", "cancelled_at"])
            engines.hold(row, locked.gpus, now=at, policy=policy)
            _publish(row, allocations_of(row), policy)
            return row
    except IntegrityError as error:
        refusal: Refusal = overlap_refusal(
            error, locked.gpus[0], Window(before.start, before.end)
        )
    raise refusal


def _check_again(
    row: Reservation,
    locked: locks.LockedRows,
    allocations: list[Allocation],
    *,
    now: datetime,
    policy: Policy,
) -> None:
    """Refuse to undo a cancellation of what would not be granted now.

    Raises:
        Refusal: a Gpu, a limit or the quota was taken meanwhile.
    """
    gpus = ledger.as_booked(locked.gpus, allocations)
    request = Request(gpus, Window(row.start, row.end), now)
    snapshot = request_snapshot(
        membership=locked.membership,
        path=locked.path,
        gpus=locked.gpus,
        start=row.start,
        end=row.end,
        policy=policy,
        names=policy.names_visible,
        ignoring_late=row.pk,
        leave_at=notice_end(now, policy),
        extra=ledger.remaining_late_spends(
            row, [gpu.pk for gpu in locked.gpus], request.window
        ),
    )
    check_gpus(request.gpus, snapshot.barred)
    check_limits(request, snapshot)
    check_free(request, snapshot.calendar)
    if row.kind == Kind.FIRM:
        check_quotas(request, snapshot)
    elif (ahead := flex_ahead(request, snapshot)) >= policy.future_flex:
        raise TooManyFlex(live=ahead, most=policy.future_flex)


def _check_undo(row: Reservation, *, now: datetime) -> None:
    if row.state != State.CANCELLED or row.cancelled_at is None:
        raise NotChangeable(state=row.state, act=sentence("brought back"))
    limit = timedelta(seconds=UNDO_SECONDS + UNDO_SLACK_SECONDS)
    charged = row.late_returns.exclude(charged_at=None).exists()
    if now - row.cancelled_at > limit or row.end <= now or charged:
        raise UndoOver(undo_seconds=UNDO_SECONDS)


def release(
    *,
    reservation_id: int,
    user: User | None,
    now: datetime,
    reason: str = "",
    permille: int | None = None,
) -> Reservation:
    """Return a running Reservation now, and charge the held time.

    Args:
        user: None: the portal releases it (a no-show, or an idle Reservation).
        permille: price of the late hours; default: the policy's lambda.

    Raises:
        NotChangeable: it does not run.
        NotAllowed, ReasonNeeded, NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    with transaction.atomic(durable=True):
        row = locks.load_reservation(reservation_id, lock=True)
        if user is not None:
            check_may_change(user, row, act=sentence("release"), reason=reason)
        if row.state != State.ACTIVE or row.end <= at:
            state = State.ENDED if row.state == State.ACTIVE else State(row.state)
            raise NotChangeable(state=state, act=sentence("released"))
        price = policy.late_return_permille if permille is None else permille
        _release(row, user=user, at=at, reason=reason, permille=price, policy=policy)
    return row


@transaction.atomic
def free_unused(
    *, reservation_id: int, now: datetime, reason: str, no_show: bool = False
) -> Reservation:
    """Release for a no-show or for idleness: lambda is 1.

    See docs/design/fair-booking.md#rule-6.

    Args:
        no_show: the holder never checked in. This counts as a strike.

    Raises:
        NotChangeable: it does not run, or (no-show) the holder has come meanwhile.
    """
    at = whole_second(now)
    row = locks.load_reservation(reservation_id, lock=True)
    if row.state != State.ACTIVE or row.end <= at:
        raise NotChangeable(state=row.state, act=sentence("released"))
    if no_show:
        if row.checked_in_at is not None:
            raise NotChangeable(
                state=sentence("in use"), act=sentence("released as unused")
            )
        Reservation.objects.filter(pk=row.pk).update(no_show=True)
    price, policy = FULL_PRICE_PERMILLE, site_policy()
    _release(row, user=None, at=at, reason=reason, permille=price, policy=policy)
    return row


def _release(
    row: Reservation,
    *,
    user: User | None,
    at: datetime,
    reason: str,
    permille: int,
    policy: Policy,
) -> None:
    allocations = allocations_of(row)
    at = max(at, row.start)
    used = Window(row.start, at) if at > row.start else None
    # An overstay may end at any time. Only booked time is returned late.
    rest = Window(at, row.booked_end) if at < row.booked_end else None
    rate = rate_of(row)
    settlement = settlement_of(ledger.held_gpu_seconds(row), used=used, rate=rate)
    cost = settlement.charge_gpu_seconds
    Reservation.objects.move(
        row.pk,
        old=State.ACTIVE,
        new=State.RELEASED,
        end=at,
        ended_at=at,
        cost_gpu_seconds=cost,
    )
    Allocation.objects.filter(reservation=row).update(live=False, end=at)
    why = f"released: {reason}" if reason else "released"
    ledger.settle(row, settlement, at=at, reason=why)
    returned = [(a, rest) for a in allocations] if rest else []
    ledger.late_return(row, returned, now=at, permille=permille)
    ledger.ask_summary(row, now=at)
    ledger.audit("released", row, actor=user, now=at, reason=reason)
    late = cost_gpu_seconds(rest, rate=rate) * permille // 1000 if rest else 0
    holder_notices.released(
        row,
        by=user,
        reason=reason,
        charged_gpu_seconds=cost,
        late_gpu_seconds=late,
        now=at,
    )
    row.refresh_from_db()
    _publish(row, allocations, policy)


def _publish(
    row: Reservation,
    allocations: list[Allocation],
    policy: Policy,
    *,
    gone: bool = False,
) -> None:
    gpu_ids = [allocation.gpu_id for allocation in allocations]
    live.publish_reservation(row, gpu_ids=gpu_ids, policy=policy, gone=gone)
