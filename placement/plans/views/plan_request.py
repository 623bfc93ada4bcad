"""The request of the planning page: the form, its model, and its workload."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext

from placement.jobs.forms import PlanForm
from placement.jobs.views.viewer import reader, usable_reservations
from placement.models import RegisteredModel
from placement.planner.model.adaptation import usual_targets
from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import BadInput
from placement.planner.values.workload import Workload
from placement.plans.available_gpus import site_cards
from placement.plans.model_registry import chosen_spec, parse_model
from placement.plans.planned_model import planned_model
from placement.plans.refinement import config_of
from reservations.rules.errors import TooFast
from reservations.web.rate_limits import check_rate
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.gpu_cards import GpuCard
from telemetry.web.error_answers import message_of
from telemetry.web.recognition import shown

UPLOADS_PER_MINUTE = 20
MOST_MODELS_SHOWN = 20
NOT_IN_ADDRESS = ("upload",)


@dataclass(frozen=True)
class PlanRequest:
    """The request of a valid form: the model with its changes, and the Workload."""

    spec: ModelSpec
    workload: Workload
    known: str
    model_id: int | None
    weights: str
    lora_rank: int
    lora_targets: tuple[str, ...]
    is_followed_now: bool = False
    """Whether a worker follows the model's code, so the page plans again soon."""

    def question(self) -> dict[str, Any]:
        """Return the request for the symbolic Estimate to `/ws/plans/`."""
        model: dict[str, Any] = {"known": self.known}
        if self.model_id is not None:
            model = {"model": self.model_id}
        adapter: dict[str, Any] = {}
        if self.lora_rank:
            adapter = {
                "lora_rank": self.lora_rank,
                "lora_targets": list(self.lora_targets),
            }
        return {**model, **adapter, "workload": self.workload.to_json(), "replicas": 1}

    @property
    def closed_only(self) -> str:
        """Why no symbolic Estimate is available, or ""."""
        if self.weights != "full":
            return gettext(
                "There is no exact check for quantized weights. Use the estimate above."
            )
        if self.spec.source in ("safetensors", "onnx"):
            return gettext(
                "There is no exact check for this kind of file, because it has "
                "sizes but no code. Upload the config.json for one."
            )
        return ""


def plan_form(request: HttpRequest, values: Mapping[str, object]) -> PlanForm:
    """Return the form with this User's choices."""
    user = reader(request)
    mine = usable_reservations(user, timezone.now())
    models = RegisteredModel.objects.filter(owner=user).values_list("pk", "name")
    return PlanForm(
        values,
        request.FILES or None,
        reservations=[(row.pk, row.label) for row in mine],
        models=list(models[:MOST_MODELS_SHOWN]),
    )


def first_values(asked: Mapping[str, str]) -> dict[str, object]:
    """Return the defaults, replaced by values in the address."""
    values = {
        name: field.initial
        for name, field in PlanForm.base_fields.items()
        if field.initial is not None
    }
    given = {k: v for k, v in asked.items() if k in PlanForm.base_fields}
    return values | given


def address_of(form: PlanForm, **changes: object) -> str:
    """Return the query that opens the page with this form again, or a changed one."""
    said = {
        name: str(form.data[name])
        for name in form.fields
        if name not in NOT_IN_ADDRESS and form.data.get(name) not in (None, "")
    }
    if form.cleaned_data.get("model"):
        said["model"] = str(form.cleaned_data["model"])
    return urlencode(said | changes)


def question_of_form(
    request: HttpRequest,
    form: PlanForm,
    cards: Iterable[GpuCard | None] | None = None,
    asks: bool = True,
) -> PlanRequest:
    """Return the request of a valid form. A new upload is parsed and stored first.

    Args:
        request: of the page.
        form: valid.
        cards: on which it must run. None: those of the form's Reservation or of the
            site.
        asks: whether a worker follows a model that none has followed yet.

    Raises:
        BadInput: by a field of the form.
    """
    data = form.cleaned_data
    base = _base(request, form)
    rank = data["lora_rank"] or 0
    targets = (data["lora_targets"] or usual_targets(base)) if rank else ()
    weights = data["weights"] or "full"
    known = data["known"] if data["source"] == "known" else ""
    model_id = data["model"] if data["source"] == "file" else None
    there = site_cards(data["reservation"]) if cards is None else cards
    workload = form.workload(there)
    user = reader(request)
    model = planned_model(
        base,
        workload,
        config=lambda: config_of(user, known, model_id),
        weights=weights,
        lora_rank=rank,
        lora_targets=targets,
        user=user,
        now=timezone.now(),
        asks=asks,
    )
    return PlanRequest(
        spec=model.spec,
        is_followed_now=model.is_followed_now,
        workload=workload,
        known=known,
        model_id=model_id,
        weights=weights,
        lora_rank=rank,
        lora_targets=targets,
    )


def add_problems(form: PlanForm, error: CodedError) -> None:
    """Show each problem at its field, or at the top if the form has no such field."""
    if not error.fields:
        form.add_error(None, message_of(error))
    for field, text in error.fields.items():
        known = field if field in form.fields else None
        form.add_error(known, shown(text) if known else f"{field}: {shown(text)}")


def _base(request: HttpRequest, form: PlanForm) -> ModelSpec:
    data = form.cleaned_data
    user = reader(request)
    if data["source"] == "known":
        return chosen_spec(user=user, well_known=data["known"], model_id=None)
    if data["upload"]:
        data["model"] = _parsed(request, form)
    if data["model"] is None:
        raise BadInput(
            {"upload": gettext("Choose a config.json, a .safetensors or an ONNX file.")}
        )
    return chosen_spec(user=user, well_known="", model_id=data["model"])


def _parsed(request: HttpRequest, form: PlanForm) -> int:
    """Parse and store the uploaded file. Return its number."""
    now = timezone.now()
    try:
        check_rate(
            "upload", user_pk=reader(request).pk, per_minute=UPLOADS_PER_MINUTE, now=now
        )
        row = parse_model(
            user=reader(request), upload=form.cleaned_data["upload"], now=now
        )
    except TooFast as refusal:
        raise BadInput({"upload": message_of(refusal)}) from None
    except BadInput as error:
        said = [
            shown(text) if field in ("upload", "file") else f"{field} {shown(text)}"
            for field, text in error.fields.items()
        ]
        raise BadInput({"upload": "; ".join(said)}) from error
    known = [choice for choice in form.models if choice[0] != row.pk]
    form.models = [(row.pk, row.name), *known]
    return row.pk
