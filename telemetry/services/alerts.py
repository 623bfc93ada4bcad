"""Alerts: one open finding per rule and Gpu, closing by itself."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef

from telemetry.domain.rules import SILENT, SILENT_AFTER_SECONDS, STANDING
from telemetry.models import Alert, Gpu


def open_alert(
    *,
    rule: str,
    gpu_id: int,
    now: datetime,
    detail: dict[str, Any] | None = None,
    reservation_id: int | None = None,
) -> bool:
    """Open a finding, or say that it still stands; True when it is new.

    Safe when two processes find the same at once: the database keeps one.
    """
    seen = {"last_seen_at": now, "detail": detail or {}}
    if reservation_id is not None:
        seen["reservation_id"] = reservation_id
    still_open = Alert.objects.open().filter(rule=rule, gpu_id=gpu_id)
    if still_open.update(**seen):
        return False
    try:
        with transaction.atomic():
            Alert.objects.create(
                rule=rule,
                gpu_id=gpu_id,
                opened_at=now,
                last_seen_at=now,
                detail=detail or {},
                reservation_id=reservation_id,
            )
    except IntegrityError:
        # Either another process was first, or the Gpu is gone: no finding then.
        still_open.update(**seen)
        return False
    return True


def close_alert(*, rule: str, gpu_id: int, now: datetime) -> bool:
    """Close a finding; False when there was none."""
    found = Alert.objects.open().filter(rule=rule, gpu_id=gpu_id)
    return found.update(closed_at=now) > 0


def close_unseen_alerts(
    *, now: datetime, unseen_seconds: float, keep: Collection[str] = STANDING
) -> int:
    """Close findings that nobody has seen again for so long; how many.

    Who finds something says so again and again, so an old finding is one whose
    finder was restarted and no longer sees it. `keep`: rules that are told once
    and closed by their opposite.
    """
    limit = now - timedelta(seconds=unseen_seconds)
    unseen = Alert.objects.open().filter(last_seen_at__lt=limit).exclude(rule__in=keep)
    return unseen.update(closed_at=now)


def mark_silent_nodes(*, now: datetime) -> tuple[int, int]:
    """Open an Alert for each Gpu of a node that has been silent for long.

    Closes them when the node is heard again. Returns (opened, closed).
    """
    limit = now - timedelta(seconds=SILENT_AFTER_SECONDS)
    gpus = Gpu.objects.shown().filter(present=True, node__last_seen_at__isnull=False)
    silent = gpus.filter(node__last_seen_at__lt=limit).select_related("node")
    opened = 0
    for gpu in silent:
        assert gpu.node.last_seen_at is not None
        opened += open_alert(
            rule=SILENT,
            gpu_id=gpu.pk,
            now=now,
            detail={"last_seen_at": gpu.node.last_seen_at.isoformat()},
        )
    still_silent = silent.filter(pk=OuterRef("gpu_id")).order_by()
    heard = Alert.objects.open().filter(rule=SILENT).exclude(Exists(still_silent))
    return opened, heard.update(closed_at=now)
