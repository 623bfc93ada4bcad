"""Pipelines: the model cut into stages of unequal length over unequal Gpus.

The objective is the mildest remedies, then the shortest iteration
(pipeline_partition.py explains for which memory and time it is exact). It is planned on
the fewest Gpus that can run it, and on more if that is much faster.
"""

from collections.abc import Sequence

from placement.planner.model.sharding import Sharding
from placement.planner.search.candidates.explanation import (
    StrategyUnfit,
    refusal,
    too_small,
)
from placement.planner.search.candidates.search_context import (
    CLASS_ROUNDING_BYTES,
    SearchContext,
    worth_ratio,
)
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
)
from placement.planner.search.memory_savings import Setting, stages
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.humanize import listed, ranges_told
from placement.planner.values.plan import Plan, RejectedStrategy
from placement.planner.values.strategies import GPIPE, PIPELINE, STRATEGIES, Schedule
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import counted, joined, sentence

MOST_CLASSES = 8
"""Most kinds of unequal Gpus in a search. If there are more, the roomiest are
searched.
"""
MOST_STATES = 6000
"""Most counts of each class in a search; see count_vectors.py."""


def pipeline(
    context: SearchContext, strategy: str = PIPELINE.key
) -> list[Plan] | RejectedStrategy | StrategyUnfit:
    """Plan stages of unequal length over Gpus of unequal room and speed: 1F1B, or
    GPipe.
    """
    unfit = not_staged(context, strategy)
    if unfit is not None:
        return unfit
    offers = few_classes(context.offers)
    cuts = pipeline_cuts(context, offers, context.asked, strategy)
    if not cuts:
        return StrategyUnfit(lambda: _refuse(context, offers, strategy))
    return [_plan(context, strategy, cut) for cut in cuts]


def not_staged(context: SearchContext, strategy: str) -> RejectedStrategy | None:
    """Return why no pipeline makes sense here."""
    if context.most_gpus < 2:
        return refusal(strategy, sentence("It needs at least two GPUs of one node."))
    if len(context.spec.layers) < 2:
        return refusal(
            strategy, sentence("A model of one layer cannot be cut into stages.")
        )
    return None


def base_of(strategy: str, pieces: int) -> Sharding:
    """Return the Sharding common to all stages of a pipeline."""
    schedule: Schedule = STRATEGIES[strategy].schedule or "1f1b"
    return Sharding(strategy=strategy, microbatches=pieces, pipeline_schedule=schedule)


def pipeline_cuts(
    context: SearchContext,
    offers: Sequence[GpuOffer],
    asked: Workload,
    strategy: str,
) -> list[StageCut]:
    """Return the cut on the fewest Gpus, and the fastest if it is worth more; [] if
    none fits.
    """
    found: list[list[StageCut]] = []
    for stage in stages(asked, context.freedom()):
        if found and stage.severity[:3] > found[0][0].setting.severity[:3]:
            break
        if found and least_seconds(context, stage) >= min(
            cuts[-1].time.total_seconds for cuts in found
        ):
            continue
        cuts = _cuts_with(context, offers, stage, strategy)
        if cuts and not context.greedy:
            return cuts
        found += [cuts] if cuts else []
    return min(found, key=lambda cuts: cuts[-1].order, default=[])


def _cuts_with(
    context: SearchContext, offers: Sequence[GpuOffer], stage: Setting, strategy: str
) -> list[StageCut]:
    """Return the cuts with the remedies of one setting."""
    blocks = [StageBlock(((offer,),)) for offer in offers]
    gpipe = strategy == GPIPE.key
    most = min(context.most_gpus, len(blocks))
    setting, counts = in_pieces(stage, context.limits, replicas=1, most_stages=most)
    # Smaller pieces need less, so if the smallest do not fit, none do.
    smallest = base_of(strategy, counts[-1])
    fewest = fewest_stages(context, setting, blocks, smallest, most=most, gpipe=gpipe)
    if not fewest:
        return []
    bases = [base_of(strategy, pieces) for pieces in counts]
    quick = _best(context, setting, blocks, bases, fewest, most)
    if quick is None:
        return []
    few = None
    for count in range(fewest, len(quick.blocks)):
        few = _best(context, setting, blocks, bases, fewest, count)
        if few is not None:
            break
    if few is None:
        return [quick]
    worth = worth_ratio(context) * few.time.total_seconds
    return [few, quick] if quick.time.total_seconds <= worth else [few]


def _best(
    context: SearchContext,
    setting: Setting,
    blocks: Sequence[StageBlock],
    bases: Sequence[Sharding],
    least: int,
    most: int,
) -> StageCut | None:
    """Return the shortest step of so many stages, over numbers of microbatches."""
    found = [
        cut_stages(
            context,
            setting,
            blocks,
            base,
            most=most,
            least=least,
            gpipe=base.strategy == GPIPE.key,
        )
        for base in bases
    ]
    good = [cut for cut in found if cut is not None]
    return min(good, key=lambda cut: cut.order, default=None)


def few_classes(offers: Sequence[GpuOffer]) -> tuple[GpuOffer, ...]:
    """Keep the roomiest Gpus if there are too many different ones to search."""
    ranked = sorted(
        offers,
        key=lambda offer: (-offer.free_bytes, offer.node, offer.index, offer.uuid),
    )
    kept: list[GpuOffer] = []
    counts: dict[tuple[int, float], int] = {}
    for offer in ranked:
        key = (
            offer.free_bytes // CLASS_ROUNDING_BYTES,
            offer.peak_flops * offer.share_ratio,
        )
        after = {**counts, key: counts.get(key, 0) + 1}
        states = 1
        for count in after.values():
            states *= count + 1
        if len(after) <= MOST_CLASSES and states <= MOST_STATES:
            counts = after
            kept.append(offer)
    return tuple(sorted(kept, key=lambda offer: (offer.node, offer.index, offer.uuid)))


def _plan(context: SearchContext, strategy: str, cut: StageCut) -> Plan:
    starts = [sharding.first_layer for sharding in cut.shardings]
    return context.plan(
        strategy,
        cut.setting,
        cut.rank_placements(),
        cut.time,
        why=_why(cut, strategy),
        launch={
            "microbatch": -(-cut.setting.workload.batch // cut.pieces),
            "bounds": [*starts, len(context.spec.layers)],
        },
    )


def stages_told(cut: StageCut) -> str:
    """Return "lab-a:0 layers 0 to 5, lab-a:1 layers 6 to 13"."""
    return joined(
        (
            sentence(
                "{gpu} layers {ranges}",
                gpu=listed(offer.label for offer in block.offers),
                ranges=ranges_told([(sharding.first_layer, sharding.last_layer or 0)]),
            )
            for block, sharding in zip(cut.blocks, cut.shardings, strict=True)
        ),
        ", ",
    )


def _why(cut: StageCut, strategy: str) -> list[str]:
    why: list[str] = [
        sentence(
            "The model is cut into {stages}: {cut}.",
            stages=counted("{n} stage", "{n} stages", len(cut.blocks)),
            cut=stages_told(cut),
        ),
        sentence(
            "The batch runs through in {pieces}, so that all stages work at once; "
            "between stages only activations are sent.",
            pieces=counted("{n} piece", "{n} pieces", cut.pieces),
        )
        if cut.pieces > 1
        else sentence(
            "The batch runs through in 1 piece, so the stages work one after another; "
            "between stages only activations are sent."
        ),
    ]
    if strategy == GPIPE.key:
        why.append(
            sentence(
                "Every stage keeps all pieces in memory until the backward pass begins."
            )
        )
    else:
        why.append(
            sentence(
                "The first stage keeps the most pieces in memory, the last keeps "
                "one: GPUs are ordered accordingly."
            )
        )
    slowest = max(range(len(cut.busy)), key=lambda stage: cut.busy[stage])
    if len(set(cut.busy)) > 1:
        why.append(
            sentence(
                "Stage {slowest} is the busiest and sets the pace.", slowest=slowest + 1
            )
        )
    if cut.exact:
        why.append(
            sentence(
                "No other cut and order of these GPUs takes less time for its matrix "
                "products."
            )
        )
    else:
        why.append(sentence("No other cut and order makes the slowest stage faster."))
    return why


def _refuse(
    context: SearchContext, offers: Sequence[GpuOffer], strategy: str
) -> RejectedStrategy:
    """Return the least overloaded cut with every remedy: the Gpu and its missing
    bytes.
    """
    blocks = [StageBlock(((offer,),)) for offer in offers]
    gpipe = strategy == GPIPE.key
    setting, pieces = _harshest(context, context.asked)
    gpu, missing = least_overloaded(
        context, setting, blocks, base_of(strategy, pieces), gpipe=gpipe
    )

    def fits(among: SearchContext, workload: Workload) -> bool:
        setting, pieces = _harshest(among, workload)
        base = base_of(strategy, pieces)
        most = among.most_gpus
        return bool(fewest_stages(among, setting, blocks, base, most=most, gpipe=gpipe))

    change = cheapest_change(context, fits, gpu, missing)
    return too_small(strategy, gpu, missing, change)


def _harshest(context: SearchContext, asked: Workload) -> tuple[Setting, int]:
    """Return every remedy at once, in the smallest pieces."""
    *_, last = stages(asked, context.freedom())
    setting, counts = in_pieces(
        last, context.limits, replicas=1, most_stages=context.most_gpus
    )
    return setting, counts[-1]
