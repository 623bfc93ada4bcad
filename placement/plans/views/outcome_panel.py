"""Predicted and actual values of one Job, for its page."""

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext

from placement.models import Job, PlanOutcome
from placement.planner.values.humanize import error_words, gib, seconds
from placement.plans import plan_outcome
from placement.plans.views.bar_chart import WIDTH
from placement.plans.views.plan_cards import IMAGES


@dataclass(frozen=True)
class OutcomeFigure:
    """One figure: predicted and measured."""

    title: str
    predicted: str
    actual: str
    error: str
    """In percent of the prediction. "": not known yet."""
    bad: bool = False
    """Whether it exceeds the prediction by more than the plan's interval."""


@dataclass(frozen=True)
class GpuBar:
    """One rank's memory: the predicted interval and the measured peak."""

    label: str
    low_x: float
    likely_x: float
    high_x: float
    actual_width: float
    words: str
    error: str
    above: bool
    tensors: str
    """The allocator's own count, if the runtime logs it."""

    @property
    def span(self) -> float:
        """The width of the interval."""
        return round(self.high_x - self.low_x, 1)


@dataclass(frozen=True)
class OutcomePanel:
    """The values beside a Plan."""

    outcome: PlanOutcome
    figures: tuple[OutcomeFigure, ...]
    gpus: tuple[GpuBar, ...]
    so_far: bool
    source: str


def measured_of(job: Job, units: str) -> OutcomePanel | None:
    """Return the outcome of a Job's Plan, so far if it runs. None: nothing yet."""
    outcome = PlanOutcome.objects.filter(job=job).first()
    if outcome is None:
        return None
    so_far = outcome.settled_at is None
    if so_far:
        plan_outcome.measured(outcome, job)
    return OutcomePanel(
        outcome=outcome,
        figures=_figures(outcome, units),
        gpus=tuple(_gpu(row) for row in outcome.gpus),
        so_far=so_far,
        source=_pace_source(outcome),
    )


def _figures(outcome: PlanOutcome, units: str) -> tuple[OutcomeFigure, ...]:
    said, did = outcome.predicted_step_seconds, outcome.step_seconds
    speed, real = outcome.predicted_units_per_second, outcome.units_per_second
    return (
        OutcomeFigure(
            gettext("One step"),
            seconds(said) if said else "–",
            seconds(did) if did else "–",
            error_words(100 * (did / said - 1)) if did and said else "",
        ),
        OutcomeFigure(
            gettext("Images a second")
            if units == IMAGES
            else gettext("Tokens a second"),
            f"{speed:,.0f}" if speed else "–",
            f"{real:,.0f}" if real else "–",
            error_words(100 * (real / speed - 1)) if real and speed else "",
        ),
    )


def _pace_source(outcome: PlanOutcome) -> str:
    """Return the source of the pace."""
    if not outcome.step_seconds:
        return gettext(
            "No step time yet. It is read from lines such as step=120 "
            "step_seconds=0.41, or from the time between steps."
        )
    how = {
        "log": gettext("as the job printed them"),
        "clock": gettext("timed by their lines in the log"),
    }[outcome.step_source]
    return gettext("Median of %(steps_seen)s steps after the warm-up, %(how)s.") % {
        "steps_seen": f"{outcome.steps_seen:,}",
        "how": how,
    }


def _gpu(row: dict[str, Any]) -> GpuBar:
    actual = row["actual_bytes"] or 0
    full = max(row["total_bytes"], row["high_bytes"], actual, 1)

    def x(size: float) -> float:
        return round(WIDTH * size / full, 1)

    interval = gettext("%(low)s to %(high)s") % {
        "low": gib(row["low_bytes"]),
        "high": gib(row["high_bytes"]),
    }
    said = gettext("predicted %(interval)s, likely %(likely)s") % {
        "interval": interval,
        "likely": gib(row["likely_bytes"]),
    }
    held = (
        gettext("held %(actual)s") % {"actual": gib(actual)}
        if actual
        else gettext("not read yet")
    )
    error = 100 * (actual / row["likely_bytes"] - 1) if actual else 0.0
    return GpuBar(
        label=row["label"],
        low_x=x(row["low_bytes"]),
        likely_x=x(row["likely_bytes"]),
        high_x=x(row["high_bytes"]),
        actual_width=x(actual),
        words=f"{held}; {said}",
        error=error_words(error) if actual else "",
        above=actual > row["high_bytes"],
        tensors=_tensors(row),
    )


def _tensors(row: dict[str, Any]) -> str:
    peak, said = row["actual_tensor_bytes"], row["tensor_bytes"]
    if not peak or not said:
        return ""
    error = error_words(100 * (peak / said - 1))
    return gettext(
        "Its tensors: %(peak)s at the peak, predicted %(said)s (%(error)s)."
    ) % {"peak": gib(peak), "said": gib(said), "error": error}
