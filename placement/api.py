"""Placement's part of the JSON API: Jobs, models and Plans."""

import json
from datetime import datetime
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, File, Query, Router, Schema, Status
from ninja.files import UploadedFile

from placement import logs, services, snapshots
from placement.api_moves import router as moves
from placement.domain.errors import BadInput
from placement.domain.estimate import estimate
from placement.domain.lifecycle import JobState
from placement.domain.spec import ModelSpec
from placement.domain.workload import Workload
from placement.forms import MOST_DAYS_AHEAD, most_days_ahead
from placement.models import Job
from placement.services.summaries import job_usage
from reservations.domain.errors import NotFound
from reservations.models import User
from reservations.rates import check_rate
from reservations.schemas import Line
from telemetry.charts import usage_entry

MOST_ROWS = 200
PLANS_PER_MINUTE = 120
UPLOADS_PER_MINUTE = 20
MOST_CONFIG_CHARACTERS = 2**20
router = Router(tags=["placement"])
router.add_router("", moves)


class NewJob(Schema):
    """A Job to launch into one's own Reservation."""

    reservation: int
    name: str
    kind: str = Job.Kind.RECIPE.value
    recipe: str = ""
    recipe_settings: dict[str, Any] = {}
    script: str = ""
    arguments: list[str] = []
    plan: int | None = None
    node: str = ""
    may_move: bool = False
    """Look again whether it would run faster elsewhere."""
    restart: str = ""
    """How it may be started again: fresh or resumes; "": not at all."""


class NewPlan(Schema):
    """A model, one of three ways; what to run with it; when and where."""

    model: str = ""
    """Name of a well-known model."""
    config: dict[str, Any] | None = None
    """A config.json."""
    model_id: int | None = None
    """What POST /models answered."""
    weights: str = "full"
    """Or int8, nf4: the blocks' linear layers quantized and frozen."""
    lora_rank: int = 0
    lora_targets: list[str] = []
    """Linear layers, as the family calls them, beside which adapters are trained."""
    workload: dict[str, Any] = {}
    at: datetime | None = None
    hours: float = 4
    max_gpus: int | None = None
    reservation: int | None = None
    """Only the Gpus of this Reservation of one's own."""


class StopReason(Schema):
    """Why a Job is stopped."""

    reason: Line = Field("", max_length=400)


@router.get("/jobs")
def job_list(
    request: HttpRequest,
    state: JobState | None = None,
    reservation: int | None = Query(None, ge=1, le=2**62),
    limit: int = Query(50, ge=1, le=MOST_ROWS),
    offset: int = Query(0, ge=0, le=10**9),
) -> dict[str, Any]:
    """Jobs that one may see, newest first."""
    rows = _visible(request)
    if state is not None:
        rows = rows.filter(state=state)
    if reservation is not None:
        rows = rows.filter(reservation_id=reservation)
    page = rows.prefetch_related("events")[offset : offset + limit]
    return {"count": rows.count(), "jobs": [snapshots.job_facts(job) for job in page]}


@router.get("/jobs/{int:job_id}")
def job_one(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """One Job with its moves and its last lines."""
    job = _one(request, job_id)
    return snapshots.job_facts(job) | {
        "events": snapshots.job_events(job),
        "last_lines": logs.last_lines(job, 20),
    }


@router.get("/jobs/{int:job_id}/usage")
def job_summary(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """What a Job came to, so far where it runs; null: it has not begun."""
    job = _one(request, job_id)
    usage = job_usage(job, now=timezone.now())
    return {"job": job.pk, "usage": usage and usage_entry(usage)}


@router.get("/jobs/{int:job_id}/log")
def job_log(
    request: HttpRequest,
    job_id: int,
    offset: int = Query(0, ge=-(2**40), le=2**40),
    length: int = Query(65_536, ge=0, le=logs.MOST_READ_BYTES),
) -> dict[str, Any]:
    """A range of the stored log; a negative offset counts from the end."""
    piece = logs.read(_one(request, job_id), offset=offset, length=length)
    return {
        "offset": piece.offset,
        "bytes": piece.bytes,
        "data": piece.data,
        "size": piece.size,
    }


@router.get("/jobs/{int:job_id}/numbers")
def job_numbers(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """The numbers that the log carries, thinned for a chart."""
    return {"rows": logs.numbers(_one(request, job_id))}


@router.post("/jobs", response={201: dict[str, Any]})
def job_launch(request: HttpRequest, body: NewJob) -> Status[dict[str, Any]]:
    """Launch a Job; it begins when its Reservation does."""
    job = services.launch(
        user=_user(request),
        reservation_id=body.reservation,
        name=body.name,
        kind=body.kind,
        recipe=body.recipe,
        recipe_settings=body.recipe_settings,
        script=body.script,
        arguments=body.arguments,
        plan_id=body.plan,
        node=body.node,
        may_move=body.may_move,
        restart=body.restart,
        now=timezone.now(),
    )
    return Status(201, snapshots.job_facts(_one(request, job.pk)))


@router.post("/jobs/{int:job_id}/stop")
def job_stop(
    request: HttpRequest, job_id: int, body: StopReason | None = None
) -> dict[str, Any]:
    """Stop a Job: TERM, the grace, KILL."""
    job = services.stop(
        job_id=job_id,
        user=_user(request),
        reason=body.reason if body else "",
        now=timezone.now(),
    )
    return snapshots.job_facts(job)


@router.post("/models", response={201: dict[str, Any]})
def model_upload(
    request: HttpRequest, file: File[list[UploadedFile]]
) -> Status[dict[str, Any]]:
    """Read a config.json, .safetensors (its header will do, also as .json), ONNX, or
    several files `file`: an index with its shards' headers. Keep the sizes only."""
    now = timezone.now()
    user = _user(request)
    check_rate("upload", user_pk=user.pk, per_minute=UPLOADS_PER_MINUTE, now=now)
    row = services.parse_model(user=user, upload=file, now=now)
    spec = ModelSpec.from_json(row.spec)
    return Status(201, {"id": row.pk, "name": row.name, **_spec_facts(spec)})


@router.post("/plans")
def plan_make(request: HttpRequest, body: NewPlan) -> dict[str, Any]:
    """Estimate a model's memory and rank the ways to run it on the Gpus."""
    now = timezone.now()
    user = _user(request)
    check_rate("plan", user_pk=user.pk, per_minute=PLANS_PER_MINUTE, now=now)
    workload = Workload.from_json(body.workload)
    offered = services.offered(
        user=user,
        at=_instant(body.at, now),
        hours=body.hours,
        now=now,
        reservation_id=body.reservation,
    )
    spec = services.adapted(
        _chosen(user, body, now),
        weights=body.weights,
        lora_rank=body.lora_rank,
        lora_targets=body.lora_targets,
    )
    if body.max_gpus is not None and body.max_gpus < 1:
        raise BadInput({"max_gpus": "must be at least 1"})
    found = services.make_plans(
        spec=spec, workload=workload, offers=offered.offers, max_gpus=body.max_gpus
    )
    return {
        "spec": {"name": spec.name, **_spec_facts(spec)},
        "estimate": estimate(spec, workload).to_json(),
        "window": {
            "start": snapshots.iso(offered.start),
            "end": snapshots.iso(offered.end),
        },
        "gpu_ids": dict(offered.ids),
        **found.to_json(),
    }


def _spec_facts(spec: ModelSpec) -> dict[str, Any]:
    return {
        "family": spec.family,
        "parameter_count": spec.parameter_count,
        "layers": len(spec.layers),
        "trainable_count": spec.trainable_count,
        "stored_bytes": spec.stored_bytes,
        "dtype": spec.dtype,
        "source": spec.source,
        "quantized": spec.is_quantized,
        "tied_groups": [list(group) for group in spec.tied_groups],
        "activations_are_a_guess": spec.activations_are_a_guess,
        "notes": list(spec.notes),
    }


def _instant(at: datetime | None, now: datetime) -> datetime | None:
    """Return an aware instant within the calendar's reach; None: now.

    Raises:
        BadInput: too far ahead.
    """
    if at is None:
        return None
    aware = timezone.make_aware(at) if timezone.is_naive(at) else at
    if aware > most_days_ahead(now):
        raise BadInput({"at": f"at most {MOST_DAYS_AHEAD} days ahead"})
    return aware


def _chosen(user: User, body: NewPlan, now: datetime) -> ModelSpec:
    """Return the ModelSpec that a body names, one way of the three.

    Raises:
        BadInput: none or several, or it cannot be read.
    """
    given = [bool(body.model), body.config is not None, body.model_id is not None]
    if sum(given) != 1:
        raise BadInput({"model": "give one of model, config and model_id"})
    if body.config is None:
        return services.chosen_spec(
            user=user, well_known=body.model, model_id=body.model_id
        )
    text = json.dumps(body.config)
    if len(text) > MOST_CONFIG_CHARACTERS:
        raise BadInput({"config": f"more than {MOST_CONFIG_CHARACTERS:,} characters"})
    check_rate("upload", user_pk=user.pk, per_minute=UPLOADS_PER_MINUTE, now=now)
    upload = SimpleUploadedFile("config.json", text.encode())
    row = services.parse_model(user=user, upload=upload, now=now)
    return ModelSpec.from_json(row.spec)


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _visible(request: HttpRequest):  # type: ignore[no-untyped-def]
    return Job.objects.visible_to(_user(request)).select_related(
        "owner", "node", "reservation"
    )


def _one(request: HttpRequest, job_id: int) -> Job:
    job: Job | None = _visible(request).filter(pk=job_id).first()
    if job is None:
        raise NotFound(what=f"job #{job_id}")
    return job
