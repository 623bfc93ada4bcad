"""The JSON API of models and Plans: read a model, plan it, save a Plan, its files."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from ninja import File, Query, Router, Schema, Status
from ninja.files import UploadedFile

from placement.jobs import queries as snapshots
from placement.jobs.forms import MOST_DAYS_AHEAD, most_days_ahead
from placement.models import StoredPlan
from placement.planner.launch.files import launch_files
from placement.planner.memory.estimate import Estimate, estimate
from placement.planner.model.spec import ModelSpec
from placement.planner.search.card_support import cards_of, completed_workload
from placement.planner.values.errors import BadInput
from placement.planner.values.objective import Objective
from placement.planner.values.plan import LeftOut, Plan, RejectedStrategy, Shard
from placement.planner.values.workload import Workload
from placement.plans import service as planning
from placement.plans.model_registry import chosen_spec, parse_model
from placement.plans.planned_model import planned_model
from placement.plans.refinement import config_of
from placement.plans.saved_plans import plan_archive, visible_plan
from placement.plans.service import make_plans, save_plan, soonest_plans
from reservations.models import User
from reservations.rules.errors import NotFound
from reservations.web.rate_limits import check_rate
from reservations.web.schemas import in_utc
from telemetry.protocol.sentences import sentence
from telemetry.web.answer_types import UtcInstant, ZipAnswer
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

MOST_ROWS = 200
PLANS_PER_MINUTE = 120
UPLOADS_PER_MINUTE = 20
MOST_CONFIG_CHARACTERS = 2**20
router = Router(tags=["placement"])


class NewPlan(Schema):
    """A model in one of three ways, its workload, the start and the duration."""

    model: str = ""
    """Name of a well-known model."""
    config: dict[str, Any] | None = None
    """A config.json."""
    model_id: int | None = None
    """The number from POST /models."""
    weights: str = "full"
    """Or int8, nf4: the linear layers of the blocks quantized and frozen."""
    lora_rank: int = 0
    lora_targets: list[str] = []
    """Linear layers, as the family calls them, beside which adapters are trained."""
    workload: dict[str, Any] = {}
    """Without a precision or an attention it gets those that suit the task and the
    GPUs.
    """
    at: datetime | None = None
    hours: float = 4
    max_gpus: int | None = None
    reservation: int | None = None
    """Only the Gpus of this Reservation of the user."""
    wish: Objective | Literal[""] = ""
    """The objective that ranks the Plans; "": the order of choice."""
    keep: int | None = None
    """Which of the answer's plans to keep, counted from 0: it gets a number."""


@dataclass(frozen=True, kw_only=True)
class ShardDocument(Shard):
    """A shard as JSON."""

    headroom_bytes: int = 0
    """Free bytes beyond the likely need. Negative in a tight plan."""


@dataclass(frozen=True, kw_only=True)
class PlanDocument(Plan):
    """A plan as JSON: one way to run a model on chosen GPUs."""

    shards: tuple[ShardDocument, ...]
    version: int
    """Of the form of the document."""


if TYPE_CHECKING:
    # The values as their ``to_json`` returns them. Their classes are the schema.
    EstimateJson: TypeAlias = dict[str, Any]
    LeftOutJson: TypeAlias = dict[str, Any]
    PlanJson: TypeAlias = dict[str, Any]
    RejectedJson: TypeAlias = dict[str, Any]
    WorkloadJson: TypeAlias = dict[str, Any]
else:
    EstimateJson, PlanJson, WorkloadJson = Estimate, PlanDocument, Workload
    LeftOutJson, RejectedJson = LeftOut, RejectedStrategy


class ModelSizes(TypedDict):
    """What is known of a model."""

    name: str
    family: str
    parameter_count: int
    layers: int
    """Number of blocks, as its paper counts them: without embedding and head."""
    trainable_count: int
    """Parameters that get a gradient."""
    stored_bytes: int
    """Bytes of its weights."""
    dtype: str
    """How the source stores the weights."""
    source: str
    """config.json, safetensors, onnx or well-known."""
    quantized: bool
    tied_groups: list[list[str]]
    """Names of weights that share their storage."""
    activations_are_a_guess: bool
    notes: list[str]


class ModelAnswer(ModelSizes):
    """A stored model."""

    id: int


class PlanWindow(TypedDict):
    """The time for which was planned."""

    start: UtcInstant | None
    end: UtcInstant | None


class KeptPlan(TypedDict):
    """The plan that was kept."""

    id: int
    address: str
    """Path of its page."""


class PlanSetAnswer(TypedDict):
    """Plans, best first, and rejected strategies."""

    spec: ModelSizes
    estimate: EstimateJson
    """Of one GPU with the whole model."""
    window: PlanWindow
    gpu_ids: dict[str, int]
    """Number of each GPU, by its UUID."""
    kept: KeptPlan | None
    """The plan that ``keep`` names."""
    model: str
    workload: WorkloadJson
    plans: list[PlanJson]
    refusals: list[RejectedJson]
    left_out: list[LeftOutJson]
    """GPUs that no plan may use."""
    notes: list[str]
    wish: str
    """The objective of the ranking. Empty: time times cost."""
    advice: str
    """An alternative if no plan is sensible."""
    batch_choices: list[int]
    """The nearest batches that more GPUs share evenly."""


class PlanFacts(TypedDict):
    """A kept plan, in short."""

    id: int
    title: str
    created_at: UtcInstant | None
    workload: WorkloadJson
    address: str
    """Path of its page."""


class StoredPlanAnswer(PlanFacts):
    """A kept plan."""

    plan: PlanJson


class PlanList(NextPage):
    """Plans that the caller kept."""

    count: int
    """Of all pages."""
    plans: list[PlanFacts]


class PlanFile(TypedDict):
    """A file to start a plan."""

    name: str
    text: str
    about: str
    command: str
    """How it is started. Empty: another file uses it."""


class PlanFiles(TypedDict):
    """The files that start a plan."""

    files: list[PlanFile]
    left_out: dict[str, str]
    """Launchers that cannot run it, and why."""
    notes: list[str]


@router.post("/models", response={201: dict[str, Any]})
def model_upload(
    request: HttpRequest, file: File[list[UploadedFile]]
) -> Status[ModelAnswer]:
    """Read a config.json, .safetensors (its header will do, also as .json), ONNX, or
    several files `file`: an index with its shards' headers. Keep the sizes only."""
    now = timezone.now()
    user = _user(request)
    check_rate("upload", user_pk=user.pk, per_minute=UPLOADS_PER_MINUTE, now=now)
    row = parse_model(user=user, upload=file, now=now)
    spec = ModelSpec.from_json(row.spec)
    return Status(201, {"id": row.pk, **_spec_facts(spec, row.name)})


@router.post("/plans")
def plan_make(request: HttpRequest, body: NewPlan) -> PlanSetAnswer:
    """Estimate a model's memory and rank the ways to run it on the GPUs."""
    now = timezone.now()
    user = _user(request)
    check_rate("plan", user_pk=user.pk, per_minute=PLANS_PER_MINUTE, now=now)
    offered = planning.offered(
        user=user,
        at=_instant(body.at, now),
        hours=body.hours,
        now=now,
        reservation_id=body.reservation,
    )
    workload = completed_workload(body.workload, cards_of(offered.offers))
    spec = planned_model(
        _chosen(user, body, now),
        workload,
        config=lambda: body.config or config_of(user, body.model, body.model_id),
        weights=body.weights,
        lora_rank=body.lora_rank,
        lora_targets=body.lora_targets,
        user=user,
        now=now,
    ).spec
    if body.max_gpus is not None and body.max_gpus < 1:
        raise BadInput({"max_gpus": sentence("must be at least 1")})
    if body.wish == "soonest" and body.reservation is None:
        first = soonest_plans(
            user=user,
            spec=spec,
            workload=workload,
            at=_instant(body.at, now),
            hours=body.hours,
            now=now,
            max_gpus=body.max_gpus,
            known=offered,
        )
        found, offered = first.found, first.offered
    else:
        found = make_plans(
            spec=spec,
            workload=workload,
            offers=offered.offers,
            max_gpus=body.max_gpus,
            objective=body.wish or None,
        )
    told = found.to_json()
    return {
        "spec": _spec_facts(spec, spec.name),
        "estimate": estimate(spec, workload).to_json(),
        "window": {
            "start": snapshots.iso(offered.start),
            "end": snapshots.iso(offered.end),
        },
        "gpu_ids": dict(offered.ids),
        "kept": _kept_plan(user, spec, found.plans, body.keep, now),
        "model": told["model"],
        "workload": told["workload"],
        "plans": told["plans"],
        "refusals": told["refusals"],
        "left_out": told["left_out"],
        "notes": told["notes"],
        "wish": told["wish"],
        "advice": told["advice"],
        "batch_choices": told["batch_choices"],
    }


def _kept_plan(
    user: User,
    spec: ModelSpec,
    plans: tuple[Plan, ...],
    number: int | None,
    now: datetime,
) -> KeptPlan | None:
    """Save the requested Plan; None: no Plan was requested.

    Raises:
        BadInput: no such Plan.
    """
    if number is None:
        return None
    if not 0 <= number < len(plans):
        raise BadInput(
            {
                "keep": sentence(
                    "must be from 0 to {plans}: no such plan", plans=len(plans) - 1
                )
            }
        )
    row = save_plan(user=user, spec=spec, plan=plans[number], now=now)
    return {"id": row.pk, "address": reverse("plan-kept", args=[row.pk])}


@router.get("/plans")
def plan_list(
    request: HttpRequest,
    response: HttpResponse,
    limit: int = Query(50, ge=1, le=MOST_ROWS),
    offset: int = Query(0, ge=0, le=10**9),
    cursor: str = CURSOR,
) -> PlanList:
    """Plans that the caller kept, newest first."""
    rows = StoredPlan.objects.filter(owner=_user(request))
    page, following = cursor_page(
        rows.defer("spec", "plan"),
        by="created_at",
        cursor=cursor,
        limit=limit,
        offset=offset,
    )
    link_next(request, response, following)
    return {
        "count": rows.count(),
        "plans": [_saved_plan_facts(row) for row in page],
        "next": following,
    }


@router.get("/plans/{int:plan_id}")
def plan_one(request: HttpRequest, plan_id: int, key: str = "") -> StoredPlanAnswer:
    """A kept plan that the caller may see. `key` is the one of its link."""
    row = _visible_plan(request, plan_id, key)
    return {**_saved_plan_facts(row), "plan": row.plan}


@router.get("/plans/{int:plan_id}/files")
def plan_files(
    request: HttpRequest,
    plan_id: int,
    key: str = "",
    form: Literal["json", "zip"] = "json",
) -> PlanFiles | ZipAnswer:
    """The files that start a kept plan: as JSON, or `form=zip` as one archive."""
    row = _visible_plan(request, plan_id, key)
    made = launch_files(Plan.from_json(row.plan), ModelSpec.from_json(row.spec))
    if form == "zip":
        answer = HttpResponse(plan_archive(made), content_type="application/zip")
        answer["Content-Disposition"] = f'attachment; filename="plan-{row.pk}.zip"'
        return answer
    return {
        "files": [
            {
                "name": file.name,
                "text": file.text,
                "about": file.about,
                "command": file.command,
            }
            for file in made.files
        ],
        "left_out": made.left_out,
        "notes": list(made.notes),
    }


def _visible_plan(request: HttpRequest, plan_id: int, key: str) -> StoredPlan:
    row = visible_plan(_user(request), plan_id, key)
    if row is None:
        raise NotFound(what=sentence("plan #{plan_id}", plan_id=plan_id))
    return row


def _saved_plan_facts(row: StoredPlan) -> PlanFacts:
    return {
        "id": row.pk,
        "title": row.title,
        "created_at": snapshots.iso(row.created_at),
        "workload": row.workload,
        "address": reverse("plan-kept", args=[row.pk]),
    }


def _spec_facts(spec: ModelSpec, name: str) -> ModelSizes:
    return {
        "name": name,
        "family": spec.family,
        "parameter_count": spec.parameter_count,
        "layers": spec.block_count,
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
        BadInput: too far ahead, or a year that the portal cannot know.
    """
    if at is None:
        return None
    try:
        # In UTC first: a year at the very end has no time in every zone.
        aware = in_utc(at if timezone.is_aware(at) else at.replace(tzinfo=UTC))
    except ValueError as error:
        raise BadInput({"at": str(error)}) from None
    if timezone.is_naive(at):
        aware = timezone.make_aware(at)
    if aware > most_days_ahead(now):
        raise BadInput(
            {
                "at": sentence(
                    "at most {most_days_ahead} days ahead",
                    most_days_ahead=MOST_DAYS_AHEAD,
                )
            }
        )
    return aware


def _chosen(user: User, body: NewPlan, now: datetime) -> ModelSpec:
    """Return the ModelSpec that a body names, one way of the three.

    Raises:
        BadInput: none or several, or it cannot be read.
    """
    given = [bool(body.model), body.config is not None, body.model_id is not None]
    if sum(given) != 1:
        raise BadInput({"model": sentence("give one of model, config and model_id")})
    if body.config is None:
        return chosen_spec(user=user, well_known=body.model, model_id=body.model_id)
    text = json.dumps(body.config)
    if len(text) > MOST_CONFIG_CHARACTERS:
        raise BadInput(
            {
                "config": sentence(
                    "more than {most_config_characters} characters",
                    most_config_characters=f"{MOST_CONFIG_CHARACTERS:,}",
                )
            }
        )
    check_rate("upload", user_pk=user.pk, per_minute=UPLOADS_PER_MINUTE, now=now)
    upload = SimpleUploadedFile("config.json", text.encode())
    row = parse_model(user=user, upload=upload, now=now)
    return ModelSpec.from_json(row.spec)


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
