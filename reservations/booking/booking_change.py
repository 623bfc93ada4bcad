"""Move, lengthen or shorten a Reservation, or change its Gpus."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from django.db import IntegrityError, transaction

from reservations.booking import co_user_transfer, displacement, overstay, slot_search
from reservations.booking.counted_returns import (
    allocations_of,
    given_back,
    given_back_late,
)
from reservations.booking.refusals import keep_refusal
from reservations.booking.service import (
    add_longest_end,
    allocate,
    judge,
    overlap_refusal,
    request_after_notice,
)
from reservations.engines import service as engines
from reservations.models import Allocation, Reservation, User
from reservations.notifications import live
from reservations.rules.calendar import CalendarGpu
from reservations.rules.decision import Decision
from reservations.rules.errors import (
    EndNotAfterStart,
    InThePast,
    NotChangeable,
    Refusal,
    StaleVersion,
)
from reservations.rules.fairness.limits import check_gpus, check_window
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from reservations.rules.prices import Tariff, combined_tariff
from reservations.rules.request import Request
from reservations.rules.window import Window, whole_second
from reservations.store import ledger, locks
from reservations.store.access import check_may_change
from reservations.store.booking_facts import site_policy
from reservations.store.booking_snapshot import load_membership
from telemetry.protocol.sentences import known, sentence


def change(
    *,
    reservation_id: int,
    user: User,
    start: datetime | None = None,
    end: datetime | None = None,
    gpu_ids: Sequence[int] | None = None,
    purpose: str | None = None,
    version: int,
    now: datetime,
    reason: str = "",
) -> Reservation:
    """Change a Reservation. Values that are left out stay as they are.

    A returned part is judged like any return (docs/design/fair-booking.md#rule-6), an
    added part like a new request. Only the end of a running Reservation can change.

    Args:
        version: the version that was shown; another one means a concurrent change.

    Raises:
        StaleVersion, NotChangeable, Refusal: nothing is changed.
        NotAllowed, NotFound.
    """
    now = whole_second(now)
    policy = site_policy()
    before = locks.load_reservation(reservation_id)
    check_may_change(user, before, act=sentence("change"), reason=reason)
    if purpose is not None and start is None and end is None and gpu_ids is None:
        return _rename(
            before,
            purpose,
            user=user,
            version=version,
            now=now,
            reason=reason,
            policy=policy,
        )
    wanted = sorted(set(gpu_ids)) if gpu_ids is not None else _gpu_ids(before)
    window = new_window(before, start, end, now=now)
    try:
        with transaction.atomic(durable=True):
            membership = load_membership(before.membership_id)
            assert membership is not None
            locked = locks.lock(membership, wanted)
            locks.lock_flex(locked.gpus, window.start, window.end, also=reservation_id)
            row = locks.load_reservation(reservation_id, lock=True)
            _check_row(row, version, wanted)
            # An overstay starts again after the changed Window.
            row.end = min(row.end, row.booked_end)
            # Again, because a tick may have started it since it was read.
            window = new_window(row, start, end, now=now)
            held = allocations_of(row)
            if purpose is not None:
                row.purpose = purpose
            request = _request(row, locked, window, held, now=now, policy=policy)
            decision = _judge_added_part(row, request, locked, policy, held)
            _apply(row, request, decision, user=user, reason=reason, policy=policy)
            return row
    except IntegrityError as error:
        refusal: Refusal = overlap_refusal(error, locked.gpus[0], window)
    except Refusal as refused:
        refusal = refused
    _refused(refusal, before, wanted, window, now=now, policy=policy)
    raise refusal


def _rename(
    before: Reservation,
    purpose: str,
    *,
    user: User,
    version: int,
    now: datetime,
    reason: str,
    policy: Policy,
) -> Reservation:
    """Store a new purpose. The ledger does not change, because no time does.

    Raises:
        StaleVersion, NotChangeable.
    """
    with transaction.atomic(durable=True):
        row = locks.load_reservation(before.pk, lock=True)
        _check_row(row, version)
        row.purpose, row.version = purpose, row.version + 1
        row.save(update_fields=["purpose", "version"])
        gpu_ids = _gpu_ids(row)
        ledger.audit("changed", row, actor=user, now=now, reason=reason, gpus=gpu_ids)
        live.publish_reservation(row, gpu_ids=gpu_ids, policy=policy)
    return row


def _request(
    row: Reservation,
    locked: locks.LockedRows,
    window: Window,
    held: Sequence[Allocation],
    *,
    now: datetime,
    policy: Policy,
) -> Request:
    """Return the request. A new start waits until a Job in a gap has left.

    The unchanged part keeps its price and is judged at that price.
    """
    locked = replace(locked, gpus=ledger.as_booked(locked.gpus, held))
    if row.state != State.CONFIRMED or window.start < now:
        return Request(locked.gpus, window, now)
    request = request_after_notice(
        locked, window.start, window.end, now=now, policy=policy
    )
    if request.window.start == row.start:
        # A start that waited for a notice may be off the grid, and may stay so.
        request = replace(request, earliest=row.start)
    return request


def _refused(
    refusal: Refusal,
    before: Reservation,
    gpu_ids: Sequence[int],
    window: Window,
    *,
    now: datetime,
    policy: Policy,
) -> None:
    """Add what would work instead. Store the refusal."""
    if before.state == State.ACTIVE:
        before.end = min(before.end, before.booked_end)
        fits = partial(_may_end, before, now=now, policy=policy)
        add_longest_end(refusal, before, window.end, fits, policy)
    if before.state == State.CONFIRMED:
        slot_search.add_next_slot(
            refusal,
            before.membership,
            gpu_ids,
            window.start,
            window.end,
            now=now,
            policy=policy,
            ignoring=before.pk,
        )
    start, end = window.start, window.end
    keep_refusal(before.membership, gpu_ids, start, end, refusal=refusal, now=now)


def _may_end(
    before: Reservation, end: datetime, *, now: datetime, policy: Policy
) -> bool:
    """Return whether a running Reservation would be granted another end now."""
    locked = locks.read(before.membership, _gpu_ids(before))
    held = allocations_of(before)
    window = Window(before.start, end)
    request = _request(before, locked, window, held, now=now, policy=policy)
    try:
        _judge_added_part(before, request, locked, policy, held)
    except Refusal:
        return False
    return True


def _gpu_ids(reservation: Reservation) -> list[int]:
    rows = reservation.allocations.order_by("gpu_id")
    return list(rows.values_list("gpu_id", flat=True))


def _check_row(row: Reservation, version: int, wanted: list[int] | None = None) -> None:
    """Refuse a row that changed since it was shown, or can no longer change."""
    if row.state not in State.live():
        raise NotChangeable(state=row.state, act=sentence("changed"))
    if row.version != version:
        raise StaleVersion(shown=version, stored=row.version)
    if wanted is not None and row.state == State.ACTIVE and wanted != _gpu_ids(row):
        raise NotChangeable(state=row.state, act=sentence("moved to other GPUs"))


def new_window(
    row: Reservation, start: datetime | None, end: datetime | None, *, now: datetime
) -> Window:
    """Return the Window that a Reservation would have.

    Raises:
        EndNotAfterStart: it would end before it begins.
        InThePast: it would end before now.
        NotChangeable: the start of a running one would move.
    """
    begin = whole_second(start) if start is not None else row.start
    if _minute(begin) == _minute(row.start):
        # Pages and people give times to the minute; the start may have seconds.
        begin = row.start
    over = end if end is not None else row.end
    if row.state == State.ACTIVE:
        if begin != row.start and not (begin <= now and start is None):
            raise NotChangeable(state=row.state, act=sentence("moved to another start"))
        begin = row.start
    elif begin != row.start:
        begin = max(begin, now)
    if over <= begin:
        raise EndNotAfterStart(start=begin, end=over)
    if over <= now:
        raise InThePast(end=over, now=now)
    return Window(begin, over)


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _judge_added_part(
    row: Reservation,
    request: Request,
    locked: locks.LockedRows,
    policy: Policy,
    held: Sequence[Allocation],
) -> Decision:
    """Judge the added part. A mere return only has to be on the grid.

    Raises:
        Refusal: also if a firm Reservation could continue only as flex.
    """
    kind = Kind(row.kind)
    same = {a.gpu_id for a in held}
    asked = {gpu.pk for gpu in request.gpus}
    window = request.window
    if asked <= same and asked and row.start <= window.start and window.end <= row.end:
        if window.end != row.end or window.start != row.start:
            check_window(window, now=request.now, policy=policy)
        return Decision(kind, request.cost_gpu_seconds)
    check_gpus(request.gpus)
    decision = judge(
        request,
        locked,
        policy=policy,
        names=policy.names_visible,
        ignoring=row.pk,
        extra=given_back_late(row, request, policy, held),
        taking=True,
        freed_gpu_seconds=row.cost_gpu_seconds,
    )
    if decision.refusal is not None:
        raise decision.refusal
    if kind is Kind.FIRM and decision.why_not_firm is not None:
        raise decision.why_not_firm
    people = [one.user for one in row.co_users.sharing().select_related("user")]
    if people:
        co_user_transfer.check_co_users(row, len(asked), window, people, policy=policy)
    return decision


def _apply(
    row: Reservation,
    request: Request,
    decision: Decision,
    *,
    user: User,
    reason: str,
    policy: Policy,
) -> None:
    """Write the new Window, Allocations, RELEASE and HOLD, and the audit row."""
    now, window = request.now, request.window
    assert decision.kind is not None
    was = {"start": row.start.isoformat(), "end": row.end.isoformat()}
    old = allocations_of(row)
    for one in decision.displaced:
        displacement.displace(one, row, kind=decision.kind, now=now, policy=policy)
    overstay.shorten_overstays(row, request.gpus, window, now=now, policy=policy)
    # Before the kind changes, because flex hours are returned as flex.
    rate = _reallocate(
        old, request.gpus, row, window, user=user, now=now, policy=policy
    )
    # A change that only gives time back keeps its kind. Otherwise the decision has it.
    row.kind = decision.kind
    ledger.release_hold(row, now=now, reason=sentence("changed"))
    row.start, row.end, row.booked_end = window.start, window.end, window.end
    row.cost_gpu_seconds = rate.cost(window)
    row.peaked = any(gpu.peak for gpu in request.gpus)
    before = row.decision
    if decision.peaks or decision.why_not_firm:
        row.decision = decision.to_json()
    row.version += 1
    if row.state == State.CONFIRMED and window.start <= now:
        row.state = State.ACTIVE
    row.save()
    ledger.hold(row, now=now, reason=sentence("changed, {kind}", kind=known(row.kind)))
    gpu_ids = [gpu.pk for gpu in request.gpus]
    ledger.audit(
        "changed",
        row,
        actor=user,
        now=now,
        reason=reason,
        gpus=gpu_ids,
        was=was,
        decision=before,
    )
    engines.hold(row, request.gpus, now=now, policy=policy)
    live.publish_reservation(row, gpu_ids=gpu_ids, policy=policy)


def _reallocate(
    old: Sequence[Allocation],
    gpus: Sequence[CalendarGpu],
    row: Reservation,
    window: Window,
    *,
    user: User,
    now: datetime,
    policy: Policy,
) -> Tariff:
    """Move the Allocations to the new Window and Gpus; return the new rate.

    A Gpu that stays keeps the price it was booked at.
    """
    asked = {gpu.pk: gpu for gpu in gpus}
    returned = given_back(row, asked, window)
    ledger.late_return(row, returned, now=now, permille=policy.late_return_permille)
    ledger.early_return(row, returned, by=user, now=now)
    ledger.strike_late_hours(row, set(asked), window)
    rate = Tariff()
    for allocation in old:
        if asked.pop(allocation.gpu_id, None) is not None:
            rate += ledger.tariff_of(allocation)
    kept = [a for a in old if a.gpu_id in {gpu.pk for gpu in gpus}]
    dropped = [a.pk for a in old if a not in kept]
    if dropped:
        Allocation.objects.filter(pk__in=dropped).delete()
    for allocation in kept:
        Allocation.objects.filter(pk=allocation.pk).update(
            start=window.start, end=window.end
        )
    allocate(row, asked.values(), window)
    return rate + combined_tariff(gpu.tariff for gpu in asked.values())
