"""The planning page: a model and a workload to an estimate and ranked Plans."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from placement import services
from placement.domain.errors import BadInput
from placement.domain.estimate import Estimate, estimate
from placement.domain.plan import Plan, PlanSet
from placement.domain.spec import ModelSpec
from placement.forms import PlanForm
from placement.models import RegisteredModel
from placement.runtime_check import torch_installed
from placement.services.planning import BOOKED, Offered
from placement.views import bars, pictures
from placement.views.access import own_reservations, reader
from reservations.domain.errors import TooFast
from reservations.rates import check_rate

UPLOADS_PER_MINUTE = 20
PLANS_PER_MINUTE = 120
MOST_MODELS_SHOWN = 20
WALL = "%Y-%m-%dT%H:%M"


@dataclass(frozen=True)
class Answer:
    """What a valid form led to."""

    spec: ModelSpec
    one: Estimate
    found: PlanSet
    offered: Offered


@require_http_methods(["GET", "HEAD", "POST"])
def plan_show(request: HttpRequest) -> HttpResponse:
    """Plan what the address says, or what was typed; htmx gets the result alone."""
    posted = request.method == "POST"
    form = _form(request, request.POST if posted else _first_values(request.GET))
    return _show(request, form, _answer(request, form))


def _show(
    request: HttpRequest, form: PlanForm, answer: Answer | None, status: int = 0
) -> HttpResponse:
    """Render the page, or htmx's part of it."""
    # django_htmx puts `htmx` on the request.
    asked = request.htmx  # type: ignore[attr-defined]
    part = bool(asked) and not asked.boosted
    template = "placement/_plan_result.html" if part else "placement/plan_show.html"
    context: dict[str, object] = {
        "form": form,
        "torch": torch_installed(),
        "part": part,
        "model_id": form.cleaned_data.get("model") if form.is_bound else None,
    }
    if answer is not None:
        context |= _pictures(answer)
    # htmx shows an answer of its own fragment only with a success status.
    wrong = 422 if form.errors else 200
    return render(request, template, context, status=200 if part else status or wrong)


def _form(request: HttpRequest, values: Mapping[str, object]) -> PlanForm:
    """Return the form with what this User may choose from."""
    user = reader(request)
    mine = own_reservations(user, timezone.now())
    models = RegisteredModel.objects.filter(owner=user).values_list("pk", "name")
    return PlanForm(
        values,
        request.FILES or None,
        reservations=[(row.pk, row.label) for row in mine],
        models=list(models[:MOST_MODELS_SHOWN]),
    )


def _first_values(asked: Mapping[str, str]) -> dict[str, object]:
    """Return the defaults, with what the address says in their place."""
    values = {
        name: field.initial
        for name, field in PlanForm.base_fields.items()
        if field.initial is not None
    }
    return values | {k: v for k, v in asked.items() if k in PlanForm.base_fields}


def _answer(request: HttpRequest, form: PlanForm) -> Answer | None:
    """Run the planner for a form; None: the form says what is wrong with it."""
    if not form.is_valid():
        return None
    try:
        check_rate(
            "plan",
            user_pk=reader(request).pk,
            per_minute=PLANS_PER_MINUTE,
            now=timezone.now(),
        )
        return _plans(request, form, _spec(request, form))
    except BadInput as error:
        for field, text in error.problems.items():
            known = field if field in form.fields else None
            form.add_error(known, text if known else f"{field}: {text}")
    except TooFast as refusal:
        form.add_error(None, refusal.text())
    return None


def _spec(request: HttpRequest, form: PlanForm) -> ModelSpec:
    """Return the chosen model; a new upload is parsed and kept first.

    Raises:
        BadInput: by a field of the form.
    """
    data = form.cleaned_data
    if data["source"] == "known":
        return services.chosen_spec(
            user=reader(request), well_known=data["known"], model_id=None
        )
    if data["upload"]:
        data["model"] = _parsed(request, form)
    if data["model"] is None:
        raise BadInput(
            {"upload": "Choose a config.json, a .safetensors or an ONNX file."}
        )
    return services.chosen_spec(
        user=reader(request), well_known="", model_id=data["model"]
    )


def _parsed(request: HttpRequest, form: PlanForm) -> int:
    """Parse and keep the uploaded file; return its number."""
    now = timezone.now()
    try:
        check_rate(
            "upload", user_pk=reader(request).pk, per_minute=UPLOADS_PER_MINUTE, now=now
        )
        row = services.parse_model(
            user=reader(request), upload=form.cleaned_data["upload"], now=now
        )
    except TooFast as refusal:
        raise BadInput({"upload": refusal.text()}) from None
    except BadInput as error:
        said = [
            text if field in ("upload", "file") else f"{field} {text}"
            for field, text in error.problems.items()
        ]
        raise BadInput({"upload": "; ".join(said)}) from error
    known = [choice for choice in form.models if choice[0] != row.pk]
    form.models = [(row.pk, row.name), *known]
    return row.pk


def _plans(request: HttpRequest, form: PlanForm, spec: ModelSpec) -> Answer:
    data = form.cleaned_data
    offered = services.offered(
        user=reader(request),
        at=data["at"],
        hours=data["hours"],
        now=timezone.now(),
        reservation_id=data["reservation"],
    )
    workload = form.workload()
    found = services.make_plans(
        spec=spec,
        workload=workload,
        offers=offered.offers,
        max_gpus=data["max_gpus"],
    )
    return Answer(spec, estimate(spec, workload), found, offered)


def _pictures(answer: Answer) -> dict[str, object]:
    """Return what the template draws."""
    spec, one, found, offered = answer.spec, answer.one, answer.found, answer.offered
    units = pictures.units_of(spec.shape.image_tokens if spec.shape else 0)
    cards = pictures.cards(found.plans, offered.own, units)
    offers = [bars.offer_bar(offer, BOOKED) for offer in offered.offers]
    alone = bars.estimate_bar(one)
    shown = [bar for card in cards for bar in card.bars]
    return {
        "spec": spec,
        "estimate": one,
        "estimate_rows": pictures.estimate_rows(one),
        "estimate_bar": alone,
        "phases": bars.phase_bars(one),
        "found": found,
        "verdict": pictures.verdict(found),
        "cards": cards,
        "candidates": pictures.candidates(found),
        "offers": offers,
        "window": offered,
        "legend": pictures.legend([*shown, *offers, alone]),
        "hatched": any(bar.off for bar in offers),
    }


@require_POST
def plan_choose(request: HttpRequest) -> HttpResponse:
    """Keep the Plan that was clicked and go on to its booking or its Job.

    The browser names the Plan; the planner makes it again, so that nothing a
    browser sends is believed. Where the Gpus changed meanwhile the page says so.
    """
    form = _form(request, request.POST)
    answer = _answer(request, form)
    if answer is None:
        return _show(request, form, None)
    wanted = request.POST.get("choose", "")
    chosen = next(
        (p for p in answer.found.plans if pictures.plan_key(p) == wanted), None
    )
    if chosen is None:
        form.add_error(
            None,
            "The GPUs changed meanwhile and that plan no longer fits. "
            "These are the plans for how they are now.",
        )
        return _show(request, form, answer, status=409)
    stored = services.keep_plan(
        user=reader(request), spec=answer.spec, plan=chosen, now=timezone.now()
    )
    return redirect(_next_page(chosen, stored.pk, stored.title, answer.offered))


def _next_page(plan: Plan, plan_id: int, title: str, offered: Offered) -> str:
    """Return where a chosen Plan leads: to its Job, or first to its booking."""
    own = pictures.own_reservation(plan, offered.own)
    if own is not None:
        query = urlencode({"reservation": own, "plan": plan_id})
        return f"{reverse('job-new')}?{query}"
    start, end = (timezone.localtime(at) for at in (offered.start, offered.end))
    query = urlencode(
        {
            "gpus": ",".join(str(offered.ids[uuid]) for uuid in plan.gpu_uuids),
            "start": start.strftime(WALL),
            "end": end.strftime(WALL),
            "purpose": title[:120],
            "plan": plan_id,
        }
    )
    return f"{reverse('calendar')}?{query}"
