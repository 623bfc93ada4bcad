"""A User's calendar for other programs: its events, and its secret address.

The address is random, revocable, and stored as a hash.
"""

import hashlib
import secrets
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import transaction
from icalendar import Event

from reservations.models import CalendarFeed, Reservation, User
from reservations.rules.lifecycle import Kind, State
from reservations.sharing.ical import event_of
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import counted, joined, known
from telemetry.web.translation import translated

KEPT = timedelta(days=30)
"""How long an ended reservation stays in the calendar."""
MOST_EVENTS = 500
READ_AGAIN = timedelta(minutes=5)
"""The last use of an address is stored at most this often."""


def address_hash(address: str) -> str:
    """Return the stored form (the address is random, so no salt)."""
    return hashlib.sha256(address.encode()).hexdigest()


@transaction.atomic(durable=True)
def make_feed(*, user: User, now: datetime) -> str:
    """Create a new address, shown once. The previous one becomes invalid."""
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
    """Revoke the address. False: there was none."""
    gone, _ = CalendarFeed.objects.filter(user=user).delete()
    if gone:
        _audit("revoked", user, now)
    return bool(gone)


def reader_of(address: str, *, now: datetime) -> User | None:
    """Return the owner of an address. None: unknown, or the owner is deactivated."""
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


def events_of(user: User, host: str, *, now: datetime) -> Iterator[Event]:
    """Return the reservations in a User's calendar, without names, the latest first.

    Args:
        host: of the portal, in the events' ids.
    """
    rows = Reservation.objects.filter(
        user=user, state__in=State.holding(), end__gt=now - KEPT
    ).prefetch_related("allocations__gpu__node")
    for row in rows.order_by("-start")[:MOST_EVENTS]:
        if row.end <= row.start:
            continue
        gpus = sorted(str(a.gpu) for a in row.allocations.all())
        number = counted("{n} GPU", "{n} GPUs", len(gpus))
        yield event_of(
            uid=f"reservation-{row.pk}@{host}",
            start=row.start,
            end=row.end,
            summary=translated(joined([number, known(row.kind)], by=", ")),
            location=", ".join(gpus),
            changed_at=now,
            sequence=row.version,
            tentative=row.kind == Kind.FLEX and row.state == State.CONFIRMED,
        )


def _audit(verb: str, user: User, now: datetime) -> None:
    audit_act(verb=f"feed.{verb}", subject=f"user:{user.pk}", actor=user, now=now)
