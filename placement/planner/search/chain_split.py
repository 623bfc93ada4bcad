"""Exact splits of a chain of layers over Gpus, for any monotonic load.

Contiguous segments, a free order of Gpus, the largest load as small as possible: Pinar,
Tabak, Aykanat, "One-dimensional partitioning for heterogeneous systems: theory and
practice", JPDC 68 (2008), sections 3.3 and 5. Loads of plain bytes have a quicker
search in whole numbers (`bottleneck_partition.py`).

* `split_chain`, free order: NP-complete in the number of Gpus only, so a dynamic
  program over the counts taken of each class of identical Gpus. F(taken) = longest
  prefix of layers that those Gpus hold with every segment within a bound; F(taken) =
  max over classes g of reach(F(taken - g), g, stage). The stage is the number of taken
  Gpus, so a segment's condition may depend on it (1F1B memory).
* `split_fixed_order`: a given order, with a greedy probe.
* `zero_coalesce`: equal shards, see `equal_shards.py`.

Differences from the paper: the state has classes instead of single Gpus (16 Gpus of 2
classes: 81 states instead of 65,536). The bisection snaps to loads of actual segments
and ends when nothing below the best is feasible, so the optimum is exact. It is exact
for every condition that is monotonic in the segment. Cost of a probe: states x classes
reaches; about 15 probes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from placement.planner.search.count_vectors import Lattice

Load = Callable[[int, int, int, int], float]
Reach = Callable[[int, int, int, float], int]
COARSE_RATIO = 1e-3
"""First goal of the bisection. Below it, the best known load is tested for
optimality.
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Layers [first, last) on one Gpu."""

    gpu: int
    """Index into the caller's Gpus."""
    first: int
    last: int
    load: float
    """The segment's value of the minimised quantity."""


@dataclass(frozen=True, slots=True)
class Split:
    """An optimal split: pieces in layer order, Gpus without layers left out."""

    pieces: tuple[Piece, ...]
    bottleneck: float
    """The largest load, which is optimal."""

    @property
    def bounds(self) -> tuple[int, ...]:
        """Return the first layer of each piece, and the end."""
        return (*(piece.first for piece in self.pieces), self.pieces[-1].last)


@dataclass(slots=True)
class ChainProblem:
    """Layers, classes of identical Gpus, and the test whether a segment is within a
    bound.

    `load(first, last, kind, stage)` must not shrink when the segment grows.
    `reach(first, kind, stage, bound)` returns the largest `last` within the bound.
    Without a given one it is a binary search over `load`.
    """

    layers: int
    classes: Sequence[Sequence[int]]
    """Gpus (indexes) of each class. Those of one class are interchangeable."""
    load: Load
    reach: Reach | None = None
    stages: int | None = None
    """Most Gpus to use; None: all."""
    probes: int = field(default=0)
    """Number of feasibility tests. Tests bound these counts, because time is noise."""
    steps: int = field(default=0)
    """Number of computed reaches."""

    def search(self, first: int, kind: int, stage: int, bound: float) -> int:
        """Return `reach` by binary search over `load`."""
        low, high = first, self.layers
        while low < high:
            middle = (low + high + 1) // 2
            if self.load(first, middle, kind, stage) <= bound:
                low = middle
            else:
                high = middle - 1
        return low


def split_chain(problem: ChainProblem, *, low: float, high: float) -> Split | None:
    """Return the best contiguous split in any order; None if nothing is within `high`.

    `low`: a value below which nothing is feasible (0 always works).
    """
    lattice = Lattice([len(gpus) for gpus in problem.classes], problem.stages)
    return _minimise(lambda bound: _probe(problem, lattice, bound), low, high)


def split_fixed_order(
    problem: ChainProblem, order: Sequence[int], *, high: float
) -> Split | None:
    """Return the best split with stage i on a Gpu of class `order[i]`.

    A stage may stay empty. Parametric search with the greedy probe of Pinar et al.,
    section 3.3.
    """

    def probe(bound: float) -> Split | None:
        problem.probes += 1
        reach = problem.reach or problem.search
        first = 0
        pieces = []
        for stage, kind in enumerate(order):
            problem.steps += 1
            last = reach(first, kind, stage, bound)
            if last > first:
                load = problem.load(first, last, kind, stage)
                pieces.append(Piece(stage, first, last, load))
                first = last
        if first < problem.layers:
            return None
        return Split(tuple(pieces), max(piece.load for piece in pieces))

    return _minimise(probe, 0.0, high)


def _minimise(
    probe: Callable[[float], Split | None], low: float, high: float
) -> Split | None:
    """Return the smallest feasible bound. `probe` returns a split within a bound, or
    None.
    """
    best = probe(high)
    if best is None:
        return None
    lower, snapped = low, False
    while True:
        upper = best.bottleneck
        middle = (lower + upper) / 2
        close = upper - lower <= COARSE_RATIO * upper
        # One test "is anything strictly better?" for each halving, so that a row of
        # tiny improvements does not become a long walk.
        snap = (close and not snapped) or not lower < middle < upper
        found = probe(_just_below(upper) if snap else middle)
        if found is not None:
            best, snapped = found, snap
        elif snap:
            return best
        else:
            lower, snapped = middle, False


def _just_below(value: float) -> float:
    """Return a bound that excludes `value` but hardly less.

    Loads are quotients of whole bytes or sums of times. If they differ, they differ by
    far more than 1e-12 of themselves.
    """
    return value * (1 - 1e-12) if value > 0 else -1.0


def _probe(problem: ChainProblem, lattice: Lattice, bound: float) -> Split | None:
    """Return a placement of all layers with every load within the bound, or None."""
    problem.probes += 1
    reach = problem.reach or problem.search
    total = problem.layers
    longest = [-1] * lattice.size
    came = [(-1, -1)] * lattice.size
    longest[0] = 0
    steps = 0
    for stage, codes in enumerate(lattice.levels):
        for code in codes:
            prefix = longest[code]
            if prefix < 0:
                continue
            for kind, following in lattice.moves[code]:
                steps += 1
                last = reach(prefix, kind, stage, bound)
                if last > prefix and last > longest[following]:
                    longest[following] = last
                    came[following] = (code, kind)
                    if last == total:
                        problem.steps += steps
                        return _trace(problem, longest, came, following)
    problem.steps += steps
    return None


def _trace(
    problem: ChainProblem,
    longest: Sequence[int],
    came: Sequence[tuple[int, int]],
    code: int,
) -> Split:
    """Walk back from the last state. In each class assign Gpus in their order."""
    segments = []
    while came[code][0] >= 0:
        before, kind = came[code]
        segments.append((kind, longest[before], longest[code]))
        code = before
    used = [0] * len(problem.classes)
    pieces = []
    for stage, (kind, first, last) in enumerate(reversed(segments)):
        gpu = problem.classes[kind][used[kind]]
        used[kind] += 1
        pieces.append(Piece(gpu, first, last, problem.load(first, last, kind, stage)))
    return Split(tuple(pieces), max(piece.load for piece in pieces))


def classes_of(keys: Sequence[object]) -> list[list[int]]:
    """Group equal Gpus: indexes with the same key are one class, in order of
    appearance.

    >>> classes_of(["a", "b", "a"])
    [[0, 2], [1]]
    """
    groups: dict[object, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return list(groups.values())
