"""Check in, and keep an idle reservation."""

from typing import TypedDict

from django.http import HttpRequest
from ninja import Router

from reservations.booking.api import ReservationAnswer, reservation_answer
from reservations.presence.check_in import check_in_by_click, keep_idle
from reservations.web.api_parts import count_request, signed_in
from reservations.web.schemas import ReasonIn

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
