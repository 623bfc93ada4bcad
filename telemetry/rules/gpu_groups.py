"""Find the n Gpus of a node that are best connected to each other.

It is the subset whose *slowest* pair is fastest. Ties go to the highest sum over the
pairs, then to the lowest indices. The slowest pair decides, because an all-reduce ring
is as fast as its slowest hop (NVIDIA NCCL documentation, "Environment variables",
NCCL_P2P_LEVEL, has the same order of distances: NVL, PIX, PXB, PHB, SYS). NCCL picks
rings among given Gpus, whereas this module picks the Gpus.

Cost: all subsets if there are at most `EXHAUSTIVE_SUBSETS` of them (8 of 16 is 12,870),
otherwise greedy growth from every Gpu, O(n^2 k).
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
"""Rank of the distance, not a bandwidth. A pair without a Link scores 0."""

EXHAUSTIVE_SUBSETS = 20_000

Pair = frozenset[str]
Rank = tuple[int, int]


def pair_scores(links: Iterable[Link]) -> dict[Pair, int]:
    """Return the best score of each connected pair of Gpus (by UUID)."""
    scores: dict[Pair, int] = {}
    for link in links:
        pair = frozenset({link.a, link.b})
        scores[pair] = max(scores.get(pair, 0), SCORE[link.kind])
    return scores


def rank(subset: Sequence[str], scores: Mapping[Pair, int]) -> Rank:
    """Return (slowest pair, sum of pairs). Larger is better."""
    values = [scores.get(frozenset(pair), 0) for pair in combinations(subset, 2)]
    return (min(values), sum(values)) if values else (0, 0)


def best_connected(
    uuids: Sequence[str], links: Iterable[Link], *, count: int
) -> tuple[str, ...]:
    """Return the best connected `count` of `uuids`, in the given order.

    Ties go to the earlier Gpus, so that neighbours stay free for others. Raises
    ValueError if there are fewer than `count` Gpus.
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
    """Add, until there are enough, the Gpu that keeps the slowest pair fastest."""
    chosen = [start]
    while len(chosen) < count:
        rest = (uuid for uuid in uuids if uuid not in chosen)
        chosen.append(max(rest, key=lambda uuid: rank([*chosen, uuid], scores)))
    return tuple(uuid for uuid in uuids if uuid in chosen)
