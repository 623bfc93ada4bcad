"""Notify the holder of an event on a Reservation that they did not cause.

Call each function inside the transaction of the event.
"""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from reservations.models import Notice, Reservation, User
from reservations.notifications.service import notify
from reservations.rules.overstay_terms import is_gap
from reservations.rules.policy import Policy
from reservations.store import attached_jobs
from telemetry.rules.isolated_steps import isolated

SOON_SECONDS = 600
"""How long before its end the holder is notified."""
SHORTEST_SECONDS = 1800
"""A holder of a shorter booking knows how soon it ends."""
MOST_ROWS = 200
Kind = Notice.Kind
log = logging.getLogger(__name__)


def released(
    row: Reservation,
    *,
    by: User | None,
    reason: str,
    charged_gpu_seconds: int,
    late_gpu_seconds: int,
    now: datetime,
) -> None:
    """Notify the holder of a release, unless the holder did it."""
    if by is not None and by.pk == row.user_id:
        return
    if by is None and is_gap(row.start, row.booked_end):
        return  # it comes and goes with its Job
    notify(
        user=row.user,
        kind=Kind.RELEASED,
        reservation=row,
        detail={
            "reason": reason,
            "charged_gpu_seconds": charged_gpu_seconds,
            "late_gpu_seconds": late_gpu_seconds,
            **_person_detail(by),
        },
        now=now,
    )


def cancelled(row: Reservation, *, by: User, reason: str, now: datetime) -> None:
    """Notify the holder of a cancellation by another person."""
    if by.pk == row.user_id:
        return
    detail = {"reason": reason, "cancelled": True, **_person_detail(by)}
    notify(user=row.user, kind=Kind.RELEASED, reservation=row, detail=detail, now=now)


def started(row: Reservation, *, now: datetime, policy: Policy) -> None:
    """Notify the holder that a booking has begun, and what to do now.

    Not if a Job starts with it, because its owner has nothing to do.
    """
    if attached_jobs.starts_with(row):
        return
    detail = {
        "end_at": row.end.isoformat(),
        "url": f"/reservations/{row.pk}/#steps-title",
    }
    absent = row.start + timedelta(seconds=policy.no_show_seconds)
    if policy.release_no_shows and row.checked_in_at is None and absent < row.end:
        detail["absent_at"] = absent.isoformat()
    notify(
        user=row.user,
        kind=Kind.BOOKING_STARTED,
        reservation=row,
        detail=detail,
        now=now,
        key=str(row.pk),
    )


def idle_warned(
    row: Reservation, *, idle_seconds: int, now: datetime, policy: Policy
) -> None:
    """Notify the holder until when something must run."""
    release_at = now + timedelta(seconds=policy.idle_grace_seconds)
    notify(
        user=row.user,
        kind=Kind.IDLE_WARNING,
        reservation=row,
        detail={
            "idle_seconds": idle_seconds,
            "release_at": release_at.isoformat(),
            "keep": not row.keep_used,
        },
        now=now,
        key=f"{row.pk}:{now.isoformat(timespec='minutes')}",
    )


def moved(
    row: Reservation, gpus: Mapping[str, str], *, reason: str, now: datetime
) -> None:
    """Notify the holder which Gpus replaced which: {old: new}."""
    detail = {"gpus": dict(gpus), "reason": reason}
    notify(user=row.user, kind=Kind.MOVED, reservation=row, detail=detail, now=now)


def ending(at: datetime, policy: Policy) -> dict[str, int]:
    """Notify holders whose time ends soon, once for each end (a step of the tick)."""
    soon = at + timedelta(seconds=SOON_SECONDS)
    rows = list(
        Reservation.objects.active()
        .filter(end__gt=at, end__lte=soon)
        # A gap was not booked, and its Job continues in the next one.
        .filter(booked_end__gt=F("start"))
        .select_related("user")
        .order_by("end", "pk")[:MOST_ROWS]
    )
    keys = {f"{row.pk}:{row.end.isoformat()}": row for row in rows}
    known = Notice.objects.filter(
        user__in={row.user_id for row in rows}, kind=Kind.ENDING_SOON, key__in=keys
    )
    told = set(known.values_list("key", flat=True)) if keys else set()
    done = 0
    for key, row in keys.items():
        if key in told or row.end - row.start < timedelta(seconds=SHORTEST_SECONDS):
            continue
        done += _notify_of_end(row, key, at)
    return {"ending_told": done}


def _notify_of_end(row: Reservation, key: str, at: datetime) -> bool:
    told = None
    failed = "reservation %s: telling of its end failed"
    with isolated(log, failed, row.pk), transaction.atomic(durable=True):
        told = notify(
            user=row.user,
            kind=Kind.ENDING_SOON,
            reservation=row,
            detail={"end_at": row.end.isoformat()},
            now=at,
            key=key,
        )
    return told is not None


def _person_detail(by: User | None) -> dict[str, int]:
    return {} if by is None else {"person": by.pk}
