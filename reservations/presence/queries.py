"""Coming releases of running Reservations, and the watched minutes of their Gpus."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from reservations.models import Reservation
from reservations.presence.release_warnings import PendingRelease, next_release
from reservations.presence.rules import MinuteInfo
from reservations.rules.lifecycle import State
from reservations.store.booking_facts import site_policy
from telemetry.models import SampleMinute

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


def watched_minutes(gpu_ids: Sequence[int], since: datetime) -> list[MinuteInfo]:
    """Return the minutes with samples of some Gpus since an instant."""
    rows = SampleMinute.objects.filter(gpu_id__in=gpu_ids, minute_at__gte=since)
    fields = ("gpu_id", "minute_at", "n", "process_n", "util_n", "util_sum_pct")
    return [MinuteInfo(*row) for row in rows.order_by().values_list(*fields)]
