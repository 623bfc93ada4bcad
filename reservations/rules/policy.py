"""The site's booking rules as one frozen value.

See docs/design/fair-booking.md#defaults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from reservations.rules.window import DAY_SECONDS, HOUR_SECONDS
from telemetry.protocol.sentences import sentence

LONGEST_POSSIBLE_SECONDS = 31 * DAY_SECONDS
"""No site may allow more: it bounds how far back a query for overlaps looks."""
GRID_MOST_SECONDS = DAY_SECONDS
_YEAR_SECONDS = 366 * DAY_SECONDS
_MOST_GPU_SECONDS = 10**13

LIMITS: dict[str, tuple[float, float]] = {
    "grid_seconds": (60, GRID_MOST_SECONDS),
    "firm_horizon_seconds": (0, _YEAR_SECONDS),
    "flex_horizon_seconds": (0, _YEAR_SECONDS),
    "freeze_seconds": (0, 14 * DAY_SECONDS),
    "longest_seconds": (60, LONGEST_POSSIBLE_SECONDS),
    "gpus_at_once": (1, 64),
    "live_reservations": (1, 1000),
    "future_flex": (0, 1000),
    "quota_gpu_seconds": (0, _MOST_GPU_SECONDS),
    "person_quota_gpu_seconds": (0, _MOST_GPU_SECONDS),
    # Shorter, and the weights of fair share would be numbers of many thousand digits.
    "half_life_seconds": (DAY_SECONDS, 10 * _YEAR_SECONDS),
    "late_return_permille": (0, 1000),
    "free_return_permille": (0, 100_000),
    "returned_horizon_seconds": (0, _YEAR_SECONDS),
    "displacement_pause_seconds": (0, _YEAR_SECONDS),
    "no_show_seconds": (60, DAY_SECONDS),
    "idle_seconds": (60, 7 * DAY_SECONDS),
    "idle_grace_seconds": (60, DAY_SECONDS),
    "idle_util_pct": (0, 100),
    "lost_seconds": (0, DAY_SECONDS),
    "strike_no_shows": (1, 100),
    "strike_window_seconds": (DAY_SECONDS, _YEAR_SECONDS),
    "strike_horizon_seconds": (0, _YEAR_SECONDS),
    "strike_seconds": (0, _YEAR_SECONDS),
    "overstay_seconds": (0, LONGEST_POSSIBLE_SECONDS),
    "overstay_notice_seconds": (60, DAY_SECONDS),
    "token_seconds": (DAY_SECONDS, _YEAR_SECONDS),
    "planned_requests": (0, 100),
    "waiting_requests": (0, 1000),
    "look_again_seconds": (1, HOUR_SECONDS),
}
"""Least and most of each number: no value within them breaks the site."""


class PolicyInvalid(ValueError):
    """A rule that contradicts itself or another; names the field."""

    def __init__(self, *, field: str, why: str) -> None:
        self.field = field
        self.why = why
        super().__init__(f"{field} {why}")


@dataclass(frozen=True, slots=True)
class Policy:
    """What decides about a request, and its price. All times in seconds."""

    grid_seconds: int = HOUR_SECONDS
    """Reservations begin and end on multiples of it; "now" may begin off it."""
    firm_horizon_seconds: int = 14 * DAY_SECONDS
    """How far ahead a reservation may begin."""
    flex_horizon_seconds: int = 3 * DAY_SECONDS
    """How far ahead a flex reservation may begin."""
    freeze_seconds: int = 12 * HOUR_SECONDS
    """How long before its start nobody can take a flex reservation any more."""
    longest_seconds: int = DAY_SECONDS
    """Longest reservation; back-to-back ones on a Gpu count as one."""
    gpus_at_once: int = 4
    """Limit of one person over all Memberships at any instant."""
    live_reservations: int = 6
    """Limit of one person over all Memberships, booked and running."""
    future_flex: int = 2
    """Limit of one person: flex reservations that have not begun."""
    quota_gpu_seconds: int = 40 * HOUR_SECONDS * 10
    """Weighted GPU-seconds per Membership in any rolling 7 days."""
    person_quota_gpu_seconds: int = 80 * HOUR_SECONDS * 10
    """Weighted GPU-seconds of one person over all Memberships in any 7 days."""
    half_life_seconds: int = 14 * DAY_SECONDS
    """After this time past use counts half in fair share."""
    late_return_permille: int = 500
    """Part of the price of an hour given back less than a day ahead."""
    free_return_permille: int = 500
    """Part of the quota that may be given back in 14 days beyond what was used."""
    returned_horizon_seconds: int = DAY_SECONDS
    """How far ahead a reservation may begin after more returns than that."""
    displacement_pause_seconds: int = DAY_SECONDS
    """How long a person who gave displaced time back cannot displace its owner."""
    no_show_seconds: int = 15 * 60
    """Watched time without a sign of the holder after which a Gpu is freed."""
    idle_seconds: int = 30 * 60
    """Watched time under the idle threshold after which the holder is warned."""
    idle_grace_seconds: int = 10 * 60
    """Watched time from that warning to the release."""
    idle_util_pct: float = 3.0
    """Mean utilization under which a Gpu counts as idle, 0 to 100."""
    lost_seconds: int = 10 * 60
    """Time a Gpu may be lost before its reservation is refunded."""
    strike_no_shows: int = 3
    """No-shows of one person, within the next, that shorten the horizon."""
    strike_window_seconds: int = 30 * DAY_SECONDS
    """Time within which those no-shows lie."""
    strike_horizon_seconds: int = 48 * HOUR_SECONDS
    """How far ahead a reservation may begin after them, firm or flex."""
    strike_seconds: int = 14 * DAY_SECONDS
    """How long that lasts, from the last of them."""
    overstay_seconds: int = 12 * HOUR_SECONDS
    """How long past its end a reservation may stay on; 0: not at all."""
    overstay_notice_seconds: int = 10 * 60
    """Time an overstay has to leave once somebody claims the Gpu."""
    token_seconds: int = 90 * DAY_SECONDS
    """How long a token is good: its booking begins within this time."""
    planned_requests: int = 5
    """So many waiting requests hold a planned start (conservative backfill)."""
    waiting_requests: int = 5
    """Requests of one person that may wait at a time."""
    look_again_seconds: int = 60
    """How often waiting requests are looked at when nothing has changed."""
    release_no_shows: bool = True
    release_idle: bool = False
    names_visible: bool = True
    """Students see who holds a Gpu; off: only the group."""
    version: int = 0
    """Counts the changes; stored with every decision
    (docs/design/fair-booking.md#rule-8)."""

    def __post_init__(self) -> None:
        """Check every field, and the fields against each other.

        Raises:
            PolicyInvalid: names the first field that is wrong.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in LIMITS:
                _between(field.name, value, *LIMITS[field.name])
        if DAY_SECONDS % self.grid_seconds:
            raise PolicyInvalid(
                field="grid_seconds", why=sentence("does not divide a day")
            )
        _between(
            "longest_seconds",
            self.longest_seconds,
            self.grid_seconds,
            LONGEST_POSSIBLE_SECONDS,
        )
        if self.flex_horizon_seconds > self.firm_horizon_seconds:
            raise PolicyInvalid(
                field="flex_horizon_seconds", why=sentence("is beyond the firm horizon")
            )


def _between(name: str, value: float, least: float, most: float) -> None:
    if not math.isfinite(value) or not least <= value <= most:
        raise PolicyInvalid(
            field=name,
            why=sentence("is not between {least} and {most}", least=least, most=most),
        )
