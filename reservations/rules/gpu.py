"""A Gpu as the calendar and the decisions know it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from reservations.rules.prices import PeakHours, Tariff


@dataclass(frozen=True, slots=True)
class CalendarGpu:
    """What the calendar knows of a Gpu (a frozen copy of the row)."""

    pk: int
    node: str
    index: int
    gpu_class: str
    memory_total_bytes: int
    weight: int
    """Cost of one second of it, outside peak hours, in weighted GPU-seconds."""
    bookable: bool = True
    name: str = ""
    """Product name, as the driver tells it."""
    pool_pk: int = 0
    out: str = ""
    """Why it cannot be booked, in words; empty where it can."""
    restricted: bool = False
    """Its pool is kept for some accounts."""
    limited: bool = False
    """Its pool has quotas of its own."""
    favourite: bool = False
    """Starred by the requester: taken before others that are as good."""
    peak: PeakHours | None = None
    """When it costs more; None: the same at any time."""

    @property
    def tariff(self) -> Tariff:
        """Return what a second of it costs, by the hour of the week."""
        return Tariff.of(self.weight, self.peak)

    @property
    def label(self) -> str:
        """Return its name on screen."""
        return f"{self.node}:{self.index}"
