"""Hand over a Reservation, or swap two, by the rules of every booking.

On acceptance the old rows end without the price of a late return. Their time is judged
again as the new holder's: quota, limits, firm or flex. It displaces no flex of others.
The whole exchange is one transaction.
"""

import logging
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q

from reservations.booking.service import OVERLAP, overlap_refusal
from reservations.engines import service as engines
from reservations.models import Membership, Notice, Offer, Reservation, User
from reservations.notifications.service import notify
from reservations.notifications.text.sharing_text import (
    CannotOffer,
    OfferOver,
    terms_of,
)
from reservations.rules.decision import Decision
from reservations.rules.errors import (
    NotAllowed,
    NotChangeable,
    NotFound,
)
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.rules.window import whole_second
from reservations.sharing import swap
from reservations.sharing.swap import SwapSides
from reservations.store import locks
from reservations.store.audit_log import audit_act
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import RowSteps

MOST_ROWS = 200
"""Offers per tick."""
MOST_A_DAY = 20
"""Offers that one User may make in 24 h, because each sends a notice."""
OPEN = Offer.State.OPEN
log = logging.getLogger(__name__)


def offer(
    *,
    reservation_id: int,
    user: User,
    to: str = "",
    account: str = "",
    wanted_id: int | None = None,
    message: str = "",
    now: datetime,
) -> Offer:
    """Offer a Reservation of the User: to a person, or in exchange for another.

    Args:
        to: login of the recipient; left out in a swap.
        account: slug of the Account that pays, if the recipient has several.
        wanted_id: the other User's Reservation, in a swap.

    Raises:
        CannotOffer, NotChangeable, Refusal: the rules would refuse the maker's side of
            the swap.
        NotAllowed, NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    row = _lock_own_reservation(reservation_id, user)
    wanted = _wanted(wanted_id, user) if wanted_id is not None else None
    _check_can_be_offered(row, at, swapped=wanted is not None)
    made_today = Offer.objects.filter(made_by=user, made_at__gt=at - timedelta(days=1))
    if made_today.count() >= MOST_A_DAY:
        raise CannotOffer(
            why=sentence("the limit is {most} offers in 24 h", most=MOST_A_DAY)
        )
    taker = wanted.membership if wanted else _taker(to, account, user, row, policy)
    made = Offer(
        reservation=row,
        wanted=wanted,
        taker=taker,
        made_by=user,
        message=message,
        terms={
            "given": _terms_json(row),
            "wanted": _terms_json(wanted) if wanted else None,
        },
        made_at=at,
        expires_at=_expires_at(row, wanted),
    )
    if wanted is not None:
        _check_makers_side(made, policy, at)
    try:
        with transaction.atomic(durable=True):
            made.save()
            _notify_taker(made, at)
    except IntegrityError as error:
        if "reservation" not in str(error):
            raise
        raise CannotOffer(why=sentence("it is already offered to someone")) from error
    return made


def outlook(*, offer_id: int, user: User, now: datetime) -> SwapSides:
    """Return the effect of accepting on both sides. Nothing is written.

    Raises:
        OfferOver, NotAllowed, NotFound.
    """
    found = _load(offer_id, user)
    return swap.rehearse(found, policy=site_policy(), at=whole_second(now))


def accept(*, offer_id: int, user: User, kind: str = "", now: datetime) -> Offer:
    """Accept an Offer. Both sides are judged again and exchanged, or nothing changes.

    Args:
        kind: "firm" if the taker was shown firm and accepts nothing less.

    Raises:
        OfferOver, OtherSideRefused, Refusal: nothing is changed.
        NotAllowed, NotFound.
    """
    at = whole_second(now)
    policy = site_policy()
    found = _load(offer_id, user)
    if found.taker.user_id != user.pk:
        raise NotAllowed(act=sentence("accept someone else's offer"))
    try:
        with transaction.atomic(durable=True):
            swap.exchange(found, actor=user, kind=kind, policy=policy, at=at)
            _answered(found, "accepted", to=found.made_by, by=user, at=at)
    except IntegrityError as error:
        if OVERLAP not in str(error):
            raise
        given = swap.read_terms(found.terms["given"], at)
        gpu = locks.read(found.taker, given.gpu_ids).gpus[0]
        raise overlap_refusal(error, gpu, given.window) from error
    found.refresh_from_db()
    return found


def decline(*, offer_id: int, user: User, now: datetime) -> Offer:
    """Decline an Offer (its taker), or withdraw it (its maker).

    Raises:
        OfferOver, NotAllowed, NotFound.
    """
    at = whole_second(now)
    found = _load(offer_id, user)
    mine = found.made_by_id == user.pk
    state = Offer.State.WITHDRAWN if mine else Offer.State.DECLINED
    other = found.taker.user if mine else found.made_by
    with transaction.atomic(durable=True):
        moved = Offer.objects.filter(pk=found.pk, state=OPEN).update(
            state=state, answered_at=at
        )
        if not moved:
            found.refresh_from_db()
            raise OfferOver(state=found.state)
        _answered(found, state, to=other, by=user, at=at)
    found.refresh_from_db()
    return found


def expire(at: datetime, policy: Policy) -> dict[str, int]:
    """Close Offers that have expired or lost their Reservation. A step of the tick."""
    live = list(State.live())
    due = Offer.objects.filter(state=OPEN).filter(
        Q(expires_at__lte=at)
        | ~Q(reservation__state__in=live)
        | (Q(wanted__isnull=False) & ~Q(wanted__state=State.CONFIRMED))
    )
    rows = due.select_related("made_by", "taker__user", "reservation")
    rows = rows.order_by("expires_at")[:MOST_ROWS]
    return {"offers_expired": RowSteps(log, "offer")(rows, _expire, at)}


def _expire(row: Offer, at: datetime) -> bool:
    with transaction.atomic(durable=True):
        moved = Offer.objects.filter(pk=row.pk, state=OPEN).update(
            state=Offer.State.EXPIRED, answered_at=at
        )
        if moved:
            _answered(row, "expired", to=row.made_by, by=row.taker.user, at=at)
    return bool(moved)


# --- parts ------------------------------------------------------------------------


def _lock_own_reservation(pk: int, user: User) -> Reservation:
    row = locks.load_reservation(pk)
    if row.user_id != user.pk:
        raise NotAllowed(act=sentence("offer someone else's reservation"))
    return row


def _wanted(pk: int, user: User) -> Reservation:
    row = locks.load_reservation(pk)
    if row.user_id == user.pk:
        raise CannotOffer(why=sentence("both reservations are yours"))
    if row.state != State.CONFIRMED:
        raise CannotOffer(
            why=sentence("the other reservation is {state}, not ahead", state=row.state)
        )
    return row


def _check_can_be_offered(row: Reservation, at: datetime, *, swapped: bool) -> None:
    """Refuse an ended Reservation, and a swap of one that has begun."""
    if row.state not in State.live() or row.end <= at:
        state = State.ENDED if row.state in State.live() else State(row.state)
        raise NotChangeable(state=state, act=sentence("offered"))
    if swapped and row.state != State.CONFIRMED:
        raise CannotOffer(why=sentence("it has begun; only its rest can be given away"))
    if engines.belongs_to_other_engine(row):
        raise CannotOffer(why=sentence("its nodes belong to Slurm"))


def _taker(
    to: str, account: str, user: User, row: Reservation, policy: Policy
) -> Membership:
    """Return the Membership of the recipient.

    Raises:
        CannotOffer, NotFound: if names are hidden, people of other groups are not found
        at all.
    """
    rows = Membership.objects.filter(
        user__username=to.strip(), user__is_active=True, active=True
    ).select_related("user", "account")
    if account:
        rows = rows.filter(account__name=account)
    if not policy.names_visible:
        near = user.memberships.filter(active=True).order_by().values("account_id")
        rows = rows.filter(account_id__in=near)
    found = list(rows.order_by("account__name")[:20])
    if not found:
        raise NotFound(what=sentence("person “{to}” to give it to", to=to.strip()))
    if found[0].user_id == row.user_id:
        raise CannotOffer(why=sentence("it is yours already"))
    same = [one for one in found if one.account_id == row.membership.account_id]
    if len(found) > 1 and not same:
        names = ", ".join(one.account.name for one in found)
        raise CannotOffer(
            why=sentence("they are in several groups, name one: {names}", names=names)
        )
    return found[0] if len(found) == 1 else same[0]


def _terms_json(row: Reservation) -> dict[str, Any]:
    gpus = list(row.allocations.filter(live=True).values_list("gpu_id", flat=True))
    running = row.state == State.ACTIVE
    return terms_of(gpus, row.start, row.end, running=running)


def _expires_at(row: Reservation, wanted: Reservation | None) -> datetime:
    """Return until when it can be answered: before any part of it begins."""
    if row.state == State.ACTIVE:
        return row.end
    return min(row.start, wanted.start) if wanted else row.start


def _check_makers_side(made: Offer, policy: Policy, at: datetime) -> None:
    """Refuse a swap that the rules would refuse for its maker."""
    back: Decision | None = swap.rehearse(made, policy=policy, at=at).maker
    assert back is not None
    if back.refusal is not None:
        raise back.refusal
    made.kind_back = back.kind or ""


def _load(pk: int, user: User) -> Offer:
    """Return an Offer that this User made or may answer.

    Raises:
        NotFound: no such offer to or from this User.
    """
    rows = Offer.objects.select_related(
        "made_by",
        "reservation__membership__account",
        "taker__user",
        "taker__account",
        "wanted__membership__account",
    )
    mine = Q(made_by=user) | Q(taker__user=user)
    found = rows.filter(mine, pk=pk).first()
    if found is None:
        raise NotFound(what=sentence("offer #{pk} of or to you", pk=pk))
    return found


def _notify_taker(made: Offer, at: datetime) -> None:
    notify(
        user=made.taker.user,
        kind=Notice.Kind.OFFER_MADE,
        reservation=made.reservation,
        detail={
            "person": made.made_by_id,
            "swap": made.wanted_id is not None,
            "expires_at": made.expires_at.isoformat(),
            "url": "/offers/",
        },
        now=at,
    )
    audit_offer("made", made, actor=made.made_by, at=at)


def _answered(found: Offer, answer: str, *, to: User, by: User, at: datetime) -> None:
    # A request for a swap does not reveal the name of its recipient.
    named = by.pk == found.made_by_id or found.wanted_id is None
    named = named or site_policy().names_visible
    notify(
        user=to,
        kind=Notice.Kind.OFFER_ANSWERED,
        reservation=found.reservation,
        detail={
            **({"person": by.pk} if named else {}),
            "answer": str(answer),
            "swap": found.wanted_id is not None,
            "url": "/offers/",
        },
        now=at,
        key=f"offer:{found.pk}",
    )
    audit_offer(str(answer), found, actor=None if answer == "expired" else by, at=at)


def audit_offer(verb: str, row: Offer, *, actor: User | None, at: datetime) -> None:
    """Write the outcome of an Offer into the audit log."""
    audit_act(
        verb=f"offer.{verb}",
        subject=f"offer:{row.pk}",
        actor=actor,
        now=at,
        reservation=row.reservation_id,
        wanted=row.wanted_id,
    )


def taker_name(row: Offer, reader: Reader) -> str:
    """Return the recipient of an Offer as a reader may see them.

    The maker of a gift named the recipient. The maker of a swap may know only the group
    that holds the wanted Reservation.
    """
    taker = row.taker
    known = row.wanted_id is None or reader.sees_name(taker.user_id, taker.account_id)
    return str(taker.user if known else taker.account)
