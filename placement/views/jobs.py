"""Pages of Jobs: the list, launching one, watching one."""

import csv
from urllib.parse import urlencode

from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import DurationField, ExpressionWrapper, F
from django.db.models.functions import Coalesce, Now
from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from placement import logs, services
from placement.domain.errors import LaunchInvalid
from placement.domain.lifecycle import JobState
from placement.domain.recipes import RECIPES
from placement.forms import SCRIPT, JobFilterForm, LaunchForm
from placement.models import Job, JobQuerySet, StoredPlan
from placement.views import facts
from reservations.domain.errors import Refusal
from reservations.models import Reservation, User

PAGE_ROWS = 50
CSV_ROWS = 10_000
LAST_LINES = 12
MOST_RANGE_BYTES = 1024 * 1024
SORTS = {
    "number": ("#", "pk", True),
    "name": ("Name", "name", False),
    "state": ("State", "state", False),
    "owner": ("Who", "owner__username", False),
    "node": ("Node", "node__name", False),
    "made": ("Launched", "created_at", False),
    "ran": ("Ran", "ran", True),
}


@require_GET
def job_list(request: HttpRequest) -> HttpResponse:
    """List the Jobs one may see; filter, sort, page and CSV by the address."""
    form = JobFilterForm(request.GET)
    form.is_valid()
    wanted = form.cleaned_data
    rows = _filtered(Job.objects.visible_to(request.user), wanted, request.user)
    sort = request.GET.get("sort", "-made")
    key = sort.removeprefix("-") if sort.removeprefix("-") in SORTS else "made"
    mark = "-" if sort.startswith("-") else ""
    rows = rows.select_related("owner", "node").annotate(
        ran=ExpressionWrapper(
            Coalesce("ended_at", Now()) - F("started_at"), output_field=DurationField()
        )
    )
    rows = rows.order_by(f"{mark}{SORTS[key][1]}", "-pk")
    if request.GET.get("format") == "csv":
        return _csv(rows[:CSV_ROWS])
    page = Paginator(rows, PAGE_ROWS).get_page(request.GET.get("page"))
    for job in page.object_list:
        job.seconds = job.ran.total_seconds() if job.ran else None
    asked = {name: value for name, value in wanted.items() if value}
    return render(
        request,
        "placement/job_list.html",
        {
            "form": form,
            "page": page,
            "filtered": bool(asked),
            "states": [state.value for state in JobState],
            "columns": _columns(key, mark, asked),
            "page_query": urlencode(asked | {"sort": mark + key}),
            "csv_query": urlencode(asked | {"sort": mark + key, "format": "csv"}),
        },
    )


def _filtered(rows: JobQuerySet, wanted: dict[str, str], user: User) -> JobQuerySet:
    if wanted.get("q"):
        rows = rows.filter(name__icontains=wanted["q"])
    if wanted.get("state"):
        rows = rows.filter(state=wanted["state"])
    if wanted.get("whose") == "mine":
        rows = rows.filter(owner=user)
    return rows


def _columns(key: str, mark: str, asked: dict[str, str]) -> list[dict[str, object]]:
    columns = []
    for name, (title, _, number) in SORTS.items():
        other = name if name == key and mark else f"-{name}"
        order = "descending" if mark else "ascending"
        columns.append(
            {
                "title": title,
                "num": number,
                "sort": order if name == key else "",
                "query": urlencode(asked | {"sort": other}),
            }
        )
    return columns


def _csv(rows: JobQuerySet) -> HttpResponse:
    answer = HttpResponse(
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="jobs.csv"'},
    )
    sheet = csv.writer(answer)
    sheet.writerow(
        ["job", "name", "state", "user", "node", "launched", "started", "ended", "exit"]
    )
    for job in rows:
        times = (job.created_at, job.started_at, job.ended_at)
        sheet.writerow(
            [
                job.pk,
                _cell(job.name),
                job.state,
                _cell(job.owner.username),
                job.node.name,
                *(at.isoformat() if at else "" for at in times),
                "" if job.exit_code is None else job.exit_code,
            ]
        )
    return answer


def _cell(text: str) -> str:
    """Neutralise what a spreadsheet would run as a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text


@require_http_methods(["GET", "POST"])
def job_new(request: HttpRequest) -> HttpResponse:
    """Launch a Job into one of one's own reservations."""
    now = timezone.now()
    mine = list(
        Reservation.objects.live()
        .filter(user=request.user, end__gt=now)
        .prefetch_related("allocations__gpu__node")
    )
    plan = _own_plan(request)
    if request.method == "POST":
        form = LaunchForm(request.POST, reservations=mine)
        if form.is_valid():
            job = _launch(request, form)
            if job is not None:
                return redirect("job", job.pk)
    else:
        form = LaunchForm(reservations=mine, initial=_first_words(request, mine, plan))
    for row in mine:
        row.label = facts.reservation_words(row)
    recipes = [
        {
            "name": r.name,
            "title": r.title,
            "about": r.about,
            "inputs": form.inputs(r),
            "wrong": any(i.errors for i in form.inputs(r)),
        }
        for r in RECIPES.values()
    ]
    return render(
        request,
        "placement/job_new.html",
        {
            "form": form,
            "reservations": mine,
            "plan": plan,
            "recipes": recipes,
            "scripts_allowed": settings.ALLOW_UNISOLATED_SCRIPTS
            or any(
                a.gpu.node.isolation != "none"
                for r in mine
                for a in r.allocations.all()
            ),
        },
        status=422 if form.errors else 200,
    )


def _own_plan(request: HttpRequest) -> StoredPlan | None:
    text = request.POST.get("plan") or request.GET.get("plan") or ""
    if not text.isdecimal() or len(text) > 18:
        return None
    return StoredPlan.objects.filter(owner=request.user, pk=int(text)).first()


def _first_words(
    request: HttpRequest, mine: list[Reservation], plan: StoredPlan | None
) -> dict[str, object]:
    asked = request.GET.get("reservation", "")
    chosen = next((r for r in mine if str(r.pk) == asked), mine[0] if mine else None)
    name = plan.title if plan else (chosen.purpose if chosen else "")
    return {
        "reservation": chosen.pk if chosen else None,
        "name": name[:120],
        "what": next(iter(RECIPES)),
    }


def _launch(request: HttpRequest, form: LaunchForm) -> Job | None:
    """Launch what a valid form says; refusals go back into the form."""
    data = form.cleaned_data
    script = data["what"] == SCRIPT
    try:
        return services.launch(
            user=request.user,
            reservation_id=data["reservation"],
            name=data["name"],
            kind=Job.Kind.SCRIPT if script else Job.Kind.RECIPE,
            recipe="" if script else data["what"],
            recipe_settings={} if script else form.recipe_settings,
            script=data["script"].replace("\r\n", "\n") if script else "",
            arguments=data["arguments"] if script else [],
            plan_id=data["plan"],
            now=timezone.now(),
        )
    except LaunchInvalid as error:
        for field, text in error.problems.items():
            form.add_error(field if field in form.fields else None, text)
    except Refusal as refusal:
        form.add_error(None, refusal.text(timezone.get_current_timezone()))
    return None


def _seen(request: HttpRequest, pk: int) -> Job:
    """Return a Job that the User may look at; 404 otherwise: it says nothing."""
    return get_object_or_404(
        Job.objects.visible_to(request.user)
        .distinct()
        .select_related(
            "owner", "node", "plan", "reservation__membership__account__parent"
        ),
        pk=pk,
    )


@require_GET
def job_show(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one Job; its script then follows it live."""
    job = _seen(request, pk)
    size = logs.size(job)
    gpus = [
        {
            "id": a.gpu_id,
            "label": str(a.gpu),
            "gpu_class": a.gpu.pool.gpu_class,
            "memory_total_bytes": a.gpu.memory_total_bytes,
        }
        for a in job.reservation.allocations.select_related("gpu__node", "gpu__pool")
    ]
    ended = job.state not in JobState.live()
    return render(
        request,
        "placement/job_show.html",
        {
            "job": job,
            "gpus": [gpu["label"] for gpu in gpus],
            "steps": facts.job_steps(job),
            "events": job.events.all(),
            "plan": facts.plan_table(job.plan) if job.plan else "",
            "ended": ended,
            "may_stop": request.user.is_operator or job.owner_id == request.user.pk,
            "last_lines": "\n".join(logs.last_lines(job, LAST_LINES)),
            "log_size": size,
            "empty_words": "This job left no log."
            if ended
            else "Nothing printed yet. Lines appear here as the job writes them.",
            "page": {
                "job": facts.job_facts(job),
                "gpus": gpus,
                "log_size": size,
                "log_url": reverse("job-log", args=[job.pk]),
                "numbers_url": reverse("job-numbers", args=[job.pk]),
                "state_url": reverse("job-state", args=[job.pk]),
            },
        },
    )


@require_GET
def job_state(request: HttpRequest, pk: int) -> JsonResponse:
    """Return the facts that change while a Job lives."""
    job = _seen(request, pk)
    answer = facts.job_facts(job) | {"events": facts.job_events(job)}
    if job.state in {JobState.FAILED, JobState.LOST}:
        answer["last_lines"] = logs.last_lines(job, LAST_LINES)
    return JsonResponse(answer)


@require_GET
def job_log(request: HttpRequest, pk: int) -> JsonResponse:
    """Return a range of the stored log: byte offset, length, text."""
    job = _seen(request, pk)
    try:
        offset = max(0, int(request.GET.get("offset", "0")[:18]))
        length = min(
            MOST_RANGE_BYTES, max(0, int(request.GET.get("length", "65536")[:18]))
        )
    except ValueError:
        return JsonResponse({"detail": "offset and length are numbers"}, status=422)
    piece = logs.read(job, offset=offset, length=length)
    return JsonResponse(
        {
            "offset": piece.offset,
            "bytes": piece.bytes,
            "data": piece.data,
            "size": piece.size,
        }
    )


@require_GET
def job_numbers(request: HttpRequest, pk: int) -> JsonResponse:
    """Return the numbers that the log carries, thinned for a chart."""
    return JsonResponse({"rows": logs.numbers(_seen(request, pk))})


@require_GET
def job_log_download(request: HttpRequest, pk: int) -> HttpResponse:
    """Send the whole stored log as a text file."""
    job = _seen(request, pk)
    path = logs.path_of(job)
    name = f"job-{job.pk}-{job.attempt}.log"
    if not path.is_file():
        return HttpResponse(
            "",
            content_type="text/plain; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )
    return FileResponse(
        path.open("rb"),
        as_attachment=True,
        filename=name,
        content_type="text/plain; charset=utf-8",
    )
