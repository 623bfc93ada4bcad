"""When stages do not fit: which Gpu lacks how much, and what would help."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from placement.domain.candidates.hunt import Search
from placement.domain.candidates.stages import Block, problem_of
from placement.domain.offer import GpuOffer
from placement.domain.pipeline import Memory
from placement.domain.remedies import (
    Setting,
    allowed_again,
    first_or_none,
    smaller_asks,
)
from placement.domain.sharding import Sharding
from placement.domain.split import ChainProblem, classes_of, split_chain
from placement.domain.words import gib_at_least
from placement.domain.workload import Workload


def least_overloaded(
    hunt: Search,
    setting: Setting,
    blocks: Sequence[Block],
    base: Sharding,
    *,
    gpipe: bool = False,
) -> tuple[GpuOffer | None, int]:
    """The fullest Gpu of the cut whose fullest Gpu is least so, and what it lacks."""
    count = min(len(blocks), len(hunt.spec.layers))
    problem = problem_of(hunt, setting, blocks, base, gpipe=gpipe)
    frees = list(problem.free_bytes)
    groups = classes_of(frees)
    memory = Memory(problem, [frees[group[0]] for group in groups])

    def load(first: int, last: int, kind: int, stage: int) -> float:
        need = memory.need_bytes(first, last, problem.in_flight(stage, count))
        return need / max(1, memory.frees[kind])

    chain = ChainProblem(len(hunt.spec.layers), groups, load, stages=count)
    split = split_chain(chain, low=0.0, high=float("1e18"))
    if split is None:
        return None, 0
    worst = max(split.pieces, key=lambda piece: piece.load)
    gpu = min(blocks[worst.gpu].offers, key=lambda offer: offer.free_bytes)
    need = worst.load * max(1, frees[worst.gpu])
    return gpu, max(1, int(need - gpu.free_bytes))


def cheapest_change(
    hunt: Search,
    fits: Callable[[Search, Workload], bool],
    gpu: GpuOffer | None,
    missing_bytes: int,
) -> str:
    """A forbidden remedy, a smaller question, or as much room as it lacks."""
    for words, limits in allowed_again(hunt.limits):
        if fits(replace(hunt, limits=limits), hunt.asked):
            return words
    asks = smaller_asks(hunt.asked, hunt.fixed_length)
    change = first_or_none(asks, lambda workload: fits(hunt, workload))
    if not change and gpu is not None:
        change = f"{gib_at_least(gpu.free_bytes + missing_bytes)} free on {gpu.label}"
    return change
