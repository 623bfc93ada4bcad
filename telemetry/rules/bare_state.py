"""The state of a Gpu from its readings alone, without a calendar."""

from __future__ import annotations

from telemetry.protocol.gpu_state import GpuState
from telemetry.protocol.sample import HARM, GpuReading

STALE_AFTER_SECONDS = 3.5
"""Samples come once a second. After this time three are missing, with half a second of
tolerance for delays. With the frame's second it shows within 5 s."""


def bare_state(reading: GpuReading | None, *, age_seconds: float) -> GpuState:
    """Return the state of a Gpu whose newest reading arrived so long ago.

    BUSY means that there is a process, of any owner.
    """
    if reading is None:
        return GpuState.UNKNOWN
    if age_seconds > STALE_AFTER_SECONDS:
        return GpuState.STALE
    if not reading.answers:
        return GpuState.LOST
    if reading.processes is None:
        return GpuState.UNKNOWN
    if not reading.processes:
        return GpuState.FREE
    if HARM.intersection(reading.throttle or ()):
        return GpuState.THROTTLED
    return GpuState.BUSY
