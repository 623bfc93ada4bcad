"""Staying on past the end."""

from django.http import HttpRequest
from ninja import Router

from reservations.booking.overstay import set_overstay
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import CalendarEntry, Reader, calendar_entry
from reservations.web.api_parts import count_request, signed_in
from reservations.web.schemas import OverstayIn

router = Router(tags=["calendar"])


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
