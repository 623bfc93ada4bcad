"""Counts taken of each class of identical Gpus, as numbers, level by level.

A state is the number of taken Gpus of each class. Its code is a mixed-radix number.
`levels[i]` lists the states with i Gpus taken. `moves[code]` lists the classes that
still have one, and the next state. Built once and shared by all probes of a search.
"""

from collections.abc import Sequence
from math import prod


class Lattice:
    """States and moves. Size: the product of (count + 1) over classes.

    >>> Lattice([2, 1], None).size
    6
    """

    def __init__(self, counts: Sequence[int], stages: int | None) -> None:
        self.counts = tuple(counts)
        self.size = prod(count + 1 for count in counts)
        radix = []
        step = 1
        for count in counts:
            radix.append(step)
            step *= count + 1
        depth = sum(counts) if stages is None else min(stages, sum(counts))
        self.levels: list[list[int]] = [[] for _ in range(depth)]
        self.moves: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        for code in range(self.size):
            taken = [
                code // radix[kind] % (count + 1) for kind, count in enumerate(counts)
            ]
            level = sum(taken)
            if level >= depth:
                continue
            self.levels[level].append(code)
            self.moves[code] = [
                (kind, code + radix[kind])
                for kind, count in enumerate(counts)
                if taken[kind] < count
            ]
