"""The calendar for pages and programs: few queries, plain values."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NotRequired, TypedDict

from django.utils import timezone

from reservations.models import Allocation, Reservation, User
from reservations.rules.calendar import CalendarFlexRisk, CalendarGpu
from reservations.rules.lifecycle import Kind, State
from reservations.rules.overstay_terms import is_gap
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS, Policy
from reservations.rules.whole_nodes import engine_note
from reservations.store.account_tree import headed_accounts
from reservations.store.announced_closures import CalendarClosure, closures_page
from reservations.store.co_users import OwnExtras, own_extras
from reservations.store.drains import drain_reasons, gpu_drain_reasons
from reservations.store.gpu_rows import (
    DRAINS,
    OUT_SENTENCES,
    gpus_seen_by,
    short_reason,
)
from telemetry.protocol.sentences import joined, sentence
from telemetry.web.answer_types import UtcInstant

SHOWN = State.holding()
_FIELDS = (
    "reservation_id",
    "gpu_id",
    "start",
    "end",
    "reservation__kind",
    "reservation__state",
    "reservation__version",
    "reservation__purpose",
    "reservation__user_id",
    "reservation__user__display_name",
    "reservation__user__username",
    "reservation__membership__account_id",
    "reservation__membership__account__name",
    "reservation__membership__account__hue",
    "reservation__booked_end",
    "reservation__overstay",
)


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader of a calendar, with their rights to names and changes."""

    user_pk: int
    is_operator: bool
    headed: frozenset[int]
    """Accounts that the reader heads, with all below them."""
    names: bool
    """Whether the reader sees the names of holders."""

    @classmethod
    def owner(cls, user: User) -> "Reader":
        """Return the fields of a User's own entries."""
        return cls(user.pk, is_operator=False, headed=frozenset(), names=True)

    @classmethod
    def of(cls, user: User, policy: Policy) -> "Reader":
        """Return the rights of a User."""
        return cls(
            user_pk=user.pk,
            is_operator=user.is_operator,
            headed=headed_accounts(user),
            names=policy.names_visible or user.is_operator,
        )

    def sees_name(self, user_pk: int, account_pk: int) -> bool:
        """Return whether the reader sees the holder's name. Always for their own
        entries.
        """
        return self.names or user_pk == self.user_pk or account_pk in self.headed

    def may_edit(self, user_pk: int, account_pk: int) -> bool:
        """Return whether the reader may change this User's reservations."""
        return user_pk == self.user_pk or self.is_operator or account_pk in self.headed


class CalendarCoUser(TypedDict):
    """A person who shares a reservation."""

    id: int
    user: str
    """Name."""
    login: str


class CalendarEntry(TypedDict):
    """One reservation."""

    id: int
    gpu_ids: list[int]
    start: UtcInstant
    end: UtcInstant
    kind: str
    """firm or flex."""
    state: str
    """confirmed, active, ended, released, cancelled, displaced or refunded."""
    mine: bool
    """Whether the caller holds it."""
    user: str | None
    """Name of the holder. Null: the caller may not see it."""
    account: str
    """Name of the group that pays."""
    hue: int
    """Colour of the group: the angle on the colour wheel, in degrees."""
    purpose: str
    """Empty if the caller may not see it."""
    frozen: bool
    """Whether nobody can take this flex reservation any more."""
    gap: bool
    """Whether a job holds an unbooked gap, which yields to every booking."""
    overstay: UtcInstant | None
    """Start of the time past its booked end, which others may claim. Null: none."""
    stays_on: bool
    """Whether the caller asked to stay on past the end."""
    version: int
    """Number of the last change. A change names it."""
    editable: bool
    """Whether the caller may change it now."""


class CalendarPageEntry(CalendarEntry):
    """One reservation in the calendar."""

    shared: NotRequired[bool]
    """Whether another person shares it with the caller."""
    co_users: NotRequired[list[CalendarCoUser]]
    """The people with whom the caller shares it."""
    series: NotRequired[int | None]
    """Its series."""
    chance: NotRequired[CalendarFlexRisk]
    """Only for the caller's flex reservations that can be taken."""


class CalendarGpuEntry(TypedDict):
    """One GPU of the calendar."""

    id: int
    node: str
    index: int
    name: str
    gpu_class: str
    memory_total_bytes: int
    bookable: bool
    out: str
    """Why it cannot be booked, in few words. Empty: it can."""
    out_reason: str
    """The same in a sentence."""
    weight: float
    """Credits for one hour."""
    foreign: bool
    """Whether a process without a right to it uses it now."""
    favourite: bool
    """Whether it is a favourite of the caller."""
    whole_node: bool
    """Whether it is only booked with all other GPUs of its node."""
    engine_note: str
    """How Slurm gives it out, in a sentence. Empty: the portal gives it out."""


class PlainCalendar(TypedDict):
    """GPUs and their reservations between two instants."""

    gpus: list[CalendarGpuEntry]
    reservations: list[CalendarPageEntry]
    closures: list[CalendarClosure]
    now: UtcInstant
    grid_seconds: int
    """Reservations begin and end at multiples of it."""
    timezone: str
    """The portal's, an IANA name."""


def iso(at: datetime) -> str:
    """Return an instant as ISO 8601 in UTC, to the second, with Z."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def calendar_entry(
    reservation: Reservation,
    *,
    gpu_ids: Collection[int],
    reader: Reader,
    policy: Policy,
    now: datetime,
) -> CalendarEntry:
    """Return one loaded Reservation in the form of the calendar."""
    user, account = reservation.user, reservation.membership.account
    return _entry(
        (
            reservation.pk,
            None,
            reservation.start,
            reservation.end,
            reservation.kind,
            reservation.state,
            reservation.version,
            reservation.purpose,
            user.pk,
            user.display_name,
            user.username,
            account.pk,
            account.name,
            account.hue,
            reservation.booked_end,
            reservation.overstay,
        ),
        gpu_ids=sorted(gpu_ids),
        reader=reader,
        freeze=timedelta(seconds=policy.freeze_seconds),
        now=now,
    )


def _entry(
    row: tuple,  # type: ignore[type-arg]
    *,
    gpu_ids: list[int],
    reader: Reader,
    freeze: timedelta,
    now: datetime,
) -> CalendarPageEntry:
    (
        pk,
        _gpu,
        start,
        end,
        kind,
        state,
        version,
        purpose,
        user_pk,
        shown,
        login,
        account_pk,
        account,
        hue,
        booked_end,
        stays_on,
    ) = row
    mine = user_pk == reader.user_pk
    named = reader.sees_name(user_pk, account_pk)
    live = state in (State.CONFIRMED, State.ACTIVE)
    gap = is_gap(start, booked_end)
    return {
        "id": pk,
        "gpu_ids": gpu_ids,
        "start": iso(start),
        "end": iso(end),
        "kind": kind,
        "state": state,
        "mine": mine,
        "user": (shown or login) if named else None,
        "account": account,
        "hue": hue,
        "purpose": purpose if named else "",
        "frozen": kind == Kind.FLEX and start - now <= freeze and not gap,
        # A Job holds an unbooked gap, which yields to every booking.
        "gap": gap,
        # The start of its overstay. From then on it may be claimed.
        "overstay": iso(booked_end) if live and end > booked_end else None,
        "stays_on": stays_on and mine,
        "version": version,
        "editable": live and reader.may_edit(user_pk, account_pk),
    }


@dataclass(frozen=True, slots=True)
class CalendarPage:
    """The calendar between two instants."""

    gpus: list[CalendarGpuEntry]
    reservations: list[CalendarPageEntry]
    closures: list[CalendarClosure]
    now: datetime
    grid_seconds: int

    def to_json(self) -> PlainCalendar:
        """Return it as the API sends it."""
        return {
            "gpus": self.gpus,
            "reservations": self.reservations,
            "closures": self.closures,
            "now": iso(self.now),
            "grid_seconds": self.grid_seconds,
            "timezone": timezone.get_current_timezone_name(),
        }


def calendar_page(
    start: datetime, end: datetime, *, reader: Reader, policy: Policy, now: datetime
) -> CalendarPage:
    """Read the calendar between two instants, in a handful of queries."""
    known, foreign = gpus_seen_by(reader.user_pk)
    reasons = drain_reasons(gpu.node for gpu in known if gpu.out)
    own_reasons = gpu_drain_reasons(gpu.pk for gpu in known if gpu.out == DRAINS)
    gpus: list[CalendarGpuEntry] = [
        {
            "id": gpu.pk,
            "node": gpu.node,
            "index": gpu.index,
            "name": gpu.name,
            "gpu_class": gpu.gpu_class,
            "memory_total_bytes": gpu.memory_total_bytes,
            "bookable": gpu.bookable,
            "out": short_reason(gpu.out),
            "out_reason": _out_reason(
                gpu, own_reasons.get(gpu.pk) or reasons.get(gpu.node, "")
            ),
            "weight": gpu.weight,
            "foreign": gpu.pk in foreign,
            "favourite": gpu.favourite,
            "whole_node": gpu.whole_node,
            "engine_note": _engine_note(gpu),
        }
        for gpu in known
    ]
    longest = timedelta(seconds=LONGEST_POSSIBLE_SECONDS)
    rows = (
        # The state is checked in Python. Otherwise SQLite would begin with it, and read
        # every Reservation that ever ended.
        Allocation.objects.filter(
            start__lt=end, start__gt=start - longest, end__gt=start
        )
        .order_by("reservation_id", "gpu_id")
        .values_list(*_FIELDS)
    )
    return CalendarPage(
        gpus=gpus,
        reservations=_with_own(
            _grouped(rows, reader=reader, policy=policy, now=now),
            own_extras(reader.user_pk, start, end),
        ),
        closures=closures_page(start, end, known, user_pk=reader.user_pk),
        now=now,
        grid_seconds=policy.grid_seconds,
    )


def _engine_note(gpu: CalendarGpu) -> str:
    if not gpu.engine:
        return ""
    return engine_note(gpu.node, whole_node=gpu.whole_node, because=gpu.whole_because)


def _out_reason(gpu: CalendarGpu, reason: str) -> str:
    """Return why a Gpu cannot be booked, as a sentence. Empty: it can."""
    if not gpu.out:
        return ""
    out = OUT_SENTENCES.get(gpu.out) or f"{gpu.out[:1].upper()}{gpu.out[1:]}."
    why = sentence("Reason: {reason}", reason=reason) if reason else ""
    return joined([out, why])


def _with_own(
    entries: Iterable[CalendarPageEntry], extras: dict[int, OwnExtras]
) -> list[CalendarPageEntry]:
    """Add fields only for the reader's own entries: co-users and Series."""
    found = list(entries)
    for entry in found:
        one = extras.get(entry["id"])
        if one is not None:
            entry["shared"] = one.shared
            entry["co_users"] = [
                {"id": pk, "user": name, "login": login}
                for pk, name, login in one.co_users
            ]
            entry["series"] = one.series_pk
    return found


def _grouped(
    rows: Iterable[tuple],  # type: ignore[type-arg]
    *,
    reader: Reader,
    policy: Policy,
    now: datetime,
) -> Iterable[CalendarPageEntry]:
    """Group the Allocations of each Reservation, which are consecutive.

    An entry may gain Gpus after it was yielded, so read to the end before using it.
    """
    freeze = timedelta(seconds=policy.freeze_seconds)
    last: CalendarPageEntry | None = None
    gpu_ids: list[int] = []
    for row in rows:
        if row[5] not in SHOWN:
            continue
        if last and last["id"] == row[0]:
            gpu_ids.append(row[1])
            continue
        gpu_ids = [row[1]]
        last = _entry(row, gpu_ids=gpu_ids, reader=reader, freeze=freeze, now=now)
        yield last
