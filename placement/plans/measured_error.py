"""The site's measured error, from settled outcomes, for pages and the planner.

Simulated Gpus report the numbers of their simulator, so outcomes there are kept apart.
They are shown, and correct nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from placement.models import PlacementPolicy, PlanOutcome
from placement.planner.values.calibration import (
    ANY,
    ENOUGH,
    UNCORRECTED,
    Corrections,
    OutcomeInfo,
    SiteError,
    corrections_of,
    site_errors,
)
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import TITLES
from telemetry.models import Gpu
from telemetry.protocol.sentences import counted, joined

MOST_OUTCOMES = 5000
"""The newest outcomes that are read."""


def outcomes(*, simulated: bool) -> list[OutcomeInfo]:
    """Return the settled outcomes that count, newest first."""
    rows = PlanOutcome.objects.filter(
        simulated=simulated, not_counted="", settled_at__isnull=False
    ).order_by("-settled_at", "-pk")
    return [
        OutcomeInfo(
            strategy=strategy,
            gpu_class=gpu_class,
            prior_step_seconds=prior,
            step_ratio=step,
            memory_ratio=memory,
            high_ratio=high,
        )
        for strategy, gpu_class, prior, step, memory, high in rows.values_list(
            "strategy",
            "gpu_class",
            "prior_step_seconds",
            "step_ratio",
            "memory_ratio",
            "high_ratio",
        )[:MOST_OUTCOMES]
    ]


def learned(policy: PlacementPolicy) -> Corrections:
    """Return the corrections of predictions. None if the site forbids it."""
    if not policy.learns:
        return UNCORRECTED
    return corrections_of(outcomes(simulated=False))


@dataclass(frozen=True)
class Record:
    """One kind's error, for a Plan's page."""

    error: SiteError
    simulated: bool

    @property
    def kind(self) -> str:
        """The kind of runs."""
        title = "" if self.error.strategy == ANY else TITLES[self.error.strategy]
        of = counted(
            "{n} run on {gpu_class}",
            "{n} runs on {gpu_class}",
            self.error.runs,
            gpu_class=self.error.gpu_class,
        )
        return joined([of, title], ", ")

    @property
    def corrects(self) -> bool:
        """Whether there are enough runs to correct predictions."""
        return not self.simulated and self.error.runs >= ENOUGH


class Records:
    """The site's errors by kind, read once per page."""

    @cached_property
    def _real_by_kind(self) -> dict[tuple[str, str], SiteError]:
        return _by_kind(outcomes(simulated=False))

    @cached_property
    def _simulated_by_kind(self) -> dict[tuple[str, str], SiteError]:
        return _by_kind(outcomes(simulated=True))

    @cached_property
    def _gpus(self) -> dict[str, tuple[str, bool]]:
        rows = Gpu.objects.values_list("uuid", "pool__gpu_class", "node__simulated")
        return {uuid: (name, simulated) for uuid, name, simulated in rows}

    def of(self, plan: Plan) -> Record | None:
        """Return the record of a Plan's kind, or of its class. None: no run."""
        found = [self._gpus[uuid] for uuid in plan.gpu_uuids if uuid in self._gpus]
        if not found:
            return None
        name = class_name(gpu_class for gpu_class, _ in found)
        simulated = any(one for _, one in found)
        errors = self._simulated_by_kind if simulated else self._real_by_kind
        error = errors.get((name, plan.strategy)) or errors.get((name, ANY))
        return Record(error, simulated) if error else None


def _by_kind(rows: Iterable[OutcomeInfo]) -> dict[tuple[str, str], SiteError]:
    return {(one.gpu_class, one.strategy): one for one in site_errors(rows)}


def class_name(classes: Iterable[str]) -> str:
    """Return the name of a set of Gpus: its class, or its classes joined by plus."""
    return "+".join(sorted(set(classes)))[:80]
