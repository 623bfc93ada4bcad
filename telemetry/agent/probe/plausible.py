"""Turn driver values into readings. Impossible values are dropped, not shown.

Drivers report 4294967295 % utilization, 255 °C or more memory used than exists, all
with a success code (seen in field reports of gpustat and dcgm-exporter). A running card
does not have 0 °C, 0 W, 0 MHz or 0 bytes of memory either. Such a value becomes None:
the card cannot report it.
"""

from __future__ import annotations

from telemetry.protocol.sample import Throttle

THROTTLE_BITS: tuple[tuple[int, Throttle], ...] = (
    (0x001, Throttle.GPU_IDLE),
    (0x002, Throttle.APPLICATIONS_CLOCKS),
    (0x004, Throttle.SW_POWER_CAP),
    (0x008, Throttle.HW_SLOWDOWN),
    (0x010, Throttle.SYNC_BOOST),
    (0x020, Throttle.SW_THERMAL),
    (0x040, Throttle.HW_THERMAL),
    (0x080, Throttle.HW_POWER_BRAKE),
    (0x100, Throttle.DISPLAY_CLOCK),
)
"""NVML API Reference, nvmlClocksEventReasons: bit and word."""


def plausible_integer(value: int | None, most: float, *, least: int = 0) -> int | None:
    """Return the value if it is between `least` and `most`, otherwise None.

    >>> [plausible_integer(value, 100) for value in (37, 255, None)]
    [37, None, None]
    """
    return value if value is not None and least <= value <= most else None


def scaled(
    value: int | None, most: float, *, per_unit: int, least: int = 0
) -> float | None:
    """Convert a value that the driver counts in smaller units (mW, mJ), to one decimal.

    `least` is in the driver's units: 1 if 0 is impossible.

    >>> scaled(250_449, 10_000, per_unit=1000), scaled(2**32 - 1, 10_000, per_unit=1000)
    (250.4, None)
    >>> scaled(0, 10_000, per_unit=1000), scaled(0, 10_000, per_unit=1000, least=1)
    (0.0, None)
    """
    if value is None or not least <= value <= most * per_unit:
        return None
    return round(value / per_unit, 1)


def throttle_reasons(bits: int | None) -> tuple[Throttle, ...] | None:
    """Return the reasons in words. Undocumented bits are left out.

    >>> [word.value for word in throttle_reasons(0x28) or ()]
    ['hw_slowdown', 'sw_thermal']
    """
    if bits is None:
        return None
    return tuple(word for bit, word in THROTTLE_BITS if bits & bit)
