"""Advice if no Plan is sensible: train adapters only, or use more Gpus.

See docs/design/placement.md#sensible-steps.
"""

from collections.abc import Sequence
from dataclasses import replace

from placement.planner.model.adaptation import ALL_LINEAR, with_lora, with_quantized
from placement.planner.model.sharding import Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.search.candidates.data_parallel import data_parallel, single
from placement.planner.search.candidates.search_context import Caches, SearchContext
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
    elif not context.asked.trains and context.limits.quantization:
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

    0: not even `MOST_GPUS` do.
    """
    card = _roomiest(usable)
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
    return 0
