"""What one Gpu is doing right now, in one word.

The word is what people read, the code is what the live frame carries
(`frame.py`, mirrored in `static/js/telemetry/frame.js`). Codes are never
re-used: a browser that is one version behind shows `unknown` and not a lie.
"""

from __future__ import annotations

from enum import IntEnum


class GpuState(IntEnum):
    """State word of a Gpu; the value is its code in the live frame."""

    UNKNOWN = 0
    """Never heard of it, or the card cannot say enough to tell."""
    FREE = 1
    """Nobody booked it and nothing runs on it."""
    RESERVED = 2
    """Booked; the holder's first process has not come yet."""
    BUSY = 3
    """Booked and busy: the holder's processes run on it."""
    IDLE = 4
    """Booked and idle: memory held, utilization under the pool's threshold."""
    INTRUDER = 5
    """Booked, and somebody who is neither holder nor co-user runs on it."""
    SQUATTER = 6
    """Nobody booked it, yet somebody runs on it."""
    STALE = 7
    """Three samples or more are missing; what is shown is "last seen"."""
    LOST = 8
    """The driver lost the Gpu, or reading it hangs."""
    MAINTENANCE = 9
    """Taken out of service by the operator."""
    THROTTLED = 10
    """Busy, but slowed down by heat or by a power brake."""
    FOREIGN = 11
    """Managed by another system (Slurm): shown busy, never an intruder."""
    MIG = 12
    """Split into instances; the parent cannot be booked as a whole."""


WORDS: dict[GpuState, str] = {
    GpuState.UNKNOWN: "unknown",
    GpuState.FREE: "free",
    GpuState.RESERVED: "reserved",
    GpuState.BUSY: "busy",
    GpuState.IDLE: "idle",
    GpuState.INTRUDER: "intruder",
    GpuState.SQUATTER: "squatter",
    GpuState.STALE: "stale",
    GpuState.LOST: "lost",
    GpuState.MAINTENANCE: "maintenance",
    GpuState.THROTTLED: "throttled",
    GpuState.FOREIGN: "foreign",
    GpuState.MIG: "MIG",
}
"""The word on the screen, in lower case as it stands in a sentence."""

BROKEN = frozenset({GpuState.LOST, GpuState.STALE})
"""States in which nothing can be said about what runs there now."""

NEEDS_ATTENTION = frozenset(
    {GpuState.INTRUDER, GpuState.SQUATTER, GpuState.LOST, GpuState.STALE, GpuState.IDLE}
)
"""States the operator wants to see first."""


def state_of_code(code: int) -> GpuState:
    """State for a code from a frame; a code from a newer version is UNKNOWN."""
    try:
        return GpuState(code)
    except ValueError:
        return GpuState.UNKNOWN
