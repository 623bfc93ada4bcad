"""The planning page: a model and a workload to an estimate and ranked Plans.

``plan_choice.py`` saves the Plan that a User clicks.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods, require_POST

from placement.jobs.forms import PlanForm
from placement.jobs.site_clock import clock_text
from placement.jobs.views.viewer import reader
from placement.planner.memory.estimate import Estimate, estimate
from placement.planner.model.spec import ModelSpec
from placement.planner.search.card_support import cards_of
from placement.planner.search.fit_suggestions import Ladder, ladder
from placement.planner.symbolic.torch_check import torch_installed
from placement.planner.values.errors import BadInput, WorkloadInvalid
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.objective import is_recommendable
from placement.planner.values.plan import Plan, PlanSet
from placement.plans import service as planning
from placement.plans.service import (
    BOOKED,
    AvailableGpus,
    EarliestPlans,
    make_plans,
    soonest_plans,
)
from placement.plans.views import bar_chart, plan_cards, plan_comparison
from placement.plans.views.memory_timeline import timeline
from placement.plans.views.plan_request import (
    PlanRequest,
    add_problems,
    address_of,
    first_values,
    plan_form,
    question_of_form,
)
from reservations.rules.errors import TooFast
from reservations.web.rate_limits import check_rate
from telemetry.models import Gpu

PLANS_PER_MINUTE = 120
ESTIMATES_PER_MINUTE = 600


@dataclass(frozen=True)
class PlanResult:
    """The result of a valid form."""

    asked: PlanRequest
    one: Estimate
    found: PlanSet
    offered: AvailableGpus
    later: EarliestPlans | None = None
    """If nothing fits then: the first start at which something does."""
    now: EarliestPlans | None = None
    """The Plans for the Gpus that are free now, if ``found`` is for later."""

    @property
    def spec(self) -> ModelSpec:
        """The model with the form's changes."""
        return self.asked.spec


@require_http_methods(["GET", "HEAD", "POST"])
def plan_show(request: HttpRequest) -> HttpResponse:
    """Plan for the parameters in the address. A script gets only the result."""
    posted = request.method == "POST"
    values = request.POST if posted else first_values(request.GET)
    form = plan_form(request, values)
    return show_page(request, form, planner_result(request, form))


@require_POST
def plan_now(request: HttpRequest) -> HttpResponse:
    """Answer while the User types: the closed form on one Gpu, without a search."""
    began = time.perf_counter()
    form = plan_form(request, request.POST)
    context: dict[str, object] = {"form": form, "part": True}
    if form.is_valid():
        if form.cleaned_data["source"] == "file" and not form.cleaned_data["model"]:
            # The file is sent with the whole form, not with each change. Until then
            # there are no figures, because they would be those of another model.
            context |= {"waits": True, "uploading": "uploading" in request.POST}
            return render(request, "placement/plans/_plan_now.html", context)
        try:
            check_rate(
                "estimate",
                user_pk=reader(request).pk,
                per_minute=ESTIMATES_PER_MINUTE,
                now=timezone.now(),
            )
            asked = question_of_form(request, form, asks=False)
            context |= quick_pictures(asked, estimate(asked.spec, asked.workload))
        except (BadInput, TooFast) as error:
            add_problems(form, error)
    answer = render(request, "placement/plans/_plan_now.html", context)
    milliseconds = 1000 * (time.perf_counter() - began)
    answer["Server-Timing"] = f"estimate;dur={milliseconds:.1f}"
    return answer


def quick_pictures(asked: PlanRequest, one: Estimate) -> dict[str, object]:
    """Return three figures, a bar and the fitting classes for one Gpu."""
    classes = (
        Gpu.objects.filter(retired=False)
        .order_by("memory_total_bytes", "name")
        .values_list("name", "memory_total_bytes")
        .distinct()
    )
    return {
        "spec": asked.spec,
        "estimate": one,
        "estimate_bar": bar_chart.estimate_bar(one),
        "precision": _choice("precision", asked.workload.precision),
        "attention": _choice("attention", asked.workload.attention),
        "classes": [_class_verdict(name, total, one) for name, total in classes],
        "question": asked.question(),
        "is_followed_now": asked.is_followed_now,
        "closed_only": asked.closed_only,
    }


def _choice(field: str, value: str) -> str:
    """Return the words of a choice in the form."""
    named = PlanForm.base_fields[field]
    assert isinstance(named, forms.ChoiceField)
    words = dict(named.choices)  # type: ignore[arg-type]
    return str(words.get(value, value)).partition(":")[0]


def _class_verdict(name: str, total_bytes: int, one: Estimate) -> dict[str, object]:
    """Return whether an empty card of a class would hold it, with a word and a
    figure.
    """
    if one.likely_bytes <= total_bytes:
        return {"name": name, "word": gettext("fits"), "state": "free", "icon": "check"}
    if one.low_bytes <= total_bytes:
        return {
            "name": name,
            "word": gettext("tight"),
            "state": "warn",
            "icon": "alert",
        }
    return {
        "name": name,
        "word": gettext("%(size)s too small")
        % {"size": bar_chart.gib(one.likely_bytes - total_bytes)},
        "state": "plain",
        "icon": "close",
    }


def show_page(
    request: HttpRequest, form: PlanForm, answer: PlanResult | None, status: int = 0
) -> HttpResponse:
    """Render the page, or the part of it that static/js/fragment.js fetches."""
    part = "X-Fragment" in request.headers
    template = (
        "placement/plans/_plan_result.html"
        if part
        else "placement/plans/plan_show.html"
    )
    context: dict[str, object] = {
        "form": form,
        "torch": torch_installed(),
        "part": part,
        "model_id": form.cleaned_data.get("model") if form.is_bound else None,
    }
    if answer is not None:
        context |= _pictures(answer)
        context["batches"] = [
            (batch, address_of(form, batch=batch))
            for batch in answer.found.batch_choices
        ]
        marked = _marked(request)
        context |= {"compared": marked, "compare": _compared(marked, answer)}
    # The script inserts a part only if its status is a success.
    wrong = 422 if form.errors else 200
    return render(request, template, context, status=200 if part else status or wrong)


def planner_result(request: HttpRequest, form: PlanForm) -> PlanResult | None:
    """Run the planner for a form; None: the form has errors."""
    if not form.is_valid():
        return None
    try:
        check_rate(
            "plan",
            user_pk=reader(request).pk,
            per_minute=PLANS_PER_MINUTE,
            now=timezone.now(),
        )
        offered = _offered(request, form)
        asked = question_of_form(request, form, cards_of(offered.offers))
        return _plans(request, form, asked, offered)
    except (BadInput, TooFast) as error:
        add_problems(form, error)
    return None


def _offered(request: HttpRequest, form: PlanForm) -> AvailableGpus:
    """Return the Gpus at the requested start.

    Raises:
        BadInput: no such Reservation.
    """
    data = form.cleaned_data
    return planning.offered(
        user=reader(request),
        at=data["at"],
        hours=data["hours"],
        now=timezone.now(),
        reservation_id=data["reservation"],
    )


def _plans(
    request: HttpRequest, form: PlanForm, asked: PlanRequest, offered: AvailableGpus
) -> PlanResult:
    data, now, user = form.cleaned_data, timezone.now(), reader(request)
    one = estimate(asked.spec, asked.workload)
    objective = data["wish"] or None

    def recommendable(plan: Plan) -> bool:
        return is_recommendable(plan, asked.workload)

    def soonest(accept: Callable[[Plan], bool]) -> EarliestPlans:
        return soonest_plans(
            user=user,
            spec=asked.spec,
            workload=asked.workload,
            at=data["at"],
            hours=data["hours"],
            now=now,
            max_gpus=data["max_gpus"],
            objective=objective or (None if data["at"] is None else "soonest"),
            accept=accept,
            known=offered,
        )

    anywhere = data["reservation"] is None
    if anywhere and (
        objective == "soonest" or (objective is None and data["at"] is None)
    ):
        # No time was given, so the answer is the soonest good start.
        answer = soonest(recommendable)
        if answer.first is not None and not _is_known(answer.first):
            answer = answer.first
        return PlanResult(asked, one, answer.found, answer.offered, now=answer.first)
    found = make_plans(
        spec=asked.spec,
        workload=asked.workload,
        offers=offered.offers,
        max_gpus=data["max_gpus"],
        objective=objective,
    )
    later = None
    booked = any(left.reason.startswith(BOOKED) for left in found.left_out)
    if not found.plans and booked and anywhere:
        first = soonest(lambda _: True)
        later = first if first.found.plans else None
    return PlanResult(asked, one, found, offered, later)


def _is_known(one: EarliestPlans) -> bool:
    """Return whether the Gpus' state then is known.

    If no node reports, a later start is no better answer than the reason.
    """
    booked = any(left.reason.startswith(BOOKED) for left in one.found.left_out)
    return booked or any(offer.usable for offer in one.offered.offers)


def later_key(start: datetime, key: str) -> str:
    """Return the key of a Plan that begins later, different from one that begins
    now.
    """
    return f"{start.isoformat()} {key}"


def _pictures(answer: PlanResult) -> dict[str, object]:
    """Return the charts for the template."""
    asked, one, found = answer.asked, answer.one, answer.found
    offered = answer.offered
    units = plan_cards.units_of_spec(asked.spec)
    cards = plan_cards.cards(found.plans, offered.own, units)
    cards = plan_cards.with_records(cards)
    now = answer.now
    now_cards = plan_cards.cards(now.found.plans, now.offered.own, units) if now else []
    offers = [bar_chart.offer_bar(offer, BOOKED) for offer in offered.offers]
    shown = [bar for card in (*cards, *now_cards) for bar in card.bars]
    return quick_pictures(asked, one) | {
        "estimate_rows": plan_cards.estimate_rows(one),
        "timeline": timeline(one, asked.workload),
        "found": found,
        "verdict": plan_cards.verdict(
            found,
            start=clock_text(offered.start) if now else "",
            now=now.found if now else None,
        ),
        "cards": [
            replace(card, key=later_key(offered.start, card.key)) if now else card
            for card in cards
        ],
        "now_cards": now_cards,
        "now_offers": [
            bar_chart.offer_bar(offer, BOOKED)
            for offer in (now.offered.offers if now else ())
        ],
        "candidates": plan_cards.candidates(found),
        "offers": offers,
        "window": offered,
        "later": answer.later,
        "later_gpus": ", ".join(
            shard.gpu_label
            for shard in (answer.later.found.plans[0].shards if answer.later else ())
        ),
        "ladder": _fit_ladder(answer),
        "legend": plan_cards.legend([*shown, *offers, bar_chart.estimate_bar(one)]),
        "hatched": any(bar.off for bar in offers),
    }


def _fit_ladder(answer: PlanResult) -> Ladder | None:
    """Return the changes that would make it fit on the largest free Gpu. None: no
    Gpu.
    """
    offers = answer.offered.offers
    if not offers:
        return None

    def room(offer: GpuOffer) -> tuple[int, int, str]:
        return offer.free_bytes, offer.memory_total_bytes, offer.label

    usable = [offer for offer in offers if offer.usable]
    try:
        return ladder(
            answer.spec, answer.asked.workload, max(usable or offers, key=room)
        )
    except WorkloadInvalid:
        return None


def _marked(request: HttpRequest) -> list[str]:
    """Return the strategies that were marked for comparing."""
    said = request.POST if request.method == "POST" else request.GET
    return list(dict.fromkeys(said.getlist("compare")))


def _compared(
    wanted: list[str], answer: PlanResult
) -> plan_comparison.Comparison | None:
    """Return the two marked Plans, or the last two if there are more."""
    best: dict[str, Plan] = {}
    for plan in answer.found.plans:
        best.setdefault(plan.strategy, plan)
    chosen = [best[name] for name in wanted if name in best][-2:]
    if len(chosen) < 2:
        return None
    units = plan_cards.units_of_spec(answer.spec)
    return plan_comparison.compare(*chosen, units=(units, units))
