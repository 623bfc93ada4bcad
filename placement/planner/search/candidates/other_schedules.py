"""Pipeline schedules other than 1F1B: GPipe and interleaved 1F1B.

GPipe takes the same time and keeps every microbatch, so it never wins. It is planned
only on request. Interleaved 1F1B gives each Gpu v pieces of the model instead of one:
the pipeline fills v times as fast, for v times the traffic and more kept microbatches
(Narayanan et al., SC 2021, section 2.2). The number of microbatches must be a multiple
of the number of stages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations

from placement.planner.model.sharding import Sharding
from placement.planner.search.candidates.explanation import refusal, too_small
from placement.planner.search.candidates.pipeline import few_classes, not_staged
from placement.planner.search.candidates.search_context import (
    SearchContext,
    worth_ratio,
)
from placement.planner.search.candidates.stage_blocks import (
    StageBlock,
    StageCut,
    in_pieces,
    least_seconds,
    staged_time,
    with_trained_pieces,
)
from placement.planner.search.chain_split import ChainProblem, split_fixed_order
from placement.planner.search.gpu_selection import fastest
from placement.planner.search.memory_savings import MemoryFit, Setting, divisors, stages
from placement.planner.search.step_time import layer_flops
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.humanize import gib, gib_at_least, ranges_told, seconds
from placement.planner.values.plan import Plan, RejectedStrategy
from placement.planner.values.strategies import GPIPE, INTERLEAVED, PIPELINE
from telemetry.protocol.sentences import counted, joined, sentence

PIECES = (2, 4)
"""Numbers of pieces of the model per Gpu that are tried."""
EVERY_COUNT = 4
"""Up to this many Gpus, every number of them is tried if the objective is speed."""
EVERY_ORDER = 3
"""Up to this many unlike Gpus, every order is tried."""
NOT_EVEN = sentence("The batch cannot be cut into a multiple of the number of stages.")


def gpipe_note(context: SearchContext, plan: Plan) -> RejectedStrategy:
    """Return why 1F1B is used and not GPipe: the same time, but all microbatches are
    kept.
    """
    pieces = plan.launch["microbatches"]
    setting = Setting(plan.workload, plan.launch["weights"])
    worst: tuple[int, str, str] | None = None
    for shard in plan.shards:
        sharding = Sharding(
            strategy=GPIPE.key,
            first_layer=shard.first_layer,
            last_layer=shard.last_layer,
            in_flight=pieces,
            microbatches=pieces,
            pipeline_degree=len(plan.shards),
            pipeline_schedule="gpipe",
            offload_optimizer=setting.offload,
        )
        missing = context.need_bytes(setting, sharding) - shard.free_bytes
        if worst is None or missing > worst[0]:
            worst = (missing, shard.gpu_label, shard.gpu_uuid)
    missing, label, uuid = worst or (0, "", "")
    reason = sentence(
        "1F1B takes the same time and keeps fewer microbatches; GPipe keeps all "
        "{pieces}.",
        pieces=pieces,
    )
    if missing > 0:
        reason = sentence(
            "1F1B takes the same time and keeps fewer microbatches; GPipe keeps all "
            "{pieces} and lacks {missing} on {label}.",
            pieces=pieces,
            missing=gib(missing),
            label=label,
        )
    return RejectedStrategy(
        strategy=GPIPE.key,
        title=GPIPE.title,
        code="too-small" if missing > 0 else "not-better",
        reason=reason,
        gpu_label=label if missing > 0 else "",
        gpu_uuid=uuid if missing > 0 else "",
        missing_bytes=max(0, missing),
        cheapest_change=sentence("the 1F1B schedule"),
    )


def interleaved(
    context: SearchContext, rival: Plan | RejectedStrategy | None = None
) -> list[Plan] | RejectedStrategy:
    """Plan the shortest step of v pieces per Gpu.

    It is refused if 1F1B (`rival`) is as short, or if not even that fits. The objective
    is the mildest remedies, and then the shortest step over numbers of Gpus and pieces,
    with cuts whose longest piece is as short as possible.
    """
    strategy = INTERLEAVED.key
    unfit = not_staged(context, strategy)
    if unfit is not None:
        return unfit
    if not context.asked.trains:
        return refusal(
            strategy,
            sentence("Inference has no backward pass to fill the pipeline with."),
        )
    if len(context.spec.layers) < 4:
        return refusal(
            strategy, sentence("It needs at least two layers for each of two GPUs.")
        )
    if isinstance(rival, Plan):
        return _against(context, rival)
    if rival is not None:
        return replace(
            rival,
            strategy=strategy,
            title=INTERLEAVED.title,
            reason=sentence(
                "It keeps more microbatches than 1F1B. {reason}", reason=rival.reason
            ),
        )
    nearest: MemoryFit | None = None
    for stage in stages(context.asked, context.freedom()):
        cuts = []
        for cut in _cuts(context, stage):
            short = _shortage(context, cut)
            if short.fits:
                cuts.append(cut)
            elif nearest is None or short.missing_bytes < nearest.missing_bytes:
                nearest = short
        if cuts:
            return [_plan(context, min(cuts, key=lambda cut: cut.order))]
    if nearest is None:
        return refusal(strategy, NOT_EVEN)
    gpu, missing = nearest.gpu, nearest.missing_bytes
    change = ""
    if gpu is not None:
        change = sentence(
            "{free} free on {gpu}",
            free=gib_at_least(gpu.free_bytes + missing),
            gpu=gpu.label,
        )
    return too_small(strategy, gpu, missing, change)


def _against(context: SearchContext, rival: Plan) -> list[Plan] | RejectedStrategy:
    """Return the Plan if it is shorter than 1F1B with the same remedies.

    It is tried on as many Gpus as 1F1B uses, and on all. For the objective of the
    shortest step it is tried with all remedies that are as mild, too. It keeps more
    microbatches than 1F1B, so it never fits with milder remedies.
    """
    theirs = Setting(rival.workload, rival.launch["weights"])
    cuts = list(_cuts(context, theirs, rival))
    few = min(context.most_gpus, len(context.offers)) <= EVERY_COUNT
    for stage in stages(context.asked, context.freedom()) if context.greedy else ():
        mild = stage.severity[:3] <= theirs.severity[:3]
        if mild and least_seconds(context, stage) < rival.step_seconds:
            cuts += _cuts(context, stage, None if few else rival)
    cuts.sort(key=lambda cut: cut.order)
    best = next((cut for cut in cuts if _shortage(context, cut).fits), None)
    if best is None:
        lacks = [_shortage(context, cut) for cut in cuts]
        nearest = min(lacks, key=lambda fit: fit.missing_bytes, default=None)
        if nearest is None:
            return refusal(INTERLEAVED.key, NOT_EVEN)
        return refusal(
            INTERLEAVED.key,
            sentence(
                "With the remedies that 1F1B needs it keeps too many microbatches: "
                "{missing} are missing.",
                missing=gib(nearest.missing_bytes),
            ),
            code="too-small",
            gpu=nearest.gpu,
            missing_bytes=nearest.missing_bytes,
            cheapest_change=sentence("the 1F1B schedule"),
        )
    if best.time.total_seconds > worth_ratio(context) * rival.step_seconds:
        return refusal(
            INTERLEAVED.key,
            sentence(
                "It would take {total} a step with {virtual_stages} pieces a GPU, "
                "1F1B {step}, and keeps more microbatches.",
                total=seconds(best.time.total_seconds),
                virtual_stages=best.shardings[0].virtual_stages,
                step=seconds(rival.step_seconds),
            ),
            code="not-better",
        )
    return [_plan(context, best)]


def _cuts(
    context: SearchContext, stage: Setting, rival: Plan | None = None
) -> Iterator[StageCut]:
    """Yield cuts for numbers of Gpus and pieces: the fastest Gpus, roomiest first."""
    offers = few_classes(context.offers)
    layers = len(context.spec.layers)
    most = min(context.most_gpus, len(offers), layers // 2)
    counts = set(range(2, most + 1))
    if rival is not None:
        counts &= {len(rival.shards), most}
    for count in sorted(counts):
        setting, tried = in_pieces(stage, context.limits, replicas=1, most_stages=count)
        if rival is not None:
            tried = [rival.launch["microbatches"]]
        rounds = {number // count * count for number in tried} - {0}
        batch = context.asked.batch
        rounds |= {n for n in divisors(batch) if not n % count and n >= min(tried)}
        for pieces in sorted(n for n in rounds if not batch % n):
            for virtual in PIECES:
                if virtual * count <= layers:
                    for chosen in _orders(context, offers, count):
                        yield _cut(context, setting, chosen, pieces, virtual)


def _orders(
    context: SearchContext, offers: Sequence[GpuOffer], count: int
) -> list[tuple[GpuOffer, ...]]:
    """Return useful orders of the fastest Gpus.

    They are all orders of a few unlike Gpus, otherwise the one by room (the first rank
    keeps the most). For the objective of speed they also include the one by speed, and
    the roomiest Gpus.
    """
    roomy = sorted(offers, key=_room)[:count]
    found: dict[tuple[str, ...], tuple[GpuOffer, ...]] = {}
    for some in (fastest(offers, count), roomy)[: 2 if context.greedy else 1]:
        kinds = {(o.free_bytes, o.peak_flops * o.share_ratio) for o in some}
        if len(kinds) > 1 and count <= EVERY_ORDER:
            ways = [tuple(way) for way in permutations(sorted(some, key=_room))]
        else:
            keys = (_room, _pace)[: 2 if context.greedy else 1]
            ways = [tuple(sorted(some, key=key)) for key in keys]
        for way in ways:
            found.setdefault(tuple(offer.uuid for offer in way), way)
    return list(found.values())


def _room(offer: GpuOffer) -> tuple[object, ...]:
    return (-offer.free_bytes, offer.node, offer.index, offer.uuid)


def _pace(offer: GpuOffer) -> tuple[object, ...]:
    return (-offer.peak_flops * offer.share_ratio, *_room(offer))


def _cut(
    context: SearchContext,
    setting: Setting,
    chosen: Sequence[GpuOffer],
    pieces: int,
    virtual: int,
) -> StageCut:
    """Cut layers into v x p pieces in turn, with the longest of them as short as
    possible.
    """
    count = len(chosen)
    base = Sharding(
        strategy=PIPELINE.key,
        pipeline_degree=count,
        pipeline_schedule="interleaved",
        virtual_stages=virtual,
        microbatches=pieces,
        offload_optimizer=setting.offload,
    )
    bounds = with_trained_pieces(
        _bounds(context, setting, base, chosen),
        [cost.trained_elements > 0 for cost in context.costs(setting, base)],
    )
    spans = list(pairwise(bounds))
    shardings = tuple(
        replace(
            base,
            first_layer=spans[rank][0],
            last_layer=spans[rank + (virtual - 1) * count][1],
            chunks=tuple(spans[rank::count]),
            in_flight=kept_pieces(rank, count, virtual, pieces),
        )
        for rank in range(count)
    )
    blocks = tuple(StageBlock(((offer,),)) for offer in chosen)
    time, busy = staged_time(context, setting, blocks, shardings)
    return StageCut(setting, pieces, blocks, shardings, time, busy, exact=False)


def kept_pieces(rank: int, count: int, virtual: int, pieces: int) -> int:
    """Return the microbatches whose activations a rank keeps, each of one of its v
    pieces.

    Megatron-LM's schedule: 2 (p - i - 1) + (v - 1) p forwards before the first
    backward, and the one in between, but never more than exist.
    """
    return min(2 * (count - rank - 1) + (virtual - 1) * count + 1, virtual * pieces)


def _bounds(
    context: SearchContext, setting: Setting, base: Sharding, chosen: Sequence[GpuOffer]
) -> list[int]:
    """Return the first layer of each of the v x p pieces, and the end; no piece is
    empty.
    """
    costs = context.costs(setting, base)
    ratio = 1e12 * context.efficiency_ratio(setting, base)
    workload = setting.workload
    layers, count = len(costs), len(chosen)
    # A little for every layer, so that no piece is worth leaving empty.
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + layer_flops(cost, workload) / ratio + 1e-12)
    speeds = [context.speed((offer,), setting) / 1e12 for offer in chosen]

    def load(first: int, last: int, kind: int, stage: int) -> float:
        return (total[last] - total[first]) / speeds[kind]

    order = [rank % count for rank in range(count * base.virtual_stages)]
    problem = ChainProblem(layers, [[rank] for rank in range(count)], load)
    split = split_fixed_order(problem, order, high=float("1e18"))
    ends = {} if split is None else {piece.gpu: piece.last for piece in split.pieces}
    bounds = [0]
    for place in range(len(order)):
        left = len(order) - place - 1
        wanted = ends.get(place, bounds[-1] + 1)
        bounds.append(max(bounds[-1] + 1, min(wanted, layers - left)))
    return bounds


def _shortage(context: SearchContext, cut: StageCut) -> MemoryFit:
    """Return whether all its ranks fit; if not, the one that lacks most."""
    lacks = [
        (
            context.need_bytes(cut.setting, one) - block.free_bytes,
            -rank,
            block.offers[0],
        )
        for rank, (block, one) in enumerate(zip(cut.blocks, cut.shardings, strict=True))
    ]
    missing, _, gpu = max(lacks, key=lambda lack: lack[:2])
    return MemoryFit(True) if missing <= 0 else MemoryFit(False, missing, gpu)


def _plan(context: SearchContext, cut: StageCut) -> Plan:
    first = cut.shardings[0]
    virtual, count = first.virtual_stages, len(cut.blocks)
    starts = [one.chunks[piece][0] for piece in range(virtual) for one in cut.shardings]
    pieces = joined(
        (
            sentence(
                "{gpu} layers {ranges}",
                gpu=block.offers[0].label,
                ranges=ranges_told(one.chunks),
            )
            for block, one in zip(cut.blocks, cut.shardings, strict=True)
        ),
        "; ",
    )
    why = [
        sentence(
            "Each of {count} GPUs has {virtual} pieces of the model: {pieces}.",
            count=count,
            virtual=virtual,
            pieces=pieces,
        ),
        sentence(
            "The batch runs through in {pieces}; the pipeline fills {virtual} times "
            "as fast as with one piece a GPU.",
            pieces=counted("{n} piece", "{n} pieces", cut.pieces),
            virtual=virtual,
        ),
    ]
    return context.plan(
        INTERLEAVED.key,
        cut.setting,
        cut.rank_placements(),
        cut.time,
        why=why,
        launch={
            "microbatch": -(-cut.setting.workload.batch // cut.pieces),
            "bounds": [*starts, len(context.spec.layers)],
        },
    )
