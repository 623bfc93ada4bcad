"""Findings of broken Gpus that have bookings.

They join telemetry's findings about the Gpu or its Node with its present and future
bookings. The leading ingest looks at regular intervals.
"""

from datetime import datetime

from reservations.models import Allocation
from reservations.rules.booking_alerts import BROKEN_WITH_BOOKINGS
from telemetry.alerts.service import close_alert, open_alert
from telemetry.models import Alert
from telemetry.rules.alert_rules import breaking_rules


def judge_broken(now: datetime) -> tuple[int, int]:
    """Open an Alert for each Gpu that is broken and has a present or future booking.
    Close those that are over. Return (opened, closed)."""
    causes = Alert.objects.open().filter(rule__in=breaking_rules()).rules_by_gpu()
    booked: dict[int, list[tuple[int, datetime]]] = {}
    rows = Allocation.objects.filter(live=True, end__gt=now, gpu__in=causes)
    for gpu_id, number, start in rows.order_by("start").values_list(
        "gpu_id", "reservation_id", "start"
    ):
        booked.setdefault(gpu_id, []).append((number, start))
    opened = 0
    for gpu_id, found in booked.items():
        number, start = found[0]
        opened += open_alert(
            rule=BROKEN_WITH_BOOKINGS,
            gpu_id=gpu_id,
            now=now,
            reservation_id=number,
            detail={
                "causes": sorted(causes[gpu_id]),
                "reservations": len(found),
                "next_start": start.isoformat(),
            },
        )
    stands = Alert.objects.open().filter(rule=BROKEN_WITH_BOOKINGS)
    over = set(stands.values_list("gpu_id", flat=True)) - booked.keys()
    closed = sum(
        close_alert(rule=BROKEN_WITH_BOOKINGS, gpu_id=gpu_id, now=now)
        for gpu_id in over
    )
    return opened, closed
