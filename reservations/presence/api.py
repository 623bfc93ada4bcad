"""Check in, keep an idle reservation, and book what runs without a booking."""

from typing import Any, TypedDict

from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import ConfigDict, Field

from reservations.booking.api import ReservationAnswer, reservation_answer
from reservations.presence import adoption
from reservations.presence.check_in import check_in_by_click, keep_idle
from reservations.store.calendar_queries import iso
from reservations.web.api_parts import count_request, own_membership, signed_in
from reservations.web.request_keys import repeatable
from reservations.web.schemas import Key, Line, ReasonIn
from telemetry.web.answer_types import UtcInstant

router = Router(tags=["calendar"])


class CheckInAnswer(TypedDict):
    """The reservation that is checked in."""

    id: int
    checked_in: bool
    version: int
    """Number of the last change. A change names it."""


@router.post("/reservations/{int:reservation_id}/check-in")
def check_in(request: HttpRequest, reservation_id: int) -> CheckInAnswer:
    """Check in. A process or a job on the GPU also counts as a check-in."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    row = check_in_by_click(reservation_id=reservation_id, user=user, now=now)
    return {"id": row.pk, "checked_in": True, "version": row.version}


@router.post("/reservations/{int:reservation_id}/keep")
def keep(
    request: HttpRequest, reservation_id: int, why: ReasonIn | None = None
) -> ReservationAnswer:
    """Keep an idle reservation. This works once for each reservation."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    kept = keep_idle(
        reservation_id=reservation_id,
        user=user,
        now=now,
        reason=why.reason if why else "",
    )
    return reservation_answer(user, kept, now)


class UnbookedUseAnswer(TypedDict):
    """GPUs of one node that processes of the caller use without a booking."""

    node: str
    gpu_ids: list[int]
    gpus: list[str]
    """As on the board: node-a:0."""


class UnbookedUseList(TypedDict):
    """What the caller uses without a booking, by node."""

    uses: list[UnbookedUseAnswer]


class Adoption(Schema):
    """The booking of what the caller's processes use on a node."""

    model_config = ConfigDict(extra="forbid")
    node: Line = Field(max_length=64)
    hours: int = Field(2, ge=1, le=adoption.MOST_HOURS)
    membership: Key | None = None
    """The membership that pays. Null: the only one."""


class AdoptionAnswer(TypedDict):
    """The booking. It is flex."""

    id: int
    node: str
    start: UtcInstant
    end: UtcInstant


@router.get("/unbooked-use")
def unbooked_use(request: HttpRequest) -> UnbookedUseList:
    """GPUs that processes of the caller use without a booking."""
    return {
        "uses": [
            {
                "node": use.node,
                "gpu_ids": list(use.gpu_ids),
                "gpus": list(use.labels),
            }
            for use in adoption.unbooked_use(signed_in(request))
        ]
    }


@router.post("/unbooked-use/book", response={201: dict[str, Any]})
@repeatable
def adopt(request: HttpRequest, body: Adoption) -> Status[AdoptionAnswer]:
    """Book what the caller's processes use on a node, as flex from now.

    The rules of every other booking decide. The processes go on.
    """
    user = signed_in(request)
    now = count_request(user, writes=True)
    made = adoption.adopt(
        user=user,
        node=body.node,
        hours=body.hours,
        membership=own_membership(user, body.membership),
        now=now,
    )
    answer: AdoptionAnswer = {
        "id": made.pk,
        "node": body.node,
        "start": iso(made.start),
        "end": iso(made.end),
    }
    return Status(201, answer)
