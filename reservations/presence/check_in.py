"""Check-in, and keeping an idle Reservation."""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q

from reservations.models import Reservation, User
from reservations.notifications import live
from reservations.rules.booking_alerts import IDLE_WARNING
from reservations.rules.errors import KeepUsed, NotAllowed, NotChangeable
from reservations.rules.lifecycle import State
from reservations.rules.window import whole_second
from reservations.store import ledger, locks
from reservations.store.access import check_may_change
from reservations.store.booking_facts import site_policy
from telemetry.alerts.service import close_alert
from telemetry.protocol.sentences import sentence

WORK_SECONDS = 30
"""Of the rule of idle Gpus, which counts in minutes."""


@transaction.atomic(durable=True)
def check_in(*, reservation_id: int, now: datetime, by: str = "process") -> bool:
    """Record that the holder came. False: recorded before, or not running.

    Args:
        by: "process" on the Gpu, a "job" of the portal, or a "click".
    """
    at = whole_second(now)
    checked = Reservation.objects.filter(
        pk=reservation_id, state=State.ACTIVE, checked_in_at=None
    ).update(checked_in_at=at, version=F("version") + 1)
    if checked:
        row = locks.load_reservation(reservation_id)
        ledger.audit("checked-in", row, actor=None, now=at, by=by)
        _publish(row)
    return checked == 1


def check_in_by_click(*, reservation_id: int, user: User, now: datetime) -> Reservation:
    """Check in by a click of the holder. A repeated call changes nothing.

    Heads of the group and the operator cannot check in for the holder.

    Raises:
        NotChangeable: it does not run.
        NotAllowed, NotFound.
    """
    row = locks.load_reservation(reservation_id)
    if row.user_id != user.pk:
        raise NotAllowed(act=sentence("check in to someone else's reservation"))
    if row.state != State.ACTIVE:
        raise NotChangeable(state=row.state, act=sentence("checked in to"))
    check_in(reservation_id=reservation_id, now=now, by="click")
    return locks.load_reservation(reservation_id)


@transaction.atomic(durable=True)
def keep_idle(
    *, reservation_id: int, user: User, now: datetime, reason: str = ""
) -> Reservation:
    """Keep an idle Reservation: idle time counts from now again. Once per Reservation.

    Raises:
        KeepUsed, NotChangeable, NotAllowed, ReasonNeeded, NotFound.
    """
    at = whole_second(now)
    row = locks.load_reservation(reservation_id, lock=True)
    check_may_change(user, row, act=sentence("keep"), reason=reason)
    if row.state != State.ACTIVE:
        raise NotChangeable(state=row.state, act=sentence("kept"))
    if row.keep_used:
        raise KeepUsed
    row.keep_used, row.kept_at, row.idle_warned_at = True, at, None
    if row.checked_in_at is None:
        row.checked_in_at = at
    row.version += 1
    row.save()
    for gpu_id in row.allocations.values_list("gpu_id", flat=True):
        close_alert(rule=IDLE_WARNING, gpu_id=gpu_id, now=at)
    ledger.audit("kept", row, actor=user, now=at, reason=reason)
    _publish(row)
    return row


def note_work(row: Reservation, *, at: datetime) -> None:
    """Note that a program in the browser computed in a Reservation.

    Its Gpus do not count as idle before then. An instant that is less than
    `WORK_SECONDS` after the noted one changes nothing.
    """
    before = at - timedelta(seconds=WORK_SECONDS)
    if row.worked_at is None or row.worked_at <= before:
        running = Reservation.objects.filter(pk=row.pk, state=State.ACTIVE)
        earlier = Q(worked_at=None) | Q(worked_at__lte=before)
        running.filter(earlier).update(worked_at=at)


def _publish(row: Reservation) -> None:
    gpu_ids = list(row.allocations.values_list("gpu_id", flat=True))
    live.publish_reservation(row, gpu_ids=gpu_ids, policy=site_policy())
