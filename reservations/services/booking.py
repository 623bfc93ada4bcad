"""Book, and say beforehand what booking would do."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from reservations import live
from reservations.domain.calendar import CalendarGpu
from reservations.domain.decision import Decision, Request, decide
from reservations.domain.errors import GpuTaken, InThePast, Refusal
from reservations.domain.lifecycle import State
from reservations.domain.policy import Policy
from reservations.domain.quota import Spend
from reservations.domain.window import Window, whole_second, without
from reservations.models import Allocation, Membership, Reservation, User
from reservations.services import books, displacing, locking, search
from reservations.services.refused import count_refusal
from reservations.services.rights import may_change
from reservations.snapshots.facts import Taker, request_snapshot, site_policy
from reservations.snapshots.usage import rank_with, usage_by_membership, with_tree

OVERLAP = "allocation_no_overlap"
"""Name of the constraint (PostgreSQL) and of the triggers (SQLite)."""


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
) -> Reservation:
    """Book these Gpus, firm within the quota, flex beyond it.

    Args:
        membership: who pays; None where the User has exactly one.
        start: at or before ``now`` means: begin at once.
        actor: who does it for the User; default: the User.

    Raises:
        Refusal: the rules say no; it carries the next slot that would work.
        NotAllowed, NotFound.
    """
    now = whole_second(now)
    policy = site_policy()
    chosen = locking.choose_membership(user, membership)
    try:
        with transaction.atomic(durable=True):
            locked = locking.lock(chosen, gpu_ids)
            request = request_of(locked.gpus, start, end, now=now)
            displacing.lock_flex(locked.gpus, request.window.start, request.window.end)
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
            )
    except IntegrityError as error:
        if OVERLAP not in str(error):
            raise
        refusal: Refusal = _taken(locked.gpus[0], request.window)
    except Refusal as refused:
        refusal = refused
    search.add_next_slot(refusal, chosen, gpu_ids, start, end, now=now, policy=policy)
    count_refusal(chosen, gpu_ids, start, end, refusal=refusal, now=now)
    raise refusal


def _taken(gpu: CalendarGpu, window: Window) -> GpuTaken:
    """Return the refusal for what only the database itself noticed."""
    return GpuTaken(gpu=gpu.label, start=window.start, end=window.end)


def request_of(
    gpus: Sequence[CalendarGpu], start: datetime, end: datetime, *, now: datetime
) -> Request:
    """Return what is asked for, with a start that is not in the past.

    Raises:
        InThePast: the end is not after the start, or not after now.
    """
    begin = max(whole_second(start), now)
    over = end.astimezone(now.tzinfo)
    if over <= begin:
        raise InThePast(end=over, now=begin)
    return Request(tuple(gpus), Window(begin, over), now)


def judge(
    request: Request,
    locked: locking.Locked,
    *,
    policy: Policy,
    names: bool,
    ignoring: int | None = None,
    extra: Sequence[Spend] = (),
    taking: bool = False,
    freed_gpu_seconds: int = 0,
) -> Decision:
    """Read what the request is judged by, and judge it.

    Args:
        taking: whether it may displace unfrozen flex (rules 1 and 2).
        freed_gpu_seconds: what the Membership holds now and not with the request.
    """
    user_pk = locked.membership.user_id
    taker = Taker(user_pk, request.now, policy.freeze_seconds) if taking else None
    snapshot = request_snapshot(
        membership=locked.membership,
        path=locked.path,
        gpus=request.gpus,
        start=request.window.start,
        end=request.window.end,
        policy=policy,
        names=names,
        ignoring=ignoring,
        # Its late hours, as they will be, are in ``extra``.
        ignoring_late=ignoring,
        extra=extra,
        taker=taker,
    )
    snapshot = with_tree(snapshot, now=request.now)
    return decide(request, replace(snapshot, freed_gpu_seconds=freed_gpu_seconds))


def write_decision(
    request: Request,
    decision: Decision,
    locked: locking.Locked,
    *,
    purpose: str,
    actor: User | None,
    policy: Policy,
) -> Reservation:
    """Insert Reservation, Allocations, HOLD and audit row; tell on commit.

    Inside the caller's transaction and under the locks of ``locked``; the decision
    must be ``judge``'s, made under the same locks.
    """
    now, window = request.now, request.window
    membership = locked.membership
    assert decision.kind is not None
    made = Reservation.objects.create(
        user=membership.user,
        membership=membership,
        start=window.start,
        end=window.end,
        booked_end=window.end,
        kind=decision.kind,
        state=State.ACTIVE if window.start <= now else State.CONFIRMED,
        cost_gpu_seconds=decision.cost_gpu_seconds,
        purpose=purpose,
        created_at=now,
        decision=decision.to_json(),
    )
    displacing.displace(decision, made, now=now, policy=policy)
    allocate(made, request.gpus)
    books.hold(made, now=now, reason=f"booked {decision.kind}")
    books.audit("booked", made, actor=actor, now=now, gpus=[g.pk for g in request.gpus])
    live.publish_reservation(
        made, gpu_ids=[gpu.pk for gpu in request.gpus], policy=policy
    )
    return made


_write = write_decision


def allocate(reservation: Reservation, gpus: Sequence[CalendarGpu]) -> None:
    """Insert one live Allocation per Gpu, in pk order."""
    Allocation.objects.bulk_create(
        Allocation(
            reservation=reservation,
            gpu_id=gpu.pk,
            start=reservation.start,
            end=reservation.end,
            weight=gpu.weight,
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
) -> Decision:
    """Return what ``book`` would decide, with the rank before and after.

    Args:
        ignoring: the Reservation that would be changed into this one; one that
            is not the User's to change is not ignored.

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
        chosen = locking.choose_membership(user, membership)
        locked = locking.read(chosen, gpu_ids)
        if before is not None and before.state == State.ACTIVE:
            # The part that has passed belongs to the same Window and quota.
            begin = before.start
            window = Window(begin, max(end, begin + timedelta(seconds=1)))
            request = Request(locked.gpus, window, now)
        else:
            request = request_of(locked.gpus, begin, end, now=now)
        decision = judge(
            request,
            locked,
            policy=policy,
            names=policy.names_visible,
            ignoring=pk,
            extra=given_back_late(before, request, policy) if before else (),
            taking=True,
            freed_gpu_seconds=freed,
        )
    except Refusal as refusal:
        return Decision(None, 0, refusal=refusal)
    if decision.refusal is not None:
        search.add_next_slot(
            decision.refusal, chosen, gpu_ids, begin, end,
            now=now, policy=policy, ignoring=pk,
        )  # fmt: skip
        return replace(decision, next_slot=decision.refusal.next_slot)
    return _with_ranks(decision, chosen, freed=freed, now=now, policy=policy)


def given_back(
    row: Reservation, gpu_pks: Iterable[int], window: Window
) -> list[tuple[Allocation, Window]]:
    """Return what a change to these Gpus and this Window would give back."""
    before = Window(row.start, row.end)
    kept = set(gpu_pks)
    returned: list[tuple[Allocation, Window]] = []
    for allocation in row.allocations.select_related("gpu__pool").order_by("gpu_id"):
        gone = without(before, [window]) if allocation.gpu_id in kept else [before]
        returned += [(allocation, part) for part in gone]
    return returned


def given_back_late(row: Reservation, request: Request, policy: Policy) -> list[Spend]:
    """Return what will have been given back too late: it still counts in quotas."""
    gpu_pks = {gpu.pk for gpu in request.gpus}
    returned = given_back(row, gpu_pks, request.window)
    spends = books.late_spends(
        row, returned, now=request.now, permille=policy.late_return_permille
    )
    return spends + books.spends_left(row, gpu_pks, request.window)


def _to_be_changed(user: User, pk: int | None) -> Reservation | None:
    if pk is None:
        return None
    rows = Reservation.objects.live().select_related("user", "membership__account")
    found = rows.filter(pk=pk).first()
    return found if found is not None and may_change(user, found) else None


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
