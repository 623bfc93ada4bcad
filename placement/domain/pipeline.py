"""Stages of a pipeline over unequal Gpus: the shortest iteration that fits.

Stage i of p keeps min(p - i, m) microbatches of activations (1F1B) or all m (GPipe);
iteration = sum of stage times + (m - 1) x the largest (PLACEMENT.md section 3).

For each p the split with the smallest largest stage is exact (split.py). Where Gpus
differ in speed the sum depends on the split too; then a dynamic program over (Gpus
taken, prefix) keeps the Pareto front of (sum, largest), which is exact for the whole
iteration. It is skipped above FRONT_BUDGET states, and the answer says so.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from placement.domain.lattice import Lattice
from placement.domain.split import ChainProblem, Piece, Split, classes_of, split_chain

FRONT_BUDGET = 60_000
"""Most transitions that the exact search over unequal speeds may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProblem:
    """Layers and Gpus of one pipeline. Bytes, seconds at speed 1."""

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
    """Per layer: more that is alive for a moment; a stage needs its largest."""
    copy_bytes: Sequence[float] = ()
    """Per layer: 16-bit weights that autocast holds till the stage's forward ends."""
    step_bytes: Sequence[float] = ()
    """Per layer: temporaries of the optimizer's step, when activations are gone."""
    fixed_bytes: float = 0.0
    """Per Gpu in use: context and workspaces."""
    tied_bytes: float = 0.0
    """States of the head's copy of a tied table, where the table is elsewhere."""
    scale: float = 1.0
    """What tensor bytes are multiplied by for the allocator's slack."""

    def in_flight(self, stage: int, stages: int) -> int:
        """Microbatches whose activations stage i of p keeps at once."""
        if self.gpipe:
            return self.microbatches
        return min(stages - stage, self.microbatches)


@dataclass(frozen=True, slots=True)
class PipelineSplit:
    """The best pipeline found: pieces in stage order; load = stage seconds."""

    pieces: tuple[Piece, ...]
    iteration_seconds: float
    exact: bool
    """False: the largest stage is the smallest possible, the sum perhaps not."""
    probes: int
    steps: int

    @property
    def stage_seconds(self) -> tuple[float, ...]:
        """Seconds per microbatch of each stage."""
        return tuple(piece.load for piece in self.pieces)


def iteration_seconds(stage_seconds: Sequence[float], microbatches: int) -> float:
    """sum t_i + (m - 1) max t_i.

    >>> iteration_seconds([75, 81, 80], 8)
    803
    """
    return sum(stage_seconds) + (microbatches - 1) * max(stage_seconds)


class Memory:
    """Which segments fit: prefix sums, and cached reaches that no bound changes."""

    def __init__(self, problem: PipelineProblem, frees: Sequence[int]) -> None:
        self.problem = problem
        self.frees = frees
        self.states = _prefix(problem.state_bytes)
        self.activations = _prefix(problem.activation_bytes)
        nothing = [0.0] * len(problem.state_bytes)
        self.steps = _prefix(problem.step_bytes or nothing)
        self.copies = _prefix(problem.copy_bytes or nothing)
        self.moments = _largest_of_runs(problem.moment_bytes)
        self._reach: dict[tuple[int, int, int], int] = {}

    def need_bytes(self, first: int, last: int, in_flight: int) -> float:
        """Bytes of a stage of layers [first, last)."""
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
        return tensors * problem.scale + problem.fixed_bytes

    def reach(self, first: int, kind: int, in_flight: int) -> int:
        """Largest `last` such that [first, last) fits on a Gpu of the class."""
        key = (first, kind, in_flight)
        known = self._reach.get(key)
        if known is not None:
            return known
        low, high = first, len(self.problem.state_bytes)
        while low < high:
            middle = (low + high + 1) // 2
            if self.need_bytes(first, middle, in_flight) <= self.frees[kind]:
                low = middle
            else:
                high = middle - 1
        self._reach[key] = low
        return low


def _prefix(values: Sequence[float]) -> list[float]:
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return sums


def _largest_of_runs(values: Sequence[float]) -> list[list[float]]:
    """Sparse table: row k holds the largest of each run of 2^k values."""
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
    problem: PipelineProblem, *, most_stages: int | None = None, least_stages: int = 1
) -> PipelineSplit | None:
    """The pipeline with the shortest iteration that fits; None if none does.

    Tries every number of stages; a solution found for p that uses fewer is valid for
    fewer, where stages keep less.
    """
    keys = list(zip(problem.free_bytes, problem.speeds, strict=True))
    classes = classes_of(keys)
    frees = [problem.free_bytes[group[0]] for group in classes]
    speeds = [problem.speeds[group[0]] for group in classes]
    memory = Memory(problem, frees)
    times = _prefix(problem.seconds)
    most = min(most_stages or len(keys), len(keys), len(problem.seconds))
    if _hopeless(problem, most):
        return None
    best: Split | None = None
    best_seconds = float("inf")
    probes = steps = 0
    exact = True
    for stages in range(least_stages, most + 1):
        chain = _chain(problem, classes, speeds, memory, times, stages)
        high = _ceiling(problem, times, speeds, best_seconds)
        low = times[-1] / sum(sorted(problem.speeds, reverse=True)[:stages])
        found = split_chain(chain, low=low * (1 - 1e-9), high=high)
        probes += chain.probes
        steps += chain.steps
        if found is None:
            continue
        enough = len(found.pieces) >= least_stages
        seconds = _whole(problem, found) if enough else float("inf")
        if len(set(speeds)) > 1 or not enough:
            front = _Front(problem, classes, speeds, memory, times)
            better, whole = front.search(
                least_stages, stages, min(seconds, best_seconds)
            )
            exact = exact and whole
            if better is not None:
                found, seconds = better, _whole(problem, better)
        if seconds < best_seconds:
            best, best_seconds = found, seconds
    if best is None:
        return None
    return PipelineSplit(best.pieces, best_seconds, exact, probes, steps)


def _hopeless(problem: PipelineProblem, most: int) -> bool:
    """Even all room together is too small for one microbatch of every layer."""
    least = sum(problem.state_bytes) + sum(problem.activation_bytes)
    room = sum(sorted(problem.free_bytes, reverse=True)[:most])
    return least * problem.scale > room


def _ceiling(
    problem: PipelineProblem,
    times: Sequence[float],
    speeds: Sequence[float],
    best_seconds: float,
) -> float:
    """No stage may be longer than this if the iteration is to beat the best one."""
    slowest = times[-1] / min(speeds)
    if best_seconds == float("inf") or problem.microbatches == 1:
        return slowest * (1 + 1e-9)
    least_sum = times[-1] / max(speeds)
    return min(slowest, (best_seconds - least_sum) / (problem.microbatches - 1))


def _chain(
    problem: PipelineProblem,
    classes: Sequence[Sequence[int]],
    speeds: Sequence[float],
    memory: Memory,
    times: Sequence[float],
    stages: int,
) -> ChainProblem:
    """Minimise the largest stage time subject to memory, with at most `stages`."""
    flights = [problem.in_flight(stage, stages) for stage in range(stages)]

    def load(first: int, last: int, kind: int, stage: int) -> float:
        return (times[last] - times[first]) / speeds[kind]

    def reach(first: int, kind: int, stage: int, bound: float) -> int:
        fits = memory.reach(first, kind, flights[stage])
        target = times[first] + bound * speeds[kind] * (1 + 1e-15)
        last = bisect_right(times, target, first, fits + 1) - 1
        return max(first, last)

    return ChainProblem(len(times) - 1, classes, load, reach, stages)


def _whole(problem: PipelineProblem, split: Split) -> float:
    return iteration_seconds(
        [piece.load for piece in split.pieces], problem.microbatches
    )


@dataclass(frozen=True, slots=True)
class _Front:
    """Exact for sum + (m - 1) max: fronts of (sum, max) per state and prefix."""

    problem: PipelineProblem
    classes: Sequence[Sequence[int]]
    speeds: Sequence[float]
    memory: Memory
    times: Sequence[float]

    def search(
        self, least: int, stages: int, beat_seconds: float
    ) -> tuple[Split | None, bool]:
        """The best pipeline of `least` to `stages` stages, if it beats a time; and
        whether the search was small enough to be done at all."""
        layers = len(self.times) - 1
        lattice = Lattice([len(group) for group in self.classes], stages)
        moves = sum(
            len(lattice.moves[code]) for codes in lattice.levels for code in codes
        )
        if moves * layers * layers // 2 > FRONT_BUDGET:
            return None, False
        fronts: dict[tuple[int, int], list[_Point]] = {(0, 0): [_Point(0.0, 0.0, None)]}
        done: list[_Point] = []
        for stage, codes in enumerate(lattice.levels):
            flight = self.problem.in_flight(stage, stages)
            for code in codes:
                for first in range(layers):
                    points = fronts.get((code, first))
                    for kind, following in lattice.moves[code] if points else ():
                        fits = self.memory.reach(first, kind, flight)
                        for last in range(first + 1, fits + 1):
                            made = self._grown(points, kind, first, last, beat_seconds)
                            if not made:
                                break
                            if last < layers:
                                _merge(fronts.setdefault((following, last), []), made)
                            elif stage + 1 >= least:
                                done += made
        if not done:
            return None, True
        scale = self.problem.microbatches - 1
        winner = min(done, key=lambda point: point.total + scale * point.largest)
        return _pieces(winner, self.classes), True

    def _grown(
        self,
        points: "Sequence[_Point] | None",
        kind: int,
        first: int,
        last: int,
        beat_seconds: float,
    ) -> "list[_Point]":
        """Points with one more stage, without those that cannot beat the time: what
        is left takes at least as long as on the fastest Gpu."""
        load = (self.times[last] - self.times[first]) / self.speeds[kind]
        rest = (self.times[-1] - self.times[last]) / max(self.speeds)
        scale = self.problem.microbatches - 1
        made = []
        for point in points or ():
            after = _after(point, (kind, first, last, load))
            if after.total + rest + scale * after.largest < beat_seconds:
                made.append(after)
        return made


@dataclass(frozen=True, slots=True)
class _Point:
    """A partial pipeline: sum and largest of its stages, and how it was made."""

    total: float
    largest: float
    made: "tuple[_Point, tuple[int, int, int, float]] | None"


def _after(point: _Point, step: tuple[int, int, int, float]) -> _Point:
    return _Point(point.total + step[3], max(point.largest, step[3]), (point, step))


def _merge(front: list[_Point], made: Sequence[_Point]) -> None:
    """Add points that nothing in the front beats in both sum and largest."""
    for point in made:
        if any(
            old.total <= point.total and old.largest <= point.largest for old in front
        ):
            continue
        front[:] = [
            old
            for old in front
            if not (point.total <= old.total and point.largest <= old.largest)
        ]
        front.append(point)


def _pieces(point: _Point, classes: Sequence[Sequence[int]]) -> Split:
    steps = []
    at: _Point | None = point
    while at is not None and at.made is not None:
        at, step = at.made
        steps.append(step)
    used = [0] * len(classes)
    pieces = []
    for kind, first, last, load in reversed(steps):
        pieces.append(Piece(classes[kind][used[kind]], first, last, load))
        used[kind] += 1
    return Split(tuple(pieces), point.largest)
