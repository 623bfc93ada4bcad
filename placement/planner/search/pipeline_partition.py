"""Stages of a pipeline over unequal Gpus: the shortest iteration that fits.

Stage i of p keeps min(p - i, m) microbatches of activations (1F1B) or all m (GPipe).
Iteration = sum of stage times + (m - 1) x the largest (docs/design/placement.md#time).
If torch runs it, a stage also holds the tensors that it receives and sends
(pipeline_schedule.py). The first stage receives nothing, and the last one sends
nothing.

For each p the split with the smallest largest stage is exact (chain_split.py). If Gpus
differ in speed, the sum depends on the split too. Then `pareto_front.py` searches
further, exact for the whole iteration. It stops after a budget of steps, and the answer
reports that.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

from placement.planner.search.chain_split import (
    ChainProblem,
    Piece,
    Split,
    classes_of,
    split_chain,
)
from placement.planner.search.pareto_front import FrontProblem, FrontSearch, Step

FRONT_BUDGET = 60_000
"""Most steps of the exact search over unequal speeds, if a person waits for it."""
ROUNDING_BYTES = 1.0
"""Upper bound of the rounding error in sums of a model's bytes after a
multiplication.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProblem:
    """Layers and Gpus of one pipeline. Bytes, and seconds at speed 1."""

    state_bytes: Sequence[float]
    """Per layer: weights, gradients, optimizer."""
    activation_bytes: Sequence[float]
    """Per layer and microbatch."""
    seconds: Sequence[float]
    """Forward and backward of one microbatch per layer, at speed 1."""
    free_bytes: Sequence[int]
    speeds: Sequence[float]
    microbatches: int
    gpipe: bool = False
    """All microbatches are in flight at once."""
    moment_bytes: Sequence[float] = ()
    """Per layer: additional bytes alive for a moment. A stage needs its largest."""
    copy_bytes: Sequence[float] = ()
    """Per layer: 16-bit weights that autocast holds until the stage's forward ends."""
    step_bytes: Sequence[float] = ()
    """Per layer: temporaries of the optimizer's step, after activations are freed."""
    fixed_bytes: float = 0
    """Per used Gpu: context and workspaces."""
    tied_bytes: float = 0
    """States of the head's copy of a tied table, if the table is on another stage."""
    border_bytes: float = 0
    """Activations of one microbatch that are sent over a cut, if torch runs it; 0:
    tensors that pass between stages are not counted.
    """
    saved_border_bytes: float = 0
    """The part of it that each layer's activations already have as its input."""
    trains: bool = True
    """Gradients are sent back over the cut."""
    gpipe_if_few: bool = False
    """torch refuses 1F1B with fewer microbatches than stages, and GPipe runs
    instead.
    """
    scale: float = 1.0
    """Factor of tensor bytes for the allocator's slack."""

    def in_flight(self, stage: int, stages: int) -> int:
        """Return the microbatches whose activations stage i of p keeps at once."""
        few = self.gpipe_if_few and self.microbatches < stages
        if self.gpipe or few:
            return self.microbatches
        return min(stages - stage, self.microbatches)

    def least_bytes(self, stages: int) -> float:
        """Return a quick lower bound of the total need of so many stages.

        It has one microbatch of each layer, and buffers at each cut.
        """
        layers = sum(self.state_bytes) + sum(self.activation_bytes)
        buffers = self.microbatches * (2 if self.trains else 1) * self.border_bytes
        buffers -= self.saved_border_bytes
        cuts = (stages - 1) * max(0.0, buffers)
        return (layers + cuts) * self.scale * (1 - 1e-9) + stages * self.fixed_bytes

    def passing_bytes(self, first: int, last: int, in_flight: int) -> float:
        """Return an upper bound of the passing tensors that a stage of layers [first,
        last) holds.

        They are receive buffers, outputs in flight and one that is being sent
        (pipeline_schedule.py).
        """
        border, total = self.border_bytes, 0.0
        if first > 0:
            sent = border if self.trains else 0.0
            total += self.microbatches * border + sent
            total -= in_flight * self.saved_border_bytes
        if last < len(self.state_bytes) and self.trains:
            total += (self.microbatches + in_flight + 1) * border
        return total


@dataclass(frozen=True, slots=True)
class PipelineSplit:
    """The best pipeline: pieces in the order of stages; load = stage seconds."""

    pieces: tuple[Piece, ...]
    iteration_seconds: float
    exact: bool
    """False: the largest stage is the smallest possible, but perhaps not the sum."""
    probes: int
    steps: int

    @property
    def stage_seconds(self) -> tuple[float, ...]:
        """Return the seconds per microbatch of each stage."""
        return tuple(piece.load for piece in self.pieces)


def iteration_seconds(stage_seconds: Sequence[float], microbatches: int) -> float:
    """Return sum t_i + (m - 1) max t_i.

    >>> iteration_seconds([75, 81, 80], 8)
    803
    """
    return sum(stage_seconds) + (microbatches - 1) * max(stage_seconds)


class SegmentMemory:
    """Whether segments fit: prefix sums, and cached reaches that do not depend on a
    bound.
    """

    def __init__(self, problem: PipelineProblem, frees: Sequence[int]) -> None:
        self.problem = problem
        self.frees = frees
        self.states = _prefix(problem.state_bytes)
        self.activations = _prefix(problem.activation_bytes)
        nothing = [0] * len(problem.state_bytes)
        self.steps = _prefix(problem.step_bytes or nothing)
        self.copies = _prefix(problem.copy_bytes or nothing)
        self.moments = _largest_of_runs(problem.moment_bytes)
        self._moment_range = (
            min(problem.moment_bytes, default=0),
            max(problem.moment_bytes, default=0),
        )
        self._running: dict[int, list[float]] = {}
        self._stepping = list(map(add, self.states, self.steps))
        self._passing: dict[tuple[bool, bool, int], float] = {}
        self._reach: dict[tuple[int, int, int], tuple[int, bool]] = {}

    def need_bytes(self, first: int, last: int, in_flight: int) -> float:
        """Return the bytes of a stage of layers [first, last)."""
        problem = self.problem
        tensors = self.states[last] - self.states[first]
        running = in_flight * (self.activations[last] - self.activations[first])
        running += self.copies[last] - self.copies[first]
        if self.moments and last > first:
            level = (last - first).bit_length() - 1
            row = self.moments[level]
            running += max(row[first], row[last - (1 << level)])
        tensors += max(running, self.steps[last] - self.steps[first])
        if first > 0 and last == len(problem.state_bytes):
            tensors += problem.tied_bytes
        if problem.border_bytes:
            tensors += self._passing_bytes(first, last, in_flight)
        if problem.scale != 1.0:
            # Only then, so that whole numbers stay whole at any size.
            tensors *= problem.scale
        return tensors + problem.fixed_bytes

    def reach(self, first: int, kind: int, in_flight: int) -> tuple[int, bool]:
        """Return what fits on a Gpu of the class.

        It is (the largest `last` before the end such that [first, last) fits, whether
        [first, end) fits). The end is separate because the last stage sends nothing: it
        may fit even if one layer less does not.
        """
        key = (first, kind, in_flight)
        known = self._reach.get(key)
        if known is not None:
            return known
        free, end = self.frees[kind], len(self.problem.state_bytes)
        low, high, whole = self._reach_bounds(first, free, in_flight)
        whole = whole and self.need_bytes(first, end, in_flight) <= free
        if whole and not self.problem.border_bytes:
            low = high = max(first, end - 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self.need_bytes(first, middle, in_flight) <= free:
                low = middle
            else:
                high = middle - 1
        self._reach[key] = (low, whole)
        return low, whole

    def _passing_bytes(self, first: int, last: int, in_flight: int) -> float:
        """Return `PipelineProblem.passing_bytes`, which depends only on whether an end
        is there.
        """
        key = (first > 0, last < len(self.problem.state_bytes), in_flight)
        known = self._passing.get(key)
        if known is None:
            known = self.problem.passing_bytes(first, last, in_flight)
            self._passing[key] = known
        return known

    def _reach_bounds(
        self, first: int, free: int, in_flight: int
    ) -> tuple[int, int, bool]:
        """Return the ends before the last one between which the reach lies.

        Also return whether the last one may fit. The bounds assume that each moment is
        the largest, and that it is the smallest. There is one more layer on each side,
        because quotients are rounded.
        """
        problem = self.problem
        end = len(problem.state_bytes)
        room: float = free - problem.fixed_bytes
        if problem.scale != 1.0:
            room /= problem.scale
        sums = self._running.get(in_flight)
        if sums is None:
            kept = [in_flight * part for part in self.activations]
            sums = list(map(add, map(add, self.states, kept), self.copies))
            self._running[in_flight] = sums
        least, most = self._moment_range
        all_of_it = room
        if problem.border_bytes:
            all_of_it -= self._passing_bytes(first, end, in_flight)
            room -= self._passing_bytes(first, end - 1, in_flight)
        whole = sums[-1] - sums[first] + least <= all_of_it + ROUNDING_BYTES
        high = bisect_right(sums, sums[first] + room - least, first)
        low = bisect_right(sums, sums[first] + room - most, first) - 2
        low = min(low, bisect_right(self._stepping, self._stepping[first] + room) - 2)
        high = max(first, min(high, end - 1))
        return max(first, min(low, high)), high, whole


def _prefix(values: Sequence[float]) -> list[float]:
    sums: list[float] = [0]
    for value in values:
        sums.append(sums[-1] + value)
    return sums


def _largest_of_runs(values: Sequence[float]) -> list[list[float]]:
    """Return a sparse table: row k has the largest of each run of 2^k values."""
    if not values:
        return []
    rows = [list(values)]
    width = 1
    while 2 * width <= len(values):
        above = rows[-1]
        rows.append(
            [max(above[i], above[i + width]) for i in range(len(above) - width)]
        )
        width *= 2
    return rows


def split_pipeline(
    problem: PipelineProblem,
    *,
    most_stages: int | None = None,
    least_stages: int = 1,
    budget: int | None = FRONT_BUDGET,
) -> PipelineSplit | None:
    """Return the pipeline with the shortest iteration that fits; None if none does.

    Tries every number of stages. A solution found for p that uses fewer is valid for
    fewer, in which stages keep less. `budget` None: exact, without a limit of time.
    """
    keys = list(zip(problem.free_bytes, problem.speeds, strict=True))
    classes = classes_of(keys)
    frees = [problem.free_bytes[group[0]] for group in classes]
    speeds = [problem.speeds[group[0]] for group in classes]
    memory = SegmentMemory(problem, frees)
    times = _prefix(problem.seconds)
    most = min(most_stages or len(keys), len(keys), len(problem.seconds))
    tried: list[tuple[float, int, ChainProblem, Split]] = []
    best: Split | None = None
    best_seconds = float("inf")
    for stages in range(max(least_stages, _fewest(problem, most)), most + 1):
        chain = _chain(problem, classes, speeds, memory, times, stages)
        high = _ceiling(problem, times, speeds, best_seconds)
        low = times[-1] / sum(sorted(problem.speeds, reverse=True)[:stages])
        found = split_chain(chain, low=low * (1 - 1e-9), high=high)
        if found is None:
            continue
        enough = len(found.pieces) >= least_stages
        seconds = _whole(problem, found) if enough else float("inf")
        tried.append((seconds, stages, chain, found))
        if seconds < best_seconds:
            best, best_seconds = found, seconds
    steps = sum(chain.steps for _, _, chain, _ in tried)
    exact, left = True, budget
    for seconds, stages, chain, found in sorted(tried, key=lambda one: one[:2]):
        if len(set(speeds)) == 1 and seconds < float("inf"):
            continue
        front = FrontSearch(
            _front(problem, chain, memory, times, speeds, stages, least_stages),
            beat_seconds=best_seconds,
            largest_low=found.bottleneck * (1 - 1e-9),
            budget=left,
        )
        better = front.search()
        exact, left = exact and front.complete, front.left
        steps += front.steps
        if better is not None:
            best = _pieces(better, classes)
            best_seconds = _whole(problem, best)
    if best is None:
        return None
    probes = sum(chain.probes for _, _, chain, _ in tried)
    return PipelineSplit(best.pieces, best_seconds, exact, probes, steps)


def _front(
    problem: PipelineProblem,
    chain: ChainProblem,
    memory: "SegmentMemory",
    times: Sequence[float],
    speeds: Sequence[float],
    stages: int,
    least: int,
) -> FrontProblem:
    """Return the same pipeline in the form for `pareto_front.py`."""
    flights = [problem.in_flight(stage, stages) for stage in range(stages)]
    needed = [
        (state + kept) * problem.scale
        for state, kept in zip(
            problem.state_bytes, problem.activation_bytes, strict=True
        )
    ]
    return FrontProblem(
        counts=[len(group) for group in chain.classes],
        speeds=speeds,
        frees=memory.frees,
        times=times,
        # Slightly less than the sum, so that rounding drops nothing that fits.
        least_bytes=[value * (1 - 1e-9) for value in _prefix(needed)],
        reach=lambda first, kind, stage: memory.reach(first, kind, flights[stage]),
        microbatches=problem.microbatches,
        stages=stages,
        least=least,
    )


def _pieces(steps: Sequence[Step], classes: Sequence[Sequence[int]]) -> Split:
    """Return pieces. In each class Gpus are assigned in their order."""
    used = [0] * len(classes)
    pieces = []
    for kind, first, last, seconds in steps:
        pieces.append(Piece(classes[kind][used[kind]], first, last, seconds))
        used[kind] += 1
    return Split(tuple(pieces), max(piece.load for piece in pieces))


def _fewest(problem: PipelineProblem, most: int) -> int:
    """Return the fewest stages that have enough room together; more than `most` if all
    lack it.
    """
    room = sorted(problem.free_bytes, reverse=True)
    for stages in range(1, most + 1):
        if problem.least_bytes(stages) <= sum(room[:stages]):
            return stages
    return most + 1


def _ceiling(
    problem: PipelineProblem,
    times: Sequence[float],
    speeds: Sequence[float],
    best_seconds: float,
) -> float:
    """Return the longest stage with which the iteration can beat the best one."""
    slowest = times[-1] / min(speeds)
    if best_seconds == float("inf") or problem.microbatches == 1:
        return slowest * (1 + 1e-9)
    least_sum = times[-1] / max(speeds)
    return min(slowest, (best_seconds - least_sum) / (problem.microbatches - 1))


def _chain(
    problem: PipelineProblem,
    classes: Sequence[Sequence[int]],
    speeds: Sequence[float],
    memory: SegmentMemory,
    times: Sequence[float],
    stages: int,
) -> ChainProblem:
    """Minimise the largest stage time subject to memory, with at most `stages`."""
    flights = [problem.in_flight(stage, stages) for stage in range(stages)]

    def load(first: int, last: int, kind: int, stage: int) -> float:
        return (times[last] - times[first]) / speeds[kind]

    def reach(first: int, kind: int, stage: int, bound: float) -> int:
        fits, whole = memory.reach(first, kind, flights[stage])
        target = times[first] + bound * speeds[kind] * (1 + 1e-15)
        if whole and times[-1] <= target:
            return len(times) - 1
        last = bisect_right(times, target, first, fits + 1) - 1
        return max(first, last)

    return ChainProblem(len(times) - 1, classes, load, reach, stages)


def _whole(problem: PipelineProblem, split: Split) -> float:
    return iteration_seconds(
        [piece.load for piece in split.pieces], problem.microbatches
    )
