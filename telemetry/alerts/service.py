"""Alerts: one open finding per rule and place. It closes automatically.

A place is a Gpu, or a whole Node if the cause is the node's. Open pages hear of every
change after the commit.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q

from telemetry.live import broadcast
from telemetry.models import Alert, AlertQuerySet, Node, TelemetryPolicy
from telemetry.rules.alert_rules import (
    CHANNEL,
    DRIVER,
    REFUSED,
    SILENT,
    WEDGED,
    rules_reported_once,
    severity_of,
)
from telemetry.rules.broker_refusals import BrokerRefusal

ACTS = ("acknowledge", "snooze", "wake")
CHANNEL_SILENT = timedelta(minutes=3)
"""How often a node calls the web."""
LONGEST_SNOOZE = timedelta(days=90)


def open_alert(
    *,
    rule: str,
    gpu_id: int | None = None,
    node_id: int | None = None,
    now: datetime,
    detail: Mapping[str, Any] | None = None,
    reservation_id: int | None = None,
    readings: list[dict[str, Any]] | None = None,
) -> bool:
    """Open a finding, or note that it still exists. Return True if it is new.

    Two processes may find the same at once: the database keeps one row. A cause that
    comes back soon opens the same Alert again, with the operator's acknowledgement or
    snooze. Exactly one of `gpu_id` and `node_id` is given.
    """
    seen: dict[str, Any] = {
        "last_seen_at": now,
        "detail": dict(detail or {}),
        "severity": severity_of(rule).value,
    }
    if reservation_id is not None:
        seen["reservation_id"] = reservation_id
    place = Alert.objects.filter(_place_filter(gpu_id, node_id), rule=rule)
    if place.open().update(**seen):
        return False
    made = seen | {"readings": readings or []}
    try:
        with transaction.atomic():
            if not _reopen(place, made, now, reservation_id):
                Alert.objects.create(
                    rule=rule, gpu_id=gpu_id, node_id=node_id, opened_at=now, **made
                )
    except IntegrityError:
        # Another process was first, or the place was deleted: there is no new finding.
        place.open().update(**seen)
        return False
    broadcast.announce_alerts()
    return True


def _reopen(
    place: AlertQuerySet,
    made: dict[str, Any],
    now: datetime,
    reservation_id: int | None,
) -> bool:
    """Open the last Alert again if it closed only a moment ago."""
    within = TelemetryPolicy.current().reopens_within_seconds
    last = (
        place.filter(
            closed_at__gt=now - timedelta(seconds=within),
            reservation_id=reservation_id,
        )
        .order_by("-closed_at")
        .first()
    )
    if last is None or not within:
        return False
    again = Alert.objects.filter(pk=last.pk).exclude(closed_at=None)
    return again.update(closed_at=None, openings=F("openings") + 1, **made) == 1


def close_alert(
    *,
    rule: str,
    gpu_id: int | None = None,
    node_id: int | None = None,
    now: datetime,
) -> bool:
    """Close a finding. Return False if there was none."""
    found = Alert.objects.open().filter(_place_filter(gpu_id, node_id), rule=rule)
    return _close(found, now) > 0


def close_unseen_alerts(*, now: datetime, unseen_seconds: float) -> int:
    """Close findings that were not reported again for so long. Return how many.

    Findings are reported again at intervals. So an old one belongs to a process that
    was restarted and no longer sees it. Rules that are reported once, and closed by
    the opposite report, are skipped.
    """
    limit = now - timedelta(seconds=unseen_seconds)
    unseen = (
        Alert.objects.open()
        .filter(last_seen_at__lt=limit)
        .exclude(rule__in=rules_reported_once())
    )
    return _close(unseen, now)


def mark_silent_nodes(*, now: datetime) -> tuple[int, int]:
    """Open one Alert for each Node that has been silent for long, however many Gpus it
    has.

    Close it when the node is heard again. Return (opened, closed).
    """
    silent_seconds = TelemetryPolicy.current().silent_after_seconds
    limit = now - timedelta(seconds=silent_seconds)
    # An Alert already gives the cause of the silence: the driver does not answer, or
    # the password is wrong.
    causes = (DRIVER, WEDGED, REFUSED)
    told = Alert.objects.open().filter(rule__in=causes, node=OuterRef("pk"))
    silent = Node.objects.filter(
        ~Exists(told), last_seen_at__lt=limit, gpus__present=True, gpus__retired=False
    ).distinct()
    opened = 0
    for node in silent:
        assert node.last_seen_at is not None
        opened += open_alert(
            rule=SILENT,
            node_id=node.pk,
            now=now,
            detail={"last_seen_at": node.last_seen_at.isoformat()},
        )
    still_silent = silent.filter(pk=OuterRef("node_id")).order_by()
    heard = Alert.objects.open().filter(rule=SILENT).exclude(Exists(still_silent))
    return opened, _close(heard, now)


def judge_channels(*, now: datetime) -> tuple[int, int]:
    """Open an Alert for each Node that sends samples but cannot reach the web, so that
    no job starts on it. Close it when the node can. Return (opened, closed)."""
    limit = now - CHANNEL_SILENT
    heard = Node.objects.filter(last_seen_at__gt=limit)
    bad = heard.exclude(channel_state__in=("", "ok")) | heard.filter(
        channel_at__lt=limit
    )
    opened = sum(
        open_alert(
            rule=CHANNEL,
            node_id=node.pk,
            now=now,
            detail={"channel": node.channel_state, "reason": node.channel_detail},
        )
        for node in bad
    )
    still_bad = bad.filter(pk=OuterRef("node_id")).order_by()
    well = Alert.objects.open().filter(rule=CHANNEL).exclude(Exists(still_bad))
    return opened, _close(well, now)


def judge_refused(
    *, refused: Mapping[str, BrokerRefusal], now: datetime
) -> tuple[int, int]:
    """Open an Alert for each Node in service that the broker refused recently.

    Close it after some minutes without a refusal. Return (opened, closed).
    """
    nodes = Node.objects.in_service().filter(name__in=refused)
    opened = 0
    for node in nodes:
        one = refused[node.name]
        opened += open_alert(
            rule=REFUSED,
            node_id=node.pk,
            now=now,
            detail={
                "refused": one.why.value,
                "refused_at": (now - timedelta(seconds=one.age_seconds)).isoformat(),
                "address": one.address,
                "used": one.used,
            },
        )
    still = nodes.filter(pk=OuterRef("node_id")).order_by()
    over = Alert.objects.open().filter(rule=REFUSED).exclude(Exists(still))
    return opened, _close(over, now)


def _place_filter(gpu_id: int | None, node_id: int | None) -> Q:
    """Return the filter for one place. Raises ValueError unless exactly one is
    given."""
    if (gpu_id is None) == (node_id is None):
        raise ValueError("an alert is about a Gpu or about a Node")
    return Q(node_id=node_id) if gpu_id is None else Q(gpu_id=gpu_id)


def _close(alerts: AlertQuerySet, now: datetime) -> int:
    closed = alerts.update(closed_at=now)
    if closed:
        broadcast.announce_alerts()
    return closed


# --- the operator's actions on an Alert
# ------------------------------------------------


def acknowledge_alert(*, alert_id: int, by: str, now: datetime) -> bool:
    """Acknowledge an Alert. Return False if it is closed or acknowledged already."""
    row = Alert.objects.open().filter(pk=alert_id, acknowledged_at=None)
    return _act(row, acknowledged_at=now, acknowledged_by=by)


def snooze_alert(*, alert_id: int, until: datetime, by: str, now: datetime) -> bool:
    """Snooze an Alert until then. Return False if it is closed.

    Raises:
        ValueError: `until` is not ahead, or further ahead than 90 days.
    """
    if not now < until <= now + LONGEST_SNOOZE:
        raise ValueError("a snooze ends in the future, within 90 days")
    row = Alert.objects.open().filter(pk=alert_id)
    return _act(row, snoozed_until=until, snoozed_by=by)


def wake_alert(*, alert_id: int) -> bool:
    """Remove acknowledgement and snooze.

    Return False if the Alert is closed, or if it had neither.
    """
    row = Alert.objects.open().filter(pk=alert_id)
    row = row.exclude(acknowledged_at=None, snoozed_until=None)
    none = {"acknowledged_by": "", "snoozed_by": ""}
    return _act(row, acknowledged_at=None, snoozed_until=None, **none)


def _act(row: AlertQuerySet, **values: Any) -> bool:
    changed = row.update(**values) == 1
    if changed:
        broadcast.announce_alerts()
    return changed
