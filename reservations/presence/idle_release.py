"""Warn the holder of idle Gpus once, and release them after the grace period.

``rules.py`` says how long they were idle, and ``release_warnings.py`` when the release
will be.
"""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from reservations.booking.release import free_unused
from reservations.models import Reservation
from reservations.notifications import holder_notices, live
from reservations.presence.queries import watched_minutes
from reservations.presence.rules import idle_clock_start, idle_seconds
from reservations.rules.booking_alerts import IDLE_WARNING
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.store import ledger, locks
from telemetry.alerts.service import close_alert, open_alert


def warn_or_release(
    row: Reservation, gpu_ids: Sequence[int], now: datetime, policy: Policy
) -> str:
    """Warn once. Release the Gpus that are still idle after the grace period.

    Returns:
        ``idle_warned``, ``idle_released``, or "" if nothing was due.
    """
    begun = max(row.start, row.kept_at or row.start)
    minutes = watched_minutes(gpu_ids, begun)
    since = idle_clock_start(
        minutes,
        begun=begun,
        worked_at=row.worked_at,
        now=now,
        below_pct=policy.idle_util_pct,
    )
    idle = idle_seconds(
        minutes,
        gpu_ids,
        since=since,
        now=now,
        below_pct=policy.idle_util_pct,
    )
    if row.idle_warned_at is not None:
        if idle < policy.idle_seconds:
            _clear_warnings(row, gpu_ids, now, policy)
            return ""
        _warn(row, gpu_ids, now, policy)
        after = idle_seconds(
            watched_minutes(gpu_ids, row.idle_warned_at),
            gpu_ids,
            since=row.idle_warned_at,
            now=now,
            below_pct=policy.idle_util_pct,
        )
        if after < policy.idle_grace_seconds:
            return ""
        with transaction.atomic(durable=True):
            free_unused(reservation_id=row.pk, now=now, reason="idle")
            _close(gpu_ids, now)
        return "idle_released"
    if idle < policy.idle_seconds:
        return ""
    with transaction.atomic(durable=True):
        running = Reservation.objects.filter(pk=row.pk, state=State.ACTIVE)
        if not running.filter(idle_warned_at=None).update(idle_warned_at=now):
            return ""
        _warn(row, gpu_ids, now, policy)
        fresh = locks.load_reservation(row.pk)
        ledger.audit("idle-warned", fresh, actor=None, now=now, idle_seconds=idle)
        holder_notices.idle_warned(fresh, idle_seconds=idle, now=now, policy=policy)
        live.publish_reservation(fresh, gpu_ids=list(gpu_ids), policy=policy)
    return "idle_warned"


def _warn(
    row: Reservation, gpu_ids: Sequence[int], now: datetime, policy: Policy
) -> None:
    for gpu_id in gpu_ids:
        open_alert(
            rule=IDLE_WARNING,
            gpu_id=gpu_id,
            now=now,
            reservation_id=row.pk,
            detail={"grace_seconds": policy.idle_grace_seconds},
        )


def _clear_warnings(
    row: Reservation, gpu_ids: Sequence[int], now: datetime, policy: Policy
) -> None:
    Reservation.objects.filter(pk=row.pk).update(idle_warned_at=None)
    _close(gpu_ids, now)
    with transaction.atomic(durable=True):
        fresh = locks.load_reservation(row.pk)
        live.publish_reservation(fresh, gpu_ids=list(gpu_ids), policy=policy)


def _close(gpu_ids: Sequence[int], now: datetime) -> None:
    for gpu_id in gpu_ids:
        close_alert(rule=IDLE_WARNING, gpu_id=gpu_id, now=now)
