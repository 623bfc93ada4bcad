"""The present holder of each Gpu, until when, and the next booking, for the board.

This joins readings, which have processes, with the calendar, which has people. The
content depends on the viewer: with or without names (a site setting; the operator
always sees them), and full command lines only of the viewer's own processes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, NotRequired, TypedDict

from django.conf import settings
from django.utils.translation import get_language

from gpuportal.board.slurm_holders import (
    NO_SLURM,
    SlurmBoard,
    SlurmHolding,
    SlurmPerson,
    load_slurm,
)
from placement.models import Job
from reservations.models import Allocation, User
from reservations.presence.queries import PRESENCE_FIELDS, pending_releases
from reservations.presence.release_warnings import PendingRelease, ReleaseWarning
from reservations.rules.engine_names import reservation_of
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS
from reservations.store.co_users import co_user_pks
from telemetry.live.broadcast import Detail, DetailProcess
from telemetry.rules.command_line import short_command
from telemetry.web.answer_types import UtcInstant
from telemetry.web.translation import translated_values

HORIZON = timedelta(days=15)
"""How far ahead "next" looks: a day more than the calendar's horizon."""
LONGEST = timedelta(seconds=LONGEST_POSSIBLE_SECONDS)


@dataclass(frozen=True, slots=True)
class Viewer:
    """The viewer of a board."""

    user_pk: int
    username: str
    unix_user: str
    operator: bool
    named: bool
    """Whether other people's names are shown."""

    def runs(self, process: DetailProcess, owner: "JobOwner | None") -> bool:
        """Whether a process is the viewer's own."""
        if process["job"] is not None:
            return owner is not None and owner.user_pk == self.user_pk
        return process["user"] is not None and process["user"] == (
            self.unix_user or self.username
        )


@dataclass(frozen=True, slots=True)
class JobOwner:
    """The owner of a Job, and where it runs."""

    user_pk: int
    username: str
    node: str


Owners = Mapping[int, JobOwner | None]
"""Jobs by primary key. None: there is no such Job."""


@dataclass(frozen=True, slots=True)
class LiveBooking:
    """One live Allocation."""

    gpu_id: int
    start: datetime
    end: datetime
    reservation: int
    user_pk: int
    user: str
    account: str
    hue: int
    co_users: frozenset[int] = frozenset()
    """People with whom the holder shares it."""
    looming: PendingRelease | None = None
    """The reason for which it is about to be released."""


@dataclass(frozen=True, slots=True)
class GpuHolding:
    """A Gpu's present holder and next booking."""

    now: LiveBooking | None
    next: LiveBooking | None
    free_from: datetime | None
    """When it becomes free, adjacent bookings included; None: now."""


@dataclass(frozen=True, slots=True)
class BoardSnapshot:
    """Every Gpu with a present or future booking."""

    holdings: Mapping[int, GpuHolding]
    people: frozenset[int]
    """Holders, next holders and co-users, who read texts about their bookings."""
    changes_at: datetime | None
    """When it changes next without any action."""
    slurm: SlurmBoard = NO_SLURM


def viewer_of(user: User, *, names_visible: bool) -> Viewer:
    """Return what a User may see."""
    return Viewer(
        user_pk=user.pk,
        username=user.username,
        unix_user=user.unix_user,
        operator=user.is_operator,
        named=names_visible or user.is_operator,
    )


def load_board(now: datetime) -> BoardSnapshot:
    """Read the holders of all Gpus, with three queries for any number of Gpus, and two
    more with Slurm."""
    rows = (
        # Bounds on both sides make SQLite search by the end, not by the Gpu.
        Allocation.objects.filter(
            live=True,
            end__gt=now,
            start__lt=now + HORIZON,
            end__lt=now + HORIZON + LONGEST,
        )
        .order_by("gpu_id", "start")
        .values_list(
            "gpu_id",
            "start",
            "end",
            "reservation_id",
            "reservation__user_id",
            "reservation__user__display_name",
            "reservation__user__username",
            "reservation__membership__account__title",
            "reservation__membership__account__name",
            "reservation__membership__account__hue",
            *PRESENCE_FIELDS,
        )
    )
    found = list(rows)
    shared = co_user_pks({row[3] for row in found})
    looming = pending_releases([(row[3], row[1], *row[10:]) for row in found], now)
    nobody = frozenset[int]()
    bookings = [
        LiveBooking(
            gpu,
            start,
            end,
            number,
            user,
            display or login,
            title or name,
            hue,
            shared.get(number, nobody),
            looming.get(number),
        )
        for gpu, start, end, number, user, display, login, title, name, hue, *_ in found
    ]
    moments = [at for b in bookings for at in (b.start, b.end) if at > now]
    holdings = {
        gpu_id: holding(list(part), now)
        for gpu_id, part in groupby(bookings, key=attrgetter("gpu_id"))
    }
    shown = [b for found in holdings.values() for b in (found.now, found.next)]
    slurm = load_slurm()
    return BoardSnapshot(
        holdings=holdings,
        people=frozenset(
            pk for b in shown if b is not None for pk in (b.user_pk, *b.co_users)
        )
        | slurm.people,
        changes_at=min(moments, default=None),
        slurm=slurm,
    )


def holding(bookings: list[LiveBooking], now: datetime) -> GpuHolding:
    """Return holder and successor from one Gpu's bookings, ordered by start."""
    held = [b for b in bookings if b.start <= now < b.end]
    coming = [b for b in bookings if b.start > now]
    free_from = held[0].end if held else None
    for booking in coming:
        if free_from is None or booking.start > free_from:
            break
        free_from = max(free_from, booking.end)
    return GpuHolding(
        now=held[0] if held else None,
        next=coming[0] if coming else None,
        free_from=free_from,
    )


class NextBooking(TypedDict):
    """The next booking of a GPU."""

    user: str | None
    """Name. Null: the caller may not see it."""
    account: str | None
    """The group. Null: Slurm gives the GPU out."""
    start: UtcInstant
    mine: bool
    shared: bool
    """Whether the caller shares it."""


class GpuUnderSlurm(TypedDict):
    """The use of a GPU that Slurm gives out."""

    held: bool
    """Whether a job or a reservation of Slurm has it."""
    job: int | None
    """Number of Slurm's job."""
    portal_job: int | None
    """The portal's job that it is. Null: it was not started from the portal."""
    reservation: str | None
    """Name of Slurm's reservation."""
    reason: str | None
    """Why it cannot be used, as Slurm reports it."""


class GpuHolder(TypedDict):
    """The holder of a GPU, and the next booking."""

    user: str | None
    """Name. Null: nobody, or the caller may not see it."""
    account: str | None
    """The group. Null: nobody holds it."""
    hue: int | None
    """Colour of the group: the angle on the colour wheel, in degrees."""
    until: UtcInstant | None
    mine: bool
    shared: bool
    """Whether the caller shares it."""
    reservation: int | None
    looming: ReleaseWarning | None
    """A coming release, for the holder only."""
    next: NextBooking | None
    free_from: UtcInstant | None
    """When it is free. Null: now."""
    slurm: NotRequired[GpuUnderSlurm]
    """Only of a GPU that Slurm gives out."""


def holders_for(snapshot: BoardSnapshot, viewer: Viewer) -> dict[str, GpuHolder]:
    """Return the `holders` of the board's message, as this viewer may see them."""
    slurm = {
        str(gpu_id): _slurm_holder(found, viewer)
        for gpu_id, found in snapshot.slurm.holdings.items()
    }
    return slurm | {
        str(gpu_id): _joined(
            _holder(found, viewer), slurm.get(str(gpu_id)), booking=found.now
        )
        for gpu_id, found in snapshot.holdings.items()
    }


def _joined(
    booked: GpuHolder, slurm: GpuHolder | None, *, booking: LiveBooking | None
) -> GpuHolder:
    """Join the calendar of a Gpu of Slurm with what Slurm says about it.

    If another job or reservation has it, that one is shown. It may be so until the
    booking is bound to the Gpus that Slurm chose (`reservations.engines.bound_cards`).
    """
    if slurm is None:
        return booked
    under = slurm["slurm"]
    name = under["reservation"] or ""
    holder = reservation_of(settings.SLURM_SITE, name)
    if booking is None or (under["held"] and holder != booking.reservation):
        return {**slurm, "next": booked["next"] or slurm["next"]}
    return {**booked, "slurm": under}


def _holder(found: GpuHolding, viewer: Viewer) -> GpuHolder:
    now, following = found.now, found.next
    return {
        "user": _name(now, viewer) if now else None,
        "account": now.account if now else None,
        "hue": now.hue if now else None,
        "until": _iso(now.end) if now else None,
        "mine": now is not None and now.user_pk == viewer.user_pk,
        "shared": now is not None and viewer.user_pk in now.co_users,
        "reservation": now.reservation if now else None,
        # Only for the holder: a coming release does not concern others.
        "looming": translated_values(now.looming.to_json())
        if now and now.looming and now.user_pk == viewer.user_pk
        else None,
        "next": {
            "user": _name(following, viewer),
            "account": following.account,
            "start": _iso(following.start),
            "mine": following.user_pk == viewer.user_pk,
            "shared": viewer.user_pk in following.co_users,
        }
        if following
        else None,
        "free_from": _iso(found.free_from) if found.free_from else None,
    }


def _slurm_holder(found: SlurmHolding, viewer: Viewer) -> GpuHolder:
    """Return the holder of a Gpu that Slurm gives out."""
    return {
        "user": _slurm_name(found.person, viewer),
        "account": found.account or None,
        "hue": None,
        "until": _iso(found.until) if found.until else None,
        "mine": found.person.user_pk == viewer.user_pk,
        "shared": False,
        "reservation": None,
        "looming": None,
        "next": {
            "user": _slurm_name(found.next_person, viewer),
            "account": None,
            "start": _iso(found.next_at),
            "mine": found.next_person.user_pk == viewer.user_pk,
            "shared": False,
        }
        if found.next_at
        else None,
        "free_from": None,
        "slurm": {
            "held": found.held,
            "job": found.job_id,
            "portal_job": found.portal_job,
            "reservation": found.reservation or None,
            "reason": found.reason or None,
        },
    }


def _slurm_name(person: SlurmPerson, viewer: Viewer) -> str | None:
    own = person.user_pk == viewer.user_pk
    return (person.name or None) if viewer.named or own else None


def _name(booking: LiveBooking, viewer: Viewer) -> str | None:
    own = booking.user_pk == viewer.user_pk
    return booking.user if viewer.named or own else None


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def audience_key(
    snapshot: BoardSnapshot, viewer: Viewer
) -> tuple[bool, int | None, str | None]:
    """Return a key. Viewers with the same key read exactly the same `holders`.

    Only the people concerned read sentences, in the active language.
    """
    if viewer.user_pk not in snapshot.people:
        return viewer.named, None, None
    return viewer.named, viewer.user_pk, get_language()


def holders_message(snapshot: BoardSnapshot, viewer: Viewer) -> str:
    """Return the board's `holders` message."""
    silent = [
        {"cluster": one.cluster, "since": _iso(one.since)}
        for one in snapshot.slurm.silent
    ]
    message = {
        "type": "holders",
        "holders": holders_for(snapshot, viewer),
        "silent": silent,
    }
    return json.dumps(message, separators=(",", ":"))


# --- details -------------------------------------------------------------------


def load_job_owners(job_ids: Iterable[int]) -> dict[int, JobOwner]:
    """Return the owners of these Jobs. Unknown ids are left out."""
    rows = Job.objects.filter(pk__in=list(job_ids)).values_list(
        "pk", "owner_id", "owner__username", "node__name"
    )
    return {
        pk: JobOwner(user_pk, username, node) for pk, user_pk, username, node in rows
    }


def jobs_in(detail: Detail) -> set[int]:
    """Return the Jobs to which a node's processes claim to belong."""
    return {
        process["job"]
        for gpu in detail["gpus"].values()
        for process in gpu["processes"] or ()
        if process["job"] is not None
    }


def detail_message(detail: Detail, owners: Owners, viewer: Viewer) -> str:
    """Return the board's `detail` message, as this viewer may see it."""
    gpus = {
        uuid: {
            **gpu,
            "processes": None
            if gpu["processes"] is None
            else [
                _process(process, detail["node"], owners, viewer)
                for process in gpu["processes"]
            ],
        }
        for uuid, gpu in detail["gpus"].items()
    }
    message = {"type": "detail", **detail, "gpus": gpus}
    return json.dumps(message, separators=(",", ":"))


def _process(
    process: DetailProcess,
    node: str,
    owners: Owners,
    viewer: Viewer,
) -> dict[str, Any]:
    """Return one process. Its owner and the operator see all of it."""
    owner = owners.get(process["job"]) if process["job"] is not None else None
    if owner is not None and owner.node != node:
        # A claim to a Job of another node is ignored.
        owner = None
    mine = viewer.runs(process, owner)
    shown = mine or viewer.operator
    return {
        "pid": process["pid"],
        "user": (owner.username if owner else process["user"])
        if shown or viewer.named
        else None,
        "command": process["command"] if shown else short_command(process["command"]),
        "memory_bytes": process["memory_bytes"],
        "sm_pct": process["sm_pct"],
        "started_at": process["started_at"],
        "job": process["job"] if owner is not None else None,
        "mine": mine,
    }


def runners_in(detail: Detail, owners: Owners) -> set[int | str]:
    """Return the owners of the processes there: login names, and Users by primary
    key."""
    found: set[int | str] = set()
    for gpu in detail["gpus"].values():
        for process in gpu["processes"] or ():
            owner = owners.get(process["job"]) if process["job"] is not None else None
            if owner is not None:
                found.add(owner.user_pk)
            elif process["user"] is not None:
                found.add(process["user"])
    return found
