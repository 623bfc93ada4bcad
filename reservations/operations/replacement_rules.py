"""Gpu B takes the place of Gpu A: which bookings go along, which cannot. Pure.

Nobody pays more for it: of the two weights, the booked one and B's, the lower counts
from then on, in the peak hours that were booked. What runs stays where its processes
are, until it is over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reservations.operations.evacuation_plan import EvacuatedBooking, by_right
from reservations.rules.calendar import CalendarGpu
from reservations.rules.closed_time import ClosureInfo
from reservations.rules.prices import Tariff
from reservations.rules.window import Window
from telemetry.protocol.sentences import sentence


class Carry(StrEnum):
    """What becomes of a booking on the Gpu that is replaced."""

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
    """One booking, and why it goes along or stays."""

    pk: int
    what: Carry
    with_pk: int | None = None
    """The Reservation that is in its way."""
    weight: int = 0
    """Of its part on the new Gpu."""
    less_gpu_seconds: int = 0
    """What it costs less from now on."""

    def to_json(self) -> dict[str, object]:
        """Return it as a preview keeps it."""
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
    """Return what becomes of each booking of the old Gpu.

    Args:
        held: (Reservation, Window) of what stands on the new Gpu.
        tariffs: by Reservation, what its part was booked at.
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
