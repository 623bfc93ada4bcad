"""The last day of stored minutes behind the demo lab's charts."""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta

from gpuportal.demo.history import Draft
from gpuportal.demo.lab import LOST, NODES
from reservations.models import Reservation
from telemetry.models import Gpu, SampleMinute

DAY_MINUTES = 24 * 60
IDLE_WATTS = 45.0


def write_minutes(
    booked: Sequence[tuple[Draft, Reservation]],
    *,
    now: datetime,
    chance: random.Random,
) -> None:
    """Write one row per Gpu and minute of the last 24 h.

    Utilization follows the drawn reservations; a hole of 40 minutes last night
    stays a hole, as when a node worker was restarted.
    """
    node_of = {node.name: node for node in NODES}
    first = now - timedelta(minutes=DAY_MINUTES)
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
        limit = node_of[gpu.node.name].power_limit_watts
        for number in range(DAY_MINUTES):
            at = first + timedelta(minutes=number)
            if gpu.node.name == "node-b" and hole[0] <= at < hole[1]:
                continue
            base = next((u for s, e, u in spans if s <= at < e), None)
            rows.append(_minute(gpu, at, base, limit, chance))
    SampleMinute.objects.bulk_create(rows, batch_size=2000)


def _minute(
    gpu: Gpu, at: datetime, base: float | None, limit: float, chance: random.Random
) -> SampleMinute:
    util = 0.0 if not base else min(100.0, max(0.0, base + chance.gauss(0, 4)))
    memory = 0 if base is None else int(gpu.memory_total_bytes * 0.6)
    watts = IDLE_WATTS + (limit - IDLE_WATTS) * 0.9 * util / 100
    return SampleMinute(
        gpu=gpu,
        minute_at=at,
        n=60,
        util_n=60,
        util_sum_pct=60 * util,
        util_max_pct=min(100.0, util + 6 if base else 0.0),
        util_min_pct=max(0.0, util - 9),
        idle_n=0 if base else 60,
        memory_n=60,
        memory_sum_bytes=60.0 * memory,
        memory_max_bytes=memory,
        temperature_max_celsius=34 + 0.45 * util,
        power_n=60,
        power_sum_watts=60 * watts,
        process_n=60 if base is not None else 0,
    )
