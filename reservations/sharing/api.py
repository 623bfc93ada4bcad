"""Co-users, Offers, and partial returns: /api/v1/..."""

from typing import Annotated, Any, TypedDict

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from msgspec import Meta
from ninja import Query, Router, Status
from pydantic import Field, StrictBool, StrictInt

from reservations.booking import favourites, partial_release
from reservations.booking.favourites import favourite_gpus
from reservations.models import Offer, User
from reservations.sharing import co_use, inquiry, offers
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import CalendarCoUser, Reader, iso
from reservations.web.api_parts import (
    BookingDecision,
    count_request,
    decision_json,
    hours_of,
    signed_in,
)
from reservations.web.request_keys import repeatable
from reservations.web.schemas import GpuIds, Key, Line, _Strict
from telemetry.web.answer_types import UtcInstant
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

router = Router(tags=["people"])
MOST_OFFERS = 100


class ShareIn(_Strict):
    """The person to share with: a login of the same account."""

    user: Line = Field(min_length=1, max_length=150)


class OfferIn(_Strict):
    """An Offer to a person, or in exchange for another's reservation."""

    reservation: Key
    to: Line = Field("", max_length=150)
    account: Line = Field("", max_length=63)
    wanted: Key | None = None
    message: Line = Field("", max_length=200)


class CoUserRemoved(TypedDict):
    """The result of removing a co-user."""

    id: int
    """Of the person."""
    removed: bool
    """False: the person was no co-user."""


_FromText = Annotated[
    str | None,
    Meta(description="Name of its maker. Null: the caller may not see it."),
]
_OfferFrom = TypedDict("_OfferFrom", {"from": _FromText})  # a word of Python


class OfferAnswer(_OfferFrom):
    """An offer of a reservation, as a gift or as a swap."""

    id: int
    state: str
    """open, accepted, declined, withdrawn or expired."""
    swap: bool
    """Whether it is in exchange for another reservation."""
    to_me: bool
    """Whether the caller decides about it."""
    to: str
    """Name of the recipient, or of the recipient's group."""
    account: str
    """Name of the group that would pay."""
    reservation: int
    wanted: int | None
    """The reservation that is wanted in exchange."""
    given: int | None
    """The recipient's new reservation, once it is accepted."""
    given_back: int | None
    """The maker's new reservation, once a swap is accepted."""
    terms: dict[str, Any]
    """What the maker was shown: kind, cost and refund of each side."""
    message: str
    made_at: UtcInstant
    expires_at: UtcInstant


class OfferList(NextPage):
    """Offers to and from the caller."""

    offers: list[OfferAnswer]


class FavouritesAnswer(TypedDict):
    """The caller's favourites."""

    gpu_ids: list[int]


class AskedReservation(TypedDict):
    """The reservation whose holder got the message."""

    reservation: int


class NothingKnown(TypedDict):
    """The decision about the other side, which the caller may not see."""


class PartialPrice(TypedDict):
    """What giving a part back returns and costs."""

    end: UtcInstant
    """Of what is left."""
    gpu_ids: list[int]
    """That are left."""
    returned_credits: float
    """Credits: weighted GPU-hours."""
    late_credits: float
    """Credits that are charged because it is given back late."""


class PartialRelease(TypedDict):
    """What is left of a reservation."""

    id: int
    end: UtcInstant
    version: int
    """Number of the last change. A change names it."""


class AcceptIn(_Strict):
    """The kind that the taker was shown. "firm": nothing less is accepted."""

    kind: Line = Field("", max_length=8)


@router.post(
    "/reservations/{int:reservation_id}/co-users", response={201: dict[str, Any]}
)
def share(
    request: HttpRequest, reservation_id: int, who: ShareIn
) -> Status[CalendarCoUser]:
    """Let a member of the same group use the caller's reservation."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    made = co_use.share(
        reservation_id=reservation_id, user=user, username=who.user, now=now
    )
    told: CalendarCoUser = {
        "id": made.user.pk,
        "user": str(made.user),
        "login": made.user.username,
    }
    return Status(201, told)


@router.delete("/reservations/{int:reservation_id}/co-users/{int:user_id}")
def unshare(request: HttpRequest, reservation_id: int, user_id: int) -> CoUserRemoved:
    """Remove a co-user, or leave a reservation that is shared with the caller."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    removed = co_use.unshare(
        reservation_id=reservation_id, user=user, co_user_id=user_id, now=now
    )
    return {"id": user_id, "removed": removed}


@router.get("/offers")
def listed(
    request: HttpRequest,
    response: HttpResponse,
    open_only: bool = True,
    limit: int = Query(MOST_OFFERS, ge=1, le=MOST_OFFERS),
    cursor: str = CURSOR,
) -> OfferList:
    """Offers to and from the caller, newest first."""
    user = signed_in(request)
    rows = Offer.objects.filter(Q(taker__user=user) | Q(made_by=user))
    if open_only:
        rows = rows.filter(state=Offer.State.OPEN)
    rows = rows.select_related(
        "made_by",
        "taker__user",
        "taker__account",
        "reservation__membership__account",
        "wanted",
    )
    page, following = cursor_page(rows, by="made_at", cursor=cursor, limit=limit)
    link_next(request, response, following)
    return {"offers": [_offer(one, user) for one in page], "next": following}


class StarIn(_Strict):
    """A GPU by its number, or a class by its name."""

    gpu: Key | None = None
    gpu_class: Line = Field("", max_length=80)
    wanted: StrictBool = True


@router.put("/favourites")
def star(request: HttpRequest, what: StarIn) -> FavouritesAnswer:
    """Make a GPU or a class a favourite, or end that. Favourites come first."""
    user = signed_in(request)
    count_request(user, writes=True)
    if what.gpu is not None:
        favourites.star_gpu(user=user, gpu_id=what.gpu, wanted=what.wanted)
    else:
        favourites.star_class(user=user, gpu_class=what.gpu_class, wanted=what.wanted)
    return {"gpu_ids": sorted(favourite_gpus(user.pk))}


class AskIn(_Strict):
    """The message to the holder of a reservation."""

    message: Line = Field(min_length=1, max_length=200)


@router.post("/reservations/{int:reservation_id}/ask", response={201: dict[str, Any]})
def ask(
    request: HttpRequest, reservation_id: int, what: AskIn
) -> Status[AskedReservation]:
    """Send the holder of a reservation a message, as a notice."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    inquiry.ask_holder(
        reservation_id=reservation_id, user=user, message=what.message, now=now
    )
    return Status(201, {"reservation": reservation_id})


@router.post("/offers", response={201: dict[str, Any]})
@repeatable
def make(request: HttpRequest, what: OfferIn) -> Status[OfferAnswer]:
    """Offer the caller's reservation, as a gift or as a swap."""
    user = signed_in(request)
    made = offers.offer(
        reservation_id=what.reservation,
        user=user,
        to=what.to,
        account=what.account,
        wanted_id=what.wanted,
        message=what.message,
        now=count_request(user, writes=True),
    )
    return Status(201, _offer(made, user))


@router.post("/offers/{int:offer_id}/preview")
def preview(request: HttpRequest, offer_id: int) -> BookingDecision | NothingKnown:
    """Check what accepting an offer would mean, without accepting it."""
    user = signed_in(request)
    sides = offers.outlook(
        offer_id=offer_id, user=user, now=count_request(user, writes=False)
    )
    taker = Offer.objects.filter(pk=offer_id, taker__user=user).exists()
    own = sides.taker if taker else sides.maker
    # The other side's numbers are private.
    return {} if own is None else decision_json(own)


@router.post("/offers/{int:offer_id}/accept")
def accept(
    request: HttpRequest, offer_id: int, shown: AcceptIn | None = None
) -> OfferAnswer:
    """Accept an offer. Both sides are judged again and exchanged, or nothing
    changes.
    """
    user = signed_in(request)
    done = offers.accept(
        offer_id=offer_id,
        user=user,
        kind=shown.kind if shown else "",
        now=count_request(user, writes=True),
    )
    return _offer(done, user)


@router.post("/offers/{int:offer_id}/decline")
def decline(request: HttpRequest, offer_id: int) -> OfferAnswer:
    """Decline an offer to the caller, or withdraw the caller's offer."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    return _offer(offers.decline(offer_id=offer_id, user=user, now=now), user)


def _offer(row: Offer, user: User) -> OfferAnswer:
    reader = Reader.of(user, site_policy())
    to_me = row.taker.user_id == user.pk
    # The maker revealed their own name, and the maker named the recipient.
    return {
        "id": row.pk,
        "state": row.state,
        "swap": row.wanted_id is not None,
        "to_me": to_me,
        "from": str(row.made_by) if to_me or reader.names else None,
        "to": offers.taker_name(row, reader),
        "account": row.taker.account.name,
        "reservation": row.reservation_id,
        "wanted": row.wanted_id,
        "given": row.given_id,
        "given_back": row.given_back_id,
        "terms": row.terms,
        "message": row.message,
        "made_at": iso(row.made_at),
        "expires_at": iso(row.expires_at),
    }


class PartIn(_Strict):
    """The part to give back: some GPUs, the last hours, or both."""

    gpu_ids: GpuIds = Field(default_factory=list)
    hours: float = Field(0, ge=0, le=31 * 24)


class GiveBackIn(PartIn):
    """The part, with the version that was shown."""

    version: StrictInt
    reason: Line = Field("", max_length=400)


@router.post("/reservations/{int:reservation_id}/give-back/preview")
def price(request: HttpRequest, reservation_id: int, part: PartIn) -> PartialPrice:
    """Return the credits that giving a part back would return, and its price."""
    user = signed_in(request)
    found = partial_release.price(
        reservation_id=reservation_id,
        user=user,
        gpu_ids=part.gpu_ids,
        last_seconds=int(part.hours * 3600),
        now=count_request(user, writes=False),
    )
    return {
        "end": iso(found.end),
        "gpu_ids": list(found.gpu_ids),
        "returned_credits": hours_of(found.returned_gpu_seconds),
        "late_credits": hours_of(found.late_gpu_seconds),
    }


@router.post("/reservations/{int:reservation_id}/give-back")
def give_back(
    request: HttpRequest, reservation_id: int, part: GiveBackIn
) -> PartialRelease:
    """Give a part of a reservation back. The rest continues."""
    user = signed_in(request)
    left = partial_release.give_back_part(
        reservation_id=reservation_id,
        user=user,
        gpu_ids=part.gpu_ids,
        last_seconds=int(part.hours * 3600),
        version=part.version,
        now=count_request(user, writes=True),
        reason=part.reason,
    )
    return {"id": left.pk, "end": iso(left.end), "version": left.version}
