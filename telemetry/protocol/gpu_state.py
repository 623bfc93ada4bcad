"""The present state of one Gpu, in one word.

People read the word. The live frame carries the code (`frame.py`, mirrored in
`static/js/telemetry/frame.js`). Codes are never used again: a browser that is one
version behind shows `unknown` and nothing wrong.
"""

from __future__ import annotations

from enum import IntEnum


class GpuState(IntEnum):
    """State of a Gpu. The value is its code in the live frame."""

    UNKNOWN = 0
    """Never seen, or the card does not report enough."""
    FREE = 1
    """It is not booked, and nothing runs on it."""
    RESERVED = 2
    """Booked; the holder's first process has not come yet."""
    BUSY = 3
    """Booked and busy: the holder's processes run on it."""
    IDLE = 4
    """Booked and idle: memory held, utilization under the pool's threshold."""
    INTRUDER = 5
    """Booked, and a process of another person than holder and co-users runs on it."""
    SQUATTER = 6
    """Not booked, but a process runs on it."""
    STALE = 7
    """At least three samples are missing. The values are those "last seen"."""
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
"""The word on the screen, in lower case for the middle of a sentence."""


def state_of_code(code: int) -> GpuState:
    """Return the state for a code from a frame; UNKNOWN for a code of a newer
    version.
    """
    try:
        return GpuState(code)
    except ValueError:
        return GpuState.UNKNOWN
