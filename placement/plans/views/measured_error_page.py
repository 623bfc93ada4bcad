"""The site's measured error, for the operator: predictions and measurements."""

from collections.abc import Iterator, Sequence

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from placement.models import PlacementPolicy, PlanOutcome
from placement.planner.values.calibration import (
    ANY,
    COUNTS_FROM_SECONDS,
    ENOUGH,
    SiteError,
    corrections_of,
    site_errors,
)
from placement.planner.values.strategies import TITLES
from placement.plans import measured_error
from reservations.store.access import operator_required
from telemetry.protocol.sentences import sentence
from telemetry.web.csv_answer import csv_answer

PAGE_ROWS = 50
CSV_ROWS = 10_000


@operator_required
@require_safe
def measured_show(request: HttpRequest) -> HttpResponse:
    """Show errors by class and strategy, with their outcomes."""
    simulated = request.GET.get("gpus") == "simulated"
    rows = (
        PlanOutcome.objects.filter(simulated=simulated, settled_at__isnull=False)
        .select_related("job__owner")
        .order_by("-settled_at", "-pk")
    )
    if request.GET.get("format") == "csv":
        return csv_answer("measured.csv", _csv_rows(rows[:CSV_ROWS]))
    found = measured_error.outcomes(simulated=simulated)
    corrections = corrections_of([] if simulated else found)
    policy = PlacementPolicy.objects.filter(pk=1).first() or PlacementPolicy()
    page = Paginator(rows, PAGE_ROWS).get_page(request.GET.get("page"))
    return render(
        request,
        "placement/plans/measured_show.html",
        {
            "simulated": simulated,
            "kinds": [_kind(one, corrections) for one in _in_order(site_errors(found))],
            "page": page,
            "enough": ENOUGH,
            "least_milliseconds": round(1000 * COUNTS_FROM_SECONDS),
            "learns": policy.learns and not simulated,
            "gpus": "simulated" if simulated else "real",
            "other": PlanOutcome.objects.filter(
                simulated=not simulated, settled_at__isnull=False
            ).exists(),
        },
    )


def _in_order(errors: Sequence[SiteError]) -> list[SiteError]:
    """Classes by name. In each the total first, then the most frequent."""
    return sorted(errors, key=lambda e: (e.gpu_class, e.strategy != ANY, -e.runs))


def _kind(error: SiteError, corrections: object) -> dict[str, object]:
    """Return one row of the table of errors."""
    key = (error.gpu_class, error.strategy)
    memory = corrections.by_kind.get(key)  # type: ignore[attr-defined]
    step = corrections.by_class.get(error.gpu_class)  # type: ignore[attr-defined]
    return {
        "error": error,
        "title": TITLES.get(error.strategy, sentence("all strategies")),
        "whole": error.strategy == ANY,
        "memory": memory,
        "step": step if error.strategy == ANY else None,
    }


COLUMNS = (
    "job",
    "strategy",
    "gpu_class",
    "precision",
    "prior_step_seconds",
    "predicted_step_seconds",
    "step_seconds",
    "step_ratio",
    "memory_ratio",
    "high_ratio",
    "steps",
    "settled_at",
    "not_counted",
)


def _csv_rows(rows: "QuerySet[PlanOutcome]") -> Iterator[tuple[object, ...]]:
    yield COLUMNS
    for row in rows:
        yield (
            row.job_id,
            row.strategy,
            row.gpu_class,
            row.precision,
            row.prior_step_seconds,
            row.predicted_step_seconds,
            row.step_seconds,
            row.step_ratio,
            row.memory_ratio,
            row.high_ratio,
            row.steps_seen,
            row.settled_at and row.settled_at.isoformat(),
            row.not_counted,
        )
