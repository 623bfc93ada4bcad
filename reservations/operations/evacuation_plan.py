"""Decide for each booking on closed Gpus: move, cut, end or refund. Pure.

See docs/design/fair-booking.md#rule-7. In this order: an unstarted booking moves to
equal Gpus (same Pool), firm before flex, earlier before later. Without equal Gpus it
ends where the closed time begins, or is refunded in full if it begins inside. A running
booking is never moved, because a process cannot be. Equal Gpus are searched on the Node
of its other Gpus, then on one Node for all of them, so that it stays on one Node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from reservations.rules.calendar import CalendarGpu, ClosureInfo
from reservations.rules.prices import Rate, tariff_of
from reservations.rules.window import Window, unix


class BookingFate(StrEnum):
    """The outcome of a booking."""

    MOVED = "moved"
    CUT = "cut"
    ENDED = "ended"
    REFUNDED = "refunded"
    STAYS = "stays"


@dataclass(frozen=True, slots=True)
class EvacuatedBooking:
    """One live Reservation, with the values that an evacuation needs."""

    pk: int
    window: Window
    running: bool
    firm: bool
    gpus: tuple[CalendarGpu, ...]
    rate: Rate
    """Weighted Gpus: the cost of one second, as it was booked."""
    accounts: frozenset[int] = frozenset()
    """Accounts on the path of the payer. Their teaching slots are open to it."""


@dataclass(frozen=True, slots=True)
class EvacuationOutcome:
    """The outcome of one Reservation."""

    pk: int
    fate: BookingFate
    moves: tuple[tuple[int, int], ...] = ()
    """Old and new Gpu, by primary key."""
    until: datetime | None = None
    """Its new end, if it is cut."""
    back_gpu_seconds: int = 0
    """The cost that is returned and paid by nobody."""

    def to_json(self) -> dict[str, object]:
        """Return it as a preview stores it."""
        return {
            "reservation": self.pk,
            "fate": self.fate.value,
            "moves": [list(pair) for pair in self.moves],
            "until": unix(self.until) if self.until else None,
            "back_gpu_seconds": self.back_gpu_seconds,
        }


class GpuTimetable:
    """The held time of each Gpu while bookings are moved."""

    def __init__(
        self,
        gpus: Iterable[CalendarGpu],
        held: Mapping[int, Sequence[Window]],
        closures: Sequence[ClosureInfo] = (),
    ) -> None:
        self.gpus = sorted(gpus, key=lambda g: (g.node, g.index, g.pk))
        self._held = {pk: list(windows) for pk, windows in held.items()}
        self._closures = tuple(closures)

    def free(
        self, gpu: CalendarGpu, one: EvacuatedBooking, taken: Collection[int]
    ) -> bool:
        """Return whether a Gpu could take a booking over its whole Window.

        A node of another engine could not, because only the engine knows what is free.
        """
        return (
            gpu.bookable
            and not gpu.engine
            and gpu.pk not in taken
            and not any(w.meets(one.window) for w in self._held.get(gpu.pk, ()))
            and not any(
                c.closes(gpu)
                and c.window.meets(one.window)
                and not c.admits(one.accounts)
                for c in self._closures
            )
        )

    def record_move(self, moves: Iterable[tuple[int, int]], window: Window) -> None:
        """Record where a booking was moved."""
        for old, new in moves:
            self._held.setdefault(new, []).append(window)
            self._held[old] = [w for w in self._held.get(old, ()) if w != window]


def by_right(booked: Iterable[EvacuatedBooking]) -> list[EvacuatedBooking]:
    """Return bookings in the order in which other Gpus are searched for them."""
    return sorted(booked, key=lambda b: (not b.firm, b.window.start, b.pk))


def equal_gpus_elsewhere(
    one: EvacuatedBooking, shut: Collection[int], room: GpuTimetable
) -> tuple[tuple[int, int], ...] | None:
    """Return which equal Gpu replaces which. None: there are too few."""
    nodes = {gpu.node for gpu in one.gpus}
    leaving = [gpu for gpu in one.gpus if gpu.pk in shut]
    out = {gpu.pk for gpu in one.gpus} | set(shut)
    if (found := _match(leaving, one, room, out, own_node=True)) is not None:
        return found
    if len(nodes) > 1 or len(one.gpus) == 1:
        return _match(leaving, one, room, out)
    for node in sorted({gpu.node for gpu in room.gpus} - nodes):
        if (found := _match(one.gpus, one, room, out, node=node)) is not None:
            return found
    return None


def _match(
    leaving: Sequence[CalendarGpu],
    one: EvacuatedBooking,
    room: GpuTimetable,
    out: Collection[int],
    *,
    node: str = "",
    own_node: bool = False,
) -> tuple[tuple[int, int], ...] | None:
    """Return an equal free Gpu for each. ``out``: Gpus that are excluded."""
    taken = set(out)
    pairs = []
    for old in leaving:
        on = old.node if own_node else node
        new = next(
            (
                gpu
                for gpu in room.gpus
                if gpu.pool_pk == old.pool_pk
                and (not on or gpu.node == on)
                and room.free(gpu, one, taken)
            ),
            None,
        )
        if new is None:
            return None
        taken.add(new.pk)
        pairs.append((old.pk, new.pk))
    return tuple(pairs)


def relieve(
    booked: Iterable[EvacuatedBooking],
    shut: Collection[int],
    room: GpuTimetable,
    *,
    closed_from: datetime,
    now: datetime,
) -> Iterator[EvacuationOutcome]:
    """Yield the outcome of each booking when these Gpus close."""
    for one in by_right(booked):
        start, end = one.window.start, one.window.end
        if (
            not one.running
            and (moves := equal_gpus_elsewhere(one, shut, room)) is not None
        ):
            room.record_move(moves, one.window)
            yield EvacuationOutcome(one.pk, BookingFate.MOVED, moves=moves)
            continue
        until = max(closed_from, now if one.running else start)
        lost = tariff_of(one.rate).between(unix(until), unix(end))
        if one.running:
            fate = BookingFate.CUT if until > now else BookingFate.ENDED
        else:
            fate = BookingFate.CUT if start < closed_from else BookingFate.REFUNDED
        cut = until if fate is BookingFate.CUT else None
        yield EvacuationOutcome(one.pk, fate, until=cut, back_gpu_seconds=lost)


def vacate(
    booked: Iterable[EvacuatedBooking], shut: Collection[int], room: GpuTimetable
) -> Iterator[EvacuationOutcome]:
    """Yield the bookings that can leave draining Gpus. Running ones stay."""
    for one in by_right(booked):
        moves = None if one.running else equal_gpus_elsewhere(one, shut, room)
        if moves is None:
            yield EvacuationOutcome(one.pk, BookingFate.STAYS)
            continue
        room.record_move(moves, one.window)
        yield EvacuationOutcome(one.pk, BookingFate.MOVED, moves=moves)
