"""Which n Gpus of a node are best connected to each other?

Answer: the subset whose *slowest* pair is fastest, then whose pairs sum up
highest, then with the lowest indices. The slowest pair rules because an
all-reduce ring runs at the pace of its slowest hop (NVIDIA NCCL documentation,
"Environment variables", NCCL_P2P_LEVEL, names the same ladder of distances:
NVL, PIX, PXB, PHB, SYS). What differs: NCCL picks rings among given Gpus, this
picks the Gpus.

Cost: all subsets while there are at most `EXHAUSTIVE_SUBSETS` of them (8 of 16
is 12,870), otherwise greedy growth from every Gpu, O(n^2 k).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from telemetry.protocol.hardware import Link, LinkKind

SCORE: Mapping[LinkKind, int] = {
    LinkKind.NVLINK: 6,
    LinkKind.PIX: 5,
    LinkKind.PXB: 4,
    LinkKind.PHB: 3,
    LinkKind.NODE: 2,
    LinkKind.SYS: 1,
}
"""Order of the ladder, not a bandwidth; a pair without a Link scores 0."""

EXHAUSTIVE_SUBSETS = 20_000

Pair = frozenset[str]
Rank = tuple[int, int]


def pair_scores(links: Iterable[Link]) -> dict[Pair, int]:
    """Best score of each connected pair of Gpus (by uuid)."""
    scores: dict[Pair, int] = {}
    for link in links:
        pair = frozenset({link.a, link.b})
        scores[pair] = max(scores.get(pair, 0), SCORE[link.kind])
    return scores


def rank(subset: Sequence[str], scores: Mapping[Pair, int]) -> Rank:
    """(slowest pair, sum of pairs): larger is better connected."""
    values = [scores.get(frozenset(pair), 0) for pair in combinations(subset, 2)]
    return (min(values), sum(values)) if values else (0, 0)


def best_connected(
    uuids: Sequence[str], links: Iterable[Link], *, count: int
) -> tuple[str, ...]:
    """The best connected `count` of `uuids`, in the order they were given.

    Ties go to the earlier Gpus, so that neighbours stay free for others.
    Raises ValueError when there are fewer than `count` Gpus.
    """
    if not 0 <= count <= len(uuids):
        raise ValueError(f"cannot take {count} of {len(uuids)} Gpus")
    scores = pair_scores(links)
    if math.comb(len(uuids), count) <= EXHAUSTIVE_SUBSETS:
        candidates: Iterable[tuple[str, ...]] = combinations(uuids, count)
    else:
        candidates = [_grow(start, uuids, scores, count) for start in uuids]
    return max(candidates, key=lambda subset: rank(subset, scores))


def _grow(
    start: str, uuids: Sequence[str], scores: Mapping[Pair, int], count: int
) -> tuple[str, ...]:
    """Add the Gpu that keeps the slowest pair fastest, until there are enough."""
    chosen = [start]
    while len(chosen) < count:
        rest = (uuid for uuid in uuids if uuid not in chosen)
        chosen.append(max(rest, key=lambda uuid: rank([*chosen, uuid], scores)))
    return tuple(uuid for uuid in uuids if uuid in chosen)
