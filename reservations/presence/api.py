"""Check-in by a click."""

from typing import TypedDict

from django.http import HttpRequest
from ninja import Router

from reservations.presence.check_in import check_in_by_click
from reservations.web.api_parts import count_request, signed_in

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
