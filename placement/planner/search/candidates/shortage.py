"""Whether stages fit, on how few Gpus, and otherwise the missing bytes and the remedy.

Only memory is considered, so one probe (split.py) per number of stages is enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from placement.planner.model.sharding import Sharding
from placement.planner.search.candidates.search_context import SearchContext
from placement.planner.search.candidates.stage_blocks import StageBlock, problem_of
from placement.planner.search.chain_split import (
    ChainProblem,
    Split,
    classes_of,
    split_chain,
)
from placement.planner.search.memory_savings import (
    Setting,
    allowed_again,
    first_or_none,
    smaller_asks,
)
from placement.planner.search.pipeline_partition import PipelineProblem, SegmentMemory
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.humanize import gib_at_least
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import sentence

MOST_OVERLOAD = 1e9
CLOSE_RATIO = 0.005
"""Distance from the least overload that is close enough to name the missing bytes."""


def fewest_stages(
    context: SearchContext,
    setting: Setting,
    blocks: Sequence[StageBlock],
    base: Sharding,
    *,
    most: int,
    gpipe: bool = False,
) -> int:
    """Return the smallest number of stages, from 2 up, in which some cut fits; 0 if
    none.
    """
    problem = problem_of(context, setting, blocks, base, gpipe=gpipe)
    frees = sorted(problem.free_bytes, reverse=True)
    most = min(most, len(blocks), len(context.spec.layers))
    groups = classes_of(list(problem.free_bytes))
    memory = SegmentMemory(problem, [problem.free_bytes[group[0]] for group in groups])
    for count in range(2, most + 1):
        if problem.least_bytes(count) > sum(frees[:count]):
            continue
        if _cut(problem, memory, groups, count) is not None:
            return count
    return 0


def _cut(
    problem: PipelineProblem,
    memory: SegmentMemory,
    groups: Sequence[Sequence[int]],
    count: int,
) -> Split | None:
    """Return some pipeline of so many stages, or fewer, that has room."""

    layers = len(problem.state_bytes)

    def load(first: int, last: int, kind: int, stage: int) -> float:
        return 0.0

    def reach(first: int, kind: int, stage: int, bound: float) -> int:
        if bound < 0:
            return first
        fits, whole = memory.reach(first, kind, problem.in_flight(stage, count))
        return layers if whole else fits

    chain = ChainProblem(layers, groups, load, reach, stages=count)
    return split_chain(chain, low=0.0, high=0.0)


def least_overloaded(
    context: SearchContext,
    setting: Setting,
    blocks: Sequence[StageBlock],
    base: Sharding,
    *,
    gpipe: bool = False,
) -> tuple[GpuOffer | None, int]:
    """Return the fullest Gpu of the least overloaded cut, and its missing bytes."""
    count = min(len(blocks), len(context.spec.layers))
    problem = problem_of(context, setting, blocks, base, gpipe=gpipe)
    frees = [max(1, free) for free in problem.free_bytes]
    groups = classes_of(frees)

    def cut(ratio: float) -> Split | None:
        room = [int(frees[group[0]] * ratio) for group in groups]
        return _cut(problem, SegmentMemory(problem, room), groups, count)

    low, high = 1.0, 2.0
    while (found := cut(high)) is None:
        if high > MOST_OVERLOAD:
            return None, 0
        low, high = high, 2 * high
    while high - low > CLOSE_RATIO * low:
        middle = (low + high) / 2
        better = cut(middle)
        if better is None:
            low = middle
        else:
            high, found = middle, better
    memory = SegmentMemory(problem, frees)
    needs = [
        memory.need_bytes(p.first, p.last, problem.in_flight(stage, count))
        for stage, p in enumerate(found.pieces)
    ]
    stage = max(
        range(len(needs)), key=lambda i: (needs[i] / frees[found.pieces[i].gpu], -i)
    )
    gpus = blocks[found.pieces[stage].gpu].offers
    gpu = min(gpus, key=lambda offer: offer.free_bytes)
    return gpu, max(1, int(needs[stage]) - gpu.free_bytes)


def cheapest_change(
    context: SearchContext,
    fits: Callable[[SearchContext, Workload], bool],
    gpu: GpuOffer | None,
    missing_bytes: int,
) -> str:
    """Return a forbidden remedy, a smaller request, or the missing room."""
    for words, limits in allowed_again(context.limits):
        if fits(replace(context, limits=limits), context.asked):
            return words
    asks = smaller_asks(context.asked, context.fixed_length)
    change = first_or_none(asks, lambda workload: fits(context, workload))
    if not change and gpu is not None:
        change = sentence(
            "{free} free on {gpu}",
            free=gib_at_least(gpu.free_bytes + missing_bytes),
            gpu=gpu.label,
        )
    return change
