"""Why sharing or handing on is refused, and what people are told of it.

Refusal
├── CannotShare      a person who cannot be a co-user, or one too many
├── CannotOffer      what cannot be offered, or not to them
├── OfferOver        answered, withdrawn, expired, or its Reservation changed
└── SwapWouldBeFlex  what comes back would be less than was shown
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, ClassVar

from reservations.domain.errors import Refusal, json_ready
from reservations.domain.told import Told
from reservations.domain.words import time_text

MOST_CO_USERS = 8
"""People one Reservation may be shared with."""


@dataclass(eq=False)
class CannotShare(Refusal):
    """Somebody who cannot be made a co-user."""

    code: ClassVar[str] = "cannot-share"
    title: ClassVar[str] = "Cannot be shared"
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return f"It cannot be shared: {self.why}."


@dataclass(eq=False)
class CannotOffer(Refusal):
    """What cannot be given away or swapped, or not with them."""

    code: ClassVar[str] = "cannot-offer"
    title: ClassVar[str] = "Cannot be offered"
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return f"It cannot be offered: {self.why}."


@dataclass(eq=False)
class CannotAsk(Refusal):
    """A message to a holder that cannot be sent."""

    code: ClassVar[str] = "cannot-ask"
    title: ClassVar[str] = "Not sent"
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return f"The message was not sent: {self.why}."


@dataclass(eq=False)
class OfferOver(Refusal):
    """An Offer that cannot be answered any more."""

    code: ClassVar[str] = "offer-over"
    title: ClassVar[str] = "The offer is over"
    state: str
    changed: bool = False
    """What it offers is no longer what was shown."""

    def text(self, zone: tzinfo = UTC) -> str:
        if self.changed:
            return (
                "A reservation of this offer has changed or ended since the offer "
                "was made. Nothing was exchanged. You can make a new offer."
            )
        return f"This offer is {self.state}. Nothing was exchanged."


@dataclass(eq=False)
class OtherSideRefused(Refusal):
    """The rules say no to what the maker of a swap would get."""

    code: ClassVar[str] = "other-side-refused"
    title: ClassVar[str] = "Not possible for the other side"
    rule: str
    """Code of the refusal; its numbers are for its own side only."""

    def text(self, zone: tzinfo = UTC) -> str:
        if self.rule == "flex":
            return (
                "The other person would get flex time now, and expected firm time. "
                "Nothing was exchanged."
            )
        return (
            "The other person cannot have your booking under the rules now "
            f"({self.rule}). Nothing was exchanged."
        )


def terms_of(
    gpus: list[int], start: datetime, end: datetime, *, running: bool
) -> dict[str, Any]:
    """Return what an Offer keeps of a Reservation: what is shown is what is given."""
    return {
        "gpu_ids": sorted(gpus),
        # What has passed of a running one is not given.
        "start": None if running else json_ready(start),
        "end": json_ready(end),
    }


# --- what people are told ---------------------------------------------------------


def couser_words(told: Told) -> str:
    """Say that a booking is shared with one, or no longer."""
    if told.detail.get("removed"):
        return (
            f"The {told.booking} is no longer shared with you. Your jobs there "
            "are stopped."
        )
    return (
        f"{told.who or 'Someone'} shares the {told.booking} with you. You can run "
        "jobs there. It stays on the owner’s quota."
    )


def asked_words(told: Told) -> str:
    """Say who asks what about a booking. detail: person, reason (the message)."""
    who = told.who or "A member of the lab"
    message = str(told.detail.get("reason", ""))
    if not message:
        return f"{who} wrote about your {told.booking}. The message was erased."
    return f"{who} writes about your {told.booking}: “{message}”"


def offer_made_words(told: Told) -> str:
    """Say who offers what, and until when it can be answered."""
    who = told.who or "Someone"
    if told.detail.get("swap"):
        what = f"proposes to swap the {told.booking} with yours"
    else:
        what = f"offers you the {told.booking}"
    return f"{who} {what}. Answer by {told.time('expires_at')}."


def offer_answered_words(told: Told) -> str:
    """Say how an Offer ended."""
    answer = told.detail.get("answer", "answered")
    who = told.who or "The other side"
    if answer == "accepted":
        back = " You hold theirs now." if told.detail.get("swap") else ""
        return f"{who} accepted your offer of the {told.booking}.{back}"
    if answer == "expired":
        return f"Your offer of the {told.booking} was not answered in time."
    if answer == "withdrawn":
        return f"{who} withdrew the offer of the {told.booking}."
    return f"{who} declined your offer of the {told.booking}. You keep it."


def series_conflict_words(told: Told) -> str:
    """Say which day of a Series could not be booked, and why."""
    if told.detail.get("ended"):
        return f"Your series has ended. {told.detail.get('why', '')}"
    at = time_text(datetime.fromisoformat(told.detail["start"]), told.zone)
    return f"Your series could not be booked on {at}. {told.detail.get('why', '')}"
