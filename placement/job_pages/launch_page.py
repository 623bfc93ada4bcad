"""The form that launches a Job in one of the User's Reservations."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_http_methods

from placement.backfill.service import queue_for_gaps
from placement.jobs import service as jobs
from placement.jobs.forms import SCRIPT, LaunchForm
from placement.jobs.gap_fields import FIELD_OF, GAPS
from placement.jobs.job_arrays import launch_array
from placement.jobs.views.viewer import OwnReservation, reader, usable_reservations
from placement.models import Job, JobArray, StoredPlan
from placement.planner.launch.execution import why_not
from placement.planner.launch.recipes import (
    FINE_TUNE,
    FINE_TUNE_IMAGES,
    GIB,
    OF_PRETRAINED,
    RECIPES,
    TINY_TRANSFORMER,
    adapters_of,
    planned_sizes,
)
from placement.planner.values.errors import LaunchInvalid
from placement.plans.next_plan import launch_of, plan_by_strategy, with_next_plan
from placement.rules.job_refusals import StrategyNotRunnable
from reservations.models import User
from reservations.store.membership_rights import payers
from telemetry.models import Gpu, Node, Pool
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import add_errors

PLAN_GONE = gettext_lazy("This plan does not exist, or is not yours. Make a new plan.")
SMALL_PARAMETERS = 20_000_000
"""A simulated node computes on its processor, so larger models are not copied there."""


@require_http_methods(["GET", "HEAD", "POST"])
def job_new(request: HttpRequest) -> HttpResponse:
    """Show the form, or launch its Job."""
    mine = usable_reservations(reader(request), timezone.now())
    plan = _own_plan(request)
    again = _relaunched_job(request)
    nodes = _nodes_to_choose(mine)
    own_code = _own_code_refused(reader(request), mine)
    posted = request.method == "POST"
    form = LaunchForm(
        request.POST if posted else None,
        initial=_initial_values(request, mine, plan, again, own_code)
        | _words_of(again),
        reservations=[(row.pk, row.label) for row in mine],
        nodes=nodes,
        first_settings=_first_settings(plan, again, mine),
    )
    form.offer_gaps(_classes(), _payers(reader(request)))
    if posted and form.is_valid():
        if form.cleaned_data["where"] == GAPS:
            if _ask_for_gaps(request, form, plan):
                return redirect(f"{reverse('jobs')}#gaps")
            made = None
        else:
            made = _launch(request, form, plan, mine)
        if isinstance(made, JobArray):
            return redirect(f"{reverse('jobs')}?array={made.pk}")
        if made is not None:
            return redirect("job", made.pk)
    context = {
        "form": form,
        "reservations": mine,
        "nodes": nodes,
        "plan": plan,
        "again": again,
        "why_no_recipe": why_not(plan.plan) if plan else "",
        "recipes": _recipes(form),
        "own_code": own_code,
    }
    status = 422 if form.errors else 200
    return render(request, "placement/jobs/job_new.html", context, status=status)


def _nodes_to_choose(rows: Sequence[OwnReservation]) -> list[str]:
    """Return the nodes of Reservations on several nodes, of which one must be
    chosen.
    """
    return sorted({name for row in rows if len(row.nodes) > 1 for name in row.nodes})


def _recipes(form: LaunchForm) -> list[dict[str, Any]]:
    found = []
    for recipe in RECIPES.values():
        inputs = form.inputs(recipe)
        found.append(
            {
                "name": recipe.name,
                "title": recipe.title,
                "about": recipe.about,
                "needs_isolation": recipe.needs_isolation,
                "inputs": inputs,
                "open": any(i.errors or i.setting.is_required for i in inputs),
            }
        )
    return found


@dataclass(frozen=True)
class OwnCode:
    """Whether a person's own scripts and models can run."""

    never: str = ""
    """Why it cannot run anywhere on this site, and who can change that. "": it can."""
    hint: str = ""
    """Why it cannot run in the person's reservations. "": in some of them it can."""


def _own_code_refused(user: User, rows: Sequence[OwnReservation]) -> OwnCode:
    """Return whether own code is refused, before the form is filled in."""
    if settings.ALLOW_UNISOLATED_SCRIPTS:
        return OwnCode()
    if not Node.objects.exclude(isolation=Node.Isolation.NONE).exists():
        return OwnCode(
            never=gettext(
                "Switched off on all nodes, because jobs are not isolated there. "
                "Ask the lab admin to switch on job isolation."
            )
        )
    if not user.unix_user and not settings.OWN_IDS:
        return OwnCode(
            never=gettext(
                "You need a Unix user for this. Ask the lab admin to enter yours."
            )
        )
    if not any(row.isolated for row in rows):
        return OwnCode(hint=gettext("Runs only on nodes with job isolation."))
    return OwnCode()


def _own_plan(request: HttpRequest) -> StoredPlan | None:
    text = request.POST.get("plan") or request.GET.get("plan") or ""
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        return None
    return StoredPlan.objects.filter(owner=reader(request), pk=int(text)).first()


def _relaunched_job(request: HttpRequest) -> Job | None:
    """Return the Job to launch again. Its values fill the form."""
    text = request.GET.get("again", "")
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        return None
    own = Job.objects.filter(owner=reader(request)).exclude(kind__in=Job.Kind.endless())
    return own.select_related("node").filter(pk=int(text)).first()


def _words_of(job: Job | None) -> dict[str, object]:
    if job is None:
        return {}
    return {
        "name": job.name,
        "what": job.recipe or SCRIPT,
        "script": job.script,
        "beside": json.dumps(job.script_folder.files) if job.script_folder else "",
        "arguments": shlex.join(job.arguments),
        "launcher": job.started_with,
        "environment_folder": job.environment_folder,
        "gpu_count": job.gpu_count,
        "retries": job.retries,
        "retry_failed": job.retry_failed,
        "resume_from": job.pk,
    }


def _first_settings(
    plan: StoredPlan | None, again: Job | None, rows: Sequence[OwnReservation]
) -> dict[str, object]:
    """Return the initial values of the recipes' fields, by recipe and setting."""
    if again is not None:
        return {f"{again.recipe}.{k}": v for k, v in again.recipe_settings.items()}
    found = _settings_of(plan, rows)
    first: dict[str, object] = {
        f"{recipe.name}.{setting.name}": found[setting.name]
        for recipe in RECIPES.values()
        for setting in recipe.settings
        if setting.name in found
    }
    if plan is not None:
        adapters = adapters_of(plan.plan, plan.spec)
        first |= {f"{FINE_TUNE.name}.{k}": v for k, v in adapters.items()}
        for name in OF_PRETRAINED:
            sizes = planned_sizes(name, plan.plan)
            first |= {f"{name}.{k}": v for k, v in sizes.items()}
    return first


def _settings_of(
    plan: StoredPlan | None, rows: Sequence[OwnReservation]
) -> dict[str, object]:
    """Return the recipe's settings that are nearest to a Plan.

    Sizes are taken over if the recipe has them and the node can hold them.
    """
    if plan is None or not plan.plan.get("shards"):
        return {}
    most = max(shard["likely_bytes"] for shard in plan.plan["shards"])
    found: dict[str, object] = {"simulated_memory_gib": round(most / GIB, 2)}
    node = plan.plan.get("node")
    simulated = any(row.simulated and node in row.nodes for row in rows)
    shape = plan.spec.get("shape") or {}
    if simulated and plan.plan.get("parameter_count", 0) > SMALL_PARAMETERS:
        return found | _small_model_sizes(plan.plan.get("launch", {}))
    wanted = {
        "layers": sum(
            layer["kind"] not in ("embedding", "head") for layer in plan.spec["layers"]
        ),
        "hidden": shape.get("hidden"),
        "heads": shape.get("heads"),
        "seq": plan.workload.get("sequence_length"),
        "batch": plan.plan.get("launch", {}).get("microbatch"),
    }
    known = {setting.name: setting for setting in TINY_TRANSFORMER.settings}
    fits = all(
        isinstance(value, int) and known[name].least <= value <= known[name].most
        for name, value in wanted.items()
    )
    return found | wanted if fits else found


def _small_model_sizes(launch: Mapping[str, Any]) -> dict[str, object]:
    """Return the sizes of a small model that can be cut as a Plan requires."""
    width = launch.get("tensor_degree", 1)
    heads = width * -(-4 // width)
    pieces = len(launch.get("bounds", ())) - 1
    return {"layers": max(2, pieces - 2), "heads": heads, "hidden": 16 * heads}


def _first_reservation(rows: Sequence[OwnReservation]) -> OwnReservation | None:
    """Return the Reservation in which a Job can start first, or None.

    A Reservation with a Job counts as busy until its end.
    """
    live = Job.objects.live().filter(reservation__in=[row.pk for row in rows])
    busy = set(live.values_list("reservation", flat=True))

    def begins(row: OwnReservation) -> tuple[datetime, int]:
        return (row.end if row.pk in busy else row.start), row.pk

    return min(rows, key=begins, default=None)


def _first_program(plan: StoredPlan | None, own_code: OwnCode) -> str:
    """Return the program that is chosen first: the one that trains a Plan's model."""
    if plan is not None and why_not(plan.plan):
        return SCRIPT
    if plan is not None and not own_code.never:
        if adapters_of(plan.plan, plan.spec):
            return FINE_TUNE.name
        if plan.spec.get("head") == "image_classification":
            return FINE_TUNE_IMAGES.name
    return next(iter(RECIPES))


def _initial_values(
    request: HttpRequest,
    rows: Sequence[OwnReservation],
    plan: StoredPlan | None,
    again: Job | None,
    own_code: OwnCode,
) -> dict[str, object]:
    asked = request.GET.get("reservation", "")
    if again is not None and not asked:
        asked = str(again.reservation_id)
    named = next((row for row in rows if str(row.pk) == asked), None)
    chosen = named or _first_reservation(rows)
    name = plan.title if plan else (chosen.purpose if chosen else "")
    node = str(plan.plan.get("node", "")) if plan else ""
    return {
        "reservation": chosen.pk if chosen else None,
        "where": GAPS if chosen is None or "gaps" in request.GET else "",
        "gap_minutes": 30,
        "name": name[:120],
        "node": node if chosen and len(chosen.nodes) > 1 else "",
        "what": _first_program(plan, own_code),
    }


def _launch(
    request: HttpRequest,
    form: LaunchForm,
    plan: StoredPlan | None,
    rows: Sequence[OwnReservation],
) -> Job | JobArray | None:
    """Launch the Job of a valid form. Refusals become errors of the form."""
    data = form.cleaned_data
    if plan is None and data["plan"]:
        form.add_error(None, PLAN_GONE)
        return None
    missing = _missing_gpus_text(plan, data["reservation"], rows)
    if missing:
        form.add_error("reservation", missing)
        return None
    user, now = reader(request), timezone.now()
    wanted = {
        "user": user,
        "reservation_id": data["reservation"],
        **_launch_values(form),
        "plan_id": plan.pk if plan else None,
        "node": data["node"],
        "gpu_count": data["gpu_count"],
        "retries": data["retries"] or 0,
        "retry_failed": data["retry_failed"],
        "resume_from": _continued(request, form),
        "after": data["after"],
        "may_move": data["may_move"],
        "restart": data["restart"],
        "now": now,
    }
    try:
        if data["strategy"]:
            chosen = plan_by_strategy(launch_of(user, wanted), data["strategy"], now)
            wanted["plan_id"] = chosen.pk
        if data["sweep"]:
            wanted.pop("resume_from")
            return launch_array(sweep=data["sweep"], **wanted)
        return jobs.launch(**wanted)
    except LaunchInvalid as error:
        for field, text in error.fields.items():
            form.add_problem(field, text)
    except StrategyNotRunnable as refusal:
        form.refusal = with_next_plan(refusal, launch_of(user, wanted), now)
        add_errors(form, form.refusal)
    except CodedError as error:
        add_errors(form, error)
    return None


def _continued(request: HttpRequest, form: LaunchForm) -> int | None:
    """Return the Job whose checkpoint is loaded. None if another program runs now."""
    number: int | None = form.cleaned_data["resume_from"]
    if number is None:
        return None
    before = Job.objects.filter(pk=number, owner=reader(request)).first()
    if before is None:
        return number
    same = (before.recipe or SCRIPT) == form.cleaned_data["what"]
    return number if same else None


def _launch_values(form: LaunchForm) -> dict[str, Any]:
    """Return the program and the name in a valid form."""
    data = form.cleaned_data
    script = data["what"] == SCRIPT
    return {
        "name": data["name"],
        "kind": Job.Kind.SCRIPT if script else Job.Kind.RECIPE,
        "recipe": "" if script else data["what"],
        "recipe_settings": {} if script else form.recipe_settings,
        "script": data["script"].replace("\r\n", "\n") if script else "",
        "files": data["beside"] if script else {},
        "arguments": data["arguments"] if script else [],
        "launcher": data["launcher"] if script else "",
        "environment_folder": data["environment_folder"] if script else "",
    }


def _ask_for_gaps(
    request: HttpRequest, form: LaunchForm, plan: StoredPlan | None
) -> bool:
    """Queue the Job of a valid form for gaps. Refusals become errors of the form."""
    data, user = form.cleaned_data, reader(request)
    if plan is None and data["plan"]:
        form.add_error(None, PLAN_GONE)
        return False
    job = _launch_values(form) | {
        "plan": plan.pk if plan else None,
        "gpus": None if plan else data["gpu_count"],
        "retry_failed": data["retry_failed"],
        "retries": data["retries"] or 0,
    }
    payer = user.memberships.filter(pk=data["gap_membership"] or 0).first()
    try:
        queue_for_gaps(
            user=user, job=job, membership=payer, now=timezone.now(), **form.gap_wish()
        )
    except LaunchInvalid as error:
        for field, text in error.fields.items():
            form.add_problem(FIELD_OF.get(field, field), text)
    except CodedError as error:
        add_errors(form, error)
    return not form.errors


def _classes() -> list[str]:
    """Return the classes of Gpus that can be booked."""
    pools = Pool.objects.filter(gpus__in=Gpu.objects.bookable()).distinct()
    return sorted(set(pools.values_list("gpu_class", flat=True)))


def _payers(user: User) -> list[tuple[int, str]]:
    """Return the Memberships that may pay for gaps."""
    open_ones = [row for row in payers(user) if row.account.archived_at is None]
    return [(row.pk, str(row.account)) for row in open_ones]


def _missing_gpus_text(
    plan: StoredPlan | None, reservation_id: int, rows: Sequence[OwnReservation]
) -> str:
    """Return, in words, which Gpus of a Plan a Reservation does not hold. "": none."""
    if plan is None:
        return ""
    row = next(r for r in rows if r.pk == reservation_id)
    gone = [
        shard["gpu_label"]
        for shard in plan.plan["shards"]
        if shard["gpu_uuid"] not in row.gpu_uuids
    ]
    if not gone:
        return ""
    return gettext(
        "The plan is for %(gone)s, which this reservation does not hold. Choose the "
        "one that was booked for it, or continue without the plan."
    ) % {"gone": ", ".join(gone)}
