"""The site's measured error, Plans against Jobs, and the corrections by it.

Each Job that ran by a Plan gives two ratios, actual over prior: of its step time, and
of the likely bytes on its worst Gpu. The prior is the Plan's figure without any
correction, so that a correction does not amplify itself. From ENOUGH runs of one kind
on (same strategy and class of Gpu; else the whole class), Corrections follow them:

- memory: `likely` is moved by the median ratio, and `high` widened until nine runs in
  ten lie below it. Both stay within the bounds below. `high` is never lowered further
  than `likely`, and neither is lowered below `low`, which is the exact states and the
  counted peak and does not depend on measurements.
- time: a step is multiplied by the class's median ratio, within bounds, and only if the
  runs agree with each other (the middle 80 % within SPREAD_MOST of each other).
  Predictions under COUNTS_FROM_SECONDS are ignored: so short a step waits for kernels
  to be launched, not for arithmetic, and shows nothing about longer ones.

The intervals that are moved are those of docs/design/placement.md#outside-the-tensors.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from placement.planner.values.humanize import error_words
from telemetry.protocol.gpu_cards import card_of
from telemetry.protocol.sentences import joined, sentence

ENOUGH = 8
"""Runs of one kind from which on predictions are corrected."""
NEWEST = 200
"""Most runs of one kind that count: the newest, because drivers and frameworks
change.
"""
SHIFT_BOUNDS = (0.8, 1.5)
"""Bounds of the correction of `likely`, by the median of memory ratios."""
HIGH_MOST = 1.5
"""Largest factor of `high`."""
STEP_BOUNDS = (0.25, 4.0)
"""Bounds of the correction of step times."""
UNKNOWN_CARD_STEP_BOUNDS = (1 / 64, 64.0)
"""The same for a card that is not in the table of cards. Its speed is known only from
measurements here.
"""
SPREAD_MOST = 3.0
COUNTS_FROM_SECONDS = 0.005
ANY = ""
"""Used in place of a strategy: all strategies of the class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeInfo:
    """The measurements of one Job with a Plan; None: not measured."""

    strategy: str
    gpu_class: str
    prior_step_seconds: float
    step_ratio: float | None
    memory_ratio: float | None
    high_ratio: float | None = None
    """Actual bytes over the prior's high on the worst Gpu; above 1: it held more."""


@dataclass(frozen=True, slots=True)
class RatioSpread:
    """Distribution of ratios of actual over predicted."""

    n: int
    median_ratio: float
    p90_error_ratio: float
    """Nine runs in ten differ from 1 by at most this."""
    high_ratio: float
    """90th percentile."""

    @property
    def median_error_pct(self) -> float:
        """The median run's excess over its prediction, in percent."""
        return 100 * (self.median_ratio - 1)

    @property
    def p90_error_pct(self) -> float:
        """Return the error of nine runs in ten, in either direction."""
        return 100 * self.p90_error_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteError:
    """The measured error of one kind of run."""

    strategy: str
    """ANY: all of the class."""
    gpu_class: str
    runs: int
    step: RatioSpread | None
    memory: RatioSpread | None
    above_high: int
    """Runs that held more than `high` on some Gpu, of those with measured memory."""

    @property
    def words(self) -> str:
        """Return the error in one line, for pages.

        >>> rows = [1.02, 1.0, 1.1]
        >>> SiteError(strategy="", gpu_class="A100", runs=3, step=spread_of(rows),
        ...           memory=None, above_high=0).words
        'step time +2 % in the median, within 8 % in nine runs of ten'
        """
        said = [
            sentence(
                "{name} {median} in the median, within {within} % in nine runs of ten",
                name=name,
                median=error_words(spread.median_error_pct),
                within=f"{spread.p90_error_pct:,.0f}",
            )
            for name, spread in (
                (sentence("step time"), self.step),
                (sentence("memory"), self.memory),
            )
            if spread is not None
        ]
        if self.memory is not None:
            said.append(
                sentence(
                    "{above} of {all} used more than the predicted maximum",
                    above=self.above_high,
                    all=self.memory.n,
                )
            )
        return joined(said, "; ") if said else sentence("nothing was measured")


def quantile(values: Sequence[float], ratio: float) -> float:
    """Return a quantile by linear interpolation (Hyndman and Fan 1996, type 7).

    >>> quantile([1, 2, 3, 4], 0.5)
    2.5
    """
    ranked = sorted(values)
    place = (len(ranked) - 1) * ratio
    below = int(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)


def spread_of(ratios: Sequence[float]) -> RatioSpread | None:
    """Return the RatioSpread of the ratios, or None without ratios."""
    if not ratios:
        return None
    return RatioSpread(
        n=len(ratios),
        median_ratio=float(median(ratios)),
        p90_error_ratio=quantile([abs(one - 1) for one in ratios], 0.9),
        high_ratio=quantile(ratios, 0.9),
    )


def error_of(
    outcomes: Sequence[OutcomeInfo], strategy: str, gpu_class: str
) -> SiteError:
    """Return the error of the newest runs of one kind. Outcomes: newest first."""
    rows = list(outcomes)[:NEWEST]
    return SiteError(
        strategy=strategy,
        gpu_class=gpu_class,
        runs=len(rows),
        step=spread_of([r.step_ratio for r in rows if r.step_ratio is not None]),
        memory=spread_of([r.memory_ratio for r in rows if r.memory_ratio is not None]),
        above_high=sum((r.high_ratio or 0) > 1 for r in rows),
    )


def site_errors(outcomes: Iterable[OutcomeInfo]) -> tuple[SiteError, ...]:
    """Return the errors by class and strategy, the whole class first. Outcomes: newest
    first.
    """
    kinds: dict[tuple[str, str], list[OutcomeInfo]] = defaultdict(list)
    for one in outcomes:
        kinds[one.gpu_class, ANY].append(one)
        kinds[one.gpu_class, one.strategy].append(one)
    return tuple(
        error_of(rows, strategy, gpu_class)
        for (gpu_class, strategy), rows in sorted(kinds.items())
    )


@dataclass(frozen=True, slots=True)
class MemoryCorrection:
    """Factors of an interval, and the number of runs behind them."""

    likely_ratio: float = 1.0
    high_ratio: float = 1.0
    """Factor of `high`; at least `likely_ratio`."""
    runs: int = 0

    def of(self, low: int, likely: int, high: int) -> tuple[int, int, int]:
        """Return the corrected interval. `low` stays, and the others do not fall below
        it.

        >>> MemoryCorrection(0.8, 1.0, 9).of(100, 113, 126)
        (100, 100, 126)
        """
        moved = max(low, int(likely * self.likely_ratio))
        return low, moved, max(moved, int(high * self.high_ratio))


@dataclass(frozen=True, slots=True)
class StepCorrection:
    """Factor of the step times of a class, and the number of runs behind it."""

    ratio: float = 1.0
    runs: int = 0


AS_PREDICTED = MemoryCorrection()
AS_TIMED = StepCorrection()


@dataclass(frozen=True, slots=True)
class Corrections:
    """All corrections of a site; empty: none."""

    by_kind: Mapping[tuple[str, str], MemoryCorrection] = field(default_factory=dict)
    """By (class, strategy). ANY means the whole class."""
    by_class: Mapping[str, StepCorrection] = field(default_factory=dict)

    def memory(self, strategy: str, gpu_class: str) -> MemoryCorrection:
        """Return the correction for one rank: of its own kind if it has enough runs,
        else of its class.
        """
        own = self.by_kind.get((gpu_class, strategy))
        return own or self.by_kind.get((gpu_class, ANY), AS_PREDICTED)

    def most_memory(self, strategy: str, classes: Iterable[str]) -> float:
        """Return the largest `likely_ratio` among some classes; 1 for none."""
        found = [self.memory(strategy, one).likely_ratio for one in classes]
        return max(found, default=1.0)

    def step(self, classes: Iterable[str]) -> StepCorrection:
        """Return the factor of the slowest class of a Plan."""
        found = [self.by_class.get(one, AS_TIMED) for one in classes]
        return max(found, key=lambda one: one.ratio, default=AS_TIMED)


UNCORRECTED = Corrections()


def corrections_of(outcomes: Iterable[OutcomeInfo]) -> Corrections:
    """Return the corrections from outcomes, newest first, by the rule in the module."""
    kinds: dict[tuple[str, str], list[OutcomeInfo]] = defaultdict(list)
    for one in outcomes:
        kinds[one.gpu_class, ANY].append(one)
        kinds[one.gpu_class, one.strategy].append(one)
    by_kind, by_class = {}, {}
    for (gpu_class, strategy), rows in kinds.items():
        memory = _memory(rows[:NEWEST])
        if memory is not None:
            by_kind[gpu_class, strategy] = memory
        step = _step(rows[:NEWEST], gpu_class) if strategy == ANY else None
        if step is not None:
            by_class[gpu_class] = step
    return Corrections(by_kind, by_class)


def _memory(rows: Sequence[OutcomeInfo]) -> MemoryCorrection | None:
    likely = [row.memory_ratio for row in rows if row.memory_ratio is not None]
    if len(likely) < ENOUGH:
        return None
    high = [row.high_ratio for row in rows if row.high_ratio is not None]
    shift = _within(median(likely), *SHIFT_BOUNDS)
    wide = quantile(high, 0.9) if high else 1.0
    return MemoryCorrection(
        shift, _within(wide, max(1.0, shift), HIGH_MOST), len(likely)
    )


def _step(rows: Sequence[OutcomeInfo], gpu_class: str) -> StepCorrection | None:
    ratios = [
        row.step_ratio
        for row in rows
        if row.step_ratio and row.prior_step_seconds >= COUNTS_FROM_SECONDS
    ]
    if len(ratios) < ENOUGH:
        return None
    if quantile(ratios, 0.9) > SPREAD_MOST * quantile(ratios, 0.1):
        return None
    bounds = STEP_BOUNDS if card_of(gpu_class) else UNKNOWN_CARD_STEP_BOUNDS
    return StepCorrection(_within(median(ratios), *bounds), len(ratios))


def _within(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)
