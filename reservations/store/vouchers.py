"""Spend a Voucher on one firm booking.

See docs/design/fair-booking.md#rule-7 and ``rules.voucher_terms``.
"""

from datetime import datetime, timedelta

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce

from reservations.models import Membership, Reservation, User, Voucher
from reservations.rules import voucher_terms
from reservations.rules.errors import NotFound
from reservations.rules.fairness.no_shows import StruckHorizon, check_strike
from reservations.rules.policy import Policy
from reservations.rules.window import Window
from reservations.store import ledger
from reservations.store.booking_facts import strike_for
from telemetry.protocol.sentences import sentence


def expires_at(voucher: Voucher) -> datetime:
    """Return until when a Voucher is valid."""
    lasting = timedelta(seconds=voucher_terms.GOOD_FOR_SECONDS)
    return voucher.expires_at or voucher.given_at + lasting


def good_vouchers(user: User, now: datetime) -> QuerySet[Voucher]:
    """Return the Vouchers that a User can spend now, the first to expire first."""
    year = now - timedelta(seconds=voucher_terms.GOOD_FOR_SECONDS)
    return (
        Voucher.objects.filter(
            Q(expires_at__gt=now) | Q(expires_at=None, given_at__gt=year),
            membership__user=user,
            membership__active=True,
            used_for=None,
            revoked_at=None,
        )
        .select_related("membership__account", "given_for")
        .order_by(Coalesce("expires_at", "given_at"), "pk")
    )


def owed_to(user: User, voucher_id: int) -> Membership:
    """Return the Membership that owns a Voucher of this User.

    Raises:
        NotFound: no such Voucher of this User.
    """
    return _voucher(user, voucher_id).membership


def _voucher(user: User, voucher_id: int, *, lock: bool = False) -> Voucher:
    rows = Voucher.objects.select_related("membership__account")
    if lock:
        rows = rows.select_for_update(no_key=True, of=("self",))
    found = rows.filter(pk=voucher_id, membership__user=user).first()
    if found is None:
        raise NotFound(what=sentence("voucher #{pk} of yours", pk=voucher_id))
    return found


def needed(user: User, start: datetime, *, now: datetime, policy: Policy) -> bool:
    """Return whether a start is beyond a horizon. Otherwise no Voucher is spent."""
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
    voucher_id: int,
    *,
    membership: Membership,
    start: datetime,
    now: datetime,
    lock: bool,
) -> Voucher:
    """Return a Voucher that may be spent on a booking with this start.

    Raises:
        VoucherRefused, NotFound.
    """
    voucher = _voucher(membership.user, voucher_id, lock=lock)
    good_until = expires_at(voucher)
    why = ""
    if voucher.revoked_at is not None:
        why = voucher_terms.REVOKED
    elif voucher.used_for_id is not None:
        why = voucher_terms.USED
    elif good_until <= now:
        why = voucher_terms.EXPIRED
    elif voucher.membership_id != membership.pk:
        why = voucher_terms.ELSEWHERE
    elif start >= good_until:
        why = voucher_terms.TOO_FAR
    if why:
        raise voucher_terms.VoucherRefused(
            token=voucher.pk,
            why=why,
            account=str(voucher.membership.account),
            expires_at=good_until,
        )
    return voucher


def spend(voucher_id: int, made: Reservation, *, now: datetime) -> None:
    """Record the Reservation on which a Voucher was spent. It was checked under its
    lock.
    """
    spent = Voucher.objects.filter(pk=voucher_id, used_for=None).update(used_for=made)
    if not spent:
        raise voucher_terms.VoucherRefused(token=voucher_id, why=voucher_terms.USED)
    ledger.audit("token-spent", made, actor=None, now=now, token=voucher_id)
