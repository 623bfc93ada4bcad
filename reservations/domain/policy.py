"""The site's booking rules as one frozen value. Defaults: POLICY.md section 2."""

from __future__ import annotations

from dataclasses import dataclass, fields

from reservations.domain.window import DAY_SECONDS, HOUR_SECONDS

LONGEST_POSSIBLE_SECONDS = 31 * DAY_SECONDS
"""No site may allow more: it bounds how far back a query for overlaps looks."""
GRID_MOST_SECONDS = DAY_SECONDS


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
    half_life_seconds: int = 14 * DAY_SECONDS
    """After this time past use counts half in fair share."""
    late_return_permille: int = 500
    """Part of the price of an hour given back less than a day ahead."""
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
    planned_requests: int = 5
    """So many waiting requests hold a planned start (conservative backfill)."""
    waiting_requests: int = 5
    """Requests of one person that may wait at a time."""
    release_no_shows: bool = True
    release_idle: bool = False
    names_visible: bool = True
    """Students see who holds a Gpu; off: only the group."""

    def __post_init__(self) -> None:
        """Check every field, and the fields against each other.

        Raises:
            PolicyInvalid: names the first field that is wrong.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool) and value < 0:
                raise PolicyInvalid(field=field.name, why="is negative")
        _between("grid_seconds", self.grid_seconds, 60, GRID_MOST_SECONDS)
        _between(
            "longest_seconds",
            self.longest_seconds,
            self.grid_seconds,
            LONGEST_POSSIBLE_SECONDS,
        )
        _between("late_return_permille", self.late_return_permille, 0, 1000)
        _between("idle_util_pct", self.idle_util_pct, 0, 100)
        if self.half_life_seconds == 0:
            raise PolicyInvalid(field="half_life_seconds", why="is zero")
        if self.flex_horizon_seconds > self.firm_horizon_seconds:
            raise PolicyInvalid(
                field="flex_horizon_seconds", why="is beyond the firm horizon"
            )


def _between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise PolicyInvalid(field=name, why=f"is not between {least} and {most}")
