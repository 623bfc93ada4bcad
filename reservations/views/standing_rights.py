"""Tokens that one may spend, and no-shows that shorten the horizon, in words."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from reservations.domain.words import time_text
from reservations.models import Reservation, Token, User
from reservations.snapshots.facts import site_policy
from reservations.snapshots.strikes import user_strike
from telemetry.domain.units import format_duration

TOKEN_DAYS = 365
"""How long a Token lasts that says no end itself (``models/token.py``)."""


@dataclass(frozen=True)
class TokenInfo:
    """One unspent Token."""

    pk: int
    membership_pk: int
    account: str
    reason: str
    given_at: datetime
    good_until: datetime


@dataclass(frozen=True)
class Rights:
    """What a person is owed, and what they are held to."""

    tokens: list[TokenInfo]
    no_shows: int
    """Within the time that counts."""
    sentence: str
    struck: bool


def tokens_of(user: User, now: datetime) -> list[TokenInfo]:
    """Return a User's Tokens that can still be spent, the oldest first."""
    rows = Token.objects.filter(
        membership__user=user, membership__active=True, used_for=None, revoked_at=None
    ).select_related("membership__account")
    found = [
        TokenInfo(
            pk=row.pk,
            membership_pk=row.membership_id,
            account=str(row.membership.account),
            reason=row.reason,
            given_at=row.given_at,
            good_until=row.expires_at or row.given_at + timedelta(days=TOKEN_DAYS),
        )
        for row in rows.order_by("given_at", "pk")
    ]
    return [token for token in found if token.good_until > now]


def rights_of(user: User, now: datetime) -> Rights:
    """Return a User's Tokens and strikes."""
    policy = site_policy()
    strike = user_strike(user.pk, now=now, policy=policy)
    since = now - timedelta(seconds=policy.strike_window_seconds)
    count = Reservation.objects.filter(
        user=user, no_show=True, ended_at__gt=since, ended_at__lte=now
    ).count()
    days = policy.strike_window_seconds // 86_400
    if strike is not None:
        until = time_text(strike.until, timezone.get_current_timezone())
        sentence = (
            f"Nobody came to {len(strike.no_shows)} reservations: until {until} a "
            f"reservation may begin at most {format_duration(strike.horizon_seconds)} "
            "ahead."
        )
    elif count:
        shorter = format_duration(policy.strike_horizon_seconds)
        sentence = (
            f"{count} no-show{'s' if count > 1 else ''} in the last {days} days. "
            f"{policy.strike_no_shows} of them, and a reservation may begin at most "
            f"{shorter} ahead for {policy.strike_seconds // 86_400} days."
        )
    else:
        sentence = f"No no-show in the last {days} days."
    return Rights(
        tokens=tokens_of(user, now),
        no_shows=count,
        sentence=sentence,
        struck=strike is not None,
    )
