"""The secret address of a User's calendar: random, revocable, stored as a hash."""

import hashlib
import secrets
from datetime import datetime, timedelta

from django.db import transaction

from reservations.models import CalendarFeed, User
from reservations.store.audit_log import audit_act

READ_AGAIN = timedelta(minutes=5)
"""When an address was read last is written at most this often."""


def address_hash(address: str) -> str:
    """Return the stored form (the address is random, so no salt)."""
    return hashlib.sha256(address.encode()).hexdigest()


@transaction.atomic(durable=True)
def make_feed(*, user: User, now: datetime) -> str:
    """Make a new address, shown once; the one before is good no longer."""
    address = secrets.token_urlsafe(32)
    CalendarFeed.objects.update_or_create(
        user=user,
        defaults={
            "address_hash": address_hash(address),
            "made_at": now,
            "last_read_at": None,
        },
    )
    _audit("made", user, now)
    return address


@transaction.atomic(durable=True)
def revoke_feed(*, user: User, now: datetime) -> bool:
    """Take the address back; False: there was none."""
    gone, _ = CalendarFeed.objects.filter(user=user).delete()
    if gone:
        _audit("revoked", user, now)
    return bool(gone)


def reader_of(address: str, *, now: datetime) -> User | None:
    """Return whose calendar it is; None: nobody's, or switched off since."""
    found = (
        CalendarFeed.objects.select_related("user")
        .filter(address_hash=address_hash(address), user__is_active=True)
        .first()
    )
    if found is None:
        return None
    if found.last_read_at is None or now - found.last_read_at > READ_AGAIN:
        CalendarFeed.objects.filter(pk=found.pk).update(last_read_at=now)
    return found.user


def _audit(verb: str, user: User, now: datetime) -> None:
    audit_act(verb=f"feed.{verb}", subject=f"user:{user.pk}", actor=user, now=now)
