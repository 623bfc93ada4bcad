"""The calendar for programs and for the pages' scripts: /api/v1/...

Every handler parses, calls one service and answers. Refusals are exceptions, which
``gpuportal.http`` turns into problem details.
"""

import gzip
import json
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, TypedDict

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Router, Status

from reservations.accounts.ssh_keys.api import router as ssh_keys_router
from reservations.accounts.token_api import router as tokens_router
from reservations.booking import booking_change, booking_undo
from reservations.booking import release as giving
from reservations.booking import service as booking
from reservations.booking.overstay_api import router as rules_router
from reservations.booking.release import UNDO_SECONDS, undo_cancel
from reservations.booking.slot_search import find_slots
from reservations.fairshare import service as standing_service
from reservations.fairshare.rights_text import RightsAnswer, rights_json
from reservations.fairshare.service import MembershipStanding, QuotaStanding
from reservations.models import Reservation, User
from reservations.notifications.api import router as notices_router
from reservations.presence import check_in
from reservations.presence.api import router as presence_router
from reservations.reports.history_api import router as history_router
from reservations.rules.calendar import CalendarFlexRisk
from reservations.rules.errors import InThePast, TooLong
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.series.api import router as series_router
from reservations.sharing.api import router as people_router
from reservations.store.booking_facts import own_holdings, site_policy
from reservations.store.calendar_queries import (
    CalendarEntry,
    PlainCalendar,
    Reader,
    calendar_entry,
    calendar_page,
    iso,
)
from reservations.store.foreign_use import SOON_SECONDS, foreign_gpus
from reservations.store.membership_rights import payers
from reservations.waitlist.api import calendar_extras, preview_chance
from reservations.waitlist.api import router as waiting_router
from reservations.waitlist.queries import ExpectedPlace
from reservations.web.api_parts import (
    BookingDecision,
    FreeSlot,
    count_request,
    decision_json,
    hours_of,
    own_membership,
    signed_in,
    slot_json,
)
from reservations.web.request_keys import repeatable
from reservations.web.schemas import (
    BookIn,
    ChangeIn,
    PreviewIn,
    ReasonIn,
    SlotsIn,
    SpanIn,
)
from telemetry.web.answer_types import Content, EncodedAnswer, UtcInstant
from telemetry.web.translation import translated_values

router = Router(tags=["calendar"])
router.add_router("", history_router)
router.add_router("", notices_router)
router.add_router("", people_router)
router.add_router("", presence_router)
router.add_router("", rules_router)
router.add_router("", series_router)
router.add_router("", ssh_keys_router)
router.add_router("", tokens_router)
router.add_router("", waiting_router)
GIB_BYTES = 2**30
LONGEST_VIEW = timedelta(days=62)
_COMPRESS_FROM_BYTES = 1400
_ANY_POLICY = Policy()
"""A policy says when flex freezes and who sees names. Neither matters for a firm
reservation that its holder reads."""


class CalendarAnswer(PlainCalendar):
    """The calendar between two instants."""

    waiting: list[ExpectedPlace]
    """Expected places of the caller's waiting requests."""


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


class BookingPreview(BookingDecision):
    """What a booking would be and cost, or why it is refused."""

    chance: CalendarFlexRisk | None
    """The risk of flex. Null: it cannot be taken."""
    foreign_gpu_ids: list[int]
    """GPUs that a process without a right to them uses now."""


class LiveLimit(TypedDict):
    """The caller's reservations, and how many are allowed."""

    live: int
    most: int


class SlotList(TypedDict):
    """Free times, the first one first."""

    slots: list[FreeSlot]
    full: LiveLimit | None
    """If the limit is reached. Then only slots that extend a reservation are found."""


class QuotaPoint(TypedDict):
    """What is left of a quota at an instant."""

    at: UtcInstant
    left_credits: float


class QuotaAnswer(TypedDict):
    """One quota, in credits (weighted GPU-hours)."""

    account: str
    """Name of the group."""
    own: bool
    """Whether it is the caller's. Otherwise it is the group's."""
    quota_credits: float
    held_credits: float
    left_credits: float
    band: list[QuotaPoint]
    """What is left in the next days."""


class StandingLevel(TypedDict):
    """One level of the tree of shares, from the outermost on."""

    kind: str
    name: str
    title: str
    shares: int | None
    """Null: it shares with the level above."""
    level_fs: float | None
    """Share divided by usage, as Slurm's LevelFS. Null: infinite."""
    usage_credits: float


class MembershipAnswer(TypedDict):
    """The rank and the quotas of one membership."""

    id: int
    account: str
    """Name of the group."""
    rank: int | None
    """1 is served first."""
    of: int
    """Number of memberships."""
    path: list[StandingLevel]
    quotas: list[QuotaAnswer]


class LedgerLine(TypedDict):
    """One row of the ledger."""

    at: UtcInstant
    reservation: int | None
    account: str | None
    """Name of the group."""
    kind: str
    credits: float
    """Weighted GPU-hours. Negative: returned."""
    reason: str


class StandingAnswer(RightsAnswer):
    """The caller's rank, quotas and newest ledger rows."""

    now: UtcInstant
    memberships: list[MembershipAnswer]
    ledger: list[LedgerLine]
    """Newest first."""


def _entry(
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


@router.get("/calendar")
def calendar(
    request: HttpRequest, span: Query[SpanIn]
) -> EncodedAnswer[CalendarAnswer]:
    """List the GPUs, and their reservations between two instants."""
    if span.end <= span.start:
        raise InThePast(end=span.end, now=span.start)
    if span.end - span.start > LONGEST_VIEW:
        raise TooLong(
            asked_seconds=int((span.end - span.start).total_seconds()),
            longest_seconds=int(LONGEST_VIEW.total_seconds()),
            joined=False,
        )
    user, policy, now = signed_in(request), site_policy(), timezone.now()
    page = calendar_page(
        span.start, span.end, reader=Reader.of(user, policy), policy=policy, now=now
    )
    waiting, chances = calendar_extras(user, span, policy, now)
    for entry in page.reservations if chances else ():
        if entry["id"] in chances:
            entry["chance"] = chances[entry["id"]]
    content: CalendarAnswer = {**page.to_json(), "waiting": waiting}
    return _json(request, content)


def _json(request: HttpRequest, content: Content) -> EncodedAnswer[Content]:
    """Answer with JSON in the reader's language. It contains no secret.

    It is compressed if the client supports that.
    """
    body = json.dumps(translated_values(content), separators=(",", ":")).encode()
    response = EncodedAnswer[Content](content_type="application/json")
    if len(body) >= _COMPRESS_FROM_BYTES:
        response["Vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            # Level 1: a third of the time of the default, a tenth more bytes.
            body = gzip.compress(body, compresslevel=1, mtime=0)
            response["Content-Encoding"] = "gzip"
    response["Cache-Control"] = "no-store"
    response.content = body
    return response


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
    entry = _entry(user, made, now, gpu_ids=set(wish.gpu_ids))
    return Status(201, {**entry, "undo_until": iso(until) if until else None})


@router.post("/reservations/preview")
def preview(request: HttpRequest, wish: PreviewIn) -> BookingPreview:
    """Check a booking, or a change of ``ignoring``, without making it."""
    user = signed_in(request)
    now = count_request(user, writes=False)
    decision = booking.preview(
        user=user,
        membership=own_membership(user, wish.membership),
        gpu_ids=wish.gpu_ids,
        start=wish.start,
        end=wish.end,
        now=now,
        ignoring=wish.ignoring,
        voucher_id=wish.voucher,
    )
    chance = preview_chance(user, wish, decision, now)
    soon = wish.start < now + timedelta(seconds=SOON_SECONDS) and not wish.ignoring
    used = sorted(foreign_gpus() & set(wish.gpu_ids)) if soon else []
    return {**decision_json(decision), "chance": chance, "foreign_gpu_ids": used}


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
    return _entry(user, changed, now)


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
    return {**_entry(user, gone, now), "undo_until": iso(undo_until)}


@router.post("/reservations/{int:reservation_id}/undo")
def undo(request: HttpRequest, reservation_id: int) -> ReservationAnswer:
    """Undo a cancellation, unless the time is taken."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    back = undo_cancel(reservation_id=reservation_id, user=user, now=now)
    return _entry(user, back, now)


@router.post("/reservations/{int:reservation_id}/undo-booking")
def undo_booking(request: HttpRequest, reservation_id: int) -> ReservationAnswer:
    """Undo a new booking at no cost. This works for ten seconds."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    gone = booking_undo.undo_booking(reservation_id=reservation_id, user=user, now=now)
    return _entry(user, gone, now)


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
    return _entry(user, gone, now)


@router.post("/reservations/{int:reservation_id}/keep")
def keep(
    request: HttpRequest, reservation_id: int, why: ReasonIn | None = None
) -> ReservationAnswer:
    """Keep an idle reservation. This works once for each reservation."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    kept = check_in.keep_idle(
        reservation_id=reservation_id,
        user=user,
        now=now,
        reason=why.reason if why else "",
    )
    return _entry(user, kept, now)


@router.get("/slots")
def slots(request: HttpRequest, wish: Query[SlotsIn]) -> SlotList:
    """Find the first slots in which enough GPUs are free."""
    user = signed_in(request)
    now = count_request(user, writes=False)
    membership = own_membership(user, wish.membership)
    if membership is None:
        # A search works with any membership. A booking names the one that pays.
        membership = next(iter(payers(user)), None)
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
    )
    live, most = len(own_holdings(user.pk)), site_policy().live_reservations
    # At the limit, only slots that extend one of the User's reservations are found.
    full: LiveLimit | None = {"live": live, "most": most} if live >= most else None
    return {"slots": [slot_json(slot) for slot in found], "full": full}


@router.get("/standing")
def standing(request: HttpRequest) -> StandingAnswer:
    """Return the caller's rank, quotas and newest ledger rows."""
    found = standing_service.standing(user=signed_in(request), now=timezone.now())
    return {
        "now": iso(found.now),
        "memberships": [_standing_json(own) for own in found.memberships],
        **rights_json(found),
        "ledger": [
            {
                "at": iso(row.at),
                "reservation": row.reservation_id,
                "account": row.membership.account.name if row.membership else None,
                "kind": row.kind,
                "credits": hours_of(row.gpu_seconds),
                "reason": row.reason,
            }
            for row in found.ledger
        ],
    }


def _standing_json(own: MembershipStanding) -> MembershipAnswer:
    return {
        "id": own.membership.pk,
        "account": own.membership.account.name,
        "rank": own.place,
        "of": own.of,
        "path": [
            {
                "kind": level.kind,
                "name": level.name,
                "title": level.title,
                "shares": level.shares,
                "level_fs": level.level_fs,
                "usage_credits": round(level.usage_gpu_hours, 3),
            }
            for level in own.path
        ],
        "quotas": [_quota(quota) for quota in own.quotas],
    }


def _quota(quota: QuotaStanding) -> QuotaAnswer:
    return {
        "account": quota.account,
        "own": quota.own,
        "quota_credits": hours_of(quota.quota_gpu_seconds),
        "held_credits": hours_of(quota.held_gpu_seconds),
        "left_credits": hours_of(quota.left_gpu_seconds),
        "band": [
            {"at": iso(point.at), "left_credits": hours_of(point.left_gpu_seconds)}
            for point in quota.band
        ],
    }
