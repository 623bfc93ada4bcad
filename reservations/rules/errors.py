"""Why a request is refused, as data; the words are made from the fields.

    BookingError
    ├── Refusal                the rules say no
    │   ├── InThePast (overstay: OverBeforeFree), OffGrid, TooLong, BeyondHorizon
    │   ├── TooManyGpus, TooManyReservations, TooManyFlex
    │   ├── QuotaExceeded
    │   │   └── GroupQuotaExceeded
    │   ├── GpuTaken (displacement: FlexHeld), GpuNotBookable, NoGpus
    │   ├── MembershipNeeded
    │   ├── StaleVersion, NotChangeable, UndoOver, CannotUndoBooking
    │   └── KeepUsed, ReasonNeeded
    ├── TooFast                too many requests in a minute
    ├── NotAllowed             not yours
    └── NotFound               no such thing, or not for your eyes

``code`` is stable and for programs; ``text`` is for people, in the site's zone;
``next_slot`` is the next one that would work, ``works_instead`` a part that would work
at once. Nothing here knows of HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, tzinfo
from typing import ClassVar

from reservations.rules.calendar import Slot
from reservations.rules.figures import credits_text, hours_text, steps_text, time_text
from reservations.rules.window import grid_ceil, grid_floor
from telemetry.protocol.sentences import joined, known, sentence
from telemetry.protocol.units import format_duration


def json_ready(value: object) -> object:
    """Return a field as JSON can carry it: instants in ISO 8601, UTC, with Z."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, BookingError):
        return {"code": value.code, **value.fields}
    return list(value) if isinstance(value, tuple) else value


@dataclass(eq=False)
class BookingError(Exception):
    """Root of the tree."""

    code: ClassVar[str] = "booking-error"
    title: ClassVar[str] = sentence("This cannot be done")

    @property
    def fields(self) -> dict[str, object]:
        """Return the typed fields by name, ready for JSON."""
        return {
            f.name: json_ready(getattr(self, f.name)) for f in fields(self) if f.init
        }

    def text(self, zone: tzinfo = UTC) -> str:
        """Return one or two sentences made from the fields."""
        return self.title

    def __str__(self) -> str:
        """Return the sentences, in UTC."""
        return self.text()


@dataclass(eq=False)
class Refusal(BookingError):
    """No, by the rules. Who searched sets the slots, who judged ``judged_by``."""

    code: ClassVar[str] = "refused"
    curable: ClassVar[bool] = False
    """Another time or other Gpus may cure it."""
    on_any_gpus: ClassVar[bool] = False
    """Other Gpus of the same weight are refused at the same time, too."""
    next_slot: Slot | None = field(default=None, init=False, repr=False)
    works_instead: Slot | None = field(default=None, init=False, repr=False)
    """A part of the Gpus asked for, at the same time, that would be granted."""
    judged_by: object = field(default=None, init=False, repr=False)


@dataclass(eq=False)
class InThePast(Refusal):
    """The Window is over before it begins, or by now: ``now`` is the later one."""

    code: ClassVar[str] = "in-the-past"
    title: ClassVar[str] = sentence("In the past")
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
class OffGrid(Refusal):
    """A start (but now) or an end that does not stand on the grid."""

    code: ClassVar[str] = "off-grid"
    title: ClassVar[str] = sentence("Not a full step")
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
    """Longer than one reservation may be, back-to-back ones included."""

    code: ClassVar[str] = "too-long"
    title: ClassVar[str] = sentence("Too long")
    curable: ClassVar[bool] = True
    asked_seconds: int
    longest_seconds: int
    joined: bool
    """Too long only together with own ones that touch it."""

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
    """Begins further ahead than may be booked."""

    code: ClassVar[str] = "beyond-horizon"
    title: ClassVar[str] = sentence("Too far ahead")
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
    """A request for nothing."""

    code: ClassVar[str] = "no-gpus"
    title: ClassVar[str] = sentence("No GPU chosen")

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("Choose at least one GPU.")


@dataclass(eq=False)
class TooManyGpus(Refusal):
    """More Gpus at one instant than one person may hold."""

    code: ClassVar[str] = "too-many-gpus"
    title: ClassVar[str] = sentence("Too many GPUs at once")
    curable: ClassVar[bool] = True
    on_any_gpus: ClassVar[bool] = True
    asked: int
    held: int
    most: int
    shared: int = 0
    """How many of ``held`` belong to others, who share them with the requester."""

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
    """As many live reservations as one person may have."""

    code: ClassVar[str] = "too-many-reservations"
    title: ClassVar[str] = sentence("Too many reservations")
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
    """Some 7 days that touch the request would hold more than the quota."""

    code: ClassVar[str] = "quota-exceeded"
    title: ClassVar[str] = sentence("Quota")
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
    """From when on the same request could be had as flex."""

    def _template(self) -> str:
        return sentence(
            "Firm is not possible: {start} to {end} would hold {hours} of your "
            "{quota}. {fits}"
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
            hours=hours_text(self.would_hold_gpu_seconds),
            quota=credits_text(self.quota_gpu_seconds),
            account=self.account,
            fits=fits,
        )


@dataclass(eq=False)
class GroupQuotaExceeded(QuotaExceeded):
    """The same, of an Account on the way to the root."""

    code: ClassVar[str] = "group-quota-exceeded"
    title: ClassVar[str] = sentence("Quota of the group")

    def _template(self) -> str:
        return sentence(
            "Firm is not possible: {start} to {end} would hold {hours} of {account}'s "
            "{quota}. {fits}"
        )


@dataclass(eq=False)
class TooManyFlex(Refusal):
    """As many flex reservations ahead as one person may have."""

    code: ClassVar[str] = "too-many-flex"
    title: ClassVar[str] = sentence("Too many flex reservations")
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
    """Somebody holds a Gpu in the Window."""

    code: ClassVar[str] = "gpu-taken"
    title: ClassVar[str] = sentence("GPU taken")
    curable: ClassVar[bool] = True
    gpu: str
    start: datetime
    end: datetime
    user: str = ""
    """Empty where names are hidden."""

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
    """A Gpu that is unknown, retired, lost or under maintenance."""

    code: ClassVar[str] = "gpu-not-bookable"
    title: ClassVar[str] = sentence("GPU not bookable")
    curable: ClassVar[bool] = True
    gpu: str
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("{gpu} cannot be booked: {why}.", gpu=self.gpu, why=self.why)


@dataclass(eq=False)
class MembershipNeeded(Refusal):
    """Nobody can book without a right to, and with several one must choose."""

    code: ClassVar[str] = "membership-needed"
    title: ClassVar[str] = sentence("Account needed")
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
    """Somebody changed the Reservation since it was shown."""

    code: ClassVar[str] = "stale-version"
    title: ClassVar[str] = sentence("Changed meanwhile")
    shown: int
    stored: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "This booking has changed in the meantime. Reload the page and try again."
        )


@dataclass(eq=False)
class NotChangeable(Refusal):
    """A move that the Reservation's state does not allow."""

    code: ClassVar[str] = "not-changeable"
    title: ClassVar[str] = sentence("Not possible any more")
    state: str
    act: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "A booking that is {state} cannot be {act}.",
            state=known(self.state),
            act=known(self.act),
        )


@dataclass(eq=False)
class UndoOver(Refusal):
    """The ten seconds of the undo are over."""

    code: ClassVar[str] = "undo-over"
    title: ClassVar[str] = sentence("Too late to undo")
    undo_seconds: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "You can undo a cancellation for {undo_seconds} s. Book the time again.",
            undo_seconds=self.undo_seconds,
        )


@dataclass(eq=False)
class CannotUndoBooking(Refusal):
    """A booking that is too old, in use, or displaced somebody."""

    code: ClassVar[str] = "cannot-undo-booking"
    title: ClassVar[str] = sentence("Cannot be undone")
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "This booking cannot be undone: {why}. You can still cancel it "
            "or give it back.",
            why=self.why,
        )


@dataclass(eq=False)
class KeepUsed(Refusal):
    """Keep was pressed before; once per Reservation."""

    code: ClassVar[str] = "keep-used"
    title: ClassVar[str] = sentence("Keep was used")

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("You can press Keep once per booking, and you have used it.")


@dataclass(eq=False)
class ReasonNeeded(Refusal):
    """Who acts for somebody else says why: it goes into the audit log."""

    code: ClassVar[str] = "reason-needed"
    title: ClassVar[str] = sentence("Reason needed")

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "This booking is someone else's. Give a reason; its owner sees it."
        )


@dataclass(eq=False)
class TooFast(BookingError):
    """More requests in a minute than one person may send."""

    code: ClassVar[str] = "too-fast"
    title: ClassVar[str] = sentence("Too many requests")
    per_minute: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "Too many requests: the limit is {per_minute} per minute. Wait a moment.",
            per_minute=self.per_minute,
        )


@dataclass(eq=False)
class NotAllowed(BookingError):
    """A thing that is not the reader's to change."""

    code: ClassVar[str] = "not-allowed"
    title: ClassVar[str] = sentence("Not allowed")
    act: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("You may not {act}.", act=self.act)


@dataclass(eq=False)
class NotFound(BookingError):
    """No such thing, or not for the reader's eyes."""

    code: ClassVar[str] = "not-found"
    title: ClassVar[str] = sentence("Not found")
    what: str

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("There is no {what}.", what=self.what)
