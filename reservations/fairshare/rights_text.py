"""A person's Vouchers and the no-shows that shorten the horizon, in words."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

from django.utils import timezone

from reservations.fairshare.service import FairshareStatus
from reservations.rules.figures import time_text
from reservations.rules.policy import Policy
from reservations.store.calendar_queries import iso
from reservations.store.vouchers import expires_at
from telemetry.protocol.sentences import counted, known, sentence
from telemetry.protocol.units import format_duration
from telemetry.web.answer_types import UtcInstant


@dataclass(frozen=True)
class VoucherInfo:
    """One unspent Voucher."""

    account: str
    reason: str
    good_until: datetime


@dataclass(frozen=True)
class PersonRights:
    """The Vouchers of a person, and the restrictions after no-shows."""

    vouchers: list[VoucherInfo]
    no_shows: int
    """No-shows that still count."""
    sentence: str
    struck: bool


def rights_of(
    found: FairshareStatus, policy: Policy, *, only: int | None = None
) -> PersonRights:
    """Return a User's Vouchers and strikes in words.

    Args:
        only: the Membership whose Vouchers a head may see. None: all, for the User.
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
        vouchers=[
            VoucherInfo(
                str(voucher.membership.account),
                known(voucher.reason),
                expires_at(voucher),
            )
            for voucher in found.vouchers
            if only is None or voucher.membership_id == only
        ],
        no_shows=count,
        sentence=words,
        struck=strike is not None,
    )


class VoucherAnswer(TypedDict):
    """A voucher that can be spent: it books beyond a horizon once."""

    id: int
    membership: int
    account: str
    """Name of the group."""
    reason: str
    given_for: int | None
    """The reservation for whose loss it was given."""
    given_at: UtcInstant
    expires_at: UtcInstant


class StrikeAnswer(TypedDict):
    """The restriction after no-shows."""

    no_shows: list[UtcInstant]
    until: UtcInstant
    horizon_hours: float
    """How far ahead can be booked until then."""


class RightsAnswer(TypedDict):
    """The vouchers that can be spent, and the strike in force."""

    vouchers: list[VoucherAnswer]
    no_shows: list[UtcInstant]
    """Bookings that were not used."""
    strike: StrikeAnswer | None


def rights_json(found: FairshareStatus) -> RightsAnswer:
    """Return the Vouchers that can be spent, and the strike in force."""
    strike = found.strike
    return {
        "vouchers": [
            {
                "id": voucher.pk,
                "membership": voucher.membership_id,
                "account": voucher.membership.account.name,
                "reason": voucher.reason,
                "given_for": voucher.given_for_id,
                "given_at": iso(voucher.given_at),
                "expires_at": iso(expires_at(voucher)),
            }
            for voucher in found.vouchers
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
