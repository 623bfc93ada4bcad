"""An operator's actions on an Alert or an XID, with their rows in the audit log."""

from datetime import datetime

from django.db import transaction

from reservations.models import User
from reservations.rules.errors import NotAllowed, NotFound
from reservations.store.audit_log import audit_act
from telemetry.alerts.service import acknowledge_alert, snooze_alert, wake_alert
from telemetry.inventory import xid_counts
from telemetry.models import Alert, Gpu


def _check(user: User, act: str) -> None:
    if not user.is_operator:
        raise NotAllowed(act=act)


def _audit(alert: Alert, verb: str, user: User, now: datetime, **detail: str) -> None:
    audit_act(
        verb=f"alert.{verb}",
        subject=f"alert:{alert.pk}",
        actor=user,
        now=now,
        reason=f"{alert.words} on {alert.place}",
        **detail,
    )


def _alert(alert_id: int) -> Alert:
    found = Alert.objects.select_related("gpu__node", "node").filter(pk=alert_id)
    alert = found.first()
    if alert is None:
        raise NotFound(what="alert")
    return alert


def acknowledge(*, alert_id: int, user: User, now: datetime) -> bool:
    """Acknowledge an Alert. Return False if it is closed or acknowledged already.

    Raises:
        NotAllowed: not the operator.
        NotFound: no such Alert.
    """
    _check(user, "acknowledge an alert")
    alert = _alert(alert_id)
    with transaction.atomic():
        done = acknowledge_alert(alert_id=alert_id, by=user.username, now=now)
        if done:
            _audit(alert, "acknowledged", user, now)
    return done


def snooze(*, alert_id: int, until: datetime, user: User, now: datetime) -> bool:
    """Snooze an Alert until then. Return False if it is closed.

    Raises:
        NotAllowed, NotFound: as `acknowledge`.
        ValueError: not within the next 90 days.
    """
    _check(user, "snooze an alert")
    alert = _alert(alert_id)
    with transaction.atomic():
        done = snooze_alert(alert_id=alert_id, until=until, by=user.username, now=now)
        if done:
            _audit(alert, "snoozed", user, now, until=until.isoformat())
    return done


def wake(*, alert_id: int, user: User, now: datetime) -> bool:
    """Remove acknowledgement and snooze. Return False if there was neither.

    Raises:
        NotAllowed, NotFound: as `acknowledge`.
    """
    _check(user, "wake an alert")
    alert = _alert(alert_id)
    with transaction.atomic():
        done = wake_alert(alert_id=alert_id)
        if done:
            _audit(alert, "woken", user, now)
    return done


def clear_xids(*, gpu: Gpu, user: User, now: datetime, code: int | None = None) -> int:
    """Clear a Gpu's XIDs. Return how many codes.

    Raises:
        NotAllowed: not the operator.
    """
    _check(user, "clear XIDs")
    with transaction.atomic():
        cleared = xid_counts.clear_xids(gpu_id=gpu.pk, now=now, code=code)
        if cleared:
            audit_act(
                verb="gpu.xids-cleared",
                subject=f"gpu:{gpu.pk}",
                actor=user,
                now=now,
                reason=str(gpu),
                code=code or "all",
                codes=cleared,
            )
    return cleared
