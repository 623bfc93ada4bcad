"""Take a gap for a Job, extend it, and leave it (``rules.gaps``).

Call each function inside a transaction. The order of locks is that of
``store/locking``. Like every booking, taking a gap waits for its turn (``turns``).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from reservations.booking import overstay
from reservations.booking.release import _release
from reservations.booking.service import OVERLAP, allocate
from reservations.models import (
    Membership,
    Reservation,
    WaitingRequest,
    WaitlistLook,
)
from reservations.rules.errors import TooManyGpus, TooManyReservations
from reservations.rules.fairness.limits import check_gpus
from reservations.rules.gaps import (
    MOST_SECONDS,
    NEAR_SECONDS,
    GapGone,
    crowded_from,
    latest_end,
    open_until,
    seconds_left,
)
from reservations.rules.lifecycle import Kind, State
from reservations.rules.overstay_terms import is_gap
from reservations.rules.policy import Policy
from reservations.rules.prices import combined_tariff, cost_gpu_seconds
from reservations.rules.window import Window, whole_second
from reservations.store import ledger, locks
from reservations.store.audit_log import something_new
from reservations.store.booking_facts import site_policy
from reservations.store.booking_snapshot import right_to_book
from reservations.store.free_gaps import open_calendar, whole_holdings
from reservations.store.gpu_rows import barred_pools
from telemetry.protocol.sentences import sentence


def waitlist_rests() -> bool:
    """Return whether the waitlist, which comes first, has read the latest change."""
    if not WaitingRequest.objects.waiting().exists():
        return True
    look = WaitlistLook.objects.filter(pk=1).first()
    return look is not None and not something_new(look.seen_entry)


def may_hold_until(
    membership: Membership, count: int, *, now: datetime, policy: Policy
) -> datetime:
    """Return until when a person may hold this many more Gpus from now on.

    Raises:
        TooManyGpus, TooManyReservations: not even now.
        NotAllowed, MembershipNeeded: the Membership can no longer pay.
    """
    chosen = locks.choose_membership(membership.user, membership)
    until = now + timedelta(seconds=policy.longest_seconds)
    right = right_to_book(chosen, locks.read(chosen, ()).path)
    if right is not None:
        until = min(until, right.until)
    own = whole_holdings(membership.user_id)
    crowded = crowded_from(own, count, now, until, policy.gpus_at_once)
    if crowded <= now:
        held = sum(len(one.gpu_pks) for one in own if one.window.holds(now))
        raise TooManyGpus(asked=count, held=held, most=policy.gpus_at_once)
    if len(own) >= policy.live_reservations:
        raise TooManyReservations(live=len(own), most=policy.live_reservations)
    return crowded


@transaction.atomic
def book_gap(
    *,
    membership: Membership,
    gpu_ids: Sequence[int],
    shortest_seconds: int,
    most_seconds: int | None = None,
    purpose: str,
    now: datetime,
) -> Reservation:
    """Hold these Gpus from now to the end of their gap.

    Args:
        shortest_seconds: the shortest useful length.
        most_seconds: the longest wanted length; None: the whole gap.

    Raises:
        GapGone: another booking was faster, or the gap is too short now.
        Refusal: the Gpus are not bookable, or not by this Membership.
        NotAllowed, NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    chosen = locks.choose_membership(membership.user, membership)
    locked = locks.lock(chosen, gpu_ids)
    check_gpus(
        locked.gpus, barred_pools(locked.gpus, {account.pk for account in locked.path})
    )
    until = min(
        may_hold_until(chosen, len(locked.gpus), now=at, policy=policy),
        latest_end(at, at, policy),
    )
    if most_seconds is not None:
        until = min(until, at + timedelta(seconds=most_seconds))
    calendar = open_calendar(locked.gpus, at, until)
    until = min(open_until(calendar, gpu.pk, at, until) for gpu in locked.gpus)
    left = seconds_left(until, at)
    if left < max(1, shortest_seconds):
        raise GapGone(left_seconds=left, shortest_seconds=shortest_seconds)
    window = Window(at, until)
    made = _hold(locked, window, purpose)
    try:
        with transaction.atomic():
            allocate(made, locked.gpus, window)
    except IntegrityError as error:
        if OVERLAP not in str(error):
            raise
        raise GapGone(left_seconds=0, shortest_seconds=shortest_seconds) from error
    ledger.hold(made, now=at, reason=sentence("a gap, until someone books"))
    gpu_pks = [gpu.pk for gpu in locked.gpus]
    ledger.audit("gap-taken", made, actor=None, now=at, gpus=gpu_pks)
    overstay.publish(made, policy)
    return made


def _hold(locked: locks.LockedRows, window: Window, purpose: str) -> Reservation:
    """Create the active Reservation that holds a gap. It has no booked time."""
    chosen, at = locked.membership, window.start
    rate = combined_tariff(gpu.tariff for gpu in locked.gpus)
    return Reservation.objects.create(
        user=chosen.user,
        membership=chosen,
        start=at,
        end=window.end,
        booked_end=at,
        kind=Kind.FLEX,
        state=State.ACTIVE,
        cost_gpu_seconds=cost_gpu_seconds(window, rate=rate),
        peaked=any(gpu.peak for gpu in locked.gpus),
        purpose=purpose,
        created_at=at,
        # Its Job begins at once, so the holder counts as present.
        checked_in_at=at,
        decision={"rule": "3 gap", "decided_at": at.isoformat()},
    )


@transaction.atomic
def hold_on(
    *, reservation_id: int, now: datetime, most_seconds: int | None = None
) -> datetime:
    """Extend a gap that is about to end, if the time is free. Return its end.

    Args:
        most_seconds: how long it is still needed from now on. None: no limit.
    """
    at = whole_second(now)
    policy = site_policy()
    before = locks.load_reservation(reservation_id)
    gpu_ids = sorted(before.allocations.values_list("gpu_id", flat=True))
    locked = locks.lock(before.membership, gpu_ids)
    row = locks.load_reservation(reservation_id, lock=True)
    if row.state != State.ACTIVE or not is_gap(row.start, row.booked_end):
        return row.end
    latest = latest_end(row.start, at, policy)
    right = right_to_book(row.membership, locked.path)
    if right is not None:
        latest = min(latest, right.until)
    if most_seconds is not None:
        latest = min(latest, at + timedelta(seconds=most_seconds))
    own = [h for h in whole_holdings(row.user_id) if h.reservation_pk != row.pk]
    latest = crowded_from(own, len(gpu_ids), at, latest, policy.gpus_at_once)
    if latest <= row.end:
        return row.end
    calendar = open_calendar(locked.gpus, row.end, latest)
    end = min(open_until(calendar, pk, row.end, latest) for pk in gpu_ids)
    if end > row.end:
        overstay.set_end(row, end, now=at, why=sentence("the gap continues"))
        overstay.publish(row, policy)
    return end


@transaction.atomic
def return_gap(*, reservation_id: int, now: datetime, reason: str) -> bool:
    """Return a gap and charge its use. False: it has ended already."""
    at = whole_second(now)
    row = locks.load_reservation(reservation_id, lock=True)
    if row.state != State.ACTIVE or row.end <= at:
        return False
    policy = site_policy()
    _release(row, user=None, at=at, reason=reason, permille=0, policy=policy)
    return True


__all__ = [
    "MOST_SECONDS",
    "NEAR_SECONDS",
    "book_gap",
    "hold_on",
    "may_hold_until",
    "return_gap",
    "waitlist_rests",
]
