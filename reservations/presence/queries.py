"""Coming releases of running Reservations, from fields that other queries read too."""

from collections.abc import Iterable
from datetime import datetime

from reservations.models import Reservation
from reservations.presence.release_warnings import PendingRelease, next_release
from reservations.rules.lifecycle import State
from reservations.store.booking_facts import site_policy

PRESENCE_FIELDS = (
    "reservation__state",
    "reservation__checked_in_at",
    "reservation__blind_seconds",
    "reservation__idle_warned_at",
    "reservation__keep_used",
)
"""Fields of an Allocation, in the order that `pending_releases` expects."""

Row = tuple[int, datetime, str, datetime | None, int, datetime | None, bool]


def pending_releases(rows: Iterable[Row], now: datetime) -> dict[int, PendingRelease]:
    """Return the pending releases by Reservation. Most have none.

    Args:
        rows: (Reservation's pk, its start, and `PRESENCE_FIELDS`).
    """
    threatened = {
        pk: (start, came, blind, warned, kept)
        for pk, start, state, came, blind, warned, kept in rows
        if state == State.ACTIVE and (came is None or warned is not None)
    }
    if not threatened:
        return {}
    policy = site_policy()
    found = {
        pk: next_release(
            start=start,
            checked_in_at=came,
            blind_seconds=blind,
            idle_warned_at=warned,
            keep_used=kept,
            now=now,
            policy=policy,
        )
        for pk, (start, came, blind, warned, kept) in threatened.items()
    }
    return {pk: one for pk, one in found.items() if one is not None}


def pending_release(row: Reservation, now: datetime) -> PendingRelease | None:
    """Return the pending release of one Reservation, or None."""
    fields = (
        row.pk,
        row.start,
        row.state,
        row.checked_in_at,
        row.blind_seconds,
        row.idle_warned_at,
        row.keep_used,
    )
    return pending_releases([fields], now).get(row.pk)
