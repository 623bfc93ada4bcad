"""The table of contents of placement: from a model and Gpus to ranked Plans.

`plan` asks, Node by Node (a Job runs on one Node), for each strategy: does it fit the
memory that is really free, what must change for it to fit, how long is a step? What
loses says why. Order of choice, PLACEMENT.md section 3: one Gpu if it fits; copies
before cut models; pipeline before FSDP where links are slow; mild remedies before
harsh ones.

Keys of `Plan.launch`: engine, strategy, nproc, gpu_uuids, fast_links, task, batch,
microbatch, sequence_length, accumulation, precision, optimizer, optimizer_loop,
checkpointing, attention, offload_optimizer; for copies zero_stage, shares,
gradient_as_bucket_view, reduce_bucket_size; for pipelines schedule, microbatches,
bounds; for tensor parallelism tensor_degree.
"""

from collections.abc import Sequence
from dataclasses import replace

from placement.domain.candidates.whole import data_parallel, single, zero1_uneven
from placement.domain.candidates.staged import gpipe_note, pipeline
from placement.domain.candidates.tensor import tensor
from placement.domain.errors import PlanInvalid
from placement.domain.offer import GpuOffer, check_offers
from placement.domain.plan import LeftOut, Plan, PlanSet, Refusal
from placement.domain.remedies import Limits
from placement.domain.candidates.hunt import Search, refusal
from placement.domain.spec import ModelSpec
from placement.domain.validate import validate
from placement.domain.words import plural
from placement.domain.workload import Workload

SLOW_LINK_ORDER = (
    "single",
    "ddp",
    "zero1",
    "zero1_uneven",
    "pipeline",
    "zero2",
    "fsdp",
    "tensor",
)
FAST_LINK_ORDER = (
    "single",
    "ddp",
    "zero1",
    "zero1_uneven",
    "zero2",
    "fsdp",
    "tensor",
    "pipeline",
)
MAX_OFFERS = 1024


def plan(
    spec: ModelSpec,
    workload: Workload,
    offers: Sequence[GpuOffer],
    *,
    max_gpus: int | None = None,
    limits: Limits | None = None,
) -> PlanSet:
    """Ranked Plans and the strategies that lost. Deterministic.

    Raises OffersInvalid for offers that contradict themselves. Without a usable Gpu
    the answer has no Plans and one Refusal that says so.
    """
    check_offers(offers)
    allowed = limits or Limits()
    if max_gpus is not None:
        allowed = replace(allowed, max_gpus=max_gpus)
    usable = [offer for offer in offers if offer.usable][:MAX_OFFERS]
    plans: list[Plan] = []
    refusals: list[Refusal] = []
    nodes = sorted({offer.node for offer in usable})
    for node in nodes:
        here = tuple(
            sorted(
                (offer for offer in usable if offer.node == node),
                key=lambda offer: offer.index,
            )
        )
        made, lost = plan_node(spec, workload, here, allowed)
        plans += made
        refusals += lost
    if not usable:
        refusals.append(
            refusal("single", "No GPU is free to be used: see why each is left out.")
        )
    plans.sort(key=_rank_key)
    for one in plans:
        validate(one, offers)
    return PlanSet(
        model=spec.name,
        workload=workload,
        plans=tuple(plans),
        refusals=_merged(refusals, {one.strategy for one in plans}),
        left_out=tuple(
            LeftOut(
                gpu_label=offer.label,
                gpu_uuid=offer.uuid,
                reason=offer.reason or "no free memory",
            )
            for offer in offers
            if not offer.usable
        ),
        notes=_notes(spec, nodes),
    )


def plan_node(
    spec: ModelSpec,
    workload: Workload,
    offers: tuple[GpuOffer, ...],
    limits: Limits,
) -> tuple[list[Plan], list[Refusal]]:
    """Plans and Refusals on one Node: by the likely need, or else the least one."""
    comfortable = Search(spec, workload, offers, limits)
    tight = Search(
        spec, workload, offers, limits, tight=True, cost_cache=comfortable.cost_cache
    )
    plans: list[Plan] = []
    refusals: list[Refusal] = []
    for strategy in SLOW_LINK_ORDER:
        found = _try(comfortable, strategy)
        if isinstance(found, Refusal) and found.code == "too_small":
            by_least = _try(tight, strategy)
            if not isinstance(by_least, Refusal):
                found = by_least
        if isinstance(found, Refusal):
            refusals.append(found)
            continue
        plans += found
        if strategy == "pipeline" and workload.trains:
            refusals.append(gpipe_note(comfortable, found[-1]))
    return plans, refusals


def _try(hunt: Search, strategy: str) -> list[Plan] | Refusal:
    """One strategy on one Node."""
    if strategy == "single":
        return single(hunt)
    if strategy == "zero1_uneven":
        return zero1_uneven(hunt)
    if strategy == "pipeline":
        return pipeline(hunt)
    if strategy == "tensor":
        return tensor(hunt)
    for name in ("ddp", "zero1", "zero2", "fsdp"):
        if strategy == name:
            return data_parallel(hunt, name)
    raise PlanInvalid([f"no such strategy: {strategy}"])


def _rank_key(one: Plan) -> tuple[object, ...]:
    """Best first: comfortable, mild remedies, order of choice, fewer Gpus, faster."""
    order = FAST_LINK_ORDER if one.launch["fast_links"] else SLOW_LINK_ORDER
    return (
        one.fit == "tight",
        bool(one.launch["offload_optimizer"]),
        one.workload.optimizer == "adam8bit",
        one.launch["engine"] != "torch",
        order.index(one.strategy),
        len(one.shards),
        one.step_seconds,
        one.node,
    )


def _merged(refusals: Sequence[Refusal], planned: set[str]) -> tuple[Refusal, ...]:
    """One Refusal per strategy: that of the Node which came nearest.

    A strategy that some Node can run is not refused, except GPipe's comparison.
    """
    best: dict[str, Refusal] = {}
    for one in refusals:
        if one.strategy in planned:
            continue
        known = best.get(one.strategy)
        if known is None or _nearness(one) < _nearness(known):
            best[one.strategy] = one
    order = (*SLOW_LINK_ORDER, "gpipe")
    return tuple(sorted(best.values(), key=lambda one: order.index(one.strategy)))


def _nearness(one: Refusal) -> tuple[bool, int]:
    return (one.code == "not_applicable", one.missing_bytes)


def _notes(spec: ModelSpec, nodes: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if len(nodes) > 1:
        notes.append(
            f"A job runs on one node, so the {plural(len(nodes), 'node')} were planned "
            "one by one."
        )
    if spec.activations_are_a_guess:
        notes.append(
            "Activations are a guess: the file names tensors, not how they are used."
        )
    return tuple(notes)
