"""A person's Tokens and the no-shows that shorten the horizon, in words."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from reservations.fairshare.service import FairshareStatus
from reservations.rules.figures import time_text
from reservations.rules.policy import Policy
from reservations.store.calendar_queries import iso
from reservations.store.vouchers import expires_at
from telemetry.protocol.sentences import counted, known, sentence
from telemetry.protocol.units import format_duration


@dataclass(frozen=True)
class TokenInfo:
    """One unspent Token."""

    account: str
    reason: str
    good_until: datetime


@dataclass(frozen=True)
class PersonRights:
    """The Tokens of a person, and the restrictions after no-shows."""

    tokens: list[TokenInfo]
    no_shows: int
    """No-shows that still count."""
    sentence: str
    struck: bool


def rights_of(
    found: FairshareStatus, policy: Policy, *, only: int | None = None
) -> PersonRights:
    """Return a User's Tokens and strikes in words.

    Args:
        only: the Membership whose Tokens a head may see. None: all, for the User.
    """
    now, no_shows, strike = found.now, found.no_shows, found.strike
    since = now - timedelta(seconds=policy.strike_window_seconds)
    count = sum(at > since for at in no_shows)
    days = policy.strike_window_seconds // 86_400
    if strike is not None:
        words = sentence(
            "{n} bookings were not used. Until {until} you can book at most {ahead} "
            "ahead.",
            n=len(strike.no_shows),
            until=time_text(strike.until, timezone.get_current_timezone()),
            ahead=format_duration(strike.horizon_seconds),
        )
    elif count:
        words = counted(
            "{n} no-show in the last {days} days. After {most} of them you can book at "
            "most {ahead} ahead for {long} days.",
            "{n} no-shows in the last {days} days. After {most} of them you can book "
            "at most {ahead} ahead for {long} days.",
            count,
            days=days,
            most=policy.strike_no_shows,
            ahead=format_duration(policy.strike_horizon_seconds),
            long=policy.strike_seconds // 86_400,
        )
    else:
        words = sentence("No no-shows in the last {days} days.", days=days)
    return PersonRights(
        tokens=[
            TokenInfo(
                str(token.membership.account), known(token.reason), expires_at(token)
            )
            for token in found.tokens
            if only is None or token.membership_id == only
        ],
        no_shows=count,
        sentence=words,
        struck=strike is not None,
    )


def rights_json(found: FairshareStatus) -> dict[str, object]:
    """Return the Tokens that can be spent, and the strike in force."""
    strike = found.strike
    return {
        "vouchers": [
            {
                "id": token.pk,
                "membership": token.membership_id,
                "account": token.membership.account.name,
                "reason": token.reason,
                "given_for": token.given_for_id,
                "given_at": iso(token.given_at),
                "expires_at": iso(expires_at(token)),
            }
            for token in found.tokens
        ],
        "no_shows": [iso(at) for at in found.no_shows],
        "strike": {
            "no_shows": [iso(at) for at in strike.no_shows],
            "until": iso(strike.until),
            "horizon_hours": strike.horizon_seconds / 3600,
        }
        if strike
        else None,
    }
