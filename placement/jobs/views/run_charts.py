"""The comparison of runs: their curves in one chart, their results in one table."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_safe

from placement.jobs.nodes import log_store, run_curves
from placement.jobs.views.viewer import reader
from placement.models import Job, JobArray
from placement.rules.run_comparison import (
    MetricSummary,
    differing,
    low_is_best,
    metric_names,
    summary,
)
from reservations.models import User

MOST_RUNS = 20
BEST = {"low": gettext_lazy("lowest"), "high": gettext_lazy("highest")}


@dataclass(frozen=True)
class ComparedRun:
    """One Job with its parameters and its results."""

    job: Job
    values: tuple[object, ...]
    """Of the parameters that differ, in the order of the table."""
    result: MetricSummary | None
    is_best: bool = False

    @property
    def final(self) -> str:
        """Return the last value as text."""
        return f"{self.result.final:.5g}" if self.result else "–"

    @property
    def best(self) -> str:
        """Return the best value as text."""
        return f"{self.result.best:.5g}" if self.result else "–"


@require_safe
def job_compare(request: HttpRequest) -> HttpResponse:
    """Compare the Jobs in the address, or all Jobs of an array."""
    user = reader(request)
    jobs, left_out = _jobs(request, user)
    most = log_store.PAGE_BYTES // max(1, len(jobs))
    found = [run_curves.numbers(job, most) for job in jobs]
    rows = [one.rows for one in found]
    metrics = metric_names(rows)
    metric = request.GET.get("metric", "")
    metric = metric if metric in metrics else (metrics[0] if metrics else "")
    best = request.GET.get("best", "")
    if best not in BEST:
        best = "low" if low_is_best(metric) else "high"
    settings = [_settings(job) for job in jobs]
    names = differing(settings)
    results = [summary(one, metric, low=best == "low") for one in rows]
    winner = _winner(results, low=best == "low")
    runs = [
        ComparedRun(
            job=job,
            values=tuple(one.get(name, "") for name in names),
            result=result,
            is_best=number == winner,
        )
        for number, (job, one, result) in enumerate(
            zip(jobs, settings, results, strict=True)
        )
    ]
    sort = request.GET.get("sort", "job")
    asked = [("job", str(job.pk)) for job in jobs]
    asked += [("metric", metric), ("best", best)]
    titles = {"job": gettext("Job"), **{f"p{i}": name for i, name in enumerate(names)}}
    titles |= {"final": gettext("Final"), "best": gettext("Best")}
    return render(
        request,
        "placement/jobs/job_compare.html",
        {
            "runs": _sorted(runs, sort),
            "names": names,
            "columns": _columns(titles, sort, asked),
            "metrics": metrics,
            "metric": metric,
            "best": best,
            "bests": BEST.items(),
            "sort": sort,
            "left_out": left_out,
            "left_bytes": sum(one.left_bytes for one in found),
            "most": MOST_RUNS,
            "array": JobArray.objects.filter(pk=_number(request, "array")).first()
            if jobs
            else None,
            "page": {
                "metric": metric,
                "runs": [
                    {"label": _label(run, names), "numbers": _numbers_of(run.job)}
                    for run in runs
                ],
            },
        },
    )


def _numbers_of(job: Job) -> str:
    return reverse("job-numbers", args=[job.pk])


def _number(request: HttpRequest, name: str) -> int:
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else 0


def _jobs(request: HttpRequest, user: User) -> tuple[list[Job], int]:
    """Return the requested Jobs that the User may see, and how many were too many.

    Of an array that was moved or retried, the latest Job of each parameter counts.
    """
    rows = Job.objects.visible_to(user).select_related("node", "owner", "array")
    array = _number(request, "array")
    if array:
        found = rows.filter(array=array).order_by("array_index", "pk")
        jobs = list({job.array_index: job for job in found}.values())
    else:
        texts = [text for text in request.GET.getlist("job") if text.isascii()]
        pks = {int(text) for text in texts if text.isdigit() and len(text) < 18}
        jobs = list(rows.filter(pk__in=pks).order_by("pk"))
    return jobs[:MOST_RUNS], max(0, len(jobs) - MOST_RUNS)


def _settings(job: Job) -> dict[str, Any]:
    """Return the settings of a run that may differ between runs."""
    return {
        "recipe": job.recipe or job.get_kind_display(),
        "node": job.node.name,
        **job.recipe_settings,
        **job.parameters,
    }


def _winner(results: list[MetricSummary | None], *, low: bool) -> int | None:
    known = [(one.best, number) for number, one in enumerate(results) if one]
    if len(known) < 2:
        return None
    return (min if low else max)(known, key=lambda one: one[0])[1]


def _label(run: ComparedRun, names: list[str]) -> str:
    """Return the label of a curve: its number and its differing parameters."""
    pairs = zip(names, run.values, strict=True)
    words = [f"{name}={value}" for name, value in pairs if name not in ("node",)]
    return f"{run.job.pk} {' '.join(words[:3]) or run.job.name}"[:60]


def _sorted(runs: list[ComparedRun], sort: str) -> list[ComparedRun]:
    """Return the rows sorted by a column. Those without a value are last."""
    key, down = sort.removeprefix("-"), sort.startswith("-")

    def value(run: ComparedRun) -> Any:
        if key in ("final", "best"):
            return None if run.result is None else getattr(run.result, key)
        if key[:1] == "p" and key[1:].isdigit() and int(key[1:]) < len(run.values):
            one = run.values[int(key[1:])]
            number = isinstance(one, int | float)
            return (0, one, "") if number else (1, 0, str(one))
        return run.job.pk

    known = [run for run in runs if value(run) is not None]
    rest = [run for run in runs if value(run) is None]
    return [*sorted(known, key=value, reverse=down), *rest]


def _columns(
    titles: dict[str, str], sort: str, asked: list[tuple[str, str]]
) -> list[dict[str, str]]:
    """Return the headers of the table. Each link sorts, or reverses the order."""
    found = []
    for name, title in titles.items():
        here = sort.removeprefix("-") == name
        other = f"-{name}" if here and not sort.startswith("-") else name
        order = "descending" if sort.startswith("-") else "ascending"
        found.append(
            {
                "title": title,
                "name": name,
                "order": order if here else "",
                "query": urlencode([*asked, ("sort", other)]),
            }
        )
    return found
