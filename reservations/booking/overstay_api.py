"""Staying on past the end, and what /standing tells of tokens and strikes."""

from django.http import HttpRequest
from ninja import Router

from reservations.booking.overstay import set_overstay
from reservations.fairshare.service import FairshareStatus
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader, calendar_entry, iso
from reservations.store.vouchers import expires_at
from reservations.web.api_parts import counted_now, signed_in
from reservations.web.schemas import OverstayIn

router = Router(tags=["calendar"])


@router.post("/reservations/{int:pk}/overstay")
def overstay(
    request: HttpRequest, pk: int, wish: OverstayIn | None = None
) -> dict[str, object]:
    """Stay on past the end while nobody claims the GPUs, or no longer."""
    user = signed_in(request)
    now = counted_now(user, writes=True)
    row = set_overstay(
        reservation_id=pk,
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


def rights_json(found: FairshareStatus) -> dict[str, object]:
    """Return the Tokens that can be spent, and the strike in force."""
    strike = found.strike
    return {
        "tokens": [
            {
                "id": token.pk,
                "membership": token.membership_id,
                "account": token.membership.account.name,
                "reason": token.reason,
                "given_for": token.given_for_id,
                "given_at": iso(token.given_at),
                "expires_at": iso(expires_at(token)),
            }
            for token in found.tokens
        ],
        "no_shows": [iso(at) for at in found.no_shows],
        "strike": {
            "no_shows": [iso(at) for at in strike.no_shows],
            "until": iso(strike.until),
            "horizon_hours": strike.horizon_seconds / 3600,
        }
        if strike
        else None,
    }
