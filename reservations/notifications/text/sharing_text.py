"""Refusals and notices about sharing, handing over and swapping.

Refusal
├── CannotShare      the person cannot be a co-user, or there are too many
├── CannotOffer      the booking cannot be offered, or not to this person
├── OfferOver        answered, withdrawn, expired, or its Reservation changed
└── SwapWouldBeFlex  the returned booking would be worth less than was shown
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from reservations.rules.errors import Refusal
from reservations.rules.figures import time_text
from reservations.rules.notice_values import NoticeValues
from telemetry.protocol.coded_error import json_ready
from telemetry.protocol.sentences import joined, known, sentence

MOST_CO_USERS = 8
"""People one Reservation may be shared with."""


@dataclass(eq=False)
class CannotShare(Refusal):
    """This person cannot be made a co-user."""

    code = "cannot-share"
    title = sentence("Cannot be shared")
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("It cannot be shared: {why}.", why=self.why)


@dataclass(eq=False)
class CannotOffer(Refusal):
    """This booking cannot be given away or swapped, or not with this person."""

    code = "cannot-offer"
    title = sentence("Cannot be offered")
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("It cannot be offered: {why}.", why=self.why)


@dataclass(eq=False)
class CannotAsk(Refusal):
    """This message cannot be sent to the holder."""

    code = "cannot-ask"
    title = sentence("Not sent")
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("The message was not sent: {why}.", why=self.why)


@dataclass(eq=False)
class OfferOver(Refusal):
    """The offer can no longer be answered."""

    code = "offer-over"
    title = sentence("The offer is over")
    state: str
    changed: bool = False
    """Whether it has changed since it was offered."""

    def text(self, zone: tzinfo = UTC) -> str:
        if self.changed:
            return sentence(
                "A reservation of this offer has changed or ended since "
                "the offer was made. Nothing was exchanged. You can make a "
                "new offer."
            )
        return sentence(
            "This offer is {state}. Nothing was exchanged.", state=known(self.state)
        )


@dataclass(eq=False)
class OtherSideRefused(Refusal):
    """The rules refuse what the other side of a swap would get."""

    code = "other-side-refused"
    title = sentence("Not possible for the other side")
    rule: str
    """Code of the refusal. Its numbers are only for the person whom it concerns."""

    def text(self, zone: tzinfo = UTC) -> str:
        if self.rule == "flex":
            return sentence(
                "The other person would get flex time now, and expected "
                "firm time. Nothing was exchanged."
            )
        return sentence(
            "The other person cannot have your booking under the rules now "
            "({rule}). Nothing was exchanged.",
            rule=self.rule,
        )


def terms_of(
    gpus: list[int], start: datetime, end: datetime, *, running: bool
) -> dict[str, Any]:
    """Return the terms of a Reservation that an Offer stores and shows."""
    return {
        "gpu_ids": sorted(gpus),
        # The past part of a running Reservation is not handed over.
        "start": None if running else json_ready(start),
        "end": json_ready(end),
    }


# --- notices ----------------------------------------------------------------------


def co_user_text(told: NoticeValues) -> str:
    """Say that a booking is shared with a person, or no longer."""
    if told.detail.get("removed"):
        return sentence(
            "The {booking} is no longer shared with you. Your jobs there are stopped.",
            booking=told.booking,
        )
    return sentence(
        "{who} shares the {booking} with you. You can run jobs there. It stays on the "
        "owner’s quota.",
        who=told.who or sentence("Someone"),
        booking=told.booking,
    )


def question_text(told: NoticeValues) -> str:
    """Return a question about a booking. detail: person, reason (the message)."""
    values = {
        "who": told.who or sentence("A member of the lab"),
        "booking": told.booking,
        "message": str(told.detail.get("reason", "")),
    }
    if not values["message"]:
        return sentence(
            "{who} wrote about your {booking}. The message was erased.", **values
        )
    return sentence("{who} writes about your {booking}: “{message}”", **values)


def offer_made_text(told: NoticeValues) -> str:
    """Say who offers what, and until when it can be answered."""
    values = {
        "who": told.who or sentence("Someone"),
        "booking": told.booking,
        "until": told.time("expires_at"),
    }
    if told.detail.get("swap"):
        return sentence(
            "{who} proposes to swap the {booking} with yours. Answer by {until}.",
            **values,
        )
    return sentence("{who} offers you the {booking}. Answer by {until}.", **values)


def offer_answered_text(told: NoticeValues) -> str:
    """Say how an Offer ended."""
    answer = told.detail.get("answer", "answered")
    values = {"who": told.who or sentence("The other side"), "booking": told.booking}
    if answer == "accepted":
        taken = sentence("{who} accepted your offer of the {booking}.", **values)
        swap = told.detail.get("swap")
        return joined([taken, sentence("You hold theirs now.") if swap else ""])
    if answer == "expired":
        return sentence(
            "Your offer of the {booking} was not answered in time.", **values
        )
    if answer == "withdrawn":
        return sentence("{who} withdrew the offer of the {booking}.", **values)
    return sentence(
        "{who} declined your offer of the {booking}. You keep it.", **values
    )


def series_conflict_text(told: NoticeValues) -> str:
    """Say which day of a Series could not be booked, and why."""
    why = known(str(told.detail.get("why", "")))
    if told.detail.get("ended"):
        return sentence("Your series has ended. {why}", why=why)
    at = time_text(datetime.fromisoformat(told.detail["start"]), told.zone)
    return sentence("Your series could not be booked on {at}. {why}", at=at, why=why)
