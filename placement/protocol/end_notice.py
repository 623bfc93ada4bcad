"""The warnings before a Reservation's end: their times and their words. Pure."""

from __future__ import annotations

from telemetry.protocol.sentences import sentence

WARN_SECONDS = (600, 60)
"""Seconds before the end, longest first."""


def due_warning(left_seconds: float, told_seconds: int | None) -> int | None:
    """Return the due warning; None if none is due or it was given already.

    Args:
        left_seconds: time until the end.
        told_seconds: the last warning that was given of this end.

    >>> [due_warning(601, None), due_warning(600, None), due_warning(500, 600)]
    [None, 600, None]
    >>> [due_warning(60, 600), due_warning(30, None), due_warning(30, 60)]
    [60, 60, None]
    """
    reached = [step for step in WARN_SECONDS if left_seconds <= step]
    if not reached or left_seconds <= 0:
        return None
    step = min(reached)
    return step if told_seconds is None or step < told_seconds else None


def remaining_time_text(left_seconds: float) -> str:
    """Return the remaining time in words.

    >>> remaining_time_text(600), remaining_time_text(59.7), remaining_time_text(12)
    ('10 min', '60 s', '12 s')
    """
    if left_seconds > 90:
        return sentence("{left} min", left=round(left_seconds / 60))
    return f"{max(1, round(left_seconds))} s"
