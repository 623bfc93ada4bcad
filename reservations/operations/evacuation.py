"""Clear Gpus of bookings: move them to equal Gpus, cut, end or refund them.

Order of locks: the Gpus of every Pool involved (pk order), then the Reservations (pk
order). A booking locks its Gpus first, so none is made meanwhile.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import F

from reservations.booking import refunds
from reservations.booking.overstay import clear_gaps
from reservations.booking.release import _release
from reservations.models import Allocation, Notice, Reservation, User
from reservations.notifications import holder_notices
from reservations.notifications import service as notices
from reservations.operations.evacuation_plan import (
    BookingFate,
    EvacuatedBooking,
    EvacuationOutcome,
    GpuTimetable,
)
from reservations.rules.calendar import CalendarGpu, ClosureInfo
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from reservations.rules.prices import cost_gpu_seconds
from reservations.rules.window import Window
from reservations.store import ledger
from reservations.store.account_tree import parent_pks, path_up
from reservations.store.booking_facts import closures_between
from reservations.store.gpu_rows import calendar_gpus
from telemetry.models import Gpu
from telemetry.protocol.sentences import sentence


@dataclass(frozen=True, slots=True)
class EvacuatedGpus:
    """The bookings on Gpus that are to be cleared, and the free Gpus elsewhere."""

    booked: tuple[EvacuatedBooking, ...]
    rows: Mapping[int, Reservation]
    gpus: Mapping[int, CalendarGpu]
    room: GpuTimetable


@dataclass(frozen=True, slots=True)
class EvacuationReason:
    """The reason for the notices and for the audit log."""

    reason: str
    detail: Mapping[str, object]
    actor: User | None
    now: datetime
    policy: Policy
    key: str = ""
    """A Notice with the same key is sent once."""


def read(
    gpu_pks: Collection[int],
    start: datetime,
    end: datetime | None,
    *,
    exempt: int | None = None,
    closures: Sequence[ClosureInfo] = (),
    also: Collection[int] = (),
    lock: bool = False,
) -> EvacuatedGpus:
    """Return the bookings on Gpus within [start, end), and the free Gpus elsewhere.

    Args:
        end: None: for ever.
        exempt: an Account whose bookings stay, with those of its descendants.
        closures: in addition to the existing ones.
        also: further Gpus to lock, with their Pools.
        lock: whether the evacuation is about to be carried out.
    """
    parents = parent_pks()
    rows = _rows(gpu_pks, start, end)
    allocations = _allocations(list(rows))
    on = {a.gpu_id for a in allocations} | set(gpu_pks) | set(also)
    pools = Gpu.objects.filter(pk__in=on).order_by().values("pool_id")
    near = Gpu.objects.filter(pool_id__in=list({row["pool_id"] for row in pools}))
    if lock and connection.features.has_select_for_update:
        list(near.order_by("pk").select_for_update(no_key=True).values_list("pk"))
        held = Reservation.objects.filter(pk__in=_rows(gpu_pks, start, end))
        list(
            held.order_by("pk")
            .select_for_update(no_key=True, of=("self",))
            .values_list("pk")
        )
        rows = _rows(gpu_pks, start, end)
        allocations = _allocations(list(rows))
    known = {gpu.pk: gpu for gpu in calendar_gpus(near.order_by("pk"))}
    booked = []
    for pk, row in sorted(rows.items()):
        path = frozenset(path_up(row.membership.account_id, parents))
        if exempt in path:
            continue
        own = [a for a in allocations if a.reservation_id == pk]
        booked.append(
            EvacuatedBooking(
                pk=pk,
                window=Window(row.start, row.end),
                running=row.state == State.ACTIVE,
                firm=row.kind == Kind.FIRM,
                gpus=tuple(known[a.gpu_id] for a in own),
                rate=ledger.rate_of(row, own),
                accounts=path,
            )
        )
    return EvacuatedGpus(
        tuple(booked), rows, known, _gpu_timetable(known, booked, closures)
    )


def _rows(
    gpu_pks: Collection[int], start: datetime, end: datetime | None
) -> dict[int, Reservation]:
    held = Allocation.objects.filter(gpu_id__in=gpu_pks, live=True, end__gt=start)
    if end is not None:
        held = held.filter(start__lt=end)
    rows = (
        Reservation.objects.live()
        .filter(pk__in=held.order_by().values("reservation_id"), end__gt=start)
        .select_related("user", "membership__account")
        .order_by("pk")
    )
    return {row.pk: row for row in rows}


def _allocations(pks: Collection[int]) -> list[Allocation]:
    rows = Allocation.objects.filter(reservation_id__in=pks, live=True)
    return list(
        rows.select_related("gpu__node", "gpu__pool").order_by(
            "reservation_id", "gpu_id"
        )
    )


def _gpu_timetable(
    known: Mapping[int, CalendarGpu],
    booked: Sequence[EvacuatedBooking],
    closures: Sequence[ClosureInfo],
) -> GpuTimetable:
    if not booked:
        return GpuTimetable((), {})
    low = min(one.window.start for one in booked)
    high = max(one.window.end for one in booked)
    held: dict[int, list[Window]] = {}
    rows = Allocation.objects.filter(
        # Jobs in gaps yield to bookings that are moved to their Gpus.
        reservation__booked_end__gt=F("reservation__start"),
        gpu_id__in=list(known),
        live=True,
        start__lt=high,
        end__gt=low,
    )
    for gpu, start, end in rows.order_by().values_list("gpu_id", "start", "end"):
        held.setdefault(gpu, []).append(Window(start, end))
    changed = {one.pk for one in closures}
    standing = [c for c in closures_between(low, high) if c.pk not in changed]
    return GpuTimetable(known.values(), held, [*standing, *closures])


def carry_out(
    relief: EvacuationOutcome, leaving: EvacuatedGpus, why: EvacuationReason
) -> None:
    """Store the outcome of one Reservation, and notify its holder."""
    row = leaving.rows[relief.pk]
    if relief.fate is BookingFate.STAYS:
        return
    if relief.fate is BookingFate.MOVED:
        names = {
            leaving.gpus[old].label: leaving.gpus[new].label
            for old, new in relief.moves
        }
        move(row, relief.moves, names, why)
        return
    if relief.fate is BookingFate.CUT:
        assert relief.until is not None
        _cut(row, relief.until, why)
    elif relief.fate is BookingFate.ENDED:
        _release(
            row, user=None, at=why.now, reason=why.reason, permille=0, policy=why.policy
        )
    else:
        refunds.refund(
            row, now=why.now, reason=why.reason, policy=why.policy, told=True
        )
    refunds.give_voucher(row, now=why.now, reason=why.reason)
    notices.notify(
        user=row.user,
        kind=Notice.Kind.MAINTENANCE,
        reservation=row,
        detail={
            **why.detail,
            "fate": relief.fate.value,
            "reason": why.reason,
            "until": relief.until.isoformat() if relief.until else None,
            "back_gpu_seconds": relief.back_gpu_seconds,
        },
        now=why.now,
        key=f"{why.key}:{row.pk}" if why.key else "",
    )


def move(
    row: Reservation,
    moves: Sequence[tuple[int, int]],
    names: Mapping[str, str],
    why: EvacuationReason,
) -> None:
    """Move Allocations to other Gpus. They keep their booked weights."""
    clear_gaps([new for _old, new in moves], row.start, now=why.now)
    for old, new in moves:
        Allocation.objects.filter(reservation=row, gpu_id=old, live=True).update(
            gpu_id=new
        )
    Reservation.objects.filter(pk=row.pk).update(version=row.version + 1)
    ledger.audit(
        "moved", row, actor=why.actor, now=why.now, reason=why.reason, gpus=dict(names)
    )
    refunds.publish(row, why.policy)
    holder_notices.moved(row, names, reason=why.reason, now=why.now)


def _cut(row: Reservation, until: datetime, why: EvacuationReason) -> None:
    """End a Reservation earlier. The part before stays as it was booked."""
    was = row.end
    rate = ledger.rate_of(row)
    ledger.release_hold(
        row, now=why.now, reason=sentence("cut: {reason}", reason=why.reason)[:200]
    )
    row.end = until
    row.cost_gpu_seconds = cost_gpu_seconds(Window(row.start, until), rate=rate)
    row.version += 1
    row.save(update_fields=["end", "cost_gpu_seconds", "version"])
    Allocation.objects.filter(reservation=row, live=True).update(end=until)
    ledger.hold(row, now=why.now, reason=sentence("shortened by a closure"))
    ledger.audit(
        "cut",
        row,
        actor=why.actor,
        now=why.now,
        reason=why.reason,
        was=was.isoformat(),
        until=until.isoformat(),
    )
    refunds.publish(row, why.policy)
