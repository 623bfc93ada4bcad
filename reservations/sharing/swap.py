"""Carry out an exchange: end the offered rows, judge and write the taker's.

Takes the locks of a booking, for both sides together: Accounts with a quota, Users,
Gpus, Reservations, each in pk order. Called inside a transaction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from reservations.booking.release import _release
from reservations.booking.service import judge, request_of, write_decision
from reservations.models import (
    Account,
    Allocation,
    Offer,
    Reservation,
    User,
)
from reservations.notifications import live
from reservations.notifications.text.sharing_text import (
    CannotOffer,
    OfferOver,
    OtherSideRefused,
)
from reservations.rules.calendar import CalendarGpu
from reservations.rules.decision import Decision
from reservations.rules.errors import Refusal
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from reservations.rules.request import Request
from reservations.rules.window import Window
from reservations.store import ledger, locks
from reservations.store.booking_snapshot import account_path
from telemetry.models import Gpu
from telemetry.protocol.sentences import sentence

TAKEN_FROM = sentence(
    "it took over someone's flex booking, so it can go only to a person "
    "for whom it is firm"
)


@dataclass(frozen=True, slots=True)
class SwapSides:
    """The result for the taker and, in a swap, for the maker."""

    taker: Decision
    maker: Decision | None = None


@dataclass(frozen=True, slots=True)
class OfferTerms:
    """The terms of one Reservation that an Offer stores."""

    gpu_ids: tuple[int, ...]
    window: Window
    running: bool


def read_terms(kept: Mapping[str, Any], at: datetime) -> OfferTerms:
    """Read stored terms. A running Reservation is given from now on.

    Raises:
        OfferOver: its end has passed.
    """
    end = datetime.fromisoformat(kept["end"])
    start = datetime.fromisoformat(kept["start"]) if kept["start"] else at
    if end <= max(start, at):
        raise OfferOver(state=Offer.State.EXPIRED)
    return OfferTerms(tuple(kept["gpu_ids"]), Window(start, end), kept["start"] is None)


def exchange(
    offer: Offer, *, actor: User, kind: str, policy: Policy, at: datetime
) -> None:
    """Carry out an open Offer under all locks.

    Args:
        kind: "firm" if the taker accepts nothing less.

    Raises:
        OfferOver, OtherSideRefused, Refusal.
    """
    locked = _lock(offer)
    moved = Offer.objects.filter(pk=offer.pk, state=Offer.State.OPEN).update(
        state=Offer.State.ACCEPTED, answered_at=at
    )
    if not moved:
        offer.refresh_from_db(fields=["state"])
        raise OfferOver(state=offer.state)
    if offer.expires_at <= at:
        raise OfferOver(state=Offer.State.EXPIRED)
    _end_both(offer, locked, actor=actor, policy=policy, at=at)
    given, wanted = offer.terms["given"], offer.terms["wanted"]
    taker = _judge_part(offer.reservation_id, given, locked, offer.taker_id, policy, at)
    decision = taker[1]
    if decision.refusal is not None:
        raise decision.refusal
    if kind == Kind.FIRM and decision.why_not_firm is not None:
        raise decision.why_not_firm
    offer.given = _write(taker, locked.of(offer.taker_id), actor, policy)
    _hand_on(locked.rows[offer.reservation_id], offer.given)
    if offer.wanted is not None:
        maker_id = offer.reservation.membership_id
        back = _judge_part(offer.wanted.pk, wanted, locked, maker_id, policy, at)
        _check_other_side(offer, back[1])
        maker = locked.of(offer.reservation.membership_id)
        offer.given_back = _write(back, maker, actor, policy)
        _hand_on(locked.rows[offer.wanted.pk], offer.given_back)
    offer.save(update_fields=["given", "given_back"])


def rehearse(offer: Offer, *, policy: Policy, at: datetime) -> SwapSides:
    """Judge both sides as ``exchange`` would, and roll everything back.

    Raises:
        OfferOver.
        NotAllowed: a side may not book at all.
    """
    with transaction.atomic():
        locked = _lock(offer)
        _end_both(offer, locked, actor=offer.made_by, policy=policy, at=at)
        given, wanted = offer.terms["given"], offer.terms["wanted"]
        taker = _judge_part(
            offer.reservation_id, given, locked, offer.taker_id, policy, at
        )
        back: Decision | None = None
        if offer.wanted is not None:
            if taker[1].kind is not None:
                _write(taker, locked.of(offer.taker_id), offer.made_by, policy)
            maker_id = offer.reservation.membership_id
            back = _judge_part(offer.wanted.pk, wanted, locked, maker_id, policy, at)[1]
        transaction.set_rollback(True)
    return SwapSides(taker[1], back)


def _hand_on(old: Reservation, new: Reservation) -> None:
    """Keep the history of the time: displaced flex, and the check-in deadline.

    Time that displaced flex is never free to return, also for its new holder. The
    new holder's check-in deadline does not start again.
    """
    Reservation.objects.filter(displaced_by=old).update(displaced_by=new)
    since = old.watched_from or old.start
    if new.state == State.ACTIVE and since < new.start and not old.checked_in_at:
        new.watched_from = since
        new.save(update_fields=["watched_from"])


# --- locks ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LockedSides:
    """The locked rows of both sides."""

    sides: dict[int, locks.LockedRows]
    gpus: dict[int, CalendarGpu]
    rows: dict[int, Reservation]

    def of(self, membership_pk: int) -> locks.LockedRows:
        return self.sides[membership_pk]

    def only(self, gpu_ids: Sequence[int]) -> tuple[CalendarGpu, ...]:
        return tuple(self.gpus[pk] for pk in sorted(gpu_ids))


def _lock(offer: Offer) -> _LockedSides:
    """Lock all rows of both sides, in the order of ``store/locking``.

    Raises:
        NotAllowed: a side's Membership or login is deactivated.
    """
    takers = [offer.taker]
    if offer.wanted is not None:
        takers.append(offer.reservation.membership)
    members = [locks.choose_membership(one.user, one) for one in takers]
    kept = [part for part in offer.terms.values() if part]
    gpu_ids = sorted({pk for part in kept for pk in part["gpu_ids"]})
    paths = [account_path(one) for one in members]
    if connection.features.has_select_for_update:
        users = {one.user_id for one in members} | {offer.made_by_id}
        _lock_rows(paths, users, gpu_ids)
    sides = {one.pk: locks.read(one, gpu_ids) for one in members}
    gpus = {gpu.pk: gpu for side in sides.values() for gpu in side.gpus}
    pks = sorted({pk for pk in (offer.reservation_id, offer.wanted_id) if pk})
    rows = {pk: locks.load_reservation(pk, lock=True) for pk in pks}
    return _LockedSides(sides, gpus, rows)


def _lock_rows(
    paths: Sequence[Sequence[Account]], users: set[int], gpu_ids: Sequence[int]
) -> None:
    limited = {
        account.pk
        for path in paths
        for account in path
        if account.quota_gpu_seconds is not None
    }
    for model, pks in ((Account, limited), (User, users), (Gpu, set(gpu_ids))):
        held = model._default_manager.filter(pk__in=pks).order_by("pk")
        list(held.select_for_update(no_key=True).values_list("pk"))


# --- end and start
# ----------------------------------------------------------------------


def _end_both(
    offer: Offer, locked: _LockedSides, *, actor: User, policy: Policy, at: datetime
) -> None:
    pairs = [(offer.reservation_id, offer.terms["given"])]
    if offer.wanted_id is not None:
        pairs.append((offer.wanted_id, offer.terms["wanted"]))
    for pk, kept in pairs:
        row = locked.rows[pk]
        allocations = _check_unchanged(row, read_terms(kept, at))
        if row.state == State.ACTIVE:
            # The owner made the offer. The taker only accepted it.
            _release(
                row,
                user=row.user,
                at=at,
                reason=sentence("given away"),
                permille=0,
                policy=policy,
            )
        else:
            _end(row, allocations, actor=actor, policy=policy, at=at)
        ledger.audit("given", row, actor=actor, now=at, offer=offer.pk)


def _check_unchanged(row: Reservation, kept: OfferTerms) -> list[Allocation]:
    """Return the Allocations, if they are still those of the offer.

    Raises:
        OfferOver: it ended, began, moved, or has other Gpus.
    """
    allocations = list(row.allocations.filter(live=True).order_by("gpu_id"))
    expected = State.ACTIVE if kept.running else State.CONFIRMED
    same = (
        row.state == expected
        and row.end == kept.window.end
        and (kept.running or row.start == kept.window.start)
        and tuple(a.gpu_id for a in allocations) == kept.gpu_ids
    )
    if not same:
        raise OfferOver(state=Offer.State.OPEN, changed=True)
    return allocations


def _end(
    row: Reservation,
    allocations: Sequence[Allocation],
    *,
    actor: User,
    policy: Policy,
    at: datetime,
) -> None:
    """End an unstarted row. It gets no ``cancelled_at``, because this has no undo."""
    Reservation.objects.move(
        row.pk, old=State.CONFIRMED, new=State.CANCELLED, ended_at=at
    )
    Allocation.objects.filter(reservation=row).update(live=False)
    ledger.release_hold(row, now=at, reason=sentence("given to another person"))
    row.refresh_from_db(fields=["state", "version", "ended_at"])
    gpu_ids = [allocation.gpu_id for allocation in allocations]
    live.publish_reservation(row, gpu_ids=gpu_ids, policy=policy, gone=True)


def _judge_part(
    old_pk: int,
    kept: Mapping[str, Any],
    locked: _LockedSides,
    membership_pk: int,
    policy: Policy,
    at: datetime,
) -> tuple[Request, Decision]:
    """Judge one part as this Membership's own request. It displaces no flex.

    Time that displaced flex cannot pass to a person who could not have displaced it:
    firm may displace all flex, and for flex the ranks are not compared again.
    """
    wanted = read_terms(kept, at)
    gpus = locked.only(wanted.gpu_ids)
    request = request_of(gpus, wanted.window.start, wanted.window.end, now=at)
    side = locked.of(membership_pk)
    decision = judge(request, side, policy=policy, names=policy.names_visible)
    if decision.kind is Kind.FLEX and _displaced_somebody(old_pk):
        refusal = CannotOffer(why=TAKEN_FROM)
        decision = Decision(None, decision.cost_gpu_seconds, refusal=refusal)
    return request, decision


def _displaced_somebody(reservation_pk: int) -> bool:
    rows = Reservation.objects.filter(displaced_by=reservation_pk)
    return rows.filter(state=State.DISPLACED).exists()


def _check_other_side(offer: Offer, decision: Decision) -> None:
    """Refuse an exchange whose maker would get less than was shown.

    Raises:
        OtherSideRefused: without the maker's numbers.
    """
    refusal: Refusal | None = decision.refusal
    if refusal is not None:
        raise OtherSideRefused(rule=refusal.code)
    if offer.kind_back == Kind.FIRM and decision.kind is not Kind.FIRM:
        raise OtherSideRefused(rule="flex")


def _write(
    judged: tuple[Request, Decision],
    side: locks.LockedRows,
    actor: User,
    policy: Policy,
) -> Reservation:
    request, decision = judged
    return write_decision(
        request, decision, side, purpose="", actor=actor, policy=policy
    )
