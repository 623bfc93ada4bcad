"""Check that GPU memory is free after a Job; notify the operator and the next holder.

The check uses ingest's last readings. Processes outside Jobs, and memory on unbooked
Gpus, have their own rules (overrun, squatter, zombie memory). This check names the Job,
whose Reservation may still run. Without readings it opens and closes no finding.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from redis import Redis, RedisError

from placement.jobs.tick import gpu_assignment
from placement.models import Job
from placement.rules.job_alerts import HELD_RULE
from reservations.models import Allocation
from reservations.notifications import service as notices
from reservations.rules.booking_alerts import OVERRUN, ZOMBIE_MEMORY
from reservations.rules.lifecycle import State
from telemetry.alerts.service import close_alert, open_alert
from telemetry.inventory.queries import read_live
from telemetry.live import broadcast
from telemetry.models import Alert, Gpu, TelemetryPolicy
from telemetry.protocol.frame import FrameRow, decode
from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import MIB_BYTES

NOT_CLEAN = (HELD_RULE, OVERRUN, ZOMBIE_MEMORY)
HELD_SECONDS = 20.0
"""Time for a Job's last processes and the driver to free memory after its end."""
LOOK_SECONDS = 600.0
"""How long after its end a Job is checked. With an open Alert, until that closes."""
AGAIN_SECONDS = 30.0
"""How often an open finding is reported again."""
NEXT_SECONDS = 900.0
"""How long before its start a Reservation's holder is told that a Gpu is not free."""
FRESH_SECONDS = 5.0
FRAMES = 10
"""Memory without a process must be present in this many frames, a second apart."""
MOST_JOBS = 2000
MOST_ROWS = 200

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _ReportedGpu:
    """The last reading of one Gpu from ingest."""

    used_bytes: int
    """The least of the last frames, because short peaks are no leftovers."""
    processes: Sequence[Mapping[str, Any]] | None
    """None: the card does not report them."""


def update_alerts(now: datetime) -> int:
    """Open and close the Alerts about memory of ended Jobs. Return how many opened."""
    open_ones = Alert.objects.open().filter(rule=HELD_RULE)
    alerts = {alert.gpu_id: alert for alert in open_ones if alert.gpu_id is not None}
    jobs = _ended_jobs(now, [alert.detail.get("job") for alert in alerts.values()])
    if not jobs and not alerts:
        return 0
    try:
        seen = _readings(now)
    except RedisError as error:
        logger.warning("nobody looks what ended jobs still hold: %s", error)
        return 0
    wanted = {pk for job in jobs for pk in job.gpu_ids} | alerts.keys()
    gpus = Gpu.objects.filter(pk__in=wanted, uuid__in=seen)
    found = _held_gpus(
        jobs, {pk: seen[uuid] for pk, uuid in gpus.values_list("pk", "uuid")}
    )
    opened = 0
    again = now - timedelta(seconds=AGAIN_SECONDS)
    for gpu_id, (job, detail) in found.items():
        known = alerts.get(gpu_id)
        if known is None or known.last_seen_at <= again:
            opened += open_alert(
                rule=HELD_RULE,
                gpu_id=gpu_id,
                now=now,
                detail=detail,
                reservation_id=job.reservation_id,
            )
    for gpu in gpus:
        if gpu.pk in alerts and gpu.pk not in found:
            close_alert(rule=HELD_RULE, gpu_id=gpu.pk, now=now)
    return opened


def _ended_jobs(now: datetime, named: Iterable[int | None]) -> list[Job]:
    """Return Jobs that should hold nothing any more, the last to end first."""
    lately = Q(
        ended_at__gt=now - timedelta(seconds=LOOK_SECONDS),
        ended_at__lte=now - timedelta(seconds=HELD_SECONDS),
    )
    rows = Job.objects.filter(lately | Q(pk__in=[pk for pk in named if pk]))
    rows = rows.exclude(state__in=list(Job.State.live())).select_related("owner")
    facts = ("gpu_ids", "ended_at", "reservation_id", "owner__username")
    return list(rows.only(*facts).order_by("-ended_at", "-pk")[:MOST_JOBS])


def _held_gpus(
    jobs: Iterable[Job], seen: Mapping[int, _ReportedGpu]
) -> dict[int, tuple[Job, dict[str, Any]]]:
    """Return, by Gpu, the Job that still holds memory there, and how much."""
    least = TelemetryPolicy.current().zombie_memory_mib * MIB_BYTES
    running = Job.objects.filter(state__in=gpu_assignment.ON_NODE)
    busy = {pk for ids in running.values_list("gpu_ids", flat=True) for pk in ids}
    found: dict[int, tuple[Job, dict[str, Any]]] = {}
    last: set[int] = set()
    for job in jobs:
        for gpu_id in job.gpu_ids:
            was_last = gpu_id not in last and gpu_id not in busy
            last.add(gpu_id)
            if gpu_id not in seen or gpu_id in found:
                continue
            one = seen[gpu_id]
            own = [p for p in one.processes or () if p["job"] == job.pk]
            # Memory without a process belongs to the last Job that ran there.
            nobodys = was_last and one.processes == [] and one.used_bytes >= least
            if own or nobodys:
                found[gpu_id] = (job, _detail(job, own, one))
    return found


def _detail(
    job: Job, own: Sequence[Mapping[str, Any]], seen: _ReportedGpu
) -> dict[str, Any]:
    sizes = [process["memory_bytes"] or 0 for process in own]
    return {
        "job": job.pk,
        "memory_bytes": sum(sizes) if own else seen.used_bytes,
        "users": [job.owner.username],
        "processes": list(own),
    }


def _readings(now: datetime) -> dict[str, _ReportedGpu]:
    """Return the last readings by UUID. {}: there are no recent ones."""
    with Redis.from_url(settings.REDIS_URL) as client:
        at, rows = read_live(client)
        if at is None or now.timestamp() - at > FRESH_SECONDS:
            return {}
        frames = client.lrange(broadcast.FRAME_MINUTE, 0, FRAMES - 1)
        nodes = sorted({row.tag["node"] for row in rows})
        texts = (
            client.mget([broadcast.DETAIL + node for node in nodes]) if nodes else []
        )
    told: dict[str, Any] = {}
    for text in texts:  # type: ignore[union-attr]
        told |= json.loads(text)["gpus"] if text else {}
    least = _least_mib([decode(data).rows for data in frames], len(rows))  # type: ignore[union-attr]
    return {
        row.tag["uuid"]: _ReportedGpu(
            mib * MIB_BYTES, told[row.tag["uuid"]]["processes"]
        )
        for row, mib in zip(rows, least, strict=True)
        if row.tag["uuid"] in told
    }


def _least_mib(frames: Sequence[Sequence[FrameRow]], count: int) -> list[int]:
    """Return the least value of each Gpu in whole frames of the same Gpus."""
    if len(frames) < FRAMES or any(len(rows) != count for rows in frames):
        return [0] * count
    return [
        min(row.memory_used_mib or 0 for row in of) for of in zip(*frames, strict=True)
    ]


def notify_next_holders(now: datetime) -> int:
    """Notify the next holders of Gpus that are not free yet. Return their number."""
    return sum(notify_next_holder(alert, row, now) for alert, row in next_holders(now))


def next_holders(now: datetime) -> list[tuple[Alert, Allocation]]:
    """Return the next holders of Gpus that are not free, if they start soon."""
    soon = now + timedelta(seconds=NEXT_SECONDS)
    alerts = {
        alert.gpu_id: alert
        for alert in Alert.objects.open().filter(rule__in=NOT_CLEAN)
        if alert.gpu_id is not None
    }
    if not alerts:
        return []
    rows = Allocation.objects.filter(
        gpu__in=alerts,
        live=True,
        start__gt=now,
        start__lte=soon,
        reservation__state__in=list(State.live()),
    ).select_related("reservation__user", "gpu__node")
    return [(alerts[row.gpu_id], row) for row in rows.order_by("pk")[:MOST_ROWS]]


@transaction.atomic
def notify_next_holder(alert: Alert, row: Allocation, now: datetime) -> bool:
    """Notify the next holder once. False: sent before, or it is their own Job."""
    user = row.reservation.user
    job = Job.objects.filter(pk=alert.detail.get("job")).first()
    if job is not None and job.owner_id == user.pk:
        return False
    told = notices.notify(
        user=user,
        kind="job_held",
        reservation=row.reservation,
        detail={
            "url": f"/reservations/{row.reservation_id}/",
            "text": sentence(
                "{gpu} is not free yet: the previous job still uses its memory. The "
                "lab admin has been notified. If it is still in use at your start, "
                "you get an equal GPU or a full refund.",
                gpu=row.gpu,
            ),
        },
        now=now,
        key=f"not-clean:{row.reservation_id}:{row.gpu_id}",
    )
    return told is not None
