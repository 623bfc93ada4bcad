"""Tensor x pipeline x data together: cuts inside fast links, stages and copies outside.

Cells of t Gpus that NVLink joins run a layer together. Blocks of d cells run one stage,
a replica each. Stages are cut over the Blocks as over unequal Gpus (stage_blocks.py).
ZeRO-1 shares the optimizer between replicas, because it moves no more bytes than plain
copies do. At least two of the three degrees are above 1, because the other cases are
separate strategies.

The objective is the mildest remedies, then the shortest step over all degrees. A cell
and a StageBlock are as good as their worst Gpu, so similar Gpus are grouped. All
groupings are tried up to EXHAUSTIVE members, and above that those by room and by speed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from placement.planner.model.sharding import Sharding
from placement.planner.search.candidates.explanation import (
    StrategyUnfit,
    refusal,
    too_small,
)
from placement.planner.search.candidates.pipeline import few_classes, stages_told
from placement.planner.search.candidates.search_context import SearchContext
from placement.planner.search.candidates.shortage import (
    cheapest_change,
    fewest_stages,
    least_overloaded,
)
from placement.planner.search.candidates.stage_blocks import (
    StageBlock,
    StageCut,
    cut_stages,
    in_pieces,
    least_seconds,
    staged_time,
)
from placement.planner.search.candidates.tensor_parallel import tensor_degrees
from placement.planner.search.link_bandwidth import fast_groups
from placement.planner.search.memory_savings import (
    Setting,
    accumulations,
    in_runs,
    stages,
)
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.plan import Plan, RejectedStrategy
from placement.planner.values.strategies import HYBRID
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import counted, sentence

EXHAUSTIVE = 6
"""Up to this many members, all groupings are tried (15 for pairs of 6)."""
COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of copies of a stage that are tried."""
STATELESS = ("sgd",)
Cell = tuple[GpuOffer, ...]


@dataclass(frozen=True, slots=True)
class Degrees:
    """Number of Gpus over which a layer is cut, and copies of each stage."""

    tensor: int
    data: int
    cells: tuple[Cell, ...]

    @property
    def most_stages(self) -> int:
        """Return the most stages for which there are cells."""
        return len(self.cells) // self.data

    @property
    def least_stages(self) -> int:
        """Return the fewest stages: 1 if both other degrees are above 1, else 2."""
        return 1 if self.tensor > 1 and self.data > 1 else 2


def hybrid(context: SearchContext) -> list[Plan] | RejectedStrategy | StrategyUnfit:
    """Plan the degrees with the shortest step."""
    if context.most_gpus < 3:
        return refusal(HYBRID.key, sentence("It needs at least four GPUs."))
    if len(context.spec.layers) < 2:
        return refusal(
            HYBRID.key, sentence("A model of one layer cannot be cut into stages.")
        )
    offers = few_classes(context.offers)
    shapes = list(_degrees(context, offers))
    if not shapes:
        return refusal(
            HYBRID.key, sentence("There are too few GPUs to combine two strategies.")
        )
    cuts: list[StageCut] = []
    for stage in stages(context.asked, context.freedom()):
        if cuts and stage.severity[:3] > cuts[0].setting.severity[:3]:
            break
        best = min((cut.time.total_seconds for cut in cuts), default=None)
        if best is not None and least_seconds(context, stage) >= best:
            continue
        cuts += [cut for shape in shapes for cut in _cuts(context, stage, shape)]
        if cuts and not context.greedy:
            break
    if not cuts:
        return StrategyUnfit(lambda: _refuse(context, shapes))
    return [_plan(context, min(cuts, key=lambda cut: cut.order))]


def _degrees(context: SearchContext, offers: Sequence[GpuOffer]) -> Iterator[Degrees]:
    """Yield every pair of degrees, for every useful way to form cells."""
    groups = fast_groups(offers)
    widest = min(max((len(group) for group in groups), default=1), context.most_gpus)
    for tensor in (1, *tensor_degrees(context.spec, widest)):
        for cells in _cells(groups, offers, tensor):
            kept = cells[: context.most_gpus // tensor]
            most = min(len(kept), context.asked.batch if context.asked.trains else 1)
            for data in (count for count in COPIES if count <= most):
                if context.asked.trains and context.asked.batch % data:
                    continue
                shape = Degrees(tensor, data, kept)
                if (tensor > 1) + (data > 1) == 0:
                    continue
                if shape.most_stages >= shape.least_stages:
                    yield shape


def _cells(
    groups: Sequence[Sequence[GpuOffer]], offers: Sequence[GpuOffer], tensor: int
) -> Iterator[tuple[Cell, ...]]:
    """Yield ways to form cells of t Gpus, each inside one group of fast links."""
    if tensor == 1:
        yield tuple((offer,) for offer in sorted(offers, key=_room))
        return
    ways = [
        [tuple(way) for way in groupings(list(group), tensor)]
        for group in groups
        if len(group) >= tensor
    ]
    # The n-th way of every group together. Groups of equal Gpus have one way only.
    for number in range(max((len(way) for way in ways), default=0)):
        cells = [cell for way in ways for cell in way[min(number, len(way) - 1)]]
        yield tuple(sorted(cells, key=lambda cell: min(map(_room, cell), default=())))


def groupings(members: list[GpuOffer], size: int) -> list[list[Cell]]:
    """Return partitions of the Gpus into groups of one size. Surplus Gpus are left out.

    For a few Gpus of different kinds these are all partitions. Otherwise Gpus are
    grouped by similar free memory, and by similar speed.
    """
    by_room = sorted(members, key=_room)
    kinds = {(o.free_bytes, o.peak_flops * o.share_ratio) for o in members}
    if size == 1 or len(kinds) == 1:
        return [_in_order(by_room, size)]
    if len(members) <= EXHAUSTIVE:
        return [list(way) for way in _all_ways(by_room, size)]
    by_speed = sorted(members, key=_pace)
    ways = [_in_order(by_room, size), _in_order(by_speed, size)]
    return ways if ways[0] != ways[1] else ways[:1]


def _in_order(members: Sequence[GpuOffer], size: int) -> list[Cell]:
    whole = len(members) - len(members) % size
    return [tuple(members[i : i + size]) for i in range(0, whole, size)]


def _all_ways(members: Sequence[GpuOffer], size: int) -> Iterator[tuple[Cell, ...]]:
    """Yield every partition into groups of a size.

    Some members are left out if they do not divide evenly. The first member is in the
    first group or left out.
    """
    if len(members) < size:
        yield ()
        return
    first, rest = members[0], members[1:]
    for others in combinations(rest, size - 1):
        left = [one for one in rest if one not in others]
        for way in _all_ways(left, size):
            yield ((first, *others), *way)
    if len(members) % size:
        yield from _all_ways(rest, size)


def _room(offer: GpuOffer) -> tuple[object, ...]:
    pace = offer.peak_flops * offer.share_ratio
    return (-offer.free_bytes, -pace, offer.node, offer.index, offer.uuid)


def _pace(offer: GpuOffer) -> tuple[object, ...]:
    pace = offer.peak_flops * offer.share_ratio
    return (-pace, -offer.free_bytes, offer.node, offer.index, offer.uuid)


def _blocks(shape: Degrees) -> Iterator[list[StageBlock]]:
    """Yield ways to join cells as the replicas of a stage."""
    if shape.data == 1:
        yield [StageBlock((cell,)) for cell in shape.cells]
        return
    worst = {cell: _worst(cell) for cell in shape.cells}
    of = {one.uuid: cell for cell, one in worst.items()}
    for way in groupings(list(worst.values()), shape.data):
        yield [StageBlock(tuple(of[one.uuid] for one in group)) for group in way]


def _worst(cell: Cell) -> GpuOffer:
    """Return the Gpu that represents a cell when cells are grouped."""
    return max(cell, key=_room)


def _base(context: SearchContext, shape: Degrees, pieces: int) -> Sharding:
    """Return the Sharding common to all ranks of these degrees."""
    shares = shape.data > 1 and context.asked.trains
    stateful = context.asked.optimizer not in STATELESS
    return Sharding(
        strategy=HYBRID.key,
        tensor_degree=shape.tensor,
        data_degree=shape.data,
        zero_stage=1 if shares and stateful else 0,
        sequence_parallel=shape.tensor > 1 and context.asked.trains,
        microbatches=pieces,
    )


def _cuts(context: SearchContext, stage: Setting, shape: Degrees) -> Iterator[StageCut]:
    """Yield the cuts of a setting and degrees, over the ways to group and to cut
    batches.
    """
    setting, counts = in_pieces(
        stage, context.limits, replicas=shape.data, most_stages=shape.most_stages
    )
    for blocks in _blocks(shape):
        # Smaller pieces need less, so if the smallest do not fit, none do.
        smallest = _base(context, shape, counts[-1])
        if shape.most_stages >= 2 and fewest_stages(
            context, setting, blocks, smallest, most=shape.most_stages
        ):
            for pieces in counts:
                cut = cut_stages(
                    context,
                    setting,
                    blocks,
                    _base(context, shape, pieces),
                    most=shape.most_stages,
                    least=2,
                )
                if cut is not None:
                    yield cut
        if shape.least_stages == 1:
            yield from _one_stage(context, stage, shape, blocks)


def _one_stage(
    context: SearchContext, stage: Setting, shape: Degrees, blocks: Sequence[StageBlock]
) -> Iterator[StageCut]:
    """Cut tensor x data: the whole model in one StageBlock, in the fewest pieces that
    fit.
    """
    counts = accumulations(stage.workload, shape.data, context.limits)
    least = context.need_bytes(in_runs(stage, counts[-1]), _base(context, shape, 1))
    if not any(block.free_bytes >= least for block in blocks):
        return
    for count in counts:
        setting = in_runs(stage, count)
        base = replace(_base(context, shape, 1), offload_optimizer=setting.offload)
        base = replace(base, last_layer=len(context.spec.layers))
        need = context.need_bytes(setting, base)
        fitting = [block for block in blocks if block.free_bytes >= need]
        for block in fitting:
            time, busy = staged_time(context, setting, (block,), (base,))
            yield StageCut(setting, 1, (block,), (base,), time, busy, exact=True)
        if fitting:
            return


def _plan(context: SearchContext, cut: StageCut) -> Plan:
    first = cut.shardings[0]
    degrees = {
        "tensor": first.tensor_degree,
        "pipeline": len(cut.blocks),
        "data": first.data_degree,
    }
    told = " × ".join(f"{name} {n}" for name, n in degrees.items() if n > 1)
    workload = cut.setting.workload
    runs = max(cut.pieces, workload.accumulation)
    why = []
    if first.tensor_degree > 1:
        why.append(
            sentence(
                "Every layer is cut over {tensor_degree} GPUs joined by fast links.",
                tensor_degree=first.tensor_degree,
            )
        )
    if len(cut.blocks) > 1:
        why.append(
            sentence(
                "The model is cut into {stages}: {cut}.",
                stages=counted("{n} stage", "{n} stages", len(cut.blocks)),
                cut=stages_told(cut),
            )
        )
    if first.data_degree > 1:
        copies = first.data_degree
        why.append(
            sentence(
                "{copies} copies of it take a part of the batch each and share the "
                "optimizer state (ZeRO-1).",
                copies=copies,
            )
            if first.stage
            else sentence(
                "{copies} copies of it take a part of the batch each.", copies=copies
            )
        )
    why.append(sentence("No other degrees of these GPUs gave a shorter step."))
    starts = [sharding.first_layer for sharding in cut.shardings]
    return context.plan(
        HYBRID.key,
        cut.setting,
        cut.rank_placements(),
        cut.time,
        why=why,
        launch={
            "microbatch": -(-workload.batch // (first.data_degree * runs)),
            "bounds": [*starts, len(context.spec.layers)],
        },
        title=sentence("Hybrid: {told}", told=told),
    )


def _refuse(context: SearchContext, shapes: Sequence[Degrees]) -> RejectedStrategy:
    """Return what the widest cut of the model lacks with every remedy."""
    widest = max(shapes, key=lambda one: (one.tensor * one.most_stages, -one.data))
    setting, pieces = _harshest(context, context.asked, widest)
    blocks = next(iter(_blocks(widest)))
    gpu, missing = least_overloaded(
        context, setting, blocks, _base(context, widest, pieces)
    )

    def fits(among: SearchContext, workload: Workload) -> bool:
        setting, pieces = _harshest(among, workload, widest)
        base = _base(among, widest, pieces)
        if widest.most_stages < 2:
            return any(True for _ in _one_stage(among, setting, widest, blocks))
        most = widest.most_stages
        return bool(fewest_stages(among, setting, blocks, base, most=most))

    change = cheapest_change(context, fits, gpu, missing)
    return too_small(HYBRID.key, gpu, missing, change)


def _harshest(
    context: SearchContext, asked: Workload, shape: Degrees
) -> tuple[Setting, int]:
    *_, last = stages(asked, context.freedom())
    setting, counts = in_pieces(
        last, context.limits, replicas=shape.data, most_stages=shape.most_stages
    )
    return setting, counts[-1]
