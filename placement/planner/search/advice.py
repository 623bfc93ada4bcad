"""Advice if no Plan is sensible: train adapters only, or use more Gpus.

See docs/design/placement.md#sensible-steps.
"""

from collections.abc import Sequence
from dataclasses import replace

from placement.planner.model.adaptation import ALL_LINEAR, with_lora, with_quantized
from placement.planner.model.sharding import Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.search.candidates.cluster_grid import cluster_grids
from placement.planner.search.candidates.data_parallel import data_parallel, single
from placement.planner.search.candidates.hybrid import hybrid
from placement.planner.search.candidates.pipeline import pipeline
from placement.planner.search.candidates.search_context import Caches, SearchContext
from placement.planner.search.candidates.tensor_parallel import tensor
from placement.planner.search.link_bandwidth import BYTES_PER_SECOND, UNKNOWN
from placement.planner.search.memory_savings import Setting, Weights
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.objective import offloads, rank_key
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import FSDP
from telemetry.protocol.sentences import counted, sentence

LORA_RANK = 16
"""Rank of the advised adapters. PEFT's examples use 8 to 64, and memory hardly depends
on it.
"""
MOST_GPUS = 2**15
"""Numbers of Gpus that are tried."""
MOST_GRID_GPUS = 1024
"""The most Gpus that are tried with cut layers. Each number takes a search."""
CALL_GPUS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of Gpus that are tried for inference."""
GPUS_PER_NODE = 8
"""Gpus of a node of which nothing is known."""


def advice(context: SearchContext, usable: Sequence[GpuOffer]) -> str:
    """Return an alternative to the request, in one sentence.

    Args:
        context: the search for the request; its offers are not used.
        usable: the Gpus that a Plan may use.
    """
    ways: list[str] = []
    lora = _with_lora(context, usable) if context.asked.trains else None
    if lora is not None:
        ways.append(
            sentence(
                "train with LoRA (fits on {gpus} here)",
                gpus=counted("{n} GPU", "{n} GPUs", len(lora.shards)),
            )
        )
    elif not context.asked.trains and _in_4_bits(context, usable):
        ways.append(sentence("store the weights in 4 bits"))
    more = _more_gpus(context, usable)
    if more:
        ways.append(
            sentence(
                "take {gpus} like {name}",
                gpus=counted("{n} GPU", "{n} GPUs", more),
                name=_roomiest(usable).name,
            )
        )
    ways = ways or [sentence("use a smaller model or larger GPUs")]
    if len(ways) == 1:
        return sentence("It does not fit sensibly on these GPUs: {way}.", way=ways[0])
    return sentence(
        "It does not fit sensibly on these GPUs: {way}, or {other}.",
        way=ways[0],
        other=ways[1],
    )


def _roomiest(usable: Sequence[GpuOffer]) -> GpuOffer:
    return max(usable, key=lambda one: (one.free_bytes, one.peak_flops, one.uuid))


def _with_lora(context: SearchContext, usable: Sequence[GpuOffer]) -> Plan | None:
    """Return the best sensible Plan of a Node that trains adapters only."""
    try:
        spec = with_lora(context.spec, rank=LORA_RANK, targets=(ALL_LINEAR,))
    except SpecInvalid:
        return None
    node = _roomiest(usable).node
    adapters = replace(
        context,
        spec=spec,
        offers=tuple(offer for offer in usable if offer.node == node),
        limits=replace(context.limits, strategies=(), offload=False),
        quantize=_quantized if _can_be_quantized(spec) else None,
        caches=Caches(),
        links={},
    )
    found = [single(adapters), data_parallel(adapters, FSDP.key)]
    plans = [
        one
        for made in found
        if isinstance(made, list)
        for one in made
        if not one.absurd and not offloads(one)
    ]
    return min(plans, key=rank_key, default=None)


def _in_4_bits(context: SearchContext, usable: Sequence[GpuOffer]) -> bool:
    """Return whether a sensible Plan of a Node stores the weights in 4 bits.

    The search has tried it unless its limits forbid it.
    """
    if context.limits.quantization or not _can_be_quantized(context.spec):
        return False
    node = _roomiest(usable).node
    packed = replace(
        context,
        offers=tuple(offer for offer in usable if offer.node == node),
        limits=replace(context.limits, strategies=(), quantization=True, offload=False),
        quantize=_quantized,
        caches=Caches(),
        links={},
    )
    return any(
        isinstance(found, list) and any(not one.absurd for one in found)
        for found in (search(packed) for search in (single, tensor, pipeline))
    )


def _can_be_quantized(spec: ModelSpec) -> bool:
    try:
        with_quantized(spec, "nf4")
    except SpecInvalid:
        return False
    return True


def _quantized(spec: ModelSpec, weights: Weights) -> ModelSpec:
    return spec if weights == "full" else with_quantized(spec, weights)


def _more_gpus(context: SearchContext, usable: Sequence[GpuOffer]) -> int:
    """Return how many Gpus like the roomiest one hold the model sharded over all of
    them.

    0: not even `MOST_GPUS` do, or `CALL_GPUS` for inference.
    """
    card = _roomiest(usable)
    if not context.asked.trains:
        return _more_for_a_call(context, card, len(usable))
    one_card = replace(context, offers=(card,), links={})
    workload = context.asked
    if workload.trains and context.limits.checkpointing:
        workload = workload.replace(checkpointing="full")
    count = 2
    while count <= MOST_GPUS:
        setting = Setting(workload.replace(batch=max(count, workload.batch)))
        sharding = Sharding(strategy=FSDP.key, data_degree=count)
        if count > len(usable) and one_card.need_bytes(setting, sharding) <= (
            card.free_bytes
        ):
            return count
        count *= 2
    return _more_for_a_grid(context, card, len(usable))


def _more_for_a_grid(context: SearchContext, card: GpuOffer, there: int) -> int:
    """Return how many Gpus train a model of which one block is too large for a Gpu.

    Its blocks are cut too: by tensor parallelism, or by their experts.
    """
    count = 2 * GPUS_PER_NODE
    while count <= MOST_GRID_GPUS:
        if count > there:
            found = cluster_grids(_with_gpus(context, card, count))
            if any(not one.absurd for one in found):
                return count
        count *= 2
    return 0


def _more_for_a_call(context: SearchContext, card: GpuOffer, there: int) -> int:
    """Return how many Gpus hold the weights of a model that only answers calls."""
    for count in CALL_GPUS:
        if count <= there:
            continue
        more = _with_gpus(context, card, count)
        for search in (tensor, pipeline, hybrid):
            found = search(more)
            if isinstance(found, list) and any(not one.absurd for one in found):
                return count
    return 0


def _with_gpus(context: SearchContext, card: GpuOffer, count: int) -> SearchContext:
    """Return the search among so many Gpus like a card, with the weights on them."""
    return replace(
        context,
        offers=tuple(_like(card, number) for number in range(count)),
        limits=replace(
            context.limits,
            strategies=(),
            max_gpus=None,
            offload=False,
            quantization=False,
        ),
        caches=Caches(),
        links={},
        tight=False,
        _room=None,
        _near=None,
        _fast=None,
    )


def _like(card: GpuOffer, number: int) -> GpuOffer:
    """Return another Gpu like a card, in a row of nodes of `GPUS_PER_NODE`."""
    node, index = divmod(number, GPUS_PER_NODE)
    return replace(
        card,
        uuid=f"{card.uuid}-{number}",
        node=f"{card.node}-{node}",
        index=index,
        link_group=card.link_group and f"{card.link_group}-{node}",
        links=(),
        network_bytes_per_second=card.network_bytes_per_second
        or BYTES_PER_SECOND[UNKNOWN],
    )
