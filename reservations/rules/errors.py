"""Why a request is refused, as data. The sentences are made from the fields.

    CodedError
    ├── Refusal                the rules say no
    │   ├── InThePast (overstay: OverBeforeFree), EndNotAfterStart, OffGrid, TooLong
    │   ├── BeyondHorizon
    │   ├── TooManyGpus, TooManyReservations, TooManyFlex
    │   ├── QuotaExceeded
    │   │   └── GroupQuotaExceeded
    │   ├── GpuTaken (displacement: FlexHeld), GpuNotBookable, NoGpus
    │   ├── MembershipNeeded
    │   ├── StaleVersion, NotChangeable (NothingLeft), UndoOver, CannotUndoBooking
    │   └── KeepUsed, ReasonNeeded
    ├── TooFast                too many requests in a minute
    ├── NotAllowed             the reader may not do this
    └── NotFound               unknown, or hidden from the reader

``next_slot`` is the next slot that would work, ``works_instead`` a part of the GPUs
that would work at the same time, ``longest_end`` the latest end that a running booking
could have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from http import HTTPStatus
from typing import ClassVar

from reservations.rules.calendar import Slot
from reservations.rules.figures import credits_text, steps_text, time_text
from reservations.rules.lifecycle import State
from reservations.rules.window import grid_ceil, grid_floor
from telemetry.protocol.coded_error import CodedError, json_ready
from telemetry.protocol.sentences import joined, known, sentence
from telemetry.protocol.units import format_duration


@dataclass(eq=False)
class Refusal(CodedError):
    """The rules refuse it. The search sets the slots, the decision ``judged_by``."""

    title = sentence("This cannot be done")
    status = HTTPStatus.CONFLICT
    curable: ClassVar[bool] = False
    """Whether another time or other Gpus may help."""
    on_any_gpus: ClassVar[bool] = False
    """Whether other Gpus of the same weight are refused at the same time, too."""
    next_slot: Slot | None = field(default=None, init=False, repr=False)
    works_instead: Slot | None = field(default=None, init=False, repr=False)
    """Those of the requested Gpus that would be granted at the same time."""
    longest_end: datetime | None = field(default=None, init=False, repr=False)
    """Of a running Reservation that cannot be extended that far. None: no later end
    than its present one would be granted."""
    judged_by: object = field(default=None, init=False, repr=False)

    @property
    def members(self) -> dict[str, object]:
        """Return the numbers, and the slots and the end that would work."""
        found = super().members
        if self.longest_end is not None:
            found["longest_end"] = json_ready(self.longest_end)
        for name in ("next_slot", "works_instead"):
            slot: Slot | None = getattr(self, name)
            if slot is not None:
                found[name] = {
                    "gpu_ids": list(slot.gpu_ids),
                    "start": json_ready(slot.start),
                    "end": json_ready(slot.end),
                }
        return found


@dataclass(eq=False)
class InThePast(Refusal):
    """The booking would be over already."""

    code = "in-the-past"
    title = sentence("In the past")
    curable: ClassVar[bool] = True
    end: datetime
    now: datetime

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "The end is {end}. It must be after {now}.",
            end=time_text(self.end, zone),
            now=time_text(self.now, zone),
        )


@dataclass(eq=False)
class EndNotAfterStart(Refusal):
    """The booking would end before or when it begins."""

    code = "end-not-after-start"
    title = sentence("No time between start and end")
    start: datetime
    end: datetime

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("The end is not after the start.")


@dataclass(eq=False)
class OffGrid(Refusal):
    """A start (other than now) or an end does not lie on the time grid."""

    code = "off-grid"
    title = sentence("Not a full step")
    curable: ClassVar[bool] = True
    edge: str
    at: datetime
    grid_seconds: int
    nearest: datetime

    def text(self, zone: tzinfo = UTC) -> str:
        before = grid_floor(self.at, self.grid_seconds).astimezone(zone)
        after = grid_ceil(self.at, self.grid_seconds).astimezone(zone)
        same_day = before.date() == after.date() == self.at.astimezone(zone).date()
        low, high = (
            f"{one:%H:%M}" if same_day else time_text(one, zone)
            for one in (before, after)
        )
        template = (
            sentence("Bookings start on full {steps}. Use {low} or {high}.")
            if self.edge == "start"
            else sentence("Bookings end on full {steps}. Use {low} or {high}.")
        )
        return sentence(
            template, steps=steps_text(self.grid_seconds), low=low, high=high
        )


@dataclass(eq=False)
class TooLong(Refusal):
    """The booking lasts longer than the limit, with those right before and after it."""

    code = "too-long"
    title = sentence("Too long")
    curable: ClassVar[bool] = True
    asked_seconds: int
    longest_seconds: int
    joined: bool
    """Whether it is too long only together with adjacent reservations."""

    def text(self, zone: tzinfo = UTC) -> str:
        asked = format_duration(self.asked_seconds)
        longest = format_duration(self.longest_seconds)
        if self.joined and asked == longest:
            return sentence(
                "Together with your bookings right before or after it, this one would "
                "last a little more than {longest}, the limit.",
                longest=longest,
            )
        if self.joined:
            return sentence(
                "Together with your bookings right before or after it, this one would "
                "last {asked}. The limit is {longest}.",
                asked=asked,
                longest=longest,
            )
        if asked == longest:
            return sentence(
                "This booking would last a little more than {longest}, the limit.",
                longest=longest,
            )
        return sentence(
            "This booking would last {asked}. The limit is {longest}.",
            asked=asked,
            longest=longest,
        )


@dataclass(eq=False)
class BeyondHorizon(Refusal):
    """The booking starts further ahead than the limit."""

    code = "beyond-horizon"
    title = sentence("Too far ahead")
    curable: ClassVar[bool] = True
    on_any_gpus: ClassVar[bool] = True
    start: datetime
    latest: datetime
    horizon_seconds: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "A reservation may begin at most {horizon_seconds} ahead, until {latest}.",
            horizon_seconds=format_duration(self.horizon_seconds),
            latest=time_text(self.latest, zone),
        )


@dataclass(eq=False)
class NoGpus(Refusal):
    """The request names no GPU."""

    code = "no-gpus"
    title = sentence("No GPU chosen")

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("Choose at least one GPU.")


@dataclass(eq=False)
class TooManyGpus(Refusal):
    """The person would hold more GPUs at one instant than the limit."""

    code = "too-many-gpus"
    title = sentence("Too many GPUs at once")
    curable: ClassVar[bool] = True
    on_any_gpus: ClassVar[bool] = True
    asked: int
    held: int
    most: int
    shared: int = 0
    """How many of ``held`` are shared with the requester by others."""

    @property
    def fits(self) -> int:
        """Return how many more Gpus the person may hold then."""
        return max(self.most - self.held, 0)

    def text(self, zone: tzinfo = UTC) -> str:
        together = self.asked + self.held
        limit = (
            sentence(
                "You would hold {together} GPUs at once. The limit is {most} "
                "(you already hold {held} then).",
                together=together,
                most=self.most,
                held=self.held,
            )
            if self.held
            else sentence(
                "You would hold {together} GPUs at once. The limit is {most}.",
                together=together,
                most=self.most,
            )
        )
        shared = (
            sentence(
                "{shared} of them are shared with you: leave a shared booking to book "
                "more.",
                shared=self.shared,
            )
            if self.shared
            else ""
        )
        return joined([limit, shared])


@dataclass(eq=False)
class TooManyReservations(Refusal):
    """The person has as many reservations ahead or running as the limit."""

    code = "too-many-reservations"
    title = sentence("Too many reservations")
    live: int
    most: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "You have {live} bookings ahead or running. The limit is "
            "{most}. You can book again when one ends or is cancelled.",
            live=self.live,
            most=self.most,
        )


@dataclass(eq=False)
class QuotaExceeded(Refusal):
    """The account would hold more than its quota in some 7 days around the request."""

    code = "quota-exceeded"
    title = sentence("Quota")
    curable: ClassVar[bool] = True
    on_any_gpus: ClassVar[bool] = True
    account: str
    window_start: datetime
    window_end: datetime
    would_hold_gpu_seconds: int
    quota_gpu_seconds: int
    asked_gpu_seconds: int
    fits_gpu_seconds: int
    flex_from: datetime
    """From when on the same request could be granted as flex."""

    def _template(self) -> str:
        return sentence(
            "Firm is not possible: from {start} to {end} your firm bookings would "
            "cost {hours}. Your quota is {quota}. {fits}"
        )

    def text(self, zone: tzinfo = UTC) -> str:
        fits = (
            sentence(
                "{credits} would fit as firm.",
                credits=credits_text(self.fits_gpu_seconds),
            )
            if self.fits_gpu_seconds
            else sentence("Nothing more fits as firm in these 7 days.")
        )
        return sentence(
            self._template(),
            start=time_text(self.window_start, zone),
            end=time_text(self.window_end, zone),
            hours=credits_text(self.would_hold_gpu_seconds),
            quota=credits_text(self.quota_gpu_seconds),
            account=self.account,
            fits=fits,
        )


@dataclass(eq=False)
class GroupQuotaExceeded(QuotaExceeded):
    """An account between the group and the root would hold more than its quota."""

    code = "group-quota-exceeded"
    title = sentence("Quota of the group")

    def _template(self) -> str:
        return sentence(
            "Firm is not possible: from {start} to {end} the firm bookings of "
            "{account} would cost {hours}. Its quota is {quota}. {fits}"
        )


@dataclass(eq=False)
class TooManyFlex(Refusal):
    """The person has as many flex bookings ahead as the limit."""

    code = "too-many-flex"
    title = sentence("Too many flex reservations")
    curable: ClassVar[bool] = True
    on_any_gpus: ClassVar[bool] = True
    live: int
    most: int
    why_not_firm: QuotaExceeded | None = None

    def text(self, zone: tzinfo = UTC) -> str:
        flex = sentence(
            "Flex is not possible either: you have {live} flex bookings ahead. The "
            "limit is {most}.",
            live=self.live,
            most=self.most,
        )
        return joined([self.why_not_firm.text(zone) if self.why_not_firm else "", flex])


@dataclass(eq=False)
class GpuTaken(Refusal):
    """Another booking holds a GPU at that time."""

    code = "gpu-taken"
    title = sentence("GPU taken")
    curable: ClassVar[bool] = True
    gpu: str
    start: datetime
    end: datetime
    user: str = ""
    """Empty if names are hidden."""

    def text(self, zone: tzinfo = UTC) -> str:
        times = {
            "gpu": self.gpu,
            "start": time_text(self.start, zone),
            "end": time_text(self.end, zone),
        }
        if not self.user:
            return sentence("{gpu} is taken from {start} to {end}.", **times)
        return sentence(
            "{gpu} is taken by {user} from {start} to {end}.", user=self.user, **times
        )


@dataclass(eq=False)
class GpuNotBookable(Refusal):
    """The GPU is unknown, retired, lost or under maintenance."""

    code = "gpu-not-bookable"
    title = sentence("GPU not bookable")
    curable: ClassVar[bool] = True
    gpu: str
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("{gpu} cannot be booked: {why}.", gpu=self.gpu, why=self.why)


@dataclass(eq=False)
class MembershipNeeded(Refusal):
    """The user has no right to book, or has several and must choose."""

    code = "membership-needed"
    title = sentence("Group needed")
    accounts: tuple[str, ...] = ()

    def text(self, zone: tzinfo = UTC) -> str:
        if not self.accounts:
            return sentence(
                "You are in no group that can book. Ask your lab admin or "
                "the head of a group to add you."
            )
        return sentence(
            "Choose the group that pays: {accounts}.", accounts=", ".join(self.accounts)
        )


@dataclass(eq=False)
class StaleVersion(Refusal):
    """The reservation changed after it was shown."""

    code = "stale-version"
    title = sentence("Changed meanwhile")
    shown: int
    stored: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "This booking has changed in the meantime. Reload the page and try again."
        )


@dataclass(eq=False)
class NotChangeable(Refusal):
    """The reservation's state does not allow this change."""

    code = "not-changeable"
    title = sentence("Not possible any more")
    state: str
    act: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "A booking that is {state} cannot be {act}.",
            state=known(self.state),
            act=known(self.act),
        )


@dataclass(eq=False)
class NothingLeft(NotChangeable):
    """A return in part would return all of the booking."""

    title = sentence("Nothing would be left")

    def text(self, zone: tzinfo = UTC) -> str:
        return (
            sentence("That would return all of the booking. End it instead.")
            if self.state == State.ACTIVE
            else sentence("That would return all of the booking. Cancel it instead.")
        )


@dataclass(eq=False)
class UndoOver(Refusal):
    """The seconds in which a cancellation can be undone are over."""

    code = "undo-over"
    title = sentence("Too late to undo")
    undo_seconds: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "You can undo a cancellation for {undo_seconds} s. Book the time again.",
            undo_seconds=self.undo_seconds,
        )


@dataclass(eq=False)
class CannotUndoBooking(Refusal):
    """The booking is too old to be undone, is in use, or displaced another one."""

    code = "cannot-undo-booking"
    title = sentence("Cannot be undone")
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "This booking cannot be undone: {why}. You can still cancel it "
            "or give it back.",
            why=self.why,
        )


@dataclass(eq=False)
class KeepUsed(Refusal):
    """Keep was pressed before. It works once per reservation."""

    code = "keep-used"
    title = sentence("Keep was used")

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("You can press Keep once per booking, and you have used it.")


@dataclass(eq=False)
class ReasonNeeded(Refusal):
    """The booking belongs to another person, so the audit log needs a reason."""

    code = "reason-needed"
    title = sentence("Reason needed")

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "This booking is someone else's. Give a reason; its owner sees it."
        )


@dataclass(eq=False)
class TooFast(CodedError):
    """The person sent more requests in a minute than the limit."""

    code = "too-fast"
    title = sentence("Too many requests")
    status = HTTPStatus.TOO_MANY_REQUESTS
    per_minute: int
    retry_seconds: int = 0
    """Until the next minute begins."""

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Too many requests: the limit is {per_minute} per minute. Wait a moment.",
            per_minute=self.per_minute,
        )


@dataclass(eq=False)
class NotAllowed(CodedError):
    """The reader may not do this."""

    code = "not-allowed"
    title = sentence("Not allowed")
    status = HTTPStatus.FORBIDDEN
    act: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("You may not {act}.", act=self.act)


@dataclass(eq=False)
class NotFound(CodedError):
    """It does not exist, or the reader may not see it."""

    code = "not-found"
    title = sentence("Not found")
    status = HTTPStatus.NOT_FOUND
    what: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("There is no {what}.", what=self.what)
