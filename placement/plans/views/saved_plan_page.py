"""The pages of saved Plans: show, share, compare, book, download the files.

`placement.plans.saved_plans.visible_plan` decides who may see a Plan. Only its owner
makes the link or takes it back. A User who may see a Plan may book its Gpus with the
rights that the User has. The Plan is then copied, so that a Job of that User can name
it.
"""

from datetime import datetime
from urllib.parse import parse_qsl, urlencode

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_POST, require_safe

from placement.jobs.forms import BookPlanForm
from placement.jobs.views.viewer import reader
from placement.models import StoredPlan
from placement.planner.launch.files import launch_files
from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import BadInput, PlanInvalid
from placement.planner.values.plan import Plan
from placement.plans.saved_plans import (
    book_plan,
    own_copy,
    plan_archive,
    set_link,
    starts_of,
    visible_plan,
)
from placement.plans.views import plan_cards, plan_comparison
from placement.plans.views.plan_choice import WALL
from reservations.models import Membership
from reservations.rules.lifecycle import State
from reservations.store.membership_rights import payers
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import add_errors
from telemetry.web.local_time_field import clock_notes

MOST_KEPT = 100
MOST_PLACES = 4
FIRST_HOURS = 4.0


def _visible_plan(request: HttpRequest, pk: int) -> tuple[StoredPlan, Plan, ModelSpec]:
    """Return a saved Plan that the User may see. Otherwise 404, without details."""
    said = request.POST if request.method == "POST" else request.GET
    row = visible_plan(reader(request), pk, said.get("key", ""))
    if row is None:
        raise Http404
    try:
        return row, Plan.from_json(row.plan), ModelSpec.from_json(row.spec)
    except (PlanInvalid, BadInput) as error:
        raise Http404(
            gettext(
                "This plan was saved in an old format that the portal no longer reads."
            )
        ) from error


@require_safe
def saved_plan_list(request: HttpRequest) -> HttpResponse:
    """List the Plans that the User saved and may compare."""
    rows = StoredPlan.objects.filter(owner=reader(request)).defer("spec")[:MOST_KEPT]
    return render(
        request, "placement/plans/plan_list.html", {"plans": _plan_rows(rows)}
    )


def _places(shards: list[dict[str, object]]) -> str:
    """Return the Gpus of a stored Plan, at most MOST_PLACES by name."""
    names = ", ".join(str(one.get("gpu_label", "")) for one in shards[:MOST_PLACES])
    if len(shards) <= MOST_PLACES:
        return names
    more = len(shards) - MOST_PLACES
    return gettext("%(names)s and %(more)s more") % {"names": names, "more": more}


def _plan_rows(rows: object) -> list[dict[str, object]]:
    found = []
    for row in rows:  # type: ignore[attr-defined]
        shards = row.plan.get("shards") or [{}]
        found.append(
            {
                "row": row,
                "where": _places(shards),
                "step_seconds": row.plan.get("step_seconds"),
            }
        )
    return found


@require_safe
def saved_plan_show(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one saved Plan."""
    row, plan, spec = _visible_plan(request, pk)
    first = {"hours": request.GET.get("hours") or f"{FIRST_HOURS:g}"}
    return _page(request, row, plan, spec, BookPlanForm(initial=first))


def _page(
    request: HttpRequest,
    row: StoredPlan,
    plan: Plan,
    spec: ModelSpec,
    form: BookPlanForm,
    status: int = 200,
) -> HttpResponse:
    user, now = reader(request), timezone.now()
    (card,) = plan_cards.with_records(
        [plan_cards.card(plan, {}, plan_cards.units_of_spec(spec))]
    )
    starts = starts_of(plan, hours=_hours(form), now=now)
    if not form.is_bound and starts.own is not None and starts.own > now:
        form.initial["at"] = timezone.localtime(starts.own).strftime(WALL)
    mine = row.owner_id == user.pk
    link = ""
    if row.link_key and mine:
        query = urlencode({"key": row.link_key})
        link = request.build_absolute_uri(
            f"{reverse('plan-kept', args=[row.pk])}?{query}"
        )
    others = _own_plan_choices(request).exclude(pk=row.pk)[:MOST_KEPT]
    return render(
        request,
        "placement/plans/plan_kept.html",
        {
            "row": row,
            "card": card,
            "legend": plan_cards.legend(card.bars),
            "spec": spec,
            "starts": starts,
            "form": form,
            "memberships": _memberships(request),
            "mine": mine,
            "link": link,
            "key": "" if mine else _key(request),
            "others": list(others),
            "made": launch_files(plan, spec),
            "again": _plan_again_url(row, None),
            "elsewhere": _plan_again_url(row, starts.other) if starts.other else "",
        },
        status=status,
    )


def _own_plan_choices(request: HttpRequest) -> QuerySet[StoredPlan]:
    """Return the names of the User's Plans, as choices."""
    return StoredPlan.objects.filter(owner=reader(request)).only("title", "created_at")


def _key(request: HttpRequest) -> str:
    said = request.POST if request.method == "POST" else request.GET
    return said.get("key", "")[:64]


def _hours(form: BookPlanForm) -> float:
    """Return the duration for which starts are searched. The default if it is
    invalid.
    """
    if form.is_bound:
        return (
            form.cleaned_data.get("hours") or FIRST_HOURS
            if form.is_valid()
            else FIRST_HOURS
        )
    asked = BookPlanForm({"hours": form.initial["hours"]})
    return asked.cleaned_data["hours"] if asked.is_valid() else FIRST_HOURS


def _plan_again_url(row: StoredPlan, at: datetime | None) -> str:
    """Return the address that plans again, for the GPUs of now or of a time."""
    said = dict(parse_qsl(row.address))
    said.pop("at", None)
    said.pop("reservation", None)
    if at is not None:
        said["at"] = timezone.localtime(at).strftime(WALL)
    return f"{reverse('plan')}?{urlencode(said)}" if row.address else ""


def _memberships(request: HttpRequest) -> list[Membership]:
    return payers(reader(request))[:20]


@require_POST
def saved_plan_share(request: HttpRequest, pk: int) -> HttpResponse:
    """Create or revoke the link of the User's own Plan."""
    row = StoredPlan.objects.filter(pk=pk, owner=reader(request)).first()
    if row is None:
        raise Http404
    set_link(plan=row, shared=request.POST.get("shared") == "yes")
    return redirect(f"{reverse('plan-kept', args=[pk])}#share")


@require_POST
def saved_plan_book(request: HttpRequest, pk: int) -> HttpResponse:
    """Book the Plan's Gpus from a time for some hours. Refusals are shown."""
    row, plan, spec = _visible_plan(request, pk)
    form = BookPlanForm(request.POST)
    if not form.is_valid():
        return _page(request, row, plan, spec, form, status=422)
    user, now = reader(request), timezone.now()
    chosen = next(
        (m for m in _memberships(request) if m.pk == form.cleaned_data["membership"]),
        None,
    )
    try:
        held = book_plan(
            user=user,
            membership=chosen,
            plan=row,
            at=form.cleaned_data["at"],
            hours=form.cleaned_data["hours"],
            now=now,
        )
    except CodedError as error:
        status = add_errors(form, error)
        return _page(request, row, plan, spec, form, status=status)
    for note in clock_notes(form):
        messages.info(request, note)
    own = own_copy(user=user, plan=row, now=now)
    if held.state == State.ACTIVE:
        query = urlencode({"reservation": held.pk, "plan": own.pk})
        return redirect(f"{reverse('job-new')}?{query}")
    return redirect("reservation", pk=held.pk)


@require_safe
def saved_plan_file(request: HttpRequest, pk: int, name: str) -> HttpResponse:
    """Download one launch file."""
    _, plan, spec = _visible_plan(request, pk)
    for file in launch_files(plan, spec).files:
        if file.name == name:
            return _attachment(
                file.text.encode(), file.name, "text/plain; charset=utf-8"
            )
    raise Http404


@require_safe
def saved_plan_zip(request: HttpRequest, pk: int) -> HttpResponse:
    """Download all launch files in one archive."""
    _, plan, spec = _visible_plan(request, pk)
    content = plan_archive(launch_files(plan, spec))
    return _attachment(content, f"plan-{pk}.zip", "application/zip")


def _attachment(content: bytes, name: str, kind: str) -> HttpResponse:
    answer = HttpResponse(content, content_type=kind)
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer


@require_safe
def saved_plan_compare(request: HttpRequest) -> HttpResponse:
    """Compare two saved Plans, of one model or of two."""
    user = reader(request)
    sides = []
    for name in ("a", "b"):
        text = request.GET.get(name, "")
        number = (
            int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
        )
        row = visible_plan(user, number, request.GET.get(f"key_{name}", ""))
        if row is not None:
            sides.append(row)
    context: dict[str, object] = {
        "plans": list(_own_plan_choices(request)[:MOST_KEPT]),
        "sides": sides,
        "chosen": [row.pk for row in sides],
    }
    if len(sides) == 2:
        try:
            plans = [Plan.from_json(row.plan) for row in sides]
            specs = [ModelSpec.from_json(row.spec) for row in sides]
        except (PlanInvalid, BadInput) as error:
            raise Http404(
                gettext("Saved in an old format that the portal no longer reads.")
            ) from error
        units = [plan_cards.units_of_spec(spec) for spec in specs]
        context["compare"] = plan_comparison.compare(
            *plans,
            units=(units[0], units[1]),
            headings=(sides[0].title, sides[1].title),
        )
    return render(request, "placement/plans/plan_compare.html", context)
