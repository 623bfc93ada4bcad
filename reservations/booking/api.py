"""Bookings for programs: book, change, cancel, release, undo, stay on, find a time."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, TypedDict

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Router, Status

from reservations.booking import booking_change, booking_undo
from reservations.booking import release as giving
from reservations.booking import service as booking
from reservations.booking.overstay import set_overstay
from reservations.booking.release import UNDO_SECONDS, undo_cancel
from reservations.booking.slot_search import find_slots
from reservations.models import Reservation, User
from reservations.rules.errors import Refusal
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.store.booking_facts import own_holdings, site_policy
from reservations.store.calendar_queries import (
    CalendarEntry,
    Reader,
    calendar_entry,
    iso,
)
from reservations.store.membership_rights import payers
from reservations.web.api_parts import (
    FreeSlot,
    count_request,
    hours_of,
    own_membership,
    signed_in,
    slot_json,
)
from reservations.web.request_keys import repeatable
from reservations.web.schemas import BookIn, ChangeIn, OverstayIn, ReasonIn, SlotsIn
from telemetry.protocol.coded_error import error_parts
from telemetry.web.answer_types import UtcInstant

router = Router(tags=["calendar"])
GIB_BYTES = 2**30
_ANY_POLICY = Policy()
"""A policy says when flex freezes and who sees names. Neither matters for a firm
reservation that its holder reads."""


class ReservationAnswer(CalendarEntry):
    """One reservation with its cost."""

    cost_credits: float
    """Credits: weighted GPU-hours."""
    checked_in: bool
    keep_used: bool
    """Whether Keep has been used. It works once for each reservation."""


class UndoableReservation(ReservationAnswer):
    """A reservation that was just booked or cancelled."""

    undo_until: UtcInstant | None
    """It can be undone until then. Null: it cannot."""


class LiveLimit(TypedDict):
    """The caller's reservations, and how many are allowed."""

    live: int
    most: int


class SlotList(TypedDict):
    """Free times, the first one first."""

    slots: list[FreeSlot]
    full: LiveLimit | None
    """If the limit is reached. Then only slots that extend a reservation are found."""
    refusal: dict[str, Any] | None
    """If nothing was found: code, title, detail and numbers of the rule that refuses
    the first time at which enough GPUs are free. Null: they are never free together."""


def reservation_answer(
    user: User,
    reservation: Reservation,
    now: datetime,
    *,
    gpu_ids: Collection[int] | None = None,
) -> ReservationAnswer:
    """Return one Reservation as in the calendar, with a few more fields."""
    own = reservation.user_id == user.pk
    policy = _ANY_POLICY if own and reservation.kind == Kind.FIRM else site_policy()
    if gpu_ids is None:
        rows = reservation.allocations.order_by("gpu_id")
        gpu_ids = list(rows.values_list("gpu_id", flat=True))
    reader = Reader.owner(user) if own else Reader.of(user, policy)
    return {
        **calendar_entry(
            reservation, gpu_ids=gpu_ids, reader=reader, policy=policy, now=now
        ),
        "cost_credits": hours_of(reservation.cost_gpu_seconds),
        "checked_in": reservation.checked_in_at is not None,
        "keep_used": reservation.keep_used,
    }


@router.post("/reservations", response={201: dict[str, Any]})
@repeatable
def book(request: HttpRequest, wish: BookIn) -> Status[UndoableReservation]:
    """Book GPUs. A refusal is 409, with the rule, its numbers and the next slot."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    made = booking.book(
        user=user,
        membership=own_membership(user, wish.membership),
        gpu_ids=wish.gpu_ids,
        start=wish.start,
        end=wish.end,
        purpose=wish.purpose,
        now=now,
        voucher_id=wish.voucher,
        overstay=wish.overstay,
    )
    until = booking.undo_until(made)
    entry = reservation_answer(user, made, now, gpu_ids=set(wish.gpu_ids))
    return Status(201, {**entry, "undo_until": iso(until) if until else None})


@router.patch("/reservations/{int:reservation_id}")
def change(
    request: HttpRequest, reservation_id: int, wish: ChangeIn
) -> ReservationAnswer:
    """Change the time, the GPUs or the purpose of a reservation."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    changed = booking_change.change(
        reservation_id=reservation_id,
        user=user,
        start=wish.start,
        end=wish.end,
        gpu_ids=wish.gpu_ids,
        purpose=wish.purpose,
        version=wish.version,
        now=now,
        reason=wish.reason,
    )
    return reservation_answer(user, changed, now)


@router.post("/reservations/{int:reservation_id}/cancel")
def cancel(
    request: HttpRequest, reservation_id: int, why: ReasonIn | None = None
) -> UndoableReservation:
    """Cancel a reservation before it starts. This can be undone for ten seconds."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    gone = giving.cancel(
        reservation_id=reservation_id,
        user=user,
        now=now,
        reason=why.reason if why else "",
    )
    undo_until = now + timedelta(seconds=UNDO_SECONDS)
    return {**reservation_answer(user, gone, now), "undo_until": iso(undo_until)}


@router.post("/reservations/{int:reservation_id}/undo")
def undo(request: HttpRequest, reservation_id: int) -> ReservationAnswer:
    """Undo a cancellation, unless the time is taken."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    back = undo_cancel(reservation_id=reservation_id, user=user, now=now)
    return reservation_answer(user, back, now)


@router.post("/reservations/{int:reservation_id}/undo-booking")
def undo_booking(request: HttpRequest, reservation_id: int) -> ReservationAnswer:
    """Undo a new booking at no cost. This works for ten seconds."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    gone = booking_undo.undo_booking(reservation_id=reservation_id, user=user, now=now)
    return reservation_answer(user, gone, now)


@router.post("/reservations/{int:reservation_id}/release")
def release(
    request: HttpRequest, reservation_id: int, why: ReasonIn | None = None
) -> ReservationAnswer:
    """Release a running reservation now."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    gone = giving.release(
        reservation_id=reservation_id,
        user=user,
        now=now,
        reason=why.reason if why else "",
    )
    return reservation_answer(user, gone, now)


@router.get("/slots")
def slots(request: HttpRequest, wish: Query[SlotsIn]) -> SlotList:
    """Find the first slots in which enough GPUs are free."""
    user = signed_in(request)
    now = count_request(user, writes=False)
    membership = own_membership(user, wish.membership)
    if membership is None:
        # A search works with any membership. A booking names the one that pays.
        membership = next(iter(payers(user)), None)
    refused: list[Refusal] = []
    found = find_slots(
        user=user,
        membership=membership,
        count=wish.count,
        min_memory_bytes=int(wish.min_memory_gib * GIB_BYTES),
        duration_seconds=max(int(wish.hours * 3600), 1),
        earliest=wish.earliest,
        latest=wish.latest,
        gpu_class=wish.gpu_class or None,
        now=now,
        limit=wish.limit,
        refused=refused,
    )
    live, most = len(own_holdings(user.pk)), site_policy().live_reservations
    # At the limit, only slots that extend one of the User's reservations are found.
    full: LiveLimit | None = {"live": live, "most": most} if live >= most else None
    zone = timezone.get_current_timezone()
    return {
        "slots": [slot_json(slot) for slot in found],
        "full": full,
        "refusal": error_parts(refused[0], zone) if refused and not found else None,
    }


@router.post("/reservations/{int:reservation_id}/overstay")
def overstay(
    request: HttpRequest, reservation_id: int, wish: OverstayIn | None = None
) -> CalendarEntry:
    """Stay on past the end while nobody claims the GPUs, or end that."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    row = set_overstay(
        reservation_id=reservation_id,
        user=user,
        wanted=wish.wanted if wish else True,
        reason=wish.reason if wish else "",
        now=now,
    )
    policy = site_policy()
    return calendar_entry(
        row,
        gpu_ids=list(row.allocations.values_list("gpu_id", flat=True)),
        reader=Reader.of(user, policy),
        policy=policy,
        now=now,
    )
