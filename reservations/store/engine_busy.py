"""What Slurm does with its GPUs besides the portal's bookings, by its last answer."""

from collections.abc import Sequence
from datetime import datetime

from django.conf import settings

from reservations.rules.calendar import BusySpan, CalendarGpu
from reservations.rules.engine_names import reservation_of
from reservations.rules.engine_use import EngineHeld, EngineUse, engine_spans
from reservations.rules.window import Window, unix
from telemetry.models import SlurmCluster, SlurmGpu
from telemetry.rules.slurm_use import SlurmUse


def engine_busy(
    gpus: Sequence[CalendarGpu],
    booked: dict[int, list[Window]],
    start: datetime,
    end: datetime,
) -> list[BusySpan]:
    """Return when Slurm does not give out its Gpus, without their booked time.

    A closed node, or one that does not answer, is left out of the whole time. Two
    queries, none without Gpus of Slurm.
    """
    nodes = {gpu.node for gpu in gpus if gpu.engine}
    if not nodes:
        return []
    rows = SlurmGpu.objects.filter(gpu__in=[gpu.pk for gpu in gpus if gpu.engine])
    used = rows.exclude(use__in=[SlurmUse.FREE, SlurmUse.RESERVED]).order_by()
    cluster = SlurmCluster.objects.filter(name=settings.SLURM_CLUSTER).first()
    return engine_spans(
        gpus,
        [
            EngineUse(pk, unix(until) if until and use == SlurmUse.BUSY else None, name)
            for pk, use, until, name in used.values_list(
                "pk", "use", "until", "reservation"
            )
            if use != SlurmUse.BUSY or not _is_ours(name)
        ],
        [
            EngineHeld(name, node, begin, over, count)
            for name, node, begin, over, count in (cluster.held if cluster else ())
            if node in nodes and not _is_ours(name)
        ],
        booked,
        first=unix(start),
        last=unix(end),
    )


def _is_ours(name: str) -> bool:
    """Return whether a reservation of Slurm belongs to a booking of this portal."""
    return reservation_of(settings.SLURM_SITE, name) is not None
