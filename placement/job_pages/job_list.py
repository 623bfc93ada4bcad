"""The list of Jobs: filtered, sorted, paged, and as CSV, by the address."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.db.models import DurationField, Exists, ExpressionWrapper, F, OuterRef, Q
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from placement.backfill.queries import gap_rows
from placement.backfill.service import stop_in_gaps
from placement.jobs.forms import JobFilterForm
from placement.jobs.job_arrays import stop_array
from placement.jobs.queries import waiting_reason
from placement.jobs.views.others_jobs import others_jobs
from placement.jobs.views.viewer import reader
from placement.models import Job, JobArray, JobQuerySet, MoveDecision
from placement.rules.job_refusals import JobOver
from reservations.models import User
from telemetry.web.csv_answer import csv_answer

PAGE_ROWS = 50
CSV_ROWS = 10_000
SORTS = {
    "number": ("#", "pk", True),
    "name": (gettext_lazy("Name"), "name", False),
    "state": (gettext_lazy("State"), "state", False),
    "owner": (gettext_lazy("Owner"), "owner__username", False),
    "node": (gettext_lazy("Node"), "node__name", False),
    "made": (gettext_lazy("Launched"), "created_at", False),
    "ran": (gettext_lazy("Ran"), "ran", True),
}
"""Name in the address: title, field, whether it is a number."""


@require_safe
def job_list(request: HttpRequest) -> HttpResponse:
    """List the Jobs that the user may see. The address filters, sorts and pages."""
    form = JobFilterForm(request.GET)
    form.is_valid()
    asked = {name: value for name, value in form.cleaned_data.items() if value}
    sort = request.GET.get("sort", "-made")
    key = sort.removeprefix("-") if sort.removeprefix("-") in SORTS else "made"
    mark = "-" if sort.startswith("-") else ""
    user = reader(request)
    rows = _filtered(Job.objects.visible_to(user), asked, user)
    rows = rows.select_related("owner", "node", "array", "reservation").annotate(
        ran=ExpressionWrapper(
            Coalesce("ended_at", Now()) - F("started_at"), output_field=DurationField()
        ),
        proposed=Exists(
            MoveDecision.objects.filter(
                job=OuterRef("pk"), state=MoveDecision.State.PROPOSED
            )
        ),
    )
    rows = rows.order_by(f"{mark}{SORTS[key][1]}", "-pk")
    folded = not asked.keys() & {"state", "reservation", "array"}
    if request.GET.get("format") == "csv":
        return csv_answer("jobs.csv", _csv_rows(rows[:CSV_ROWS]))
    if folded:
        # An array is one row, that of its first Job. The row can be expanded.
        rows = rows.filter(Q(array=None) | Q(array_index=0, resume_from=None))
    page = Paginator(rows, PAGE_ROWS).get_page(request.GET.get("page"))
    return render(
        request,
        "placement/jobs/job_list.html",
        {
            "form": form,
            "page": page,
            "rows": _rows(list(page), user, folded=folded),
            "array": JobArray.objects.filter(pk=asked.get("array") or 0).first(),
            "array_live": bool(asked.get("array")) and rows.live().count(),
            "filtered": bool(asked),
            "states": [state.value for state in Job.State],
            **_gaps(user, asked),
            "others": others_jobs(user) if asked.get("whose") == "others" else None,
            "columns": _columns(key, mark, asked),
            "page_query": urlencode(asked | {"sort": mark + key}),
            "csv_query": urlencode(asked | {"sort": mark + key, "format": "csv"}),
        },
    )


@require_POST
def array_stop(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop the Jobs of an array that have not ended."""
    stop_array(array_id=pk, user=reader(request), now=timezone.now())
    return redirect(f"{reverse('jobs')}?array={pk}")


@require_POST
def gap_stop(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop a Job in gaps."""
    # It may have ended meanwhile, which is the requested result.
    with contextlib.suppress(JobOver):
        stop_in_gaps(backfill_id=pk, user=reader(request), now=timezone.now())
    return redirect(f"{reverse('jobs')}#gaps")


def _gaps(user: User, asked: dict[str, str]) -> dict[str, object]:
    """Return the Jobs in gaps. None of them if the list is filtered."""
    if asked.keys() & {"q", "state", "reservation", "array"}:
        return {}
    rows = gap_rows(user)
    if asked.get("whose") == "mine":
        rows = [gap for gap in rows if gap.row.owner_id == user.pk]
    waiting = max((gap.place or 0 for gap in rows), default=0)
    return {"gaps": rows, "gaps_waiting": waiting, "now": timezone.now()}


def _rows(
    jobs: Sequence[Job], user: User, *, folded: bool
) -> list[tuple[Job, float | None, list[Job]]]:
    """Return each Job, how long it ran, and its whole array if that is folded."""
    tasks: dict[int, list[Job]] = defaultdict(list)
    arrays = [job.array_id for job in jobs if folded and job.array_id]
    if arrays:
        found = Job.objects.visible_to(user).filter(array_id__in=arrays).distinct()
        for task in found.order_by("array_index"):
            tasks[task.array_id or 0].append(task)
    for job in jobs:
        job.waits = waiting_reason(job)  # type: ignore[attr-defined]
    return [(job, _seconds(job), tasks[job.array_id or 0]) for job in jobs]


def _seconds(job: Job) -> float | None:
    """Return how long a Job ran, from the query's own difference."""
    ran = getattr(job, "ran", None)
    return ran.total_seconds() if ran else None


def _filtered(rows: JobQuerySet, asked: dict[str, str], user: User) -> JobQuerySet:
    if "q" in asked:
        rows = rows.filter(name__icontains=asked["q"])
    if "state" in asked:
        rows = rows.filter(state=asked["state"])
    if asked.get("whose") == "mine":
        rows = rows.filter(owner=user)
    if asked.get("whose") == "others":
        rows = rows.exclude(owner=user)
    if "reservation" in asked:
        rows = rows.filter(reservation=int(asked["reservation"]))
    if "array" in asked:
        rows = rows.filter(array=int(asked["array"]))
    return rows


def _columns(key: str, mark: str, asked: dict[str, str]) -> list[dict[str, object]]:
    """Return the headers of the table. Each link sorts, or reverses the order."""
    columns = []
    for name, (title, _, number) in SORTS.items():
        other = name if name == key and mark else f"-{name}"
        order = "descending" if mark else "ascending"
        columns.append(
            {
                "name": name,
                "title": title,
                "num": number,
                "sort": order if name == key else "",
                "query": urlencode(asked | {"sort": other}),
            }
        )
    return columns


def _csv_rows(rows: JobQuerySet) -> Iterator[tuple[object, ...]]:
    yield (
        *("job", "name", "state", "user", "node"),
        *("launched", "started", "ended", "exit"),
    )
    for job in rows:
        times = (job.created_at, job.started_at, job.ended_at)
        yield (
            *(job.pk, job.name, job.state, job.owner.username, job.node.name),
            *(at and at.isoformat() for at in times),
            job.exit_code,
        )
