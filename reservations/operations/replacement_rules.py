"""Which bookings of Gpu A move along to Gpu B, and which cannot. Pure.

Nobody pays more for it. From then on the lower of the booked weight and B's weight
counts, in the peak hours that were booked. A running booking stays on A until it ends,
because its processes cannot move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reservations.operations.evacuation_plan import EvacuatedBooking, by_right
from reservations.rules.calendar import CalendarGpu, ClosureInfo
from reservations.rules.prices import Tariff
from reservations.rules.window import Window
from telemetry.protocol.sentences import sentence


class Carry(StrEnum):
    """The outcome of a booking on the Gpu that is replaced."""

    CARRIED = "carried"
    RUNS = "runs"
    TAKEN = "taken"
    CLOSED = "closed"
    BOTH = "both"


WORDS = {
    Carry.CARRIED: sentence("moves to the new GPU"),
    Carry.RUNS: sentence("running: it stays until it ends"),
    Carry.TAKEN: sentence("conflict: the new GPU is booked then"),
    Carry.CLOSED: sentence("conflict: the new GPU is closed then"),
    Carry.BOTH: sentence("conflict: it holds both GPUs"),
}


@dataclass(frozen=True, slots=True)
class ReplacedBooking:
    """One booking, and why it moves or stays."""

    pk: int
    what: Carry
    with_pk: int | None = None
    """The Reservation that is in its way."""
    weight: int = 0
    """The weight of its part on the new Gpu."""
    less_gpu_seconds: int = 0
    """By how much its cost falls."""

    def to_json(self) -> dict[str, object]:
        """Return it as a preview stores it."""
        return {
            "reservation": self.pk,
            "what": self.what.value,
            "with": self.with_pk,
            "weight": self.weight,
        }


def carry(
    booked: Iterable[EvacuatedBooking],
    new: CalendarGpu,
    *,
    held: Sequence[tuple[int, Window]],
    closures: Collection[ClosureInfo],
    tariffs: Mapping[int, Tariff],
) -> list[ReplacedBooking]:
    """Return the outcome of each booking of the old Gpu.

    Args:
        held: (Reservation, Window) of the bookings on the new Gpu.
        tariffs: by Reservation, the tariff of its part.
    """
    found = []
    for one in by_right(booked):
        clash = next((pk for pk, window in held if window.meets(one.window)), None)
        if one.running:
            carried = ReplacedBooking(one.pk, Carry.RUNS)
        elif new.pk in {gpu.pk for gpu in one.gpus}:
            carried = ReplacedBooking(one.pk, Carry.BOTH)
        elif clash is not None:
            carried = ReplacedBooking(one.pk, Carry.TAKEN, with_pk=clash)
        elif any(
            c.closes(new) and c.window.meets(one.window) and not c.admits(one.accounts)
            for c in closures
        ):
            carried = ReplacedBooking(one.pk, Carry.CLOSED)
        else:
            was = tariffs[one.pk]
            weight = min(was.flat, new.weight)
            less = was.cost(one.window) - was.lighter(weight).cost(one.window)
            carried = ReplacedBooking(
                one.pk, Carry.CARRIED, weight=weight, less_gpu_seconds=less
            )
        found.append(carried)
    return found
