"""Refusals and notices of the waitlist.

Refusal
├── TooManyWaiting   as many requests as one person may have
├── SpanTooShort     no room for the duration between the two times
├── SpanTooFar       beyond the longest horizon of the waitlist
├── NotWaiting       placed, withdrawn or over meanwhile
├── NotDeclinable    a placement that is frozen or has begun
└── OfferLapsed      an offer that was not answered in time, or is taken
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from reservations.rules.errors import Refusal
from reservations.rules.figures import time_text
from reservations.rules.notice_values import NoticeValues
from telemetry.protocol.sentences import joined, known, sentence
from telemetry.protocol.units import format_duration


@dataclass(eq=False)
class TooManyWaiting(Refusal):
    """The person has as many waiting requests as the limit."""

    code = "too-many-waiting"
    title = sentence("Too many waiting requests")
    live: int
    most: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "You have {live} waiting requests. The limit is {most}. "
            "Withdraw one first.",
            live=self.live,
            most=self.most,
        )


@dataclass(eq=False)
class SpanTooShort(Refusal):
    """The duration does not fit between the two times."""

    code = "span-too-short"
    title = sentence("Too little time")
    earliest: datetime
    latest: datetime
    asked_seconds: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Between {earliest} and {latest} there is no room for {asked_seconds}.",
            earliest=time_text(self.earliest, zone),
            latest=time_text(self.latest, zone),
            asked_seconds=format_duration(self.asked_seconds),
        )


@dataclass(eq=False)
class SpanTooFar(Refusal):
    """The request may end later than a request may wait."""

    code = "span-too-far"
    title = sentence("Too far ahead")
    latest: datetime
    most_seconds: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "You can wait for at most {most_seconds}.",
            most_seconds=format_duration(self.most_seconds),
        )


@dataclass(eq=False)
class NotWaiting(Refusal):
    """The request is no longer waiting: it was placed, withdrawn or is over."""

    code = "not-waiting"
    title = sentence("It no longer waits")
    state: str
    act: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "A request that is {state} cannot be {act}.",
            state=known(self.state),
            act=known(self.act),
        )


@dataclass(eq=False)
class NotDeclinable(Refusal):
    """The planned start is too near to be declined. A cancellation may cost."""

    code = "not-declinable"
    title = sentence("Too late to decline")
    frozen_at: datetime

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "A placement can be declined until {frozen_at}. It can still "
            "be cancelled or released, at the usual price.",
            frozen_at=time_text(self.frozen_at, zone),
        )


@dataclass(eq=False)
class OfferLapsed(Refusal):
    """There is no offer, or it has lapsed."""

    code = "offer-lapsed"
    title = sentence("The offer has expired")
    taken: bool = False

    def text(self, zone: tzinfo = UTC) -> str:
        why = (
            sentence("Someone else has booked this slot.")
            if self.taken
            else sentence("No slot is offered to this request now.")
        )
        return joined([why, sentence("It keeps its place on the waitlist.")])


# --- notices ----------------------------------------------------------------------


def placed_text(told: NoticeValues) -> str:
    """Say where a request was placed, and until when it can be declined."""
    placed = sentence(
        "Your waiting request was booked: {booking}, {kind}.",
        booking=told.booking,
        kind=known(str(told.detail.get("kind", "flex"))),
    )
    until = (
        sentence(
            "You can decline it free of charge until {time}.",
            time=told.time("decline_until"),
        )
        if told.detail.get("decline_until")
        else sentence("It starts too soon to be declined. You can still cancel it.")
    )
    return joined([placed, until])


def planned_text(told: NoticeValues) -> str:
    """Say from when a start is reserved, or that firm time delayed it."""
    at = told.time("start")
    if told.detail.get("before"):
        return sentence(
            "The planned start of your waiting request moved from {before} "
            "to {at}, because of a firm booking or a closure.",
            before=told.time("before"),
            at=at,
        )
    return sentence(
        "Your waiting request has a planned start: {at}. Only a firm "
        "booking can delay it.",
        at=at,
    )


def lost_text(told: NoticeValues) -> str:
    """Say that a request ended without a placement."""
    return sentence(
        "Your waiting request has expired: no GPUs became free until {latest}.",
        latest=told.time("latest"),
    )


def short_notice_offer_text(told: NoticeValues) -> str:
    """Return the text of an offer on short notice, with its deadline."""
    return sentence(
        "A slot is offered to your waiting request: {start} to {end}. "
        "Accept it by {until}. Until then someone else can still book it.",
        start=told.time("start"),
        end=told.time("end"),
        until=told.time("until"),
    )
