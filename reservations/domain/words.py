"""Figures and instants as they stand in a sentence."""

from __future__ import annotations

from datetime import datetime, tzinfo

from telemetry.domain.units import gpu_hours, little


def hours_text(gpu_seconds: int) -> str:
    """Return weighted GPU-hours for a sentence: one decimal, or as little as it is.

    >>> hours_text(165_600), hours_text(5_400), hours_text(60)
    ('46', '1.5', '0.02')
    """
    hours = gpu_hours(gpu_seconds)
    return little(hours) or f"{hours:.1f}".removesuffix(".0")


def time_text(at: datetime, zone: tzinfo) -> str:
    """Return an instant for a sentence, in the site's zone.

    >>> from datetime import UTC
    >>> time_text(datetime(2026, 3, 3, 9, tzinfo=UTC), UTC)
    'Tue 3 Mar 09:00'
    """
    local = at.astimezone(zone)
    return f"{local:%a} {local.day} {local:%b %H:%M}"
