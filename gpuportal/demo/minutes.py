"""The last day of stored minutes behind the demo lab's charts."""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta

from gpuportal.demo.lab import LOST
from gpuportal.demo.past_bookings import DraftBooking
from gpuportal.demo.sample_totals import columns, sample_totals
from reservations.models import Reservation
from telemetry.models import Gpu, SampleMinute

DAY_MINUTES = 24 * 60
MINUTES_SPAN = timedelta(minutes=DAY_MINUTES)


def write_minutes(
    booked: Sequence[tuple[DraftBooking, Reservation]],
    *,
    now: datetime,
    chance: random.Random,
) -> None:
    """Write one row per Gpu and minute of the last 24 h.

    Utilization follows the drawn reservations. A gap of 40 minutes last night looks
    like a restart of a node worker.
    """
    first = now - MINUTES_SPAN
    hole = (now - timedelta(hours=9), now - timedelta(hours=9) + timedelta(minutes=40))
    rows = []
    for gpu in Gpu.objects.select_related("node"):
        if (gpu.node.name, gpu.index) == LOST:
            continue
        spans = [
            (d.start, d.end, d.util_pct)
            for d, _ in booked
            if d.came and d.end > first and any(g.pk == gpu.pk for g in d.gpus)
        ]
        for number in range(DAY_MINUTES):
            at = first + timedelta(minutes=number)
            if gpu.node.name == "node-b" and hole[0] <= at < hole[1]:
                continue
            base = next((u for s, e, u in spans if s <= at < e), None)
            util = base and min(100.0, max(0.0, base + chance.gauss(0, 4)))
            said = columns(sample_totals(gpu, util, 60))
            rows.append(SampleMinute(gpu=gpu, minute_at=at, **said))
    SampleMinute.objects.bulk_create(rows, batch_size=2000)
