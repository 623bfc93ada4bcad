"""Count, date and clear XIDs, and open and close their findings."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Q

from telemetry.alerts.service import close_alert, open_alert
from telemetry.live import broadcast
from telemetry.models import Alert, TelemetryPolicy, XidCount
from telemetry.protocol.reading import XidEvent
from telemetry.rules.alert_rules import LOST, XID_CRITICAL, XID_WARNING
from telemetry.rules.hardware_rules import xid_rule

OFF_THE_BUS = 79
"""XID 79, "GPU has fallen off the bus" (NVIDIA, XID Errors): the driver no longer
answers for such a Gpu."""
SAME_FALL = timedelta(minutes=2)
"""A Gpu is found lost at most this long after its XID."""
MOST_CODES = 128
"""Most codes counted of one Gpu. NVIDIA lists about 170, and a failing card shows a
few. The limit keeps a node that invents codes from filling the database and the Gpu's
page."""


@transaction.atomic
def count_xids(*, events: Mapping[int, Iterable[XidEvent]], now: datetime) -> int:
    """Add events to each Gpu's counts. Return how many were new.

    An event that is not later than the last one of its code was counted already,
    because a stream may be read twice. A future time of a node's clock counts as now.
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
            elif not row.is_uncleared:
                # After clearing the count begins again.
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
    """Mark a Gpu's XIDs, or those of one code, as cleared. Return how many."""
    rows = XidCount.objects.filter(gpu_id=gpu_id)
    if code is not None:
        rows = rows.filter(code=code)
    cleared = [row.pk for row in rows if row.is_uncleared]
    XidCount.objects.filter(pk__in=cleared).update(cleared_at=now)
    judge_xids(now=now, gpu_ids=[gpu_id])
    broadcast.announce_alerts()
    return len(cleared)


def judge_xids(*, now: datetime, gpu_ids: Iterable[int] | None = None) -> int:
    """Open and close the Alerts of XIDs. Return how many were opened.

    They stay open until the XIDs are cleared or were not seen again for the policy's
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
    gone = _lost_times(since)
    for row in counts.order_by("code"):
        rule = xid_rule(row.code, policy)
        if row.code == OFF_THE_BUS and _is_reported_as_lost(row, gone):
            continue
        if rule is not None and row.is_uncleared:
            standing.setdefault((row.gpu_id, rule), []).append(row)
    for gpu_id, rule in set(alerts.values_list("gpu_id", "rule")) - standing.keys():
        close_alert(rule=rule, gpu_id=gpu_id, now=now)
    return sum(
        open_alert(rule=rule, gpu_id=gpu_id, now=now, detail={"xids": _xid_json(rows)})
        for (gpu_id, rule), rows in standing.items()
    )


def _lost_times(since: datetime) -> dict[int, list[tuple[datetime, datetime | None]]]:
    """Return, by Gpu, when the driver did not answer: from, and until or still."""
    found: dict[int, list[tuple[datetime, datetime | None]]] = {}
    rows = Alert.objects.filter(Q(closed_at=None) | Q(closed_at__gt=since), rule=LOST)
    for gpu_id, opened, closed in rows.values_list("gpu_id", "opened_at", "closed_at"):
        if gpu_id is not None:
            found.setdefault(gpu_id, []).append((opened, closed))
    return found


def _is_reported_as_lost(
    row: XidCount, gone: Mapping[int, list[tuple[datetime, datetime | None]]]
) -> bool:
    """Return whether an Alert reports already that this Gpu fell off the bus, so that
    one cause has one Alert. In the opposite order the writer skips the Alert of a lost
    Gpu."""
    return any(
        opened - SAME_FALL <= row.last_at <= (closed or row.last_at)
        for opened, closed in gone.get(row.gpu_id, ())
    )


def is_off_the_bus(gpu_id: int) -> bool:
    """Return whether an open Alert's XID means that this Gpu fell off the bus."""
    rows = Alert.objects.open().filter(gpu_id=gpu_id, rule=XID_CRITICAL)
    return any(
        xid.get("code") == OFF_THE_BUS
        for detail in rows.values_list("detail", flat=True)
        for xid in detail.get("xids", ())
    )


def _xid_json(rows: list[XidCount]) -> list[dict[str, object]]:
    return [
        {"code": row.code, "count": row.count, "last_at": row.last_at.isoformat()}
        for row in rows
    ]
