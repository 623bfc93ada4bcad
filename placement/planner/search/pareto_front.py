"""Stages over Gpus of unequal speed: exact for sum of stages + (m - 1) x the largest.

A dynamic program over (Gpus taken of each class, layers placed) keeps the Pareto front
of (sum, largest). The largest stage lies between the smallest possible one (known from
`chain_split.py`) and the largest that the best known iteration allows. With many
microbatches that range is narrow, and three bounds cut nearly everything:

* time: the work that the remaining Gpus can do within the largest stage must cover the
  rest;
* memory: so must their bytes, with one microbatch in flight;
* cost: the rest takes at least as long as if it could be divided freely, fastest Gpus
  first.

None of them ever drops a pipeline that is better than the best known one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placement.planner.search.count_vectors import Lattice

ROUNDING_RATIO = 1e-12
"""An iteration counts as shorter only if the difference is larger."""

Step = tuple[int, int, int, float]
"""(class, first layer, one past the last, seconds)."""
Point = tuple[float, float, "Point | None", Step | None]
"""(sum, largest, the previous point, its last stage)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProblem:
    """The search problem for one number of stages."""

    counts: Sequence[int]
    """Number of Gpus of each class."""
    speeds: Sequence[float]
    """Speed of each class."""
    frees: Sequence[int]
    """Free bytes of each class."""
    times: Sequence[float]
    """Prefix sums of seconds at speed 1."""
    least_bytes: Sequence[float]
    """Prefix sums of the bytes that layers need on any stage."""
    reach: Callable[[int, int, int], tuple[int, bool]]
    """(first, class, stage) -> the largest fitting `last` before the end, and whether
    the end fits.
    """
    microbatches: int
    stages: int
    least: int
    """Least number of stages."""


class FrontSearch:
    """One search. `complete` is False if it was stopped because of its size."""

    def __init__(
        self,
        problem: FrontProblem,
        *,
        beat_seconds: float,
        largest_low: float,
        budget: int | None,
    ) -> None:
        self.problem = problem
        self.beat = beat_seconds * (1 - ROUNDING_RATIO)
        self.low = largest_low
        self.left = budget
        self.steps = 0
        self.complete = True
        self.winner: Point | None = None
        self.scale = problem.microbatches - 1
        self.lattice = Lattice(problem.counts, problem.stages)
        self._rests: dict[tuple[int, ...], tuple[list[float], float]] = {}
        self.high = self._longest_stage()

    def _longest_stage(self) -> float:
        """Return the longest stage with which the iteration can be shorter."""
        problem = self.problem
        longest = problem.times[-1] / min(problem.speeds)
        if self.scale == 0:
            return longest
        least_sum = problem.times[-1] / max(problem.speeds)
        return min(longest, max(0.0, (self.beat - least_sum) / self.scale))

    def search(self) -> list[Step] | None:
        """Return stages of the shortest iteration below `beat_seconds`; None if none
        was found.
        """
        fronts: dict[int, dict[int, list[Point]]] = {0: {0: [(0.0, 0.0, None, None)]}}
        for stage, codes in enumerate(self.lattice.levels):
            for code in codes:
                for first, points in sorted(fronts.pop(code, {}).items()):
                    for kind, following in self.lattice.moves[code]:
                        target = fronts.setdefault(following, {})
                        self._extend(stage, following, kind, first, points, target)
                        if not self.complete:
                            return self._best_steps()
        return self._best_steps()

    def _best_steps(self) -> list[Step] | None:
        return None if self.winner is None else _steps(self.winner)

    def _extend(
        self,
        stage: int,
        following: int,
        kind: int,
        first: int,
        points: Sequence[Point],
        target: dict[int, list[Point]],
    ) -> None:
        """Add one stage in every length that may still win."""
        problem, times = self.problem, self.problem.times
        speed, base = problem.speeds[kind], times[first]
        speeds, room = self._remaining_gpus(following, stage + 1)
        fits, whole = problem.reach(first, kind, stage)
        limit = base + self.high * speed * (1 + ROUNDING_RATIO)
        within = bisect_right(times, limit, first) - 1
        ability = self.high * sum(speeds) * (1 + ROUNDING_RATIO)
        low = max(first + 1, bisect_left(times, times[-1] - ability))
        low = max(low, bisect_left(problem.least_bytes, problem.least_bytes[-1] - room))
        end = len(times) - 1
        ends = [*range(low, min(fits, within) + 1)]
        if whole and within == end:
            ends.append(end)
        for last in ends:
            seconds = (times[last] - base) / speed
            rest = self._least_stage_sum(times[-1] - times[last], speeds)
            step = (kind, first, last, seconds)
            for point in points:
                self.steps += 1
                if self.left is not None:
                    self.left -= 1
                    if self.left < 0:
                        self.left, self.complete = 0, False
                        return
                total = point[0] + seconds
                # With one microbatch the largest stage has no additional cost.
                largest = max(point[1], seconds) if self.scale else 0.0
                bound = total + rest + self.scale * max(largest, self.low)
                if bound >= self.beat:
                    continue
                made: Point = (total, largest, point, step)
                if last < end:
                    _merge(target.setdefault(last, []), made)
                elif stage + 1 >= problem.least:
                    self.winner = made
                    self._record_shorter(total + self.scale * largest)

    def _record_shorter(self, seconds: float) -> None:
        """Record a shorter iteration, which all further ones must beat."""
        self.beat = seconds * (1 - ROUNDING_RATIO)
        self.high = self._longest_stage()

    def _remaining_gpus(self, code: int, taken: int) -> tuple[list[float], float]:
        """Return speeds (fastest first) and bytes of the Gpus that may still be
        used.
        """
        problem = self.problem
        counts = []
        for count in problem.counts:
            counts.append(count - code % (count + 1))
            code //= count + 1
        key = tuple(counts)
        known = self._rests.get(key)
        if known is None:
            most = problem.stages - taken
            speeds = [
                s for s, n in zip(problem.speeds, counts, strict=True) for _ in range(n)
            ]
            frees = [
                f for f, n in zip(problem.frees, counts, strict=True) for _ in range(n)
            ]
            speeds = sorted(speeds, reverse=True)[:most]
            room = float(sum(sorted(frees, reverse=True)[:most]))
            known = self._rests[key] = (speeds, room)
        return known

    def _least_stage_sum(self, work: float, speeds: Sequence[float]) -> float:
        """Return the least sum of stage seconds for the rest, with no stage longer than
        `high`.
        """
        spent = 0.0
        for speed in speeds:
            if work <= self.high * speed:
                return spent + work / speed
            spent += self.high
            work -= self.high * speed
        return spent


def _merge(front: list[Point], made: Point) -> None:
    """Add a point unless one is as good in both sum and largest."""
    for old in front:
        if old[0] <= made[0] and old[1] <= made[1]:
            return
    front[:] = [old for old in front if old[0] < made[0] or old[1] < made[1]]
    front.append(made)


def _steps(point: Point) -> list[Step]:
    steps: list[Step] = []
    at: Point | None = point
    while at is not None:
        if at[3] is not None:
            steps.append(at[3])
        at = at[2]
    return steps[::-1]
