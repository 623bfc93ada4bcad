"""The answer of every history chart, as JSON or as a spreadsheet.

The calling view selects the history and checks access to it.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

from django.utils.text import slugify
from django.utils.translation import gettext

from telemetry.history.queries import HistoryRange, Subject, read_history
from telemetry.history.schemas import MOST_SECONDS, HistoryIn
from telemetry.models import Gpu
from telemetry.rules.chart_series import MOST_GPU_CURVES, ChartSeries
from telemetry.rules.usage_summary import Usage
from telemetry.web.answer_types import CsvAnswer
from telemetry.web.csv_answer import csv_answer
from telemetry.web.spreadsheet import series_rows


class HistoryAnswer(TypedDict):
    """Columns of a chart."""

    name: str
    """Of the GPU, node, group or reservation."""
    start: int
    """Unix seconds."""
    end: int
    """Unix seconds."""
    series: ChartSeries


class UsageAnswer(TypedDict):
    """The use of GPUs during a reservation or a job."""

    samples: int
    """Number of samples, one a second for each GPU."""
    util_mean_pct: float | None
    """Mean utilization in percent."""
    util_p95_pct: float | None
    """95th percentile of the minutes' mean utilization, in percent."""
    idle_ratio: float | None
    """Part of the samples in which the GPU was idle, 0 to 1."""
    memory_max_bytes: float | None
    energy_kwh: float | None
    gpu_seconds: int
    """GPUs times seconds, sampled or not."""
    seen_ratio: float | None
    """Part of the time with samples, 0 to 1."""


def requested_range(wish: HistoryIn, *, now: datetime) -> HistoryRange:
    """Return the requested time. The future is cut off, because it has no samples."""
    second = int(now.timestamp())
    end = second if wish.end is None else min(wish.end, second)
    start = end - int(wish.hours * 3600) if wish.start is None else wish.start
    start = min(max(start, end - MOST_SECONDS), end - 1)
    return HistoryRange(start=max(0, start), end=end, points=wish.points)


def answer_history(
    subject: Subject, wish: HistoryIn, *, now: datetime
) -> HistoryAnswer | CsvAnswer:
    """Return the columns as JSON or as a spreadsheet."""
    asked = requested_range(wish, now=now)
    series = read_history(subject, asked, now=now)
    if wish.format == "json":
        return {
            "name": subject.name,
            "start": asked.start,
            "end": asked.end,
            "series": series,
        }
    name = f"history-{slugify(subject.name) or 'portal'}.csv"
    return csv_answer(name, series_rows(series, of=subject.name))


def usage_entry(usage: Usage) -> UsageAnswer:
    """Return a summary as plain values for JSON."""
    totals = usage.totals
    return {
        "samples": totals.n,
        "util_mean_pct": totals.util_mean_pct,
        "util_p95_pct": usage.util_p95_pct,
        "idle_ratio": totals.idle_ratio,
        "memory_max_bytes": totals.memory_max_bytes,
        "energy_kwh": usage.energy_kwh,
        "gpu_seconds": usage.gpu_seconds,
        "seen_ratio": usage.seen_ratio,
    }


def charts_page(
    path: str,
    *,
    whole: tuple[datetime, datetime] | None = None,
    memory_total_bytes: int | None = None,
    power_limit_watts: float | None = None,
    per_gpu: bool = False,
    gpus: Sequence[Gpu] = (),
    hole: str = "",
) -> dict[str, Any]:
    """Return the data of `static/js/telemetry/history.js`, for
    templates/telemetry/_history.html.

    Args:
        path: of the API, under /api/v1.
        whole: the subject's own begin and end, if it has them.
        memory_total_bytes: top of the memory axis; None: the largest value.
        power_limit_watts: top of the power axis, likewise.
        per_gpu: the figures are means over several Gpus.
        gpus: the Gpus of which a line each can be drawn.
        hole: the meaning of a gap; "": there is no reading.
    """
    page: dict[str, Any] = {
        "path": path,
        "first": {"range": "24h"},
        "memory_total_bytes": memory_total_bytes,
        "power_limit_watts": power_limit_watts,
        "per_gpu": per_gpu,
        "gpus": [
            {"path": f"/gpus/{gpu.pk}/history", "name": f"GPU {gpu.index}"}
            for gpu in gpus[:MOST_GPU_CURVES]
        ],
        "hole": hole or gettext("no reading"),
        "empty": gettext(
            "There are no readings of this time. Charts begin a minute after "
            "the first reading. Old readings are deleted after the time that the lab "
            "admin has set."
        ),
    }
    if whole is not None:
        start, end = (int(at.timestamp()) for at in whole)
        page["whole"] = page["first"] = {"from": start, "to": end}
    return page
