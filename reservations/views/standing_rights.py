"""Tokens that one may spend, and no-shows that shorten the horizon, in words."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from reservations.domain.policy import Policy
from reservations.domain.words import time_text
from reservations.services.spending import expires_at
from reservations.services.standing import Standing
from telemetry.domain.units import format_duration


@dataclass(frozen=True)
class TokenInfo:
    """One unspent Token."""

    account: str
    reason: str
    good_until: datetime


@dataclass(frozen=True)
class Rights:
    """What a person is owed, and what they are held to."""

    tokens: list[TokenInfo]
    no_shows: int
    """Within the time that counts."""
    sentence: str
    struck: bool


def rights_of(found: Standing, policy: Policy, *, only: int | None = None) -> Rights:
    """Return a User's Tokens and strikes in words.

    Args:
        only: the one Membership whose Tokens a head may see; None: all, one's own.
    """
    now, no_shows, strike = found.now, found.no_shows, found.strike
    since = now - timedelta(seconds=policy.strike_window_seconds)
    count = sum(at > since for at in no_shows)
    days = policy.strike_window_seconds // 86_400
    if strike is not None:
        until = time_text(strike.until, timezone.get_current_timezone())
        sentence = (
            f"{len(strike.no_shows)} bookings were not used. Until {until} you can "
            f"book at most {format_duration(strike.horizon_seconds)} ahead."
        )
    elif count:
        shorter = format_duration(policy.strike_horizon_seconds)
        sentence = (
            f"{count} no-show{'s' if count > 1 else ''} in the last {days} days. "
            f"After {policy.strike_no_shows} of them you can book at most {shorter} "
            f"ahead for {policy.strike_seconds // 86_400} days."
        )
    else:
        sentence = f"No no-shows in the last {days} days."
    return Rights(
        tokens=[
            TokenInfo(str(token.membership.account), token.reason, expires_at(token))
            for token in found.tokens
            if only is None or token.membership_id == only
        ],
        no_shows=count,
        sentence=sentence,
        struck=strike is not None,
    )
