"""Codes of authenticator apps, recovery codes, and who needs a second factor.

A code is that of RFC 6238 with SHA-1, 6 digits and steps of 30 s, which every app
knows.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.totp import TOTP

STEP_SECONDS = 30
DIGITS = 6
STEPS_OFF = 1
"""A clock may be one step off (RFC 6238, section 5.2)."""
SECRET_BYTES = 20
"""RFC 4226, section 4, R6: 160 bits."""
MOST_WRONG = 5
LOCKED = timedelta(minutes=15)
"""After ``MOST_WRONG`` wrong codes no code is taken for so long."""
RECOVERY_CODES = 10
RECOVERY_BYTES = 10
"""80 random bits, so a plain hash is enough."""
FRESH_SECONDS = 600
"""A proof counts for so long where the portal asks for one again."""
ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"

Policy = Literal["off", "recommended", "required"]


def totp(secret: bytes) -> TOTP:
    """Return the generator of a secret's codes."""
    return TOTP(secret, DIGITS, SHA1(), STEP_SECONDS, enforce_key_length=False)


def matching_step(
    secret: bytes, code: str, *, now_seconds: int, last_step: int
) -> int | None:
    """Return the time step of a code; None: it is wrong, or was used.

    Args:
        last_step: the step of the last accepted code. A code of that step or of an
            earlier one is refused, so that nobody can use a code twice.

    >>> matching_step(b"12345678901234567890", "287082", now_seconds=59, last_step=0)
    1
    >>> matching_step(b"12345678901234567890", "287082", now_seconds=59, last_step=1)
    """
    if len(code) != DIGITS or not (code.isascii() and code.isdigit()):
        return None
    present = now_seconds // STEP_SECONDS
    generator = totp(secret)
    for step in range(present - STEPS_OFF, present + STEPS_OFF + 1):
        if step <= last_step or step < 0:
            continue
        if hmac.compare_digest(generator.generate(step * STEP_SECONDS), code.encode()):
            return step
    return None


def plain_code(text: str) -> str:
    """Return a code without what people type between its parts.

    >>> plain_code(" 123 456 "), plain_code("ABCD-efgh")
    ('123456', 'abcdefgh')
    """
    return "".join(text.split()).replace("-", "").lower()


def recovery_code(drawn: bytes) -> str:
    """Return the text of a recovery code.

    >>> recovery_code(bytes(10))
    'aaaa-aaaa-aaaa-aaaa'
    """
    number = int.from_bytes(drawn, "big")
    letters = ""
    for _ in range(len(drawn) * 8 // 5):
        number, rest = divmod(number, 32)
        letters = ALPHABET[rest] + letters
    return "-".join(letters[at : at + 4] for at in range(0, len(letters), 4))


def locked_until(
    wrong_codes: int, wrong_at: datetime | None, now: datetime
) -> datetime | None:
    """Return until when no code is taken; None: one is."""
    if wrong_at is None or wrong_codes < MOST_WRONG or wrong_at + LOCKED <= now:
        return None
    return wrong_at + LOCKED


class Demand(StrEnum):
    """What the portal asks of a person without a second factor."""

    NONE = "none"
    RECOMMENDED = "recommended"
    """To set one up. Nothing is refused yet."""
    REQUIRED = "required"
    """Every other page is refused until then."""


@dataclass(frozen=True)
class FactorPolicy:
    """What the site says about second factors (docs/logins.md)."""

    operators: Policy = "recommended"
    """Whether operators need one."""
    grace_days: int = 14
    """With "required": days after the portal first asked."""
    after_providers: bool = False
    """Whether people who sign in with an identity provider are asked here, too."""

    def demand(
        self,
        *,
        operator: bool,
        by_provider: bool,
        asked_at: datetime | None,
        now: datetime,
    ) -> Demand:
        """Return what the portal asks of a person without a second factor.

        Args:
            by_provider: whether an identity provider proved who they are.
            asked_at: when the portal first asked; None: never.
        """
        if not operator or self.operators == "off":
            return Demand.NONE
        if by_provider and not self.after_providers:
            return Demand.NONE
        if self.operators == "recommended" or asked_at is None:
            return Demand.RECOMMENDED
        return Demand.RECOMMENDED if now < self.ends_at(asked_at) else Demand.REQUIRED

    def ends_at(self, asked_at: datetime) -> datetime:
        """Return the end of the grace."""
        return asked_at + timedelta(days=self.grace_days)


def is_fresh(proved_at: int | None, now_seconds: int) -> bool:
    """Return whether a proof is recent enough.

    >>> is_fresh(1000, 1600), is_fresh(1000, 1601), is_fresh(None, 1)
    (True, False, False)
    """
    return proved_at is not None and 0 <= now_seconds - proved_at <= FRESH_SECONDS
