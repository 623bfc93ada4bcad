"""The rows of an endpoint: its Job, its place, one server per Gpu."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from placement.jobs.job_transitions import record_queued
from placement.models import Endpoint, Job
from placement.planner.launch.recipes import GIB, SERVE, checked_settings
from placement.planner.values.gpu_availability import GpuOffer
from placement.serving.rules import CONTEXT_BYTES, room_bytes
from placement.serving.serving_refusals import ServesAlready
from reservations.models import Reservation, User
from telemetry import request_id
from telemetry.models import Gpu


def put_endpoint(
    *,
    user: User,
    reservation: Reservation,
    gpu: Gpu,
    offer: GpuOffer,
    name: str,
    admits: str,
    settings: Mapping[str, Any],
    needs_bytes: int,
    may_move: bool,
    follows: Endpoint | None = None,
    now: datetime,
) -> Endpoint:
    """Queue the Job of an endpoint without models, in the caller's transaction."""
    room = room_bytes(offer)
    simulated = {
        "room_bytes": room,
        "simulated_memory_gib": max(
            0.5, round((CONTEXT_BYTES + min(needs_bytes, room)) / GIB, 3)
        ),
        "simulated_util_pct": 30.0,
    }
    job: Job = Job.objects.create(
        reservation=reservation,
        owner=user,
        name=name,
        kind=Job.Kind.SERVE,
        recipe=SERVE.name,
        gpu_count=1,
        recipe_settings=checked_settings(SERVE.name, {**settings, **simulated}),
        node=gpu.node,
        may_move=may_move,
        request_id=request_id.current(),
        created_at=now,
    )
    endpoint: Endpoint = Endpoint.objects.create(
        job=job, gpu=gpu, admits=admits, memory_bytes=room, follows=follows
    )
    record_queued(job, at=now, actor=user.username)
    return endpoint


def check_alone(reservation: Reservation, gpu: Gpu) -> None:
    """Refuse a second server on a Gpu. The Reservation is locked. Raises
    ServesAlready.
    """
    there = Endpoint.objects.filter(
        gpu=gpu,
        job__reservation=reservation,
        job__in=Job.objects.live().values("pk"),
    ).first()
    if there is not None:
        raise ServesAlready(job=there.job_id)
