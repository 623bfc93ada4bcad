"""Spend a Token on one firm booking.

See docs/design/fair-booking.md#rule-7 and ``rules.voucher_terms``.
"""

from datetime import datetime, timedelta

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce

from reservations.models import Membership, Reservation, Token, User
from reservations.rules import voucher_terms
from reservations.rules.errors import NotFound
from reservations.rules.fairness.no_shows import StruckHorizon, check_strike
from reservations.rules.policy import Policy
from reservations.rules.window import Window
from reservations.store import ledger
from reservations.store.booking_facts import strike_for
from telemetry.protocol.sentences import sentence


def expires_at(token: Token) -> datetime:
    """Return until when a Token is valid."""
    lasting = timedelta(seconds=voucher_terms.GOOD_FOR_SECONDS)
    return token.expires_at or token.given_at + lasting


def good_tokens(user: User, now: datetime) -> QuerySet[Token]:
    """Return a User's Tokens that can be spent now. The first to expire comes first."""
    year = now - timedelta(seconds=voucher_terms.GOOD_FOR_SECONDS)
    return (
        Token.objects.filter(
            Q(expires_at__gt=now) | Q(expires_at=None, given_at__gt=year),
            membership__user=user,
            membership__active=True,
            used_for=None,
            revoked_at=None,
        )
        .select_related("membership__account", "given_for")
        .order_by(Coalesce("expires_at", "given_at"), "pk")
    )


def owed_to(user: User, token_id: int) -> Membership:
    """Return the Membership that owns a Token of this User.

    Raises:
        NotFound: no such Token of this User.
    """
    return _token(user, token_id).membership


def _token(user: User, token_id: int, *, lock: bool = False) -> Token:
    rows = Token.objects.select_related("membership__account")
    if lock:
        rows = rows.select_for_update(no_key=True, of=("self",))
    found = rows.filter(pk=token_id, membership__user=user).first()
    if found is None:
        raise NotFound(what=sentence("voucher #{pk} of yours", pk=token_id))
    return found


def needed(user: User, start: datetime, *, now: datetime, policy: Policy) -> bool:
    """Say whether a start is beyond a horizon. Otherwise no Token is spent."""
    if start > now + timedelta(seconds=policy.firm_horizon_seconds):
        return True
    strike = strike_for(user.pk, start, now=now, policy=policy)
    if strike is None:
        return False
    try:
        check_strike(Window.of(start, seconds=1), strike, now=now)
    except StruckHorizon:
        return True
    return False


def check(
    token_id: int,
    *,
    membership: Membership,
    start: datetime,
    now: datetime,
    lock: bool,
) -> Token:
    """Return a Token that may be spent on a booking with this start.

    Raises:
        TokenRefused, NotFound.
    """
    token = _token(membership.user, token_id, lock=lock)
    good_until = expires_at(token)
    why = ""
    if token.revoked_at is not None:
        why = voucher_terms.REVOKED
    elif token.used_for_id is not None:
        why = voucher_terms.USED
    elif good_until <= now:
        why = voucher_terms.EXPIRED
    elif token.membership_id != membership.pk:
        why = voucher_terms.ELSEWHERE
    elif start >= good_until:
        why = voucher_terms.TOO_FAR
    if why:
        raise voucher_terms.TokenRefused(
            token=token.pk,
            why=why,
            account=str(token.membership.account),
            expires_at=good_until,
        )
    return token


def spend(token_id: int, made: Reservation, *, now: datetime) -> None:
    """Record the Reservation on which a Token was spent. It was checked under its
    lock.
    """
    spent = Token.objects.filter(pk=token_id, used_for=None).update(used_for=made)
    if not spent:
        raise voucher_terms.TokenRefused(token=token_id, why=voucher_terms.USED)
    ledger.audit("token-spent", made, actor=None, now=now, token=token_id)
