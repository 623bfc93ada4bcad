"""The limit of time that a person may book far ahead and return for free.

An hour that is given back a day or more ahead costs nothing, so that plans may change.
Without a limit this would be a free option: a person could hold GPUs for weeks ahead,
keep others from planning, and use none of them. So time that is given back before it
begins is compared with the time that is used. Over the last 14 days a person may give
back as much as they used, and a part of their quota. Beyond that, bookings may begin at
most a day ahead, where late returns have a price, until the balance is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from reservations.rules.errors import BeyondHorizon
from reservations.rules.figures import time_text
from reservations.rules.policy import Policy
from reservations.rules.window import DAY_SECONDS, Window
from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import format_duration

WINDOW_SECONDS = 14 * DAY_SECONDS
"""Returns and use of the last 14 days are compared."""
GRACE_SECONDS = 600
"""A return within this time after booking does not count: it may be a slip."""
SLIPS_A_DAY = 20
"""Bookings of the last 24 h that a person may cancel as slips, or undo.

Without a limit, a person who books the same time repeatedly holds it for nothing. A
series that was made by mistake is cancelled day by day, so the limit is not small.
"""


@dataclass(frozen=True, slots=True)
class EarlyReturns:
    """The time that one person returned before it began, and used, in the last 14
    days.
    """

    returned_gpu_seconds: int
    """Weighted GPU-seconds, over all Memberships."""
    used_gpu_seconds: int
    """Weighted GPU-seconds that were charged, over all Memberships."""
    quota_gpu_seconds: int
    """Quota of the booking Membership, in any 7 days."""

    def free_gpu_seconds(self, policy: Policy) -> int:
        """Return how much may be given back in 14 days, in weighted GPU-seconds."""
        part = self.quota_gpu_seconds * policy.free_return_permille // 1000
        return self.used_gpu_seconds + part

    def is_over(self, policy: Policy) -> bool:
        """Return whether more was given back than allowed."""
        return self.returned_gpu_seconds > self.free_gpu_seconds(policy)


@dataclass(eq=False)
class ReturnedTooMuch(BeyondHorizon):
    """The person gave back more than they used, so the limit ahead is shorter."""

    code = "returned-too-much"
    title = sentence("Too far ahead after many returns")
    returned_gpu_seconds: int
    used_gpu_seconds: int
    free_gpu_seconds: int

    def text(self, zone: tzinfo = UTC) -> str:
        returned, used, free = (
            _hours(seconds)
            for seconds in (
                self.returned_gpu_seconds,
                self.used_gpu_seconds,
                self.free_gpu_seconds,
            )
        )
        return sentence(
            "In the last 14 days you returned bookings of {returned} credits before "
            "they began and used {used} credits. With that use you may return up to "
            "{free} credits. Until you use more, or the returns are 14 days old, you "
            "can book at most {horizon_seconds} ahead, now until {latest}.",
            returned=returned,
            used=used,
            free=free,
            horizon_seconds=format_duration(self.horizon_seconds),
            latest=time_text(self.latest, zone),
        )


def _hours(gpu_seconds: int) -> str:
    return f"{gpu_seconds / 3600:.1f}".removesuffix(".0")


def check_returns(
    window: Window, returns: EarlyReturns, *, now: datetime, policy: Policy
) -> None:
    """Refuse a start beyond the shorter horizon of a person who returns too much.

    Raises:
        ReturnedTooMuch: with the returned and the used time.
    """
    latest = now + timedelta(seconds=policy.returned_horizon_seconds)
    if window.start > latest and returns.is_over(policy):
        raise ReturnedTooMuch(
            start=window.start,
            latest=latest,
            horizon_seconds=policy.returned_horizon_seconds,
            returned_gpu_seconds=returns.returned_gpu_seconds,
            used_gpu_seconds=returns.used_gpu_seconds,
            free_gpu_seconds=returns.free_gpu_seconds(policy),
        )
