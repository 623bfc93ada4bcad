"""Plan: from a model and Gpus to ranked Plans.

For each Node (a Job runs on one Node) and each strategy, `plan` determines whether it
fits the free memory, the changes with which it fits, and the time of a step. Rejected
strategies have a reason. If the speed of the network between Nodes is known, copies and
stages may span Nodes too; such Plans have a note. Plans that another one beats in time
and in cost are not shown (trade_off.py). The others are ranked by time x cost, and
between equals by docs/design/placement.md#order-of-choice. An objective changes the
order (objective.py).

Keys of `Plan.launch`: engine (torch, deepspeed, megatron), strategy, nproc, gpu_uuids,
nodes, fast_links, task, batch, microbatch, sequence_length, accumulation, precision,
optimizer, optimizer_loop, checkpointing, attention, offload_optimizer, offload (none,
cpu, nvme), offload_parameters, weights (full, int8, nf4), tensor_degree,
pipeline_degree, data_degree, zero_stage, sequence_parallel, schedule ("" without
stages, else 1f1b, gpipe, interleaved), virtual_stages, microbatches, rank_grid (one
list of Gpu UUIDs per stage and replica, its tensor ranks; ranks count through it); for
copies shares, gradient_as_bucket_view, reduce_bucket_size; for stages bounds (first
layer of each piece of the model in order, and the end).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from placement.planner.model.adaptation import with_quantized
from placement.planner.model.sharding import ONE_RANK, check_fit
from placement.planner.model.spec import ModelSpec
from placement.planner.search.advice import advice
from placement.planner.search.candidates.cluster_grid import cluster_grids
from placement.planner.search.candidates.data_parallel import data_parallel, single
from placement.planner.search.candidates.explanation import StrategyUnfit, refusal
from placement.planner.search.candidates.hybrid import hybrid
from placement.planner.search.candidates.other_schedules import gpipe_note, interleaved
from placement.planner.search.candidates.pipeline import pipeline
from placement.planner.search.candidates.search_context import (
    CLASS_ROUNDING_BYTES,
    SearchContext,
)
from placement.planner.search.candidates.tensor_parallel import tensor
from placement.planner.search.candidates.uneven_zero import zero1_uneven
from placement.planner.search.card_support import (
    supported,
    unknown_speed_notes,
    unsupported_notes,
)
from placement.planner.search.host_room import HostRoom, host_room, shortage
from placement.planner.search.memory_savings import PlanLimits, Weights, divisors
from placement.planner.search.plan_validation import validate
from placement.planner.search.trade_off import (
    trade_off,
    with_consistent_sense,
    with_trades,
)
from placement.planner.values.calibration import UNCORRECTED, Corrections
from placement.planner.values.errors import SpecInvalid, WorkloadInvalid
from placement.planner.values.gpu_availability import GpuOffer, check_offers
from placement.planner.values.humanize import either, gib
from placement.planner.values.objective import Objective, concession, ranked
from placement.planner.values.plan import LeftOut, Plan, PlanSet, RejectedStrategy
from placement.planner.values.strategies import (
    DDP,
    FSDP,
    GPIPE,
    HYBRID,
    INTERLEAVED,
    PIPELINE,
    SINGLE,
    STRATEGIES,
    TENSOR,
    TITLES,
    ZERO1,
    ZERO1_UNEVEN,
    ZERO2,
    Strategy,
    search_order,
)
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import counted, sentence

MOST_OFFERS = 1024
FEW_ACROSS = 16
"""Up to this many Gpus of several Nodes, stages of unequal length are searched too."""
MOST_NODES = 8
"""Most unlike Nodes that are searched one by one, and most Nodes of one call of
inference."""
Quantize = Callable[[ModelSpec, Weights], ModelSpec]
Found = list[Plan] | RejectedStrategy | StrategyUnfit
Rival = Plan | RejectedStrategy | None
"""The result of the pipeline search, which comes before."""


def _copies(strategy: Strategy) -> Callable[[SearchContext, Rival], Found]:
    return lambda context, _rival: data_parallel(context, strategy.key)


SEARCHES: dict[Strategy, Callable[[SearchContext, Rival], Found]] = {
    SINGLE: lambda context, _rival: single(context),
    **{one: _copies(one) for one in (DDP, ZERO1, ZERO2, FSDP)},
    ZERO1_UNEVEN: lambda context, _rival: zero1_uneven(context),
    PIPELINE: lambda context, _rival: pipeline(context),
    GPIPE: lambda context, _rival: pipeline(context, GPIPE.key),
    INTERLEAVED: lambda context, rival: interleaved(context, rival),
    TENSOR: lambda context, _rival: tensor(context),
    HYBRID: lambda context, _rival: hybrid(context),
}
"""The search for the GPUs of each strategy of a Plan."""


def plan(
    spec: ModelSpec,
    workload: Workload,
    offers: Sequence[GpuOffer],
    *,
    max_gpus: int | None = None,
    limits: PlanLimits | None = None,
    objective: Objective | None = None,
    learned: Corrections = UNCORRECTED,
) -> PlanSet:
    """Return ranked Plans and the strategies that lost. Deterministic.

    If no Gpu is usable, the PlanSet has no Plans and one Refusal that says so.

    Args:
        spec: the model.
        workload: what to run with it.
        offers: the Gpus, with their free bytes and their speeds.
        max_gpus: how many Gpus a Plan may use; None: as many as there are.
        limits: the changes allowed to make the model fit; None: all of them.
        objective: by which the Plans are ranked; None: the order of choice.
        learned: the measured error of a site, which corrects bytes and seconds.

    Raises:
        OffersInvalid: the offers contradict themselves.
        WorkloadInvalid: a strategy of the limits is unknown, or the model cannot read
            such sequences.
    """
    check_offers(offers)
    check_fit(spec, workload, ONE_RANK)
    offered = [offer for offer in offers if offer.usable]
    offers = supported(offers, workload)
    allowed = limits or PlanLimits()
    if max_gpus is not None:
        allowed = replace(allowed, max_gpus=max_gpus)
    unknown = [name for name in allowed.strategies if name not in TITLES]
    if unknown:
        raise WorkloadInvalid(
            {"strategy": sentence("must be one of {titles}", titles=", ".join(TITLES))}
        )
    usable = _in_place(offer for offer in offers if offer.usable)[:MOST_OFFERS]
    base = SearchContext(
        spec,
        workload,
        (),
        allowed,
        objective=objective,
        learned=learned,
        quantize=quantizer_of(spec, workload),
    )
    plans, refusals = _everywhere(base, usable)
    plans, short = _with_host_room(plans, usable, allowed)
    refusals += short
    if not usable:
        refusals.append(
            refusal(
                SINGLE.key,
                sentence("No GPU can be used. See why each one is left out."),
            )
        )
    most_gpus = min(len(usable), allowed.max_gpus or len(usable))
    plans = with_consistent_sense(plans)
    kept = _without_twins(ranked(plans, objective))
    if not (allowed.beaten_too or allowed.strategies):
        shown = trade_off(kept, objective)
        kept, refusals = shown.plans, [*refusals, *shown.beaten]
    for one in kept:
        validate(one, offers, spec)
    left_out = _in_place(offer for offer in offers if not offer.usable)
    unsupported = {offer.uuid for offer in offered}
    return PlanSet(
        model=spec.name,
        workload=workload,
        plans=with_trades(kept),
        refusals=_merged(refusals, {one.strategy for one in kept}),
        left_out=tuple(
            LeftOut(
                gpu_label=offer.label,
                gpu_uuid=offer.uuid,
                reason=offer.reason or sentence("no free memory"),
                code="unsupported" if offer.uuid in unsupported else "",
            )
            for offer in left_out
        ),
        batch_choices=even_batches(workload, most_gpus),
        notes=(
            *_notes(spec, usable),
            *_batch_notes(workload, most_gpus),
            *unsupported_notes(offered, workload),
            *unknown_speed_notes(usable, learned),
        ),
        wish=objective or "",
        advice=advice(base, usable) if usable and not _sensible(kept) else "",
    )


def _with_host_room(
    plans: Sequence[Plan], usable: Sequence[GpuOffer], limits: PlanLimits
) -> tuple[list[Plan], list[RejectedStrategy]]:
    """Return the Plans whose nodes can keep the offloaded state, and the Refusals of
    the others."""
    kept, refusals = [], []
    for one in plans:
        why = shortage(one, usable, limits)
        if why:
            refusals.append(_short_of_host(one, why))
        else:
            kept.append(one)
    return kept, refusals


def _short_of_host(one: Plan, why: str) -> RejectedStrategy:
    change = (
        sentence(
            "{need} of free host memory on each node", need=gib(one.host_memory_bytes)
        )
        if one.workload.offload == "cpu"
        else sentence(
            "{need} free on the drive of each node", need=gib(one.host_disk_bytes)
        )
    )
    return refusal(one.strategy, why, code="host-memory", cheapest_change=change)


def _for_want_of_host(
    context: SearchContext, strategy: Strategy, lost: RejectedStrategy, rival: Rival
) -> RejectedStrategy:
    """Return a Refusal that names the node's memory if only that is too small."""
    room = host_room(context.offers, context.limits.offload_memory_bytes)
    if room == HostRoom() or strategy not in (SINGLE, FSDP):
        return lost
    wide = replace(
        context,
        offers=tuple(
            replace(one, host_free_bytes=None, disk_free_bytes=None)
            for one in context.offers
        ),
        limits=replace(context.limits, offload_memory_bytes=None),
        links={},
        _room=None,
        _near=None,
        _fast=None,
    )
    found = SEARCHES[strategy](wide, rival)
    if not isinstance(found, list):
        return lost
    why = shortage(found[-1], context.offers, context.limits)
    return _short_of_host(found[-1], why) if why else lost


def _sensible(plans: Sequence[Plan]) -> bool:
    return any(not one.absurd for one in plans)


def _everywhere(
    base: SearchContext, usable: Sequence[GpuOffer]
) -> tuple[list[Plan], list[RejectedStrategy]]:
    """Return every Node separately, in the subsets for the objective; then several
    Nodes.
    """
    plans: list[Plan] = []
    refusals: list[RejectedStrategy] = []
    by_node: dict[str, list[GpuOffer]] = {}
    for offer in usable:
        by_node.setdefault(offer.node, []).append(offer)
    for here in _unlike_nodes(by_node.values()):
        for subset in _subsets(here, base.objective):
            made, lost = plan_among(
                replace(base, offers=subset, links={}), search_order()
            )
            plans += made
            refusals += lost if subset == here else []
    joined = _joined(usable)
    nodes = {offer.node for offer in joined}
    if len(nodes) > 1:
        if len(joined) <= FEW_ACROSS:
            made, _ = plan_among(
                replace(base, offers=tuple(_in_place(joined)), links={}),
                search_order(across_nodes=True),
            )
            plans += [one for one in made if one.spans_nodes]
        elif not base.asked.trains:
            plans += _call_over_nodes(
                base, [by_node[name] for name in by_node if name in nodes]
            )
        plans += cluster_grids(replace(base, offers=tuple(joined), links={}))
    return plans, refusals


def _joined(usable: Sequence[GpuOffer]) -> list[GpuOffer]:
    """Return the Gpus of Nodes whose speed to other Nodes is known."""
    return [offer for offer in usable if offer.network_bytes_per_second]


def _call_over_nodes(
    base: SearchContext, nodes: Sequence[Sequence[GpuOffer]]
) -> list[Plan]:
    """Return Plans of inference on the fewest Nodes that hold the weights as they are.

    Stages on more Nodes do not make a call shorter.
    """
    largest = sorted(
        nodes,
        key=lambda here: (
            -sum(offer.free_bytes for offer in here),
            -sum(offer.peak_flops * offer.share_ratio for offer in here),
            here[0].node,
        ),
    )
    plans: list[Plan] = []
    for count in range(2, min(len(largest), MOST_NODES) + 1):
        offers = _in_place(offer for here in largest[:count] for offer in here)
        made, _ = plan_among(
            replace(base, offers=tuple(offers), links={}),
            search_order(across_nodes=True),
        )
        made = [one for one in made if one.spans_nodes]
        plans += made
        if any(one.fit == "comfortable" and not concession(one) for one in made):
            break
    return plans


def _unlike_nodes(
    nodes: Iterable[Sequence[GpuOffer]],
) -> list[tuple[GpuOffer, ...]]:
    """Return the first node of each kind, if there are not too many kinds.

    Of more than `MOST_NODES` those with the most arithmetic are used. Plans of equal
    nodes are equal.
    """
    kinds: dict[object, tuple[GpuOffer, ...]] = {}
    for here in nodes:
        groups = list(dict.fromkeys(offer.link_group for offer in here))
        kind = tuple((*_kind(one), groups.index(one.link_group)) for one in here)
        kinds.setdefault(kind, tuple(here))
    found = list(kinds.values())
    if len(found) <= MOST_NODES:
        return found
    most = sorted(
        found,
        key=lambda here: (
            -sum(offer.peak_flops * offer.share_ratio for offer in here),
            -sum(offer.free_bytes for offer in here),
            here[0].node,
        ),
    )
    return most[:MOST_NODES]


def _kind(offer: GpuOffer) -> tuple[object, ...]:
    """Return all properties of a Gpu except names that affect a Plan of one node."""
    return (
        offer.name,
        offer.gpu_class,
        offer.free_bytes // CLASS_ROUNDING_BYTES,
        offer.memory_total_bytes,
        offer.peak_flops * offer.share_ratio,
        offer.weight,
        offer.compute_processes,
        round(offer.busy_pct / 5),
        bool(offer.health),
        bool(offer.link_group),
        tuple(word for _, word in offer.links),
    )


def _in_place(offers: Iterable[GpuOffer]) -> list[GpuOffer]:
    """Return the offers by Node and index, regardless of their order in the list."""
    return sorted(offers, key=lambda offer: (offer.node, offer.index, offer.uuid))


def _subsets(
    here: tuple[GpuOffer, ...], objective: Objective | None
) -> list[tuple[GpuOffer, ...]]:
    """Return Gpus that are planned separately: the healthy, the idle, the cheap; and
    all.
    """
    found = [
        here,
        tuple(offer for offer in here if not offer.health),
        tuple(offer for offer in here if not offer.compute_processes),
    ]
    if objective == "cheapest":
        for weight in sorted({offer.weight for offer in here})[:-1]:
            found.append(tuple(offer for offer in here if offer.weight <= weight))
    return [subset for subset in dict.fromkeys(found) if subset]


def plan_among(
    comfortable: SearchContext, strategies: Sequence[str]
) -> tuple[list[Plan], list[RejectedStrategy]]:
    """Return Plans and Refusals on some Gpus: by the likely need, or else the least
    one.
    """
    tight = replace(comfortable, tight=True)
    wanted = comfortable.limits.strategies
    workload = comfortable.asked
    plans: list[Plan] = []
    refusals: list[RejectedStrategy] = []
    rival: Rival = None
    for strategy in strategies:
        known = STRATEGIES[strategy]
        if strategy not in wanted and (wanted or known.on_request):
            continue
        found = SEARCHES[known](comfortable, rival)
        if isinstance(found, StrategyUnfit) or (
            isinstance(found, RejectedStrategy) and found.code == "too-small"
        ):
            by_least = SEARCHES[known](tight, rival)
            if isinstance(by_least, list):
                found = by_least
        if isinstance(found, StrategyUnfit):
            found = _for_want_of_host(tight, known, found.tell(), rival)
        if known is PIPELINE:
            rival = found if isinstance(found, RejectedStrategy) else found[-1]
        if isinstance(found, RejectedStrategy):
            refusals.append(found)
            continue
        plans += found
        if known is PIPELINE and GPIPE.key not in wanted and workload.trains:
            refusals.append(gpipe_note(comfortable, found[-1]))
    return plans, refusals


def _without_twins(plans: Sequence[Plan]) -> list[Plan]:
    """Remove duplicates, because subsets of Gpus may lead to the same Plan."""
    kept: dict[object, Plan] = {}
    for one in plans:
        key = (one.title, one.gpu_uuids, one.bounds, one.workload.accumulation)
        kept.setdefault(key, one)
    return list(kept.values())


def _merged(
    refusals: Sequence[RejectedStrategy], planned: set[str]
) -> tuple[RejectedStrategy, ...]:
    """Return one Refusal per strategy: that of the Node that came nearest.

    A strategy that some Node can run is not refused, except GPipe's comparison.
    """
    best: dict[str, RejectedStrategy] = {}
    for one in refusals:
        if one.strategy in planned:
            continue
        known = best.get(one.strategy)
        if known is None or _nearness(one) < _nearness(known):
            best[one.strategy] = one
    return tuple(
        sorted(best.values(), key=lambda one: STRATEGIES[one.strategy].slow_link_place)
    )


def _nearness(one: RejectedStrategy) -> tuple[bool, int, str]:
    return (one.code == "not-applicable", one.missing_bytes, one.gpu_label)


def quantizer_of(spec: ModelSpec, workload: Workload) -> Quantize | None:
    """Return how this model's weights are quantized; None if they must not be.

    Only weights that are never stepped: those of inference, and the frozen ones of
    LoRA.
    """
    parts = [part for layer in spec.layers for part in layer.parts]
    large = [part for part in parts if part.component in ("attention", "mlp")]
    if workload.trains and not (large and all(part.frozen for part in large)):
        return None
    if any(part.weight_bits is not None for part in parts):
        return None

    def quantize(model: ModelSpec, weights: Weights) -> ModelSpec:
        if weights == "full":
            return model
        return with_quantized(model, weights)

    try:
        quantize(spec, "int8")
    except SpecInvalid:
        return None
    return quantize


def even_batches(workload: Workload, gpus: int) -> tuple[int, ...]:
    """Return the nearest batches that divide evenly over all Gpus, the smaller one
    first.

    (): the requested batch does, too.
    """
    batch = workload.batch
    if not workload.trains or gpus < 2 or not batch % gpus:
        return ()
    below = batch // gpus * gpus
    return tuple(one for one in (below, below + gpus) if one)


def _batch_notes(workload: Workload, gpus: int) -> tuple[str, ...]:
    choices = even_batches(workload, gpus)
    if not choices:
        return ()
    return (
        sentence(
            "A batch of {batch} divides evenly over {even} of the {gpus} GPUs only. "
            "The plans keep it. A batch of {choices} would divide evenly over all of "
            "them.",
            batch=workload.batch,
            even=max(n for n in divisors(workload.batch) if n <= gpus),
            gpus=gpus,
            choices=either(str(one) for one in choices),
        ),
    )


def _notes(spec: ModelSpec, usable: Sequence[GpuOffer]) -> tuple[str, ...]:
    notes: list[str] = []
    joined = _joined(usable)
    slowest = min((offer.network_bytes_per_second for offer in joined), default=0.0)
    nodes = {offer.node for offer in joined or usable}
    if len(nodes) > 1 and not joined:
        notes.append(
            sentence(
                "The network speed between the nodes is not set (placement policy; "
                "network_bytes_per_second in a file of GPUs), so the {nodes} were "
                "planned one by one.",
                nodes=counted("{n} node", "{n} nodes", len(nodes)),
            )
        )
    elif len(nodes) > 1:
        notes.append(
            sentence(
                "Plans over several nodes count {slowest} GB/s between them.",
                slowest=f"{slowest / 1e9:.3g}",
            )
        )
    if spec.activation_ratio != 1.0:
        notes.append(
            sentence(
                "The model's own code was followed on one GPU (symbolic estimate). The "
                "closed form differs by more than a tenth, so its activations count "
                "{ratio} times.",
                ratio=f"{spec.activation_ratio:.3g}",
            )
        )
    if spec.activations_are_a_guess:
        notes.append(
            sentence(
                "Activations are a guess: the file names tensors, not how they are "
                "used."
            )
        )
    notes += spec.notes
    return tuple(notes)
