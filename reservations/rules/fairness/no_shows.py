"""No-shows shorten the booking horizon (docs/design/fair-booking.md#rule-6).

Three no-shows of a person within 30 days: for 14 days from the third a reservation,
firm or flex, may begin at most 48 h ahead. The strikes are computed each time from the
Reservations released as no-shows. Time without telemetry releases nothing, so it causes
no strike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from reservations.rules.errors import BeyondHorizon
from reservations.rules.figures import time_text
from reservations.rules.policy import Policy
from reservations.rules.window import Window
from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import format_duration


@dataclass(frozen=True, slots=True)
class Strike:
    """A shorter horizon, and the no-shows that caused it."""

    no_shows: tuple[datetime, ...]
    until: datetime
    horizon_seconds: int


@dataclass(eq=False)
class StruckHorizon(BeyondHorizon):
    """The person did not use several bookings, so the limit ahead is shorter."""

    code = "struck-horizon"
    title = sentence("Too far ahead after no-shows")
    count: int
    first: datetime
    last: datetime
    until: datetime
    """From then on the usual horizon applies again."""

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "You did not use {count} of your bookings between {first} and "
            "{last}. Until {until} your bookings may begin at most "
            "{horizon_seconds} ahead, now until {latest}.",
            count=self.count,
            first=time_text(self.first, zone),
            last=time_text(self.last, zone),
            until=time_text(self.until, zone),
            horizon_seconds=format_duration(self.horizon_seconds),
            latest=time_text(self.latest, zone),
        )


def strike_of(
    no_shows: Iterable[datetime], *, now: datetime, policy: Policy
) -> Strike | None:
    """Return the strike in force at ``now``, the longest if there are several."""
    times = sorted(at for at in no_shows if at <= now)
    within = timedelta(seconds=policy.strike_window_seconds)
    lasting = timedelta(seconds=policy.strike_seconds)
    need = policy.strike_no_shows
    for last in range(len(times) - 1, need - 2, -1):
        made = times[last - need + 1 : last + 1]
        if made[-1] - made[0] <= within and now < made[-1] + lasting:
            return Strike(
                tuple(made), made[-1] + lasting, policy.strike_horizon_seconds
            )
    return None


def check_strike(window: Window, strike: Strike, *, now: datetime) -> None:
    """Refuse a start beyond the shorter horizon.

    Raises:
        StruckHorizon: with the no-shows and until when it lasts.
    """
    latest = now + timedelta(seconds=strike.horizon_seconds)
    if now < strike.until and window.start > latest:
        raise StruckHorizon(
            start=window.start,
            latest=latest,
            horizon_seconds=strike.horizon_seconds,
            count=len(strike.no_shows),
            first=strike.no_shows[0],
            last=strike.no_shows[-1],
            until=strike.until,
        )
