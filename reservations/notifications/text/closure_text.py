"""Validate the times of a closure, and write the texts about it."""

from __future__ import annotations

from datetime import datetime, timedelta

from reservations.rules.notice_values import NoticeValues
from telemetry.protocol.sentences import joined, sentence

LONGEST = timedelta(days=366)
SLACK = timedelta(minutes=10)
"""A form that begins "now" may arrive a moment later."""


def check_times(
    start: datetime, end: datetime, *, now: datetime, running: bool
) -> dict[str, str]:
    """Return the problems of a closure's times, by field.

    Args:
        running: it has begun, so its start may lie in the past.
    """
    if end <= start:
        return {"end": sentence("The end is not after the start.")}
    if end <= now:
        return {"end": sentence("The end is in the past.")}
    if end - start > LONGEST:
        return {
            "end": sentence("More than a year: take the GPUs out of service instead.")
        }
    if start < now - SLACK and not running:
        return {"start": sentence("The start is in the past.")}
    return {}


_WHAT = {
    "maintenance": sentence("maintenance"),
    "blackout": sentence("a blackout"),
    "teaching": sentence("a course"),
}


def maintenance_text(told: NoticeValues) -> str:
    """Say what a closure did to a booking.

    detail: closure, start, end, fate, reason, until, back_gpu_seconds.
    """
    fate = told.detail["fate"]
    values = {
        "booking": told.booking,
        "what": _WHAT.get(str(told.detail.get("closure")), sentence("a closure")),
        "start": told.time("start"),
        "end": told.time("end"),
        "reason": str(told.detail["reason"]).rstrip("."),
    }
    if fate == "cut":
        did = sentence(
            "Your {booking} ends at {until} for {what}, {start} to {end} ({reason}).",
            until=told.time("until"),
            **values,
        )
    elif fate == "ended":
        did = sentence(
            "Your {booking} was ended for {what}, {start} to {end} ({reason}).",
            **values,
        )
    else:
        did = sentence(
            "Your {booking} was cancelled for {what}, {start} to {end} ({reason}).",
            **values,
        )
    back = told.hours("back_gpu_seconds")
    return joined([did, sentence("You got {back} back.", back=back) if back else ""])
