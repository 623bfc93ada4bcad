"""Overstay: flex past the end of a Reservation, which every User may claim.

See docs/design/fair-booking.md#rule-3.

If its holder chose so, a Reservation continues past its end until one of its Gpus is
claimed. Then there are ten minutes to leave. The overstay lies between ``booked_end``
and ``end``. It is charged as used, counts in no quota and is never frozen. For a
requesting User it ends with the notice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from reservations.rules.errors import InThePast
from reservations.rules.figures import time_text
from reservations.rules.notice_values import NoticeValues
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS, Policy
from reservations.rules.window import instant, unix
from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import format_duration


@dataclass(eq=False)
class OverBeforeFree(InThePast):
    """The GPUs become free only at ``now``, when the requested time is over."""

    code = "over-before-free"
    title = sentence("Over before it begins")
    leave_seconds: int
    works_from: datetime
    """The first end that can be granted."""

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "The person who uses these GPUs now has {leave_seconds} to "
            "leave. A booking that ends {end} would be over before it "
            "begins. Choose an end at {works_from} or later.",
            leave_seconds=format_duration(self.leave_seconds),
            end=time_text(self.end, zone),
            works_from=time_text(self.works_from, zone),
        )


def over_before_free(
    end: datetime, *, asked_at: datetime, free_at: datetime, policy: Policy
) -> OverBeforeFree:
    """Return the refusal of what ends before its Gpus are left at ``free_at``.

    >>> nine = datetime(2026, 3, 3, 9, tzinfo=UTC)
    >>> said = over_before_free(
    ...     nine,
    ...     asked_at=nine - timedelta(seconds=40),
    ...     free_at=nine + timedelta(seconds=20),
    ...     policy=Policy(grid_seconds=300),
    ... )
    >>> said.leave_seconds, said.works_from == nine + timedelta(minutes=5)
    (60, True)
    """
    leave_seconds = int((free_at - asked_at).total_seconds())
    works_from = (unix(free_at) // policy.grid_seconds + 1) * policy.grid_seconds
    return OverBeforeFree(end, free_at, leave_seconds, instant(works_from))


def occupied_until(
    booked_end: datetime, end: datetime, *, leave_at: datetime | None
) -> datetime:
    """Return until when a Reservation blocks others.

    Args:
        leave_at: the end of the notice, if an overstay were claimed now. None: no
            claim, so the whole Window counts.
    """
    if end <= booked_end or leave_at is None:
        return end
    return max(booked_end, min(end, leave_at))


def is_gap(start: datetime, booked_end: datetime) -> bool:
    """Return whether a Reservation holds a gap: it is an overstay from the start."""
    return booked_end <= start


def notice_end(now: datetime, policy: Policy) -> datetime:
    """Return the end of an overstay that is claimed now."""
    return now + timedelta(seconds=policy.overstay_notice_seconds)


def latest_end(start: datetime, booked_end: datetime, policy: Policy) -> datetime:
    """Return until when a Reservation may stay on if nothing is in the way."""
    longest = start + timedelta(seconds=LONGEST_POSSIBLE_SECONDS)
    latest = booked_end + timedelta(seconds=policy.overstay_seconds)
    return max(min(latest, longest), booked_end)


def tail_end(
    booked_end: datetime, latest: datetime, taken: Iterable[datetime]
) -> datetime:
    """Return how long a Reservation may stay on.

    Args:
        taken: when another Reservation or a closure begins on its Gpus.
    """
    return max(min([latest, *taken]), booked_end)


def claimed_text(told: NoticeValues) -> str:
    """Say when the Gpus must be free. detail: leave_at."""
    return sentence(
        "Someone needs the GPUs on which you stayed after your booking. "
        "Your {booking} now ends at {leave_at}. Jobs that still run then "
        "are stopped.",
        booking=told.booking,
        leave_at=told.clock("leave_at"),
    )
