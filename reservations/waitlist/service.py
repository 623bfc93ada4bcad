"""A person's acts on the waitlist: wait, withdraw, decline, accept.

``waitlist.scheduler`` places requests. ``requeue_displaced`` puts a displaced
Reservation back.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from reservations.engines.engine_refusals import EngineRefused
from reservations.models import (
    Allocation,
    Membership,
    Reservation,
    User,
    WaitingRequest,
)
from reservations.notifications import live
from reservations.notifications.text.waitlist_text import (
    NotDeclinable,
    NotWaiting,
    OfferLapsed,
    SpanTooFar,
    SpanTooShort,
    TooManyWaiting,
)
from reservations.rules.calendar import SlotWish
from reservations.rules.engine_names import UNIX_USER
from reservations.rules.errors import NotFound, Refusal, TooLong, TooManyGpus
from reservations.rules.lifecycle import State
from reservations.rules.never_fits import NeverFits, check_there
from reservations.rules.policy import Policy
from reservations.rules.window import DAY_SECONDS, Window, whole_second, window_from
from reservations.store import attached_jobs, ledger, locks
from reservations.store.audit_log import audit_act
from reservations.store.booking_facts import site_policy
from reservations.store.booking_snapshot import account_path
from reservations.store.gpu_rows import barred_pools, calendar_gpus
from reservations.waitlist import scheduler
from telemetry.protocol.sentences import sentence

LONGEST_WAIT_SECONDS = 31 * DAY_SECONDS
"""How far ahead a request may end."""
USUAL_WAIT_SECONDS = 7 * DAY_SECONDS
"""How long a request waits by default."""
WAITING, PLACED, DECLINED, CANCELLED, EXPIRED = WaitingRequest.State


def ask(
    *,
    user: User,
    membership: Membership | None,
    count: int,
    duration_seconds: int,
    min_memory_bytes: int = 0,
    gpu_class: str = "",
    earliest: datetime | None = None,
    latest: datetime | None = None,
    purpose: str = "",
    any_notice: bool = False,
    job: Mapping[str, Any] | None = None,
    now: datetime,
) -> WaitingRequest:
    """Put a request on the waitlist. The next tick places it if it fits.

    Args:
        latest: last instant at which it must be over. Default: in a week.
        any_notice: accepted beforehand, even within the freeze.
        job: launched once it is placed, without notice. ``store.attached_jobs`` checks
            it.

    Raises:
        TooLong, TooManyGpus, NeverFits, SpanTooShort, SpanTooFar, TooManyWaiting.
        EngineRefused: only Slurm has such GPUs, and gives this person none.
        MembershipNeeded, NotAllowed.
    """
    at = whole_second(now)
    policy = site_policy()
    chosen = locks.choose_membership(user, membership)
    begin = max(whole_second(earliest), at) if earliest else at
    usual = timedelta(seconds=max(duration_seconds, USUAL_WAIT_SECONDS))
    over = whole_second(latest) if latest else begin + usual
    wish = SlotWish(count, duration_seconds, min_memory_bytes, gpu_class or None)
    _check_wish(wish, begin, over, now=at, policy=policy)
    _check_there(wish, chosen, with_job=job is not None)
    launch = attached_jobs.checked(user, job) if job is not None else None
    with transaction.atomic(durable=True):
        # Locked, so that two concurrent requests are counted one after the other.
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        waits = WaitingRequest.objects.waiting().filter(user=user).count()
        if waits >= policy.waiting_requests:
            raise TooManyWaiting(live=waits, most=policy.waiting_requests)
        row = WaitingRequest.objects.create(
            user=user,
            membership=chosen,
            count=count,
            gpu_class=gpu_class,
            min_memory_bytes=min_memory_bytes,
            duration_seconds=duration_seconds,
            earliest=begin,
            latest=over,
            purpose=purpose,
            created_at=at,
            any_notice=any_notice,
            has_job=launch is not None,
        )
        if launch is not None:
            attached_jobs.attach(row, launch)
        _audit("asked", row, actor=user, now=at)
    return row


def _check_there(wish: SlotWish, membership: Membership, *, with_job: bool) -> None:
    """Refuse a wish that no Gpus of the site can fill for this person.

    Raises:
        NeverFits, PoolNotYours: as of `check_there`.
        EngineRefused: only Slurm has them, and the person has no Unix user there.
    """
    gpus = calendar_gpus()
    barred = barred_pools(gpus, {one.pk for one in account_path(membership)})
    own = [gpu for gpu in gpus if not gpu.engine]
    # Without an agent the portal starts no jobs on nodes of Slurm.
    check_there(wish, own if with_job and not settings.SLURM_AGENT else gpus, barred)
    nodes = sorted({gpu.node for gpu in gpus if gpu.engine and wish.suits(gpu)})
    if nodes and not UNIX_USER.fullmatch(membership.user.unix_user):
        try:
            check_there(wish, own, barred)
        except NeverFits:
            raise EngineRefused("no-login", ", ".join(nodes)) from None


def _check_wish(
    wish: SlotWish,
    earliest: datetime,
    latest: datetime,
    *,
    now: datetime,
    policy: Policy,
) -> None:
    if wish.duration_seconds > policy.longest_seconds:
        raise TooLong(
            asked_seconds=wish.duration_seconds,
            longest_seconds=policy.longest_seconds,
            joined=False,
        )
    if wish.count > policy.gpus_at_once:
        raise TooManyGpus(asked=wish.count, held=0, most=policy.gpus_at_once)
    if latest - earliest < timedelta(seconds=wish.duration_seconds):
        raise SpanTooShort(
            earliest=earliest, latest=latest, asked_seconds=wish.duration_seconds
        )
    if latest - now > timedelta(seconds=LONGEST_WAIT_SECONDS):
        raise SpanTooFar(latest=latest, most_seconds=LONGEST_WAIT_SECONDS)


def own_request(waiting_id: int, user: User) -> WaitingRequest:
    """Return a request of the User.

    Raises:
        NotFound: no such request of this User.
    """
    rows = WaitingRequest.objects.select_related("user", "membership__account")
    found = rows.filter(pk=waiting_id, user=user).first()
    if found is None:
        raise NotFound(what=sentence("waiting request #{pk} of yours", pk=waiting_id))
    return found


def withdraw(*, waiting_id: int, user: User, now: datetime) -> WaitingRequest:
    """Withdraw a request.

    Raises:
        NotWaiting: it is placed or over.
        NotFound.
    """
    at = whole_second(now)
    row = own_request(waiting_id, user)
    with transaction.atomic(durable=True):
        moved = WaitingRequest.objects.move(
            row.pk, old=WAITING, new=CANCELLED, ended_at=at, planned=False
        )
        row.refresh_from_db()
        if not moved:
            raise NotWaiting(state=row.state, act=sentence("withdrawn"))
        _audit("withdrawn", row, actor=user, now=at)
    return row


def decline(*, waiting_id: int, user: User, now: datetime) -> WaitingRequest:
    """Decline an offer (it keeps waiting), or a placement before its freeze.

    A declined placement costs nothing, because the portal made it. It counts as a
    return, because the time was requested and closed to others. Hours that displaced
    other bookings are charged as a late return. So is the whole of a placement that its
    holder has moved, lengthened or widened since.

    Raises:
        NotDeclinable: the placement is frozen, or has begun.
        NotWaiting: neither waits nor is placed.
        NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    row = own_request(waiting_id, user)
    if row.state == WAITING:
        _decline_offer(row, at=at)
    elif row.state == PLACED and row.reservation_id is not None:
        _decline_placement(row, row.reservation_id, at=at, policy=policy)
    else:
        raise NotWaiting(state=row.state, act=sentence("declined"))
    row.refresh_from_db()
    return row


def _decline_offer(row: WaitingRequest, *, at: datetime) -> None:
    if row.offer_until is None or row.offer_until <= at:
        raise OfferLapsed
    with transaction.atomic(durable=True):
        # The end of the offer is the time of the answer: see
        # ``rules.PAUSE_SECONDS``.
        WaitingRequest.objects.waiting().filter(pk=row.pk).update(offer_until=at)
        _audit("offer-declined", row, actor=row.user, now=at)


def _decline_placement(
    row: WaitingRequest, reservation_id: int, *, at: datetime, policy: Policy
) -> None:
    with transaction.atomic(durable=True):
        booked = locks.load_reservation(reservation_id, lock=True)
        frozen_at = booked.start - timedelta(seconds=policy.freeze_seconds)
        if booked.state != State.CONFIRMED or at >= frozen_at:
            raise NotDeclinable(frozen_at=frozen_at)
        allocations = list(booked.allocations.order_by("gpu_id"))
        Reservation.objects.move(
            booked.pk, old=State.CONFIRMED, new=State.CANCELLED, cancelled_at=at
        )
        Allocation.objects.filter(reservation=booked).update(live=False)
        ledger.release_hold(booked, now=at, reason=sentence("placement declined"))
        whole = Window(booked.start, booked.end)
        returned = [(allocation, whole) for allocation in allocations]
        if ledger.displaced_windows(booked) or not _as_placed(row, booked, allocations):
            permille = policy.late_return_permille
            ledger.late_return(booked, returned, now=at, permille=permille)
        ledger.early_return(booked, returned, by=row.user, now=at)
        WaitingRequest.objects.move(
            row.pk, old=PLACED, new=DECLINED, ended_at=at, planned=False
        )
        ledger.audit("declined", booked, actor=row.user, now=at, waiting=row.pk)
        booked.refresh_from_db(fields=["state", "version", "cancelled_at"])
        live.publish_reservation(
            booked,
            gpu_ids=[allocation.gpu_id for allocation in allocations],
            policy=policy,
            gone=True,
        )


def _as_placed(
    row: WaitingRequest, booked: Reservation, allocations: Sequence[Allocation]
) -> bool:
    """Return whether it holds no more than was placed. The rest is the holder's act."""
    start, end = row.expected_start, row.expected_end
    if start is None or end is None:
        return False
    within = start <= booked.start and booked.end <= end
    # Counted, not compared, because the operator may have moved it to another Gpu.
    return within and len(allocations) <= len(row.expected_gpu_ids)


def accept(*, waiting_id: int, user: User, now: datetime) -> Reservation:
    """Accept an offer. If its start has passed meanwhile, it begins now.

    Raises:
        OfferLapsed: the offer has expired, or its time was booked.
        NotWaiting: the request is already placed or over.
        NotFound.
        Refusal: the rules refuse it now.
    """
    at = whole_second(now)
    policy = site_policy()
    row = own_request(waiting_id, user)
    if row.state != WAITING:
        raise NotWaiting(state=row.state, act=sentence("accepted"))
    until, start = row.offer_until, row.offer_start
    if until is None or start is None or until <= at or not row.offer_gpu_ids:
        raise OfferLapsed
    window = window_from(
        max(start, at),
        duration_seconds=row.duration_seconds,
        grid_seconds=policy.grid_seconds,
        longest_seconds=policy.longest_seconds,
    )
    try:
        return scheduler.book_waiting_request(
            row, row.offer_gpu_ids, window, now=at, policy=policy, actor=user
        )
    except Refusal as refusal:
        WaitingRequest.objects.waiting().filter(pk=row.pk).update(offer_until=at)
        raise OfferLapsed(taken=True) from refusal


def _audit(
    verb: str, row: WaitingRequest, *, actor: User | None, now: datetime
) -> None:
    audit_act(
        verb=f"waiting.{verb}",
        subject=f"waiting:{row.pk}",
        actor=actor,
        now=now,
        count=row.count,
        duration_seconds=row.duration_seconds,
        earliest=row.earliest.isoformat(),
        latest=row.latest.isoformat(),
    )
