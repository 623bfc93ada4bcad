"""Book, and preview a booking."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from reservations.booking import displacement, slot_search
from reservations.booking import overstay as overstaying
from reservations.booking.counted_returns import allocations_of, given_back_late
from reservations.booking.refusals import count_refusal
from reservations.engines import service as engines
from reservations.engines.engine_port import ReservationEngine
from reservations.models import Allocation, Membership, Reservation, User
from reservations.notifications import live
from reservations.rules.calendar import CalendarGpu
from reservations.rules.decision import Decision, decide
from reservations.rules.decision_record import inputs_of
from reservations.rules.errors import GpuTaken, InThePast, MembershipNeeded, Refusal
from reservations.rules.fairness.preemption import Displacer
from reservations.rules.fairness.quota import Spend
from reservations.rules.lifecycle import State
from reservations.rules.overstay_terms import notice_end, over_before_free
from reservations.rules.policy import Policy
from reservations.rules.request import Request
from reservations.rules.window import Window, whole_second
from reservations.store import ledger, locks, vouchers
from reservations.store.access import may_change
from reservations.store.booking_facts import returns_for, site_policy, strike_for
from reservations.store.booking_snapshot import request_snapshot, with_tree
from reservations.store.locks import wait_for_turn
from reservations.store.usage import rank_with, usage_by_membership
from telemetry.protocol.sentences import known, sentence

OVERLAP = "allocation_no_overlap"
"""Name of the constraint (PostgreSQL) and of the triggers (SQLite)."""
UNDO_SECONDS = 10


def book(
    *,
    user: User,
    membership: Membership | None,
    gpu_ids: Sequence[int],
    start: datetime,
    end: datetime,
    purpose: str = "",
    now: datetime,
    actor: User | None = None,
    voucher_id: int | None = None,
    overstay: bool = False,
    flex_only: bool = False,
) -> Reservation:
    """Book these Gpus, firm within the quota, flex beyond it.

    Args:
        membership: the membership that pays. None if the User has exactly one.
        start: at or before ``now`` means at once, or after an overstay's notice.
        actor: the person who books for the User. Default: the User.
        voucher_id: number of a Voucher, for a start beyond a horizon
            (``rules.voucher_terms``).
        overstay: stay on past the end until the Gpus are claimed.
        flex_only: flex also within the quota. ``start`` must be at or before ``now``.

    Raises:
        Refusal: the rules refuse it. It contains the next slot that would work.
        NotAllowed, NotFound.
    """
    now = whole_second(now)
    policy = site_policy()
    if voucher_id is not None and membership is None:
        membership = vouchers.owed_to(user, voucher_id)
    try:
        with wait_for_turn(), transaction.atomic(durable=True):
            chosen = locks.choose_membership(user, membership)
            locked = locks.lock(chosen, gpu_ids)
            locks.check_still(chosen)
            request = request_after_notice(locked, start, end, now=now, policy=policy)
            request = _with_voucher(request, chosen, voucher_id, policy, lock=True)
            request = replace(request, flex_only=flex_only)
            locks.lock_flex(locked.gpus, request.window.start, request.window.end)
            decision = judge(
                request, locked, policy=policy, names=policy.names_visible, taking=True
            )
            if decision.refusal is not None:
                raise decision.refusal
            return write_decision(
                request,
                decision,
                locked,
                purpose=purpose,
                actor=actor or user,
                policy=policy,
                overstay=overstay,
            )
    except MembershipNeeded:
        raise
    except IntegrityError as error:
        refusal: Refusal = overlap_refusal(error, locked.gpus[0], request.window)
    except Refusal as refused:
        refusal = refused
    slot_search.add_next_slot(
        refusal, chosen, gpu_ids, start, end, now=now, policy=policy
    )
    count_refusal(chosen, gpu_ids, start, end, refusal=refusal, now=now)
    raise refusal


def overlap_refusal(
    error: IntegrityError, gpu: CalendarGpu, window: Window
) -> GpuTaken:
    """Return the refusal for an overlap that only the database noticed.

    Raises:
        IntegrityError: the error itself, if another constraint is broken.
    """
    if OVERLAP not in str(error):
        raise error
    return GpuTaken(gpu=gpu.label, start=window.start, end=window.end)


def request_of(
    gpus: Sequence[CalendarGpu], start: datetime, end: datetime, *, now: datetime
) -> Request:
    """Return the request, with a start that is not in the past.

    Raises:
        InThePast: the end is not after the start, or not after now.
    """
    begin = max(whole_second(start), now)
    over = end.astimezone(now.tzinfo)
    if over <= begin:
        raise InThePast(end=over, now=begin)
    return Request(tuple(gpus), Window(begin, over), now)


def request_after_notice(
    locked: locks.LockedRows,
    start: datetime,
    end: datetime,
    *,
    now: datetime,
    policy: Policy,
) -> Request:
    """Return the request. A start "now" waits for the notice of an overstay.

    Every start waits until a Job in a gap has left.

    Raises:
        InThePast: it is over already.
        OverBeforeFree: it would be over by then.
    """
    request = request_of(locked.gpus, start, end, now=now)
    if request.window.start >= notice_end(now, policy):
        return request
    gpu_ids = [gpu.pk for gpu in locked.gpus]
    later = request.window.start > now
    earliest = overstaying.free_from(gpu_ids, now=now, policy=policy, gaps=later)
    if earliest <= request.window.start:
        return request
    if request.window.end <= earliest:
        raise over_before_free(
            request.window.end, asked_at=now, free_at=earliest, policy=policy
        )
    window = Window(earliest, request.window.end)
    return replace(request, window=window, earliest=earliest)


def _with_voucher(
    request: Request,
    membership: Membership,
    voucher_id: int | None,
    policy: Policy,
    *,
    lock: bool,
) -> Request:
    """Return the request with the Voucher that it needs, if it needs one.

    Raises:
        VoucherRefused, NotFound: the Voucher may not be spent on this.
    """
    now, start = request.now, request.window.start
    if voucher_id is None:
        return request
    vouchers.check(voucher_id, membership=membership, start=start, now=now, lock=lock)
    if not vouchers.needed(membership.user, start, now=now, policy=policy):
        return request
    return replace(request, voucher=voucher_id)


def judge(
    request: Request,
    locked: locks.LockedRows,
    *,
    policy: Policy,
    names: bool,
    ignoring: int | None = None,
    extra: Sequence[Spend] = (),
    taking: bool = False,
    freed_gpu_seconds: int = 0,
) -> Decision:
    """Read the facts about the request, and judge it.

    Args:
        taking: whether it may displace unfrozen flex
            (docs/design/fair-booking.md#rule-1 and #rule-2).
        freed_gpu_seconds: what the Membership holds now and would not hold with the
            request.
    """
    user_pk = locked.membership.user_id
    now, notice_seconds = request.now, policy.overstay_notice_seconds
    taker = Displacer(
        user_pk,
        now,
        policy.freeze_seconds,
        notice_seconds,
        pause_seconds=policy.displacement_pause_seconds,
    )
    snapshot = request_snapshot(
        membership=locked.membership,
        path=locked.path,
        gpus=request.gpus,
        start=request.window.start,
        end=request.window.end,
        policy=policy,
        names=names,
        ignoring=ignoring,
        # ``extra`` has its late hours, as they will be.
        ignoring_late=ignoring,
        extra=extra,
        taker=taker if taking else None,
        leave_at=taker.leave_at,
        strike=strike_for(user_pk, request.window.start, now=now, policy=policy),
        returns=returns_for(
            locked.membership, request.window.start, now=now, policy=policy
        ),
    )
    snapshot = with_tree(snapshot, now=request.now)
    snapshot = replace(snapshot, freed_gpu_seconds=freed_gpu_seconds)
    decision = decide(request, snapshot)
    if decision.refusal is None and request.gpus:
        start, user = request.window.start, locked.membership.user
        refusal = engines.refusal_of(request.gpus, user, start=start, now=now)
        decision = decision if refusal is None else replace(decision, refusal=refusal)
    if decision.refusal is not None:
        decision.refusal.judged_by = request, snapshot
        return decision
    more, inputs = request.peak_gpu_seconds, inputs_of(request, snapshot)
    return replace(decision, peak_gpu_seconds=more, inputs=inputs)


def write_decision(
    request: Request,
    decision: Decision,
    locked: locks.LockedRows,
    *,
    purpose: str,
    actor: User | None,
    policy: Policy,
    overstay: bool = False,
    engine: ReservationEngine | None = None,
) -> Reservation:
    """Insert Reservation, Allocations, HOLD and audit row. Publish them on commit.

    Call it in a transaction, under the locks of ``locked``. The decision must be
    ``judge``'s, made under the same locks.

    Args:
        engine: as of `engines.hold`.

    Raises:
        Refusal: the engine of a node does not hold it (``engines``).
    """
    now, window = request.now, request.window
    membership = locked.membership
    assert decision.kind is not None
    made = Reservation(
        user=membership.user,
        membership=membership,
        start=window.start,
        end=window.end,
        booked_end=window.end,
        kind=decision.kind,
        state=State.ACTIVE if window.start <= now else State.CONFIRMED,
        cost_gpu_seconds=decision.cost_gpu_seconds,
        peaked=any(gpu.peak for gpu in request.gpus),
        purpose=purpose,
        created_at=now,
        decision=decision.to_json(),
        overstay=overstay,
    )
    made.save(force_insert=True)
    if request.voucher is not None:
        vouchers.spend(request.voucher, made, now=now)
    for one in decision.displaced:
        displacement.displace(one, made, kind=decision.kind, now=now, policy=policy)
    overstaying.shorten_overstays(made, request.gpus, window, now=now, policy=policy)
    allocate(made, request.gpus, window)
    ledger.hold(
        made, now=now, reason=sentence("booked {kind}", kind=known(decision.kind))
    )
    ledger.audit(
        "booked", made, actor=actor, now=now, gpus=[g.pk for g in request.gpus]
    )
    engines.hold(made, request.gpus, now=now, policy=policy, engine=engine)
    live.publish_reservation(
        made, gpu_ids=[gpu.pk for gpu in request.gpus], policy=policy
    )
    return made


def undo_until(row: Reservation) -> datetime | None:
    """Return until when a new booking can be undone. None: it displaced flex."""
    if row.decision.get("displaced"):
        return None
    return row.created_at + timedelta(seconds=UNDO_SECONDS)


def allocate(
    reservation: Reservation, gpus: Iterable[CalendarGpu], window: Window
) -> None:
    """Insert one live Allocation per Gpu, in pk order."""
    Allocation.objects.bulk_create(
        Allocation(
            reservation=reservation,
            gpu_id=gpu.pk,
            start=window.start,
            end=window.end,
            weight=gpu.weight,
            peak=gpu.peak.to_text() if gpu.peak else "",
        )
        for gpu in sorted(gpus, key=lambda gpu: gpu.pk)
    )


def preview(
    *,
    user: User,
    membership: Membership | None,
    gpu_ids: Sequence[int],
    start: datetime,
    end: datetime,
    now: datetime,
    ignoring: int | None = None,
    voucher_id: int | None = None,
) -> Decision:
    """Return what ``book`` would decide, with the rank before and after.

    Args:
        ignoring: the Reservation that would be changed into this one. It counts if the
            User may not change it.

    Raises:
        NotAllowed, NotFound: a refusal by the rules is in the Decision instead.
    """
    now = whole_second(now)
    policy = site_policy()
    before = _to_be_changed(user, ignoring)
    if before is not None:
        user, membership = before.user, before.membership
    begin = start
    pk, freed = (before.pk, before.cost_gpu_seconds) if before else (None, 0)
    try:
        if voucher_id is not None and membership is None:
            membership = vouchers.owed_to(user, voucher_id)
        chosen = locks.choose_membership(user, membership)
        locked = locks.read(chosen, gpu_ids)
        locked, held = _as_held(locked, before)
        if before is not None and before.state == State.ACTIVE:
            # The part that has passed belongs to the same Window and quota.
            begin = before.start
            window = Window(begin, max(end, begin + timedelta(seconds=1)))
            request = Request(locked.gpus, window, now)
        else:
            request = request_after_notice(locked, begin, end, now=now, policy=policy)
            if before is not None and request.window.start == before.start:
                request = replace(request, earliest=before.start)
        request = _with_voucher(request, chosen, voucher_id, policy, lock=False)
        decision = judge(
            request,
            locked,
            policy=policy,
            names=policy.names_visible,
            ignoring=pk,
            extra=given_back_late(before, request, policy, held) if before else (),
            taking=True,
            freed_gpu_seconds=freed,
        )
    except Refusal as refusal:
        return Decision(None, 0, refusal=refusal)
    if decision.refusal is not None:
        slot_search.add_next_slot(
            decision.refusal,
            chosen,
            gpu_ids,
            begin,
            end,
            now=now,
            policy=policy,
            ignoring=pk,
        )
        return replace(decision, next_slot=decision.refusal.next_slot)
    return _with_ranks(decision, chosen, freed=freed, now=now, policy=policy)


def _to_be_changed(user: User, pk: int | None) -> Reservation | None:
    if pk is None:
        return None
    rows = Reservation.objects.live().select_related("user", "membership__account")
    found = rows.filter(pk=pk).first()
    if found is None or not may_change(user, found):
        return None
    # The overstay is not part of the change: it starts again after it.
    found.end = min(found.end, found.booked_end)
    return found


def _as_held(
    locked: locks.LockedRows, before: Reservation | None
) -> tuple[locks.LockedRows, list[Allocation]]:
    """Return the Gpus at the prices of the Reservation that is changed."""
    held = allocations_of(before) if before else []
    return replace(locked, gpus=ledger.as_booked(locked.gpus, held)), held


def _with_ranks(
    decision: Decision,
    membership: Membership,
    *,
    freed: int,
    now: datetime,
    policy: Policy,
) -> Decision:
    """Add the requester's place among all, now and with this request."""
    usage = usage_by_membership(now, policy)
    before = rank_with(usage, now, policy)
    more = {membership.pk: decision.cost_gpu_seconds - freed}
    for one in decision.displaced:
        owner = one.flex.membership_pk
        more[owner] = more.get(owner, 0) - one.refund_gpu_seconds
    after = rank_with(usage, now, policy, extra=more)
    if before is None or after is None:
        return decision
    return replace(
        decision,
        rank_before=before.place(membership.pk),
        rank_after=after.place(membership.pk),
        of=len(before.ranks),
    )
