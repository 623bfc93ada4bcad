"""The waitlist for programs and for the pages' scripts: /api/v1/waiting."""

from datetime import datetime
from typing import Any, TypedDict

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Status
from pydantic import Field

from reservations.models import Reservation, User, WaitingRequest
from reservations.rules.calendar import CalendarFlexRisk
from reservations.rules.decision import Decision
from reservations.rules.policy import Policy
from reservations.rules.window import Window
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import (
    CalendarEntry,
    Reader,
    calendar_entry,
)
from reservations.store.locks import choose_membership
from reservations.waitlist import service as waiting
from reservations.waitlist.queries import (
    MOST_SHOWN,
    ExpectedPlace,
    WaitingAnswer,
    chance_of_decision,
    expected_placements,
    own_chances,
    own_rows,
    queue_of,
    request_json,
    waiting_first,
)
from reservations.web.api_parts import count_request, own_membership, signed_in
from reservations.web.request_keys import repeatable
from reservations.web.schemas import (
    MOST_GPUS,
    Instant,
    Key,
    Line,
    PreviewIn,
    SpanIn,
    _Strict,
)
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

router = Router(tags=["waiting"])
GIB_BYTES = 2**30


class WaitIn(_Strict):
    """ "Any 8 h between Tue and Thu, 2 GPUs of at least 24 GiB"."""

    membership: Key | None = None
    count: int = Field(1, ge=1, le=MOST_GPUS)
    hours: float = Field(gt=0, le=31 * 24)
    min_memory_gib: float = Field(0, ge=0, le=100_000)
    gpu_class: Line = Field("", max_length=80)
    earliest: Instant | None = None
    latest: Instant | None = None
    purpose: Line = Field("", max_length=120)
    any_notice: bool = False
    job: dict[str, Any] | None = None
    """Launched once placed, without asking: POST /jobs without the reservation."""


class EstimateError(TypedDict):
    """The error of first estimates, over the newest placements."""

    n: int
    """Number of placements."""
    off_hours: float
    """Mean absolute error, in hours."""
    later_hours: float
    """Mean of start minus estimate, in hours."""
    text: str


class WaitingList(NextPage):
    """The requests of the caller."""

    requests: list[WaitingAnswer]
    waiting: int
    """Waiting requests of all people."""
    planned_requests: int
    """Number of requests for which a start is held."""
    estimates: EstimateError


@router.get("/waiting")
def listed(
    request: HttpRequest,
    response: HttpResponse,
    limit: int = Query(MOST_SHOWN, ge=1, le=MOST_SHOWN),
    cursor: str = CURSOR,
) -> WaitingList:
    """List the caller's requests, each with its position and estimated start.

    A page has the newest requests. Those of a page that still wait come first.
    """
    user = signed_in(request)
    policy = site_policy()
    page, following = cursor_page(
        own_rows(user), by="created_at", cursor=cursor, limit=limit
    )
    link_next(request, response, following)
    found = queue_of(
        user,
        reader=Reader.of(user, policy),
        policy=policy,
        now=timezone.now(),
        own=waiting_first(page),
    )
    return {
        "requests": [request_json(one) for one in found.requests],
        "next": following,
        "waiting": found.waiting,
        "planned_requests": policy.planned_requests,
        "estimates": {
            "n": found.error.n,
            "off_hours": round(found.error.off_seconds / 3600, 2),
            "later_hours": round(found.error.later_seconds / 3600, 2),
            "text": found.error.text,
        },
    }


@router.post("/waiting", response={201: dict[str, Any]})
@repeatable
def ask(request: HttpRequest, wish: WaitIn) -> Status[WaitingAnswer]:
    """Join the waitlist. A suitable time is booked as soon as there is one."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    row = waiting.ask(
        user=user,
        membership=own_membership(user, wish.membership),
        count=wish.count,
        duration_seconds=max(round(wish.hours * 3600), 60),
        min_memory_bytes=int(wish.min_memory_gib * GIB_BYTES),
        gpu_class=wish.gpu_class,
        earliest=wish.earliest,
        latest=wish.latest,
        purpose=wish.purpose,
        any_notice=wish.any_notice,
        job=wish.job,
        now=now,
    )
    return Status(201, _request_json(user, row))


@router.delete("/waiting/{int:waiting_id}")
def withdraw(request: HttpRequest, waiting_id: int) -> WaitingAnswer:
    """Withdraw a request."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    return _request_json(
        user, waiting.withdraw(waiting_id=waiting_id, user=user, now=now)
    )


@router.post("/waiting/{int:waiting_id}/accept")
def accept(request: HttpRequest, waiting_id: int) -> CalendarEntry:
    """Accept an offer of the waitlist. The answer is the new reservation."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    made = waiting.accept(waiting_id=waiting_id, user=user, now=now)
    gpu_ids = list(made.allocations.order_by("gpu_id").values_list("gpu_id", flat=True))
    return calendar_entry(
        made, gpu_ids=gpu_ids, reader=Reader.owner(user), policy=site_policy(), now=now
    )


@router.post("/waiting/{int:waiting_id}/decline")
def decline(request: HttpRequest, waiting_id: int) -> WaitingAnswer:
    """Decline an offer, or what the waitlist booked, until it freezes."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    return _request_json(
        user, waiting.decline(waiting_id=waiting_id, user=user, now=now)
    )


def preview_chance(
    user: User, wish: PreviewIn, decision: Decision, now: datetime
) -> CalendarFlexRisk | None:
    """Return the chance that the flex would be displaced. None: it cannot be.

    A change is judged as if it were booked besides the Reservation that it changes.
    """
    if decision.taken_until is None:
        return None
    before = Reservation.objects.filter(pk=wish.ignoring or 0, user=user).first()
    chosen = (
        before.membership
        if before is not None
        else choose_membership(user, own_membership(user, wish.membership))
    )
    found = chance_of_decision(
        decision,
        wish.gpu_ids,
        Window(max(wish.start, now), wish.end),
        member_pk=chosen.pk,
        user_pk=chosen.user_id,
        now=now,
        policy=site_policy(),
    )
    return found.to_json() if found is not None else None


def calendar_extras(
    user: User, span: SpanIn, policy: Policy, now: datetime
) -> tuple[list[ExpectedPlace], dict[int, CalendarFlexRisk]]:
    """Return the estimated places of own requests, and the chances of own flex."""
    chances = own_chances(user.pk, policy=policy, now=now)
    return (
        expected_placements(user.pk, span.start, span.end),
        {pk: chance.to_json() for pk, chance in chances.items()},
    )


def _request_json(user: User, row: WaitingRequest) -> WaitingAnswer:
    policy = site_policy()
    found = queue_of(
        user,
        reader=Reader.of(user, policy),
        policy=policy,
        now=timezone.now(),
        own=[row],
    )
    return request_json(found.requests[0])
