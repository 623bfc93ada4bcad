"""How long, and over how many fresh samples, a cause has persisted.

Only time between two samples that arrived counts. A gap adds at most the time after
which a Gpu is stale. Without samples nothing is added and nothing forgotten.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from telemetry.protocol.reading import GpuReading

STALE_SECONDS = 3.5
"""Three missing samples at 1 Hz, with half a second of tolerance."""
SAME_SECONDS = 0.2
"""Two readings whose arrivals differ by less than this are the same sample. Arrivals
are computed from the server's clock and the steady clock, which differ slightly."""
MOST_READINGS = 10
MOST_PROCESSES_TOLD = 4


class ReadingTrail:
    """At most ten of the readings that caused a finding, spread evenly, the first and
    the last always included."""

    __slots__ = ("_count", "_every", "_kept", "_last")

    def __init__(self) -> None:
        self._kept: list[tuple[float, GpuReading]] = []
        self._last: tuple[float, GpuReading] | None = None
        self._every = 1
        self._count = 0

    def add(self, at: float, reading: GpuReading) -> None:
        """Add a reading. `at`: Unix seconds of its arrival."""
        self._last = (at, reading)
        if self._count % self._every == 0:
            self._kept.append(self._last)
            if len(self._kept) == MOST_READINGS:
                del self._kept[1::2]
                self._every *= 2
        self._count += 1

    def facts(self) -> list[dict[str, Any]]:
        """Return the readings as plain values, oldest first."""
        kept = list(self._kept)
        if self._last is not None and (not kept or kept[-1] is not self._last):
            kept.append(self._last)
        return [reading_facts(at, reading) for at, reading in kept]


def reading_facts(at: float, reading: GpuReading) -> dict[str, Any]:
    """Return what an Alert keeps of one reading, without missing values."""
    processes = reading.processes
    facts = {
        "at": round(at, 1),
        "state": reading.state.value,
        "util_pct": reading.util_pct,
        "memory_used_bytes": reading.memory_used_bytes,
        "temperature_celsius": reading.temperature_celsius,
        "power_watts": reading.power_watts,
        "sm_clock_mhz": reading.sm_clock_mhz,
        "ecc_uncorrected": reading.ecc_uncorrected or None,
        "throttle": [word.value for word in reading.throttle or ()] or None,
        "remap_failure": reading.remap_failure or None,
        "remap_pending": reading.remap_pending or None,
        "processes": None
        if processes is None
        else [
            {"pid": one.pid, "user": one.user, "memory_bytes": one.memory_bytes}
            for one in processes[:MOST_PROCESSES_TOLD]
        ],
        "process_count": None if processes is None else len(processes),
    }
    return {key: value for key, value in facts.items() if value is not None}


@dataclass(slots=True)
class PersistentCause:
    """How long one cause has persisted without a break."""

    seconds: float = 0.0
    samples: int = 0
    trail: ReadingTrail = field(default_factory=ReadingTrail)
    look: int = 0
    """The look in which it was last seen."""

    def passes(self, seconds: float, samples: int) -> bool:
        """Return whether it has persisted for so long and over so many samples."""
        return self.seconds >= seconds and self.samples >= samples


NOT_STANDING = PersistentCause()


class PersistentCauses:
    """The causes that persist on one Gpu.

    Each sample is one look: `begin_look`, then `holds` for each cause. A cause that is
    left out in a look has had a break.
    """

    __slots__ = ("_at", "_causes", "_look", "_passed", "_reading", "_told_at")

    def __init__(self) -> None:
        self._causes: dict[Hashable, PersistentCause] = {}
        self._at: float | None = None
        self._look = 0
        self._passed = 0.0
        self._reading: GpuReading | None = None
        self._told_at = 0.0

    def begin_look(
        self, reading: GpuReading, *, at: float, told_at: float | None = None
    ) -> None:
        """Begin a look at a reading.

        Args:
            at: its arrival in seconds of a clock that is never set.
            told_at: its arrival in Unix seconds, for people; None: `at` is in Unix
                seconds.
        """
        if self._at is not None and abs(at - self._at) < SAME_SECONDS:
            # The same sample again: no time has passed, and nothing is forgotten.
            self._passed = -1.0
            return
        before = self._look
        for cause in [c for c, stand in self._causes.items() if stand.look < before]:
            del self._causes[cause]
        gap_seconds = 0.0 if self._at is None else at - self._at
        # A clock that was set back subtracts nothing.
        self._passed = min(max(gap_seconds, 0.0), STALE_SECONDS)
        self._at, self._reading = at, reading
        self._told_at = at if told_at is None else told_at
        self._look += 1

    def note_gap(self) -> None:
        """Note that no fresh sample came. The time until the next one does not
        count."""
        self._at = None

    def holds(self, cause: Hashable, true: bool = True) -> PersistentCause:
        """Note whether a cause is seen in this look. Return how long it has
        persisted."""
        if not true:
            self._causes.pop(cause, None)
            return NOT_STANDING
        stand = self._causes.get(cause)
        if stand is None:
            stand = self._causes[cause] = PersistentCause()
        elif stand.look < self._look:
            stand.seconds += self._passed
        if stand.look < self._look:
            stand.samples += 1
            stand.look = self._look
            if self._reading is not None:
                stand.trail.add(self._told_at, self._reading)
        return stand

    def adopt(self, cause: Hashable, *, seconds: float, samples: int) -> None:
        """Take over a cause that persists since before this process began."""
        self._causes[cause] = PersistentCause(
            seconds=seconds, samples=samples, look=self._look
        )

    def clear(self) -> None:
        """Forget every cause, because the Gpu's holder has changed."""
        self._causes.clear()

    def __bool__(self) -> bool:
        return bool(self._causes)
