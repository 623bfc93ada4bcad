"""Units for display: bytes to GiB, seconds to GPU-hours.

Inside the portal all values are bytes, seconds, watts and aware UTC datetimes. Only
these functions turn them into words. `2**20` is a MiB, never "MB" (IEC 80000-13).
"""

from __future__ import annotations

KIB_BYTES = 2**10
MIB_BYTES = 2**20
GIB_BYTES = 2**30
TIB_BYTES = 2**40

HOUR_SECONDS = 3600

UNKNOWN = "–"
"""Text for a reading that the card cannot report. Never "0"."""

_STEPS = (
    (TIB_BYTES, "TiB"),
    (GIB_BYTES, "GiB"),
    (MIB_BYTES, "MiB"),
    (KIB_BYTES, "KiB"),
)


def format_bytes(size_bytes: int | None) -> str:
    """Return a size in the largest binary unit that leaves at least 1; `None` is
    unknown.

    It has one decimal below 100, none above, and no ".0".

    >>> format_bytes(85_899_345_920), format_bytes(1_610_612_736), format_bytes(12)
    ('80 GiB', '1.5 GiB', '12 B')
    >>> format_bytes(None)
    '–'
    """
    if size_bytes is None:
        return UNKNOWN
    sign, size_bytes = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    for step_bytes, unit in _STEPS:
        if size_bytes >= step_bytes:
            return f"{sign}{_short(size_bytes / step_bytes)} {unit}"
    return f"{sign}{size_bytes} B"


def exact_bytes(size_bytes: int) -> str:
    """Return a size in the largest binary unit that gives a whole number, so that
    different sizes have different texts.

    >>> exact_bytes(107_374_182_400), exact_bytes(1_500_000_000), exact_bytes(0)
    ('100 GiB', '1500000000 B', '0 B')
    """
    for step_bytes, unit in _STEPS:
        if size_bytes and size_bytes % step_bytes == 0:
            return f"{size_bytes // step_bytes} {unit}"
    return f"{size_bytes} B"


def format_gib(size_bytes: int | None) -> str:
    """Return a size in GiB, however small, so that the values of a column compare
    easily.

    >>> format_gib(85_899_345_920), format_gib(536_870_912)
    ('80 GiB', '0.5 GiB')
    """
    if size_bytes is None:
        return UNKNOWN
    return f"{_short(size_bytes / GIB_BYTES)} GiB"


def gpu_hours(gpu_seconds: float) -> float:
    """Return GPU-seconds as GPU-hours (one Gpu held for 3,600 s is one).

    >>> gpu_hours(5400)
    1.5
    """
    return gpu_seconds / HOUR_SECONDS


def format_gpu_hours(gpu_seconds: float | None) -> str:
    """Return GPU-hours for the screen. A minute of one Gpu is not shown as 0.

    >>> format_gpu_hours(5400), format_gpu_hours(360_000)
    ('1.5 GPU-h', '100 GPU-h')
    >>> format_gpu_hours(63), format_gpu_hours(-1), format_gpu_hours(0)
    ('0.02 GPU-h', '-0.0003 GPU-h', '0 GPU-h')
    """
    if gpu_seconds is None:
        return UNKNOWN
    hours = gpu_hours(gpu_seconds)
    return f"{little(hours) or _short(hours)} GPU-h"


def little(amount: float) -> str:
    """Return an amount that one decimal would show as 0 by its first figure; "" for
    others.

    >>> little(0.0175), little(-0.003), little(0.1), little(0)
    ('0.02', '-0.003', '', '')
    """
    return f"{amount:.1g}" if 0.0001 <= abs(amount) < 0.095 else ""


def format_pct(value_pct: float | None) -> str:
    """Return a percentage as a whole number. Only 0 is shown as 0.

    >>> format_pct(93.4), format_pct(0.2), format_pct(0), format_pct(None)
    ('93 %', '< 1 %', '0 %', '–')
    """
    if value_pct is None:
        return UNKNOWN
    if 0 < value_pct < 0.5:
        return "< 1 %"
    return f"{value_pct:.0f} %"


def format_ratio(value_ratio: float | None) -> str:
    """Return a ratio as percent.

    >>> format_ratio(0.25)
    '25 %'
    """
    return format_pct(None if value_ratio is None else 100 * value_ratio)


def format_kwh(energy_kwh: float | None) -> str:
    """Return an energy in kWh, as on an electricity bill, or in Wh if it is small.

    >>> format_kwh(3.456), format_kwh(27.3), format_kwh(0.0421), format_kwh(None)
    ('3.46 kWh', '27 kWh', '42 Wh', '–')
    """
    if energy_kwh is None:
        return UNKNOWN
    if energy_kwh < 0.1:
        return f"{energy_kwh * 1000:.{1 if energy_kwh < 0.01 else 0}f} Wh"
    return f"{energy_kwh:.{2 if energy_kwh < 10 else 0}f} kWh"


def format_duration(span_seconds: float | None) -> str:
    """Return a duration in its two largest units, for people.

    >>> format_duration(42), format_duration(3_900), format_duration(180_000)
    ('42 s', '1 h 5 min', '2 d 2 h')
    """
    if span_seconds is None:
        return UNKNOWN
    whole_seconds = int(span_seconds)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    minutes, hours, days = (
        whole_seconds // 60 % 60,
        whole_seconds // HOUR_SECONDS % 24,
        whole_seconds // (24 * HOUR_SECONDS),
    )
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min"


def mib(size_bytes: int) -> int:
    """Return whole MiB, rounded down. 1 MiB is the resolution of the live frame.

    >>> mib(1_572_863)
    1
    """
    return size_bytes // MIB_BYTES


def _short(value: float) -> str:
    """Return a number with one decimal below 100, none above, and no ".0"."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}".removesuffix(".0")
