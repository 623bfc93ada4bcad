"""Two Plans side by side: each fact in a row, the better one marked."""

from collections.abc import Callable
from dataclasses import dataclass

from django.utils.translation import gettext

from placement.planner.values.humanize import gib, seconds
from placement.planner.values.plan import Plan
from placement.plans.views import bar_chart
from placement.plans.views.bar_chart import Bar
from placement.plans.views.plan_cards import gpus_more, short_remedies, speed
from placement.plans.views.schedule_chart import schedule_of
from telemetry.web.recognition import shown

MARK_RATIO = 1.02
"""How much better a figure must be to be marked."""


@dataclass(frozen=True)
class ComparisonRow:
    """One fact of both Plans."""

    words: str
    first: str
    second: str
    better: int = 0
    """1 or 2: the better one. 0: neither, or not comparable."""


@dataclass(frozen=True)
class PlanColumn:
    """One Plan in the header of its column."""

    plan: Plan
    heading: str
    bars: tuple[Bar, ...]
    time: Bar


@dataclass(frozen=True)
class Comparison:
    """The data of `_plan_compare.html`."""

    sides: tuple[PlanColumn, PlanColumn]
    rows: tuple[ComparisonRow, ...]
    verdict: str
    legend: tuple[tuple[str, str], ...]


def compare(
    first: Plan,
    second: Plan,
    *,
    units: tuple[str, str],
    headings: tuple[str, str] = ("", ""),
) -> Comparison:
    """Compare two Plans, of the same model or not."""
    sides = tuple(
        PlanColumn(
            plan,
            heading or plan.title,
            tuple(bar_chart.shard_bar(shard, plan) for shard in plan.shards),
            bar_chart.time_bar(plan),
        )
        for plan, heading in zip((first, second), headings, strict=True)
    )
    there = {p.key for side in sides for bar in side.bars for p in bar.pieces}
    legend = tuple(
        (key, words) for key, words in bar_chart.WORDS.items() if key in there
    )
    rows = _comparison_rows(first, second) + _figures(first, second, units)
    return Comparison((sides[0], sides[1]), rows, _speed_verdict(first, second), legend)


def _figures(a: Plan, b: Plan, units: tuple[str, str]) -> tuple[ComparisonRow, ...]:
    same = _same_work(a, b)

    def row(
        words: str, of: Callable[[Plan], float], said: Callable[[float], str]
    ) -> ComparisonRow:
        x, y = of(a), of(b)
        # Less of another workload is not better.
        return ComparisonRow(words, said(x), said(y), _lower(x, y) if same else 0)

    def time(value: float) -> str:
        return seconds(value) if value else "–"

    rows = [
        row(gettext("One step"), lambda p: p.step_seconds, time),
        row(gettext("of it computing"), lambda p: p.compute_seconds, time),
        row(gettext("of it sending"), lambda p: p.communication_seconds, time),
        row(gettext("of it waiting (bubble)"), lambda p: p.bubble_seconds, time),
        ComparisonRow(
            gettext("Speed"),
            speed(a, units[0]),
            speed(b, units[1]),
            better=_lower(-a.units_per_second, -b.units_per_second)
            if units[0] == units[1]
            else 0,
        ),
        row(gettext("GPUs"), lambda p: len(p.shards), lambda n: f"{n:.0f}"),
        row(
            gettext("Fullest GPU needs"),
            lambda p: max(s.likely_bytes for s in p.shards),
            gib,
        ),
        row(
            gettext("All GPUs together need"),
            lambda p: sum(s.likely_bytes for s in p.shards),
            gib,
        ),
        ComparisonRow(
            gettext("Least memory left"),
            gib(_room_bytes(a)),
            gib(_room_bytes(b)),
            better=_lower(-_room_bytes(a), -_room_bytes(b)) if same else 0,
        ),
        row(
            gettext("Credits for 1,000 steps"),
            lambda p: p.quota_gpu_seconds,
            lambda value: f"{value * 1000 / 3600:.3g}" if value else "–",
        ),
    ]
    return tuple(rows)


def _room_bytes(plan: Plan) -> int:
    return min(shard.headroom_bytes for shard in plan.shards)


def _comparison_rows(a: Plan, b: Plan) -> tuple[ComparisonRow, ...]:
    def both(words: str, of: Callable[[Plan], str]) -> ComparisonRow:
        return ComparisonRow(words, of(a) or "–", of(b) or "–")

    def pipe(plan: Plan) -> str:
        drawn = schedule_of(plan)
        return drawn.words if drawn else ""

    return (
        both(gettext("Model"), lambda p: p.model),
        both(gettext("Where"), _gpu_names_text),
        both(gettext("Batch and length"), _batch),
        both(
            gettext("Precision, optimizer"),
            lambda p: (
                f"{p.workload.precision}, {p.workload.optimizer}"
                if p.workload.trains
                else p.workload.precision
            ),
        ),
        both(gettext("What was changed"), lambda p: "; ".join(short_remedies(p))),
        both(gettext("Bound by"), lambda p: shown(p.bound_by)),
        both(gettext("Pipeline"), pipe),
        both(gettext("Caution"), lambda p: " ".join(map(shown, p.notes))),
    )


def _gpu_names_text(plan: Plan) -> str:
    names = ", ".join(shard.gpu_label for shard in plan.shards[:8])
    more = len(plan.shards) - 8
    return (
        gettext("%(names)s and %(more)s more") % {"names": names, "more": more}
        if more > 0
        else names
    )


def _batch(plan: Plan) -> str:
    asked = plan.workload
    size = f"{asked.batch} × {asked.sequence_length}"
    if asked.accumulation == 1:
        return size
    return gettext("%(size)s, %(pieces)s pieces") % {
        "size": size,
        "pieces": asked.accumulation,
    }


def _lower(x: float, y: float) -> int:
    """Return which of two figures is clearly lower, if lower is better."""
    low, high = min(x, y), max(x, y)
    if high - low <= (MARK_RATIO - 1) * max(abs(low), abs(high)):
        return 0
    return 1 if x < y else 2


def _same_work(a: Plan, b: Plan) -> bool:
    """Return whether a step of both Plans does the same work."""
    works = [
        (p.model, p.workload.task, p.workload.batch, p.workload.sequence_length)
        for p in (a, b)
    ]
    return works[0] == works[1]


def _speed_verdict(a: Plan, b: Plan) -> str:
    if not (a.step_seconds and b.step_seconds):
        return gettext(
            "One of them has no time to compare: its file names no computation."
        )
    if not _same_work(a, b):
        return gettext(
            "They do not do the same work: compare their speeds, not their steps."
        )
    ratio = a.step_seconds / b.step_seconds
    if 1 / MARK_RATIO <= ratio <= MARK_RATIO:
        return gettext("Their steps take the same time.")
    gain = max(ratio, 1 / ratio)
    gpus = (len(b.shards) - len(a.shards)) * (1 if ratio > 1 else -1)
    told = {"gain": f"{gain:.1f}"}
    said = (
        gettext("The second is %(gain)s times as fast as the first")
        if ratio > 1
        else gettext("The first is %(gain)s times as fast as the second")
    ) % told
    if not gpus:
        return f"{said}."
    return gettext("%(verdict)s, with %(gpus)s.") % {
        "verdict": said,
        "gpus": gpus_more(gpus),
    }
