"""The energy that every running booking has used, for the cards of the board.

Full hours come from the hour rows and the rest from the minutes, so that a board
of 1,000 Gpus costs two queries a minute, however many pages are open.
"""

from collections import defaultdict
from datetime import datetime

from django.core.cache import cache
from django.db.models import Q, Sum

from reservations.models import Allocation
from reservations.rules.window import HOUR_SECONDS, grid_ceil
from telemetry.history.queries import rolled_until
from telemetry.models import SampleHour, SampleMinute

KEPT_SECONDS = 60
JOULES_A_KWH = 3.6e6
Energy = dict[int, tuple[int, float]]
"""By Gpu: the Reservation that holds it, and the kWh that it has used."""


def booking_energy(now: datetime) -> Energy:
    """Return the energy of every running booking, at most a minute old.

    A Gpu without known energy is left out.
    """
    kept: Energy | None = cache.get("board.energy")
    if kept is None:
        kept = _read(now)
        cache.set("board.energy", kept, KEPT_SECONDS)
    return kept


def _read(now: datetime) -> Energy:
    rows = Allocation.objects.filter(live=True, start__lte=now, end__gt=now)
    held = {
        gpu_id: (reservation, start)
        for gpu_id, reservation, start in rows.order_by().values_list(
            "gpu_id", "reservation_id", "start"
        )
    }
    if not held:
        return {}
    gpus: dict[datetime, list[int]] = defaultdict(list)
    for gpu_id, (_, start) in held.items():
        gpus[start].append(gpu_id)
    rolled = rolled_until(now)
    hours, minutes = Q(pk=None), Q(pk=None)
    for start, pks in gpus.items():
        full = min(grid_ceil(start, HOUR_SECONDS), max(rolled, start))
        mine = Q(gpu_id__in=pks)
        hours |= mine & Q(hour_at__gte=full, hour_at__lt=rolled)
        minutes |= mine & Q(minute_at__gte=start, minute_at__lt=full)
        minutes |= mine & Q(minute_at__gte=max(rolled, full), minute_at__lt=now)
    joules: dict[int, float] = {}
    for table in (
        SampleHour.objects.filter(hours),
        SampleMinute.objects.filter(minutes),
    ):
        added = table.order_by().values_list("gpu_id").annotate(Sum("energy_joules"))
        for gpu_id, part in added:
            if part is not None:
                joules[gpu_id] = joules.get(gpu_id, 0.0) + part
    return {pk: (held[pk][0], joules[pk] / JOULES_A_KWH) for pk in sorted(joules)}
