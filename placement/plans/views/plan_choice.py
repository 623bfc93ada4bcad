"""A click on one of the Plans: save it, and go on to its booking, Job or own page."""

from collections.abc import Sequence
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_POST

from placement.jobs.forms import PlanForm
from placement.jobs.views.viewer import reader
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import TITLES
from placement.plans.service import (
    AvailableGpus,
    make_plans,
    save_plan,
)
from placement.plans.views import plan_cards
from placement.plans.views.plan_page import (
    PlanResult,
    later_key,
    planner_result,
    show_page,
)
from placement.plans.views.plan_request import (
    address_of,
    plan_form,
)

WALL = "%Y-%m-%dT%H:%M"
"""An instant in the address of the calendar, in the site's zone."""


@require_POST
def plan_choose(request: HttpRequest) -> HttpResponse:
    """Save the clicked Plan and redirect to its booking, its Job or its page.

    The browser only names the Plan. The planner makes it again, so that no data from
    the browser is trusted. If the Gpus changed meanwhile, the page says so.
    """
    form = plan_form(request, request.POST)
    answer = planner_result(request, form)
    if answer is None:
        return show_page(request, form, None)
    kept = "keep" in request.POST
    wanted = request.POST.get("keep" if kept else "choose", "")
    found, offered = answer.found, answer.offered
    if answer.now is not None:
        prefix = later_key(offered.start, "")
        if wanted.startswith(prefix):
            wanted = wanted.removeprefix(prefix)
        else:
            found, offered = answer.now.found, answer.now.offered
    chosen = _plan_of_key(wanted, found.plans)
    if chosen is None:
        # Between two readings of the GPUs a Plan that is nearly as good may take its
        # place on the page. It still fits.
        chosen = _plan_of_key(wanted, _plans_of_strategy(wanted, form, answer, offered))
    if chosen is None:
        form.add_error(
            None,
            gettext(
                "The GPUs have changed and that plan no longer fits. These are the "
                "plans that fit now."
            ),
        )
        return show_page(request, form, answer, status=409)
    stored = save_plan(
        user=reader(request),
        spec=answer.spec,
        plan=chosen,
        now=timezone.now(),
        address=address_of(form),
    )
    if kept:
        return redirect("plan-kept", pk=stored.pk)
    return redirect(_next_page(chosen, stored.pk, stored.title, offered))


def _plan_of_key(key: str, plans: Sequence[Plan]) -> Plan | None:
    return next((plan for plan in plans if plan_cards.plan_key(plan) == key), None)


def _plans_of_strategy(
    key: str, form: PlanForm, answer: PlanResult, offered: AvailableGpus
) -> Sequence[Plan]:
    """Return the Plans of a key's strategy that fit, also those that others beat."""
    strategy = plan_cards.strategy_of_key(key)
    if strategy not in TITLES:
        return ()
    return make_plans(
        spec=answer.spec,
        workload=answer.asked.workload,
        offers=offered.offers,
        max_gpus=form.cleaned_data["max_gpus"],
        limits=PlanLimits(strategies=(strategy,)),
        objective=form.cleaned_data["wish"] or None,
    ).plans


def _next_page(plan: Plan, plan_id: int, title: str, offered: AvailableGpus) -> str:
    """Return the next page of a chosen Plan: its Job, or first its booking."""
    own = plan_cards.own_reservation(plan, offered.own)
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
