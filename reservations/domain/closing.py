"""What a closure must be to be saved, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import ClassVar

from reservations.domain.errors import BookingError
from reservations.domain.told import Told

LONGEST = timedelta(days=366)
SLACK = timedelta(minutes=10)
"""A form that begins "now" may be sent a moment later."""


@dataclass(eq=False)
class ClosureInvalid(BookingError):
    """A closure that cannot be meant."""

    code: ClassVar[str] = "closure-invalid"
    title: ClassVar[str] = "This closure is not complete"
    wrong: Mapping[str, str]
    """Sentences by field."""

    def text(self, zone: tzinfo = UTC) -> str:
        return " ".join(self.wrong.values())


@dataclass(eq=False)
class PreviewStale(BookingError):
    """Bookings changed between the look and the deed."""

    code: ClassVar[str] = "preview-stale"
    title: ClassVar[str] = "Changed meanwhile"

    def text(self, zone: tzinfo = UTC) -> str:
        return "Bookings changed since this was shown. Check the list again."


def check_times(
    start: datetime, end: datetime, *, now: datetime, running: bool
) -> dict[str, str]:
    """Return what is wrong with a closure's times, by field.

    Args:
        running: it has begun, so its start lies behind.
    """
    if end <= start:
        return {"end": "The end is not after the start."}
    if end <= now:
        return {"end": "The end is in the past."}
    if end - start > LONGEST:
        return {"end": "More than a year: take the GPUs out of service instead."}
    if start < now - SLACK and not running:
        return {"start": "The start is in the past."}
    return {}


_NAMES = {
    "maintenance": "maintenance",
    "blackout": "a blackout",
    "teaching": "a course",
}


def maintenance_words(told: Told) -> str:
    """Say what a closure did to a booking.

    detail: closure, start, end, fate, reason, until, back_gpu_seconds.
    """
    fate = told.detail["fate"]
    what = _NAMES.get(str(told.detail.get("closure")), "a closure")
    span = f"{told.time('start')} to {told.time('end')}"
    if fate == "cut":
        did = f"ends at {told.time('until')}"
    elif fate == "ended":
        did = "was ended"
    else:
        did = "was cancelled"
    back = told.hours("back_gpu_seconds")
    paid = f" You got {back} back." if back else ""
    return (
        f"Your {told.booking} {did} for {what}, {span} "
        f"({str(told.detail['reason']).rstrip('.')}).{paid}"
    )
