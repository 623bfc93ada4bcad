"""Layers in order over Gpus with unequal room: the smallest largest load / free.

The order of the Gpus is free, and a Gpu may stay empty. NP-complete in the number of
Gpus only: Pinar, Tabak, Aykanat, "One-dimensional partitioning for heterogeneous
systems: theory and practice", JPDC 68 (2008), section 5. Subset dynamic program:
F(taken) = longest prefix of layers that the taken Gpus hold within a bound; F(taken) =
max over classes g of reach(F(taken - g), g).

Differences from the paper: the state has classes of identical Gpus instead of single
ones (16 Gpus of 2 classes: 81 states instead of 65,536). A state that has wasted more
room than is to spare is dropped, because the remaining Gpus could not hold the rest.
All numbers are whole: a bound is a fraction with a fixed denominator, each answer snaps
to the load of an actual segment, and the search ends when no split is strictly below
it. So the optimum is exact for numbers of any size. Cost of a probe: states x classes
binary searches; about 20 probes.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar

from placement.planner.search.chain_split import Piece, Split, classes_of
from placement.planner.search.count_vectors import Lattice

SHIFT_BITS = 64
"""Bounds are multiples of 2^-64."""
CLOSE_RATIO = 2000
"""Within a 2000th of the best, test whether anything is strictly better."""

Segment = tuple[int, int, int]
"""(class, first layer, one past the last)."""
_Answer = TypeVar("_Answer")


def split_bytes(
    layer_bytes: Sequence[int],
    free_bytes: Sequence[int],
    *,
    over: bool = False,
) -> Split | None:
    """Return the contiguous split that minimises the largest load / free; None if none
    fits.

    Args:
        over: loads may exceed the free bytes. The answer is then the least overloaded
            split, and None only if no Gpu has any free bytes.
    """
    chain = _Chain(layer_bytes, free_bytes)
    if not chain.frees:
        return None
    start = Fraction(1)
    if over:
        start = max(start, Fraction(chain.prefix[-1], max(chain.frees)))
    best = chain.within([free * start // 1 for free in chain.frees])
    if best is None:
        return None
    room = sum(
        free * count for free, count in zip(chain.frees, chain.counts, strict=True)
    )
    segments = least_loaded(
        best,
        frees=chain.frees,
        worst=chain.worst,
        within=chain.within,
        lower=(chain.prefix[-1] << SHIFT_BITS) // room,
    )
    return chain.split_of(segments)


def least_loaded(
    best: _Answer,
    *,
    frees: Sequence[int],
    worst: Callable[[_Answer], tuple[int, int]],
    within: Callable[[Sequence[int]], _Answer | None],
    lower: int = 0,
) -> _Answer:
    """Return the answer with the smallest largest load / free.

    The bound is bisected until no answer is strictly better.

    Args:
        best: an answer.
        frees: free bytes of each holder.
        worst: returns the load of an answer's fullest holder, and this holder.
        within: returns an answer whose loads are within these caps, or None.
        lower: no answer is within less than this, in 2^-64.
    """
    snapped = False
    while True:
        load, at = worst(best)
        if load == 0:
            return best
        upper = (load << SHIFT_BITS) // frees[at]
        middle = (lower + upper) // 2
        close = upper - lower <= upper // CLOSE_RATIO
        # One test "is anything strictly better?" for each halving, so that a row of
        # tiny improvements does not become a long walk.
        snap = (close and not snapped) or middle <= lower
        if snap:
            caps = [(load * free - 1) // frees[at] for free in frees]
        else:
            caps = [free * middle >> SHIFT_BITS for free in frees]
        found = within(caps)
        if found is not None:
            best, snapped = found, snap
        elif snap:
            return best
        else:
            lower, snapped = middle, False


class _Chain:
    """Prefix sums, the classes of Gpus, and the test of a bound."""

    def __init__(self, layer_bytes: Sequence[int], free_bytes: Sequence[int]) -> None:
        prefix = [0]
        for size in layer_bytes:
            prefix.append(prefix[-1] + size)
        usable = [gpu for gpu, free in enumerate(free_bytes) if free > 0]
        if not usable and prefix[-1] == 0:
            # Nothing to hold, so any Gpu fits.
            usable = list(range(len(free_bytes)))[:1]
        groups = classes_of([free_bytes[gpu] for gpu in usable])
        self.prefix = prefix
        self.classes = [[usable[index] for index in group] for group in groups]
        self.frees = [max(1, free_bytes[group[0]]) for group in self.classes]
        self.counts = [len(group) for group in self.classes]
        self.lattice = Lattice(self.counts, min(len(usable), len(layer_bytes)))

    def within(self, caps: Sequence[int]) -> list[Segment] | None:
        """Return segments of at most `caps` bytes per class that hold every layer."""
        prefix, moves = self.prefix, self.lattice.moves
        goal = prefix[-1]
        spare = (
            sum(cap * count for cap, count in zip(caps, self.counts, strict=True))
            - goal
        )
        if spare < 0:
            return None
        longest = {0: 0}
        taken = {0: 0}
        came: dict[int, tuple[int, int]] = {}
        end = len(prefix) - 1
        for codes in self.lattice.levels:
            for code in codes:
                first = longest.get(code)
                if first is None:
                    continue
                base, used = prefix[first], taken[code]
                for kind, following in moves[code]:
                    cap = caps[kind]
                    last = bisect_right(prefix, base + cap, first) - 1
                    if last <= longest.get(following, first):
                        continue
                    if used + cap - prefix[last] > spare:
                        continue
                    longest[following] = last
                    taken[following] = used + cap
                    came[following] = (code, kind)
                    if last == end:
                        return _trace(longest, came, following)
        return None

    def worst(self, segments: Sequence[Segment]) -> tuple[int, int]:
        """Return (bytes, class) of the largest load / free, compared as fractions."""
        load, at = 0, segments[0][0]
        for kind, first, last in segments:
            size = self.prefix[last] - self.prefix[first]
            if size * self.frees[at] > load * self.frees[kind]:
                load, at = size, kind
        return load, at

    def split_of(self, segments: Sequence[Segment]) -> Split:
        """Return the split of segments. In each class Gpus are assigned in their
        order.
        """
        used = [0] * len(self.classes)
        pieces = []
        for kind, first, last in segments:
            gpu = self.classes[kind][used[kind]]
            used[kind] += 1
            load = (self.prefix[last] - self.prefix[first]) / self.frees[kind]
            pieces.append(Piece(gpu, first, last, load))
        return Split(tuple(pieces), max(piece.load for piece in pieces))


def _trace(
    longest: dict[int, int], came: dict[int, tuple[int, int]], code: int
) -> list[Segment]:
    """Walk back from the last state."""
    segments = []
    while code in came:
        before, kind = came[code]
        segments.append((kind, longest[before], longest[code]))
        code = before
    return segments[::-1]
