"""Stages on blocks of Gpus: the common part of pipelines and hybrids.

A StageBlock is the Gpus that run one stage together: d replicas, each cut over t Gpus.
All its ranks need the same, so it has the room and the pace of its worst Gpu, and a
pipeline over StageBlocks is a pipeline over unequal Gpus (pipeline_partition.py).

The need of a stage is bounded from above here, so that cuts can be tried by the
thousand: states, kept microbatches and the largest moment are added up, as 1F1B has
them at once. The finished cut is counted again, exactly, by the estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from placement.planner.memory.estimate import LIKELY_RATIO, outside_bytes
from placement.planner.memory.layer_costs import LayerCost
from placement.planner.memory.parameter_states import optimizer_temporary_bytes, widths
from placement.planner.memory.pipeline_schedule import border_bytes
from placement.planner.model.sharding import Sharding
from placement.planner.search.candidates.search_context import (
    CLASS_ROUNDING_BYTES,
    RankPlacement,
    SearchContext,
    layer_ranges,
)
from placement.planner.search.memory_savings import (
    PlanLimits,
    Setting,
    divisors,
    in_runs,
)
from placement.planner.search.pipeline_partition import (
    FRONT_BUDGET,
    PipelineProblem,
    PipelineSplit,
    split_pipeline,
)
from placement.planner.search.step_time import (
    StepTime,
    all_reduce_bytes,
    combined,
    exposed_seconds,
    host_seconds,
    layer_flops,
    pipeline_time,
    tensor_seconds,
)
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.strategies import PIPELINE

PIECES_PER_STAGE = 4
"""Wanted number of microbatches per stage, which gives a bubble of about a fifth."""
BUDGET = FRONT_BUDGET // 6
"""Budget of the exact search over unequal speeds. One answer needs a dozen such
searches.
"""
MOST_CORRECTIONS = 3
"""How often a cut is made again because the estimate found it too large."""


@dataclass(frozen=True, slots=True)
class StageBlock:
    """Gpus that run one stage: its replicas, each cut over some Gpus."""

    rows: tuple[tuple[GpuOffer, ...], ...]

    @property
    def offers(self) -> tuple[GpuOffer, ...]:
        """Return all its Gpus, replica by replica."""
        return tuple(offer for row in self.rows for offer in row)

    @property
    def free_bytes(self) -> int:
        """Return the free bytes of each of them."""
        return min(offer.free_bytes for offer in self.offers)

    @property
    def names(self) -> list[tuple[str, int, str]]:
        """Return their names, for a stable order."""
        return [(offer.node, offer.index, offer.uuid) for offer in self.offers]


@dataclass(frozen=True, slots=True)
class StageCut:
    """Stages on Blocks, before they become a Plan."""

    setting: Setting
    pieces: int
    blocks: tuple[StageBlock, ...]
    """In the order of stages."""
    shardings: tuple[Sharding, ...]
    """Sharding of each stage's ranks."""
    time: StepTime
    busy: tuple[float, ...]
    """Seconds of a step that each stage computes."""
    exact: bool

    @property
    def order(self) -> tuple[object, ...]:
        """Return a sort key: the shorter step, then fewer Gpus, fewer pieces, then
        names.
        """
        gpus = sum(len(block.offers) for block in self.blocks)
        names = [name for block in self.blocks for name in block.names]
        return (self.time.total_seconds, gpus, self.pieces, names)

    def rank_placements(self) -> list[RankPlacement]:
        """Return every rank: stages, their replicas, their tensor ranks."""
        return [
            RankPlacement(offer, sharding, stage, replica, part, busy)
            for stage, (block, sharding, busy) in enumerate(
                zip(self.blocks, self.shardings, self.busy, strict=True)
            )
            for replica, row in enumerate(block.rows)
            for part, offer in enumerate(row)
        ]


def in_pieces(
    stage: Setting, limits: PlanLimits, *, replicas: int, most_stages: int
) -> tuple[Setting, list[int]]:
    """Return a setting whose batch is cut by the pipeline, and the numbers of
    microbatches.

    These are some per stage, and one sequence each.
    """
    workload = stage.workload
    if not workload.trains:
        return stage, [1]
    whole = in_runs(stage, 1)
    most = -(-workload.batch // replicas)
    aim = max(workload.accumulation, PIECES_PER_STAGE * most_stages)
    fitting = next(count for count in divisors(most) if count >= min(most, aim))
    counts = sorted({fitting, most})
    return whole, counts if limits.accumulation else counts[:1]


def least_seconds(context: SearchContext, stage: Setting) -> float:
    """Return a lower bound of the step with a setting: every Gpu is busy all the
    time.
    """
    whole = in_runs(stage, 1)
    pieces = stage.workload.batch if stage.workload.trains else 1
    costs = context.costs(whole, Sharding(strategy=PIPELINE.key, microbatches=pieces))
    flops = pieces * sum(layer_flops(cost, stage.workload) for cost in costs)
    return flops / sum(context.speed((offer,), stage) for offer in context.offers)


def problem_of(
    context: SearchContext,
    setting: Setting,
    blocks: Sequence[StageBlock],
    base: Sharding,
    *,
    extra_bytes: float = 0.0,
    gpipe: bool = False,
) -> PipelineProblem:
    """Return bytes and seconds of each layer, as a PipelineProblem.

    `base`: a Sharding with the degrees and the microbatches of every stage.
    """
    workload = setting.workload
    key = (context.cost_key(setting, base), base.data_degree if base.stage else 0)
    layers = context.caches.layers.get(key)
    if layers is None:
        layers = context.caches.layers[key] = _layers(context, setting, base)
    bare = context.tight or workload.accelerator == "cpu"
    learned = 1.0 if bare else context.learned_ratio(base.strategy)
    return PipelineProblem(
        **layers,
        free_bytes=[_rounded(block.free_bytes) for block in blocks],
        speeds=[
            float(f"{context.speed(block.offers, setting) / 1e12:.4g}")
            for block in blocks
        ],
        microbatches=base.microbatches,
        gpipe=gpipe,
        gpipe_if_few=True,
        trains=workload.trains,
        fixed_bytes=outside_bytes(workload, context.context_bytes) * max(1.0, learned)
        + extra_bytes,
        scale=1.0 if bare else max(1.0, LIKELY_RATIO * learned),
    )


def _layers(context: SearchContext, setting: Setting, base: Sharding) -> dict[str, Any]:
    """Return the layers' part of a PipelineProblem."""
    workload = setting.workload
    costs = context.costs(setting, base)
    offload = setting.offload
    kept = [_kept_optimizer(cost, base) for cost in costs]
    foreach = workload.optimizer_loop == "foreach"
    temporary = [
        optimizer_temporary_bytes(
            workload, elements=cost.elements, largest=cost.largest
        )
        if workload.trains and not offload
        else 0
        for cost in costs
    ]
    width = widths(workload)
    owner = costs[0]
    per_element = width.parameter
    if workload.trains:
        per_element += width.gradient + width.moment
        if not offload:
            per_element += owner.optimizer_bytes / max(1, owner.elements)
    ratio = 1e12 * context.efficiency_ratio(setting, base)
    return {
        "state_bytes": [
            float(c.parameter_bytes + c.gradient_bytes + c.cache_bytes)
            + (0.0 if offload else part)
            for c, part in zip(costs, kept, strict=True)
        ],
        "activation_bytes": [float(c.kept_bytes + c.logits_bytes) for c in costs],
        "seconds": [layer_flops(cost, workload) / ratio for cost in costs],
        "moment_bytes": [
            float(
                max(
                    max(c.forward_peak_bytes, c.backward_peak_bytes) - c.kept_bytes,
                    0 if foreach else extra,
                )
            )
            for c, extra in zip(costs, temporary, strict=True)
        ],
        "copy_bytes": [float(cost.weight_copy_bytes) for cost in costs],
        "step_bytes": [float(extra if foreach else 0) for extra in temporary],
        "tied_bytes": sum(cost.tied_elements for cost in costs) * per_element,
        **_borders(costs, base),
    }


def _borders(costs: Sequence[LayerCost], base: Sharding) -> dict[str, float]:
    """Return the widest cut, and the part of it that every layer saves."""
    cuts = range(1, len(costs))
    widest = max((border_bytes(costs, cut, base) for cut in cuts), default=0.0)
    saved = min((float(costs[cut].kept_bytes) for cut in cuts), default=0.0)
    whole = not base.sequence_parallel
    return {
        "border_bytes": widest,
        "saved_border_bytes": min(widest, saved) if whole else 0.0,
    }


def _kept_optimizer(cost: LayerCost, base: Sharding) -> float:
    """Return a rank's part of a layer's optimizer state. Whole tensors are not cut."""
    if base.stage < 1:
        return float(cost.optimizer_bytes)
    share = max(1 / base.data_degree, cost.largest / max(1, cost.elements))
    return cost.optimizer_bytes * min(1.0, share)


def _rounded(free_bytes: int) -> int:
    return free_bytes // CLASS_ROUNDING_BYTES * CLASS_ROUNDING_BYTES


def cut_stages(
    context: SearchContext,
    setting: Setting,
    blocks: Sequence[StageBlock],
    base: Sharding,
    *,
    most: int,
    least: int,
    gpipe: bool = False,
) -> StageCut | None:
    """Return the shortest iteration over some of the Blocks, or None if none fits."""
    extra = 0.0
    for _ in range(MOST_CORRECTIONS):
        problem = problem_of(
            context, setting, blocks, base, extra_bytes=extra, gpipe=gpipe
        )
        split = split_pipeline(
            problem, most_stages=most, least_stages=least, budget=BUDGET
        )
        if split is None:
            return None
        cut = cut_of(context, setting, problem, split, blocks, base)
        over = max(
            context.need_bytes(setting, sharding) - block.free_bytes
            for block, sharding in zip(cut.blocks, cut.shardings, strict=True)
        )
        if over <= 0:
            return cut
        extra += over
    return None


def cut_of(
    context: SearchContext,
    setting: Setting,
    problem: PipelineProblem,
    split: PipelineSplit,
    blocks: Sequence[StageBlock],
    base: Sharding,
) -> StageCut:
    """Return a split as a StageCut: the Gpus of each stage, and the time of a step."""
    count = len(split.pieces)
    planned = (*(piece.first for piece in split.pieces), split.pieces[-1].last)
    costs = context.costs(setting, base)
    bounds = with_trained_pieces(planned, [c.trained_elements > 0 for c in costs])
    shardings = tuple(
        replace(
            base,
            first_layer=bounds[stage],
            last_layer=bounds[stage + 1],
            in_flight=problem.in_flight(stage, count),
            pipeline_degree=count,
            offload_optimizer=setting.offload,
        )
        for stage in range(count)
    )
    chosen = tuple(blocks[piece.gpu] for piece in split.pieces)
    time, busy = staged_time(context, setting, chosen, shardings)
    exact = split.exact and bounds == planned
    return StageCut(
        setting, base.microbatches, chosen, shardings, time, busy, exact=exact
    )


def with_trained_pieces(
    bounds: Sequence[int], trained: Sequence[bool]
) -> tuple[int, ...]:
    """Return the bounds of pieces of the model, moved so that each piece trains a
    layer.

    With adapters only blocks are trained, and a piece without a block has no gradients
    to compute. Bounds stay as they are if fewer layers are trained than there are
    pieces.

    >>> with_trained_pieces((0, 1, 5, 6), (False, True, True, True, True, False))
    (0, 2, 4, 6)
    """
    places = [layer for layer, one in enumerate(trained) if one]
    count = len(bounds) - 1
    if len(places) == len(trained) or len(places) < count:
        return tuple(bounds)
    moved = list(bounds)
    for piece in range(count - 1):
        first = next((one for one in places if one >= moved[piece]), places[-1])
        moved[piece + 1] = max(moved[piece + 1], first + 1)
    for piece in range(count - 1, 0, -1):
        last = max(one for one in places if one < moved[piece + 1])
        moved[piece] = min(moved[piece], last)
    return tuple(moved)


def staged_time(
    context: SearchContext,
    setting: Setting,
    blocks: Sequence[StageBlock],
    shardings: Sequence[Sharding],
) -> tuple[StepTime, tuple[float, ...]]:
    """Return the time of one step of stages on Blocks, and of each stage's work in
    it.
    """
    workload = setting.workload
    first = shardings[0]
    runs = max(first.microbatches, workload.accumulation)
    computing, adding, averaging, hosting = [], [], [], []
    updating = 0.0
    for block, one in zip(blocks, shardings, strict=True):
        ranges = layer_ranges(one)
        work = combined([context.work(setting, one, *piece) for piece in ranges])
        busy = [
            context.rank_time(setting, one, block.offers, *piece) for piece in ranges
        ]
        computing.append(sum(piece.each_seconds for piece in busy))
        updating = max(updating, sum(piece.once_seconds for piece in busy))
        adding.append(
            max(
                tensor_seconds(work, workload, degree=len(row), link=context.link(row))
                for row in block.rows
            )
        )
        moved = all_reduce_bytes(work.gradient_bytes, one.data_degree)
        columns = [context.link(column) for column in zip(*block.rows, strict=True)]
        slowest = min(columns, key=lambda link: link.bytes_per_second)
        averaging.append(exposed_seconds(moved, slowest, runs * computing[-1]))
        share = 1 / one.data_degree if one.stage else 1.0
        hosting.append(host_seconds(work, workload, share_ratio=share))
    whole = [a + b for a, b in zip(computing, adding, strict=True)]
    sent = _border_seconds(context, setting, blocks, shardings, runs)
    sent += max(averaging) + max(hosting)
    time = pipeline_time(whole, runs, sent, first.virtual_stages)
    added = runs * adding[whole.index(max(whole))]
    time = StepTime(
        time.compute_seconds - added + updating,
        time.communication_seconds + added,
        time.bubble_seconds,
    )
    return time, tuple(runs * seconds for seconds in computing)


def _border_seconds(
    context: SearchContext,
    setting: Setting,
    blocks: Sequence[StageBlock],
    shardings: Sequence[Sharding],
    runs: int,
) -> float:
    """Return the time for passing tensors between stages, per microbatch, direction and
    piece.
    """
    if len(blocks) < 2:
        return 0.0
    costs = context.costs(setting, shardings[0])
    ends = [last or len(costs) for one in shardings for _, last in layer_ranges(one)]
    border = max(costs[end - 1].output_bytes for end in ends if end < len(costs))
    directions = 2 if setting.workload.trains else 1
    link = context.link([block.rows[0][0] for block in blocks])
    times = (runs + len(blocks) - 1) * shardings[0].virtual_stages
    return times * directions * border / link.bytes_per_second
