"""Steps 3 and 4 of the tick: check-ins, no-shows and idle Reservations."""

import logging
from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from reservations.booking.release import free_unused
from reservations.models import Allocation, Reservation
from reservations.notifications import holder_notices, live
from reservations.presence.check_in import check_in
from reservations.presence.rules import MinuteInfo, idle_seconds, observed_use
from reservations.rules.booking_alerts import IDLE_WARNING
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.store import ledger, locks
from telemetry.alerts.service import close_alert, open_alert
from telemetry.models import SampleMinute
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import isolated

log = logging.getLogger(__name__)


def check(now: datetime, policy: Policy) -> dict[str, int]:
    """Check in, release no-shows, warn and release idle ones. Return the counts."""
    done = {"checked_in": 0, "no_shows": 0, "idle_warned": 0, "idle_released": 0}
    running = list(
        # Ended Reservations too: a late tick still finds no-shows.
        Reservation.objects.active().filter(start__lt=now).order_by("pk")
    )
    gpus = _gpu_ids(running)
    for row in running:
        with isolated(log, "reservation %s: looking for its holder failed", row.pk):
            word = ""
            if row.checked_in_at is None:
                word = _absence(row, gpus.get(row.pk, []), now, policy)
            elif policy.release_idle and row.end > now:
                word = _idle(row, gpus.get(row.pk, []), now, policy)
            if word:
                done[word] += 1
    return done


def _gpu_ids(rows: Sequence[Reservation]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    pairs = Allocation.objects.filter(reservation__in=[row.pk for row in rows])
    for pk, gpu in pairs.order_by().values_list("reservation_id", "gpu_id"):
        found.setdefault(pk, []).append(gpu)
    return found


def _minutes(gpu_ids: Sequence[int], since: datetime) -> list[MinuteInfo]:
    rows = SampleMinute.objects.filter(gpu_id__in=gpu_ids, minute_at__gte=since)
    fields = ("gpu_id", "minute_at", "n", "process_n", "util_n", "util_sum_pct")
    return [MinuteInfo(*row) for row in rows.order_by().values_list(*fields)]


def _absence(
    row: Reservation, gpu_ids: Sequence[int], now: datetime, policy: Policy
) -> str:
    """Check the holder in, or release the Gpus after a no-show."""
    # Handing on a running Reservation without check-in does not restart the deadline.
    since = row.watched_from or row.start
    seen = observed_use(
        _minutes(gpu_ids, since),
        gpu_ids,
        start=since,
        now=min(now, row.end),
        limit_seconds=policy.no_show_seconds,
    )
    if seen.holder_came:
        return "checked_in" if check_in(reservation_id=row.pk, now=now) else ""
    if row.blind_seconds != seen.blind_seconds:
        Reservation.objects.filter(pk=row.pk).update(blind_seconds=seen.blind_seconds)
    gone_at = seen.absent_at
    if not policy.release_no_shows or gone_at is None or gone_at >= row.end:
        return ""
    # A Job may have checked its holder in since the row was read.
    if not Reservation.objects.filter(pk=row.pk, checked_in_at=None).exists():
        return ""
    # As of that instant, so that a late tick writes the same as one in time.
    free_unused(
        reservation_id=row.pk, now=gone_at, reason=sentence("nobody came"), no_show=True
    )
    return "no_shows"


def _idle(
    row: Reservation, gpu_ids: Sequence[int], now: datetime, policy: Policy
) -> str:
    """Warn once. Release the Gpus that are still idle after the grace period."""
    since = max(row.start, row.kept_at or row.start)
    idle = idle_seconds(
        _minutes(gpu_ids, since),
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
            _minutes(gpu_ids, row.idle_warned_at),
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
