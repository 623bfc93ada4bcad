"""The planning page: a model and a workload to an estimate and ranked Plans."""

from collections.abc import Mapping
from urllib.parse import urlencode

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from placement import services
from placement.domain.errors import BadInput
from placement.domain.estimate import estimate
from placement.domain.plan import Plan, PlanSet
from placement.domain.spec import ModelSpec
from placement.forms import PlanForm
from placement.models import RegisteredModel
from placement.runtime_check import torch_installed
from placement.services.planning import Offered
from placement.views import pictures

FOLDED = ("checkpointing", "accumulation", "attention", "max_gpus")
UPLOADS_PER_MINUTE = 20


@require_http_methods(["GET", "POST"])
def plan_show(request: HttpRequest) -> HttpResponse:
    """Show the form and, where it is valid, what the planner found."""
    form = PlanForm(request.POST, request.FILES) if request.method == "POST" else None
    if form is None:
        form = PlanForm(_first_values(request.GET))
    context = _answer(request, form)
    context["form"] = form
    context["torch"] = torch_installed()
    part = request.htmx and not request.htmx.boosted
    template = "placement/_plan_result.html" if part else "placement/plan_show.html"
    # htmx shows an answer of its own fragment only with a success status.
    status = 200 if part or not form.errors else 422
    return render(request, template, context, status=status)


def _first_values(asked: Mapping[str, str]) -> dict[str, object]:
    """Return the defaults, with what the address says in their place."""
    values = {
        name: field.initial
        for name, field in PlanForm.base_fields.items()
        if field.initial is not None
    }
    return values | {k: v for k, v in asked.items() if k in PlanForm.base_fields}


def _answer(request: HttpRequest, form: PlanForm) -> dict[str, object]:
    """Run the planner for a form; its own errors go into the form."""
    if not form.is_valid():
        return {}
    try:
        spec = _spec(request, form)
        found, offered = _plans(request, form, spec)
    except BadInput as error:
        for field, text in error.problems.items():
            known = field if field in form.fields else None
            form.add_error(known, text if known else f"{field}: {text}")
        return {}
    one = estimate(spec, form.workload())
    return {
        "spec": spec,
        "model_id": form.cleaned_data["model"],
        "estimate": one,
        "estimate_rows": pictures.estimate_rows(one),
        "estimate_bar": pictures.estimate_bar(one),
        "found": found,
        "verdict": pictures.verdict(found.plans),
        "cards": pictures.cards(found.plans, offered.own),
        "offer_bars": pictures.offer_bars(offered.offers),
        "window": offered,
        "components": pictures.COMPONENTS,
        "width": pictures.WIDTH,
    }


def _spec(request: HttpRequest, form: PlanForm) -> ModelSpec:
    """Return the chosen model; a new upload is parsed and kept first."""
    data = form.cleaned_data
    if data["source"] == "known":
        return services.chosen_spec(
            user=request.user, well_known=data["known"], model_id=None
        )
    upload = data["upload"]
    if upload is not None:
        _count_upload(request)
        row: RegisteredModel = services.parse_model(
            user=request.user, upload=upload, now=timezone.now()
        )
        data["model"] = row.pk
    if data["model"] is None:
        raise BadInput(
            {"upload": "Choose a config.json, a .safetensors or an ONNX file."}
        )
    return services.chosen_spec(
        user=request.user, well_known="", model_id=data["model"]
    )


def _count_upload(request: HttpRequest) -> None:
    key = f"uploads:{request.user.pk}:{int(timezone.now().timestamp()) // 60}"
    cache.add(key, 0, 120)
    if cache.incr(key) > UPLOADS_PER_MINUTE:
        raise BadInput(
            {"upload": f"at most {UPLOADS_PER_MINUTE} uploads a minute; wait a little"}
        )


def _plans(
    request: HttpRequest, form: PlanForm, spec: ModelSpec
) -> tuple[PlanSet, Offered]:
    data = form.cleaned_data
    offered = services.offered(
        user=request.user, at=data["at"], hours=data["hours"], now=timezone.now()
    )
    found = services.make_plans(
        spec=spec,
        workload=form.workload(),
        offers=offered.offers,
        max_gpus=data["max_gpus"],
    )
    return found, offered


@require_POST
def plan_choose(request: HttpRequest) -> HttpResponse:
    """Keep the Plan that was clicked and go on to its booking or its Job.

    The browser names the Plan; the planner makes it again, so that nothing a
    browser sends is believed. Where the Gpus changed meanwhile the page says so.
    """
    form = PlanForm(request.POST, request.FILES)
    chosen: Plan | None = None
    if form.is_valid():
        try:
            spec = _spec(request, form)
            found, offered = _plans(request, form, spec)
        except BadInput:
            return plan_show(request)
        wanted = request.POST.get("choose", "")
        chosen = next((p for p in found.plans if pictures.plan_key(p) == wanted), None)
    if chosen is None:
        form.add_error(
            None,
            "The GPUs changed meanwhile and that plan no longer fits. "
            "These are the plans for how they are now.",
        )
        context = _answer(request, form) if not form.has_error("upload") else {}
        return render(
            request,
            "placement/plan_show.html",
            context | {"form": form, "torch": torch_installed()},
            status=409,
        )
    stored = services.keep_plan(
        user=request.user, spec=spec, plan=chosen, now=timezone.now()
    )
    own = {offered.own.get(uuid) for uuid in chosen.gpu_uuids}
    if len(own) == 1 and None not in own:
        query = urlencode({"reservation": own.pop(), "plan": stored.pk})
        return redirect(f"{reverse('job-new')}?{query}")
    query = urlencode(
        {
            "gpus": ",".join(str(offered.ids[uuid]) for uuid in chosen.gpu_uuids),
            "start": offered.start.isoformat(timespec="minutes"),
            "end": offered.end.isoformat(timespec="minutes"),
            "purpose": stored.title[:120],
            "plan": stored.pk,
        }
    )
    return redirect(f"{reverse('calendar')}?{query}")
