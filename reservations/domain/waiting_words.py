"""Why somebody cannot wait, and what those who wait are told.

Refusal
├── TooManyWaiting   as many requests as one person may have
├── NeverFits        Gpus that this site does not have
├── SpanTooShort     no room for the duration between the two times
├── SpanTooFar       further ahead than anybody may wait for
├── NotWaiting       placed, withdrawn or over meanwhile
├── NotDeclinable    a placement that is frozen or has begun
└── OfferLapsed      an offer that was not answered in time, or is taken
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import ClassVar

from reservations.domain.errors import Refusal
from reservations.domain.told import Told
from reservations.domain.words import time_text
from telemetry.domain.units import format_duration


@dataclass(eq=False)
class TooManyWaiting(Refusal):
    """As many waiting requests as one person may have."""

    code: ClassVar[str] = "too-many-waiting"
    title: ClassVar[str] = "Too many waiting requests"
    live: int
    most: int

    def text(self, zone: tzinfo = UTC) -> str:
        return (
            f"You have {self.live} waiting requests. The limit is {self.most}. "
            "Withdraw one first."
        )


@dataclass(eq=False)
class NeverFits(Refusal):
    """Nothing here fits, however long one waits."""

    code: ClassVar[str] = "never-fits"
    title: ClassVar[str] = "No such GPUs"
    asked: int
    there: int

    def text(self, zone: tzinfo = UTC) -> str:
        return (
            f"Of the GPUs you may book here {self.there or 'none'} "
            f"{'fits' if self.there == 1 else 'fit'}; {self.asked} were asked for. "
            "Waiting would not help."
        )


@dataclass(eq=False)
class SpanTooShort(Refusal):
    """The duration does not fit between the two times."""

    code: ClassVar[str] = "span-too-short"
    title: ClassVar[str] = "Too little time"
    earliest: datetime
    latest: datetime
    asked_seconds: int

    def text(self, zone: tzinfo = UTC) -> str:
        return (
            f"Between {time_text(self.earliest, zone)} and "
            f"{time_text(self.latest, zone)} there is no room for "
            f"{format_duration(self.asked_seconds)}."
        )


@dataclass(eq=False)
class SpanTooFar(Refusal):
    """It may be over later than anybody may wait for."""

    code: ClassVar[str] = "span-too-far"
    title: ClassVar[str] = "Too far ahead"
    latest: datetime
    most_seconds: int

    def text(self, zone: tzinfo = UTC) -> str:
        return f"You can wait for at most {format_duration(self.most_seconds)}."


@dataclass(eq=False)
class NotWaiting(Refusal):
    """It is placed, withdrawn or over."""

    code: ClassVar[str] = "not-waiting"
    title: ClassVar[str] = "It no longer waits"
    state: str
    act: str

    def text(self, zone: tzinfo = UTC) -> str:
        return f"A request that is {self.state} cannot be {self.act}."


@dataclass(eq=False)
class NotDeclinable(Refusal):
    """A placement inside its freeze: it can be cancelled at the usual price."""

    code: ClassVar[str] = "not-declinable"
    title: ClassVar[str] = "Too late to decline"
    frozen_at: datetime

    def text(self, zone: tzinfo = UTC) -> str:
        return (
            f"A placement can be declined until {time_text(self.frozen_at, zone)}. "
            "It can still be cancelled or released, at the usual price."
        )


@dataclass(eq=False)
class OfferLapsed(Refusal):
    """There is no offer, or not any more."""

    code: ClassVar[str] = "offer-lapsed"
    title: ClassVar[str] = "The offer has expired"
    taken: bool = False

    def text(self, zone: tzinfo = UTC) -> str:
        why = (
            "Someone else has booked this slot."
            if self.taken
            else "No slot is offered to this request now."
        )
        return f"{why} It keeps its place on the waitlist."


# --- what people are told ---------------------------------------------------------


def placed_words(told: Told) -> str:
    """Say where a request was placed, and until when it can be declined."""
    kind = told.detail.get("kind", "flex")
    until = (
        f"You can decline it free of charge until {told.time('decline_until')}."
        if told.detail.get("decline_until")
        else "It starts too soon to be declined. You can still cancel it."
    )
    return f"Your waiting request was booked: {told.booking}, {kind}. {until}"


def planned_words(told: Told) -> str:
    """Say from when a request's start is held, or that firm time pushed it back."""
    at = told.time("start")
    if told.detail.get("before"):
        return (
            f"The planned start of your waiting request moved from "
            f"{told.time('before')} to {at}, because of a firm booking or a closure."
        )
    return (
        f"Your waiting request has a planned start: {at}. Only a firm booking can "
        "delay it."
    )


def lost_words(told: Told) -> str:
    """Say that a request ended without time."""
    return (
        f"Your waiting request has expired: no GPUs became free until "
        f"{told.time('latest')}."
    )


def offered_words(told: Told) -> str:
    """Say what is offered on short notice, and how long."""
    return (
        f"A slot is offered to your waiting request: {told.time('start')} to "
        f"{told.time('end')}. Accept it by {told.time('until')}. Until then someone "
        "else can still book it."
    )
