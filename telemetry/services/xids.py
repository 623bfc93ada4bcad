"""XIDs: counted, dated, cleared; and the findings that they are."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from django.db import transaction

from telemetry import live
from telemetry.domain.hardware_rules import xid_rule
from telemetry.domain.reading import XidEvent
from telemetry.domain.rules import XID_CRITICAL, XID_WARNING
from telemetry.models import Alert, TelemetryPolicy, XidCount
from telemetry.services.alerts import close_alert, open_alert

MOST_CODES = 128
"""Codes counted of one Gpu: NVIDIA lists some 170 in all, and a card that fails shows
a few. A node that makes codes up fills neither the database nor the Gpu's page."""


@transaction.atomic
def count_xids(*, events: Mapping[int, Iterable[XidEvent]], now: datetime) -> int:
    """Add events to each Gpu's counts; how many were new.

    An event that is not later than the last one of its code was counted already:
    a stream may be read twice. A node's clock that is ahead counts as now.
    """
    counted = 0
    for gpu_id, told in events.items():
        rows = {
            row.code: row
            for row in XidCount.objects.select_for_update().filter(gpu_id=gpu_id)
        }
        known = {code: row.last_at for code, row in rows.items()}
        touched: dict[int, XidCount] = {}
        for event in sorted(told, key=lambda event: event.at):
            at = min(datetime.fromtimestamp(event.at, UTC), now)
            if event.code in known and at <= known[event.code]:
                continue
            row = rows.get(event.code)
            if row is None:
                if len(rows) >= MOST_CODES:
                    continue
                row = rows[event.code] = XidCount(
                    gpu_id=gpu_id, code=event.code, first_at=at
                )
            elif not row.stands:
                # What was cleared is over: the count begins again.
                row.count, row.first_at, row.cleared_at = 0, at, None
            row.count += 1
            row.last_at = at
            touched[row.code] = row
            counted += 1
        for row in touched.values():
            row.save()
    if counted:
        judge_xids(now=now, gpu_ids=events)
    return counted


def clear_xids(*, gpu_id: int, now: datetime, code: int | None = None) -> int:
    """Say that a Gpu's XIDs, or those of one code, were dealt with; how many."""
    rows = XidCount.objects.filter(gpu_id=gpu_id)
    if code is not None:
        rows = rows.filter(code=code)
    cleared = [row.pk for row in rows if row.stands]
    XidCount.objects.filter(pk__in=cleared).update(cleared_at=now)
    judge_xids(now=now, gpu_ids=[gpu_id])
    live.tell_alerts()
    return len(cleared)


def judge_xids(*, now: datetime, gpu_ids: Iterable[int] | None = None) -> int:
    """Open and close the Alerts of XIDs; how many were opened.

    They stand until the XIDs are cleared, or were not seen again for the policy's
    time. `gpu_ids`: only these Gpus.
    """
    policy = TelemetryPolicy.current().to_policy()
    since = now - timedelta(seconds=policy.xid_stands_seconds)
    alerts = Alert.objects.open().filter(rule__in=(XID_CRITICAL, XID_WARNING))
    counts = XidCount.objects.filter(last_at__gt=since, gpu__retired=False)
    if gpu_ids is not None:
        chosen = list(gpu_ids)
        counts, alerts = counts.filter(gpu__in=chosen), alerts.filter(gpu__in=chosen)
    standing: dict[tuple[int, str], list[XidCount]] = {}
    for row in counts.order_by("code"):
        rule = xid_rule(row.code, policy)
        if rule is not None and row.stands:
            standing.setdefault((row.gpu_id, rule), []).append(row)
    for gpu_id, rule in set(alerts.values_list("gpu_id", "rule")) - standing.keys():
        close_alert(rule=rule, gpu_id=gpu_id, now=now)
    return sum(
        open_alert(rule=rule, gpu_id=gpu_id, now=now, detail={"xids": _told(rows)})
        for (gpu_id, rule), rows in standing.items()
    )


def _told(rows: list[XidCount]) -> list[dict[str, object]]:
    return [
        {"code": row.code, "count": row.count, "last_at": row.last_at.isoformat()}
        for row in rows
    ]
