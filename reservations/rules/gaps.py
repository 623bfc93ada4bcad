"""Gaps between bookings, held for Jobs that yield to every booking. Pure.

See docs/design/fair-booking.md#rule-3. Free time inside the freeze is open to all,
outside every quota, and charged as held. A Job in such a gap is treated from its first
second like an overstay: as flex that is never frozen. So a gap is held by a Reservation
without booked time (``booked_end == start``). The calendar of a requesting User does
not contain it. A booking that begins now waits for the Job's notice, in which the Job
writes its checkpoint and ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from reservations.rules.calendar import Calendar, CalendarGpu
from reservations.rules.errors import Refusal
from reservations.rules.policy import Policy
from reservations.rules.request import Holding
from reservations.rules.window import Window, instant, unix
from telemetry.protocol.sentences import sentence

LEAVE_SECONDS = 30
"""Added to the grace: the time of the command to the node, and of its answer."""
MOST_SECONDS = 4 * 3600
"""A gap is held for this long at once and extended near its end, because held time
counts as usage although anybody may take it.
"""
NEAR_SECONDS = 1800
"""This long before its end it is extended, if the time is still free."""


@dataclass(eq=False)
class GapGone(Refusal):
    """The gap has just been taken, or is too short now."""

    code = "gap-gone"
    title = sentence("No gap any more")
    left_seconds: int
    shortest_seconds: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "These GPUs are free for {left_seconds} s now; "
            "{shortest_seconds} s are needed at least.",
            left_seconds=self.left_seconds,
            shortest_seconds=self.shortest_seconds,
        )


@dataclass(frozen=True, slots=True)
class OpenGpu:
    """A free Gpu, and until when it is free."""

    gpu: CalendarGpu
    uuid: str
    until: datetime


def gap_notice_seconds(policy: Policy, grace_seconds: float) -> int:
    """Return how long before its claimed start a gap has to be left.

    Never more than the notice of an overstay (docs/design/fair-booking.md#rule-3).
    """
    wanted = int(grace_seconds) + LEAVE_SECONDS
    return min(policy.overstay_notice_seconds, wanted)


def open_until(
    calendar: Calendar, gpu_pk: int, now: datetime, latest: datetime
) -> datetime:
    """Return until when a Gpu is free from ``now`` on. ``now``: it is not.

    Bookings, closures and the planned starts of waiting requests end a gap.
    """
    if latest <= now:
        return now
    window = Window(now, latest)
    span = calendar.first_overlap(gpu_pk, window)
    until = latest if span is None else max(now, instant(span.start))
    plans = [
        plan.window.start
        for plan in calendar.plans
        if gpu_pk in plan.gpu_pks and plan.window.meets(window)
    ]
    return max(now, min([until, *plans]))


def crowded_from(
    own: Iterable[Holding], count: int, now: datetime, until: datetime, most: int
) -> datetime:
    """Return when one person would hold more Gpus at once than allowed.

    Args:
        own: everything that the person holds or has booked, including gaps and
            overstays.
        count: of the gap.
        most: Gpus that one person may hold at once.
    """
    rows = [h for h in own if h.window.end > now and h.window.start < until]
    instants = sorted({max(h.window.start, now) for h in rows} | {now})
    for at in instants:
        held = sum(len(h.gpu_pks) for h in rows if h.window.holds(at))
        if held + count > most:
            return at
    return until


def seconds_left(until: datetime, now: datetime) -> int:
    """Return the whole seconds until then. 0: none."""
    return max(0, unix(until) - unix(now))


def latest_end(start: datetime, now: datetime, policy: Policy) -> datetime:
    """Return until when a gap that began at ``start`` may be held, as of now."""
    longest = start + timedelta(seconds=policy.longest_seconds)
    return min(longest, now + timedelta(seconds=MOST_SECONDS))
