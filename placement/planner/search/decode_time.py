"""The time of one more token after the prompt has been read.

A decoder makes one token after another. Each token reads all used weights and the whole
cache once, so it waits for memory, not for arithmetic (Pope et al., "Efficiently
Scaling Transformer Inference", MLSys 2023, arXiv:2211.05102, section 2). Seconds =
(weights + cache) / (memory bandwidth x MEMORY_RATIO x share of the card), for each
stage in turn, and the time for transfers between its Gpus.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.planner.memory.layer_costs import LayerCost
from placement.planner.model.sharding import Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.search.link_bandwidth import SlowestLink
from placement.planner.search.step_time import (
    PCIE_BYTES_PER_SECOND,
    all_reduce_bytes,
    memory_rate,
)
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.workload import Workload

MEMORY_RATIO = 0.6
"""Part of the data sheet's bandwidth that decoding reaches. A prior: Databricks, "LLM
Inference Performance Engineering: Best Practices" (2023), measured 0.5 to 0.6.
"""
LATENCY_SECONDS = 10e-6
"""One small all-reduce between Gpus of a node (NCCL's tests report 10 to 20 us)."""


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """The time of one more token of every sequence."""

    seconds: float
    tokens_per_second: float
    """Of all sequences of the batch together."""
    loop_seconds: float = 0.0
    """The least in transformers' own loop, where Python starts each kernel."""


def bandwidth(offer: GpuOffer) -> float:
    """Return the bytes per second of a Gpu's memory that decoding reaches."""
    return MEMORY_RATIO * memory_rate(offer)


def read_bytes(
    costs: Sequence[LayerCost], spec: ModelSpec, sequences: int, sharding: Sharding
) -> tuple[float, float]:
    """Return (weights, cache) that one token of each sequence reads on one rank.

    Of the experts those count that some sequence uses: with k of E for each of B
    tokens, a fair router uses 1 - (1 - k / E)^B of them.
    """
    weights = cache = 0.0
    routed = _taken_ratio(spec, sequences)
    for cost in costs:
        cache += cost.cache_bytes
        if cost.kind == "embedding":
            continue
        width = cost.gathered_bytes / max(1, cost.elements)
        unused = cost.expert_elements * width * (1 - routed)
        weights += cost.gathered_bytes - unused
        if cost.kind == "head" and cost.tied_elements:
            weights += cost.tied_elements * _table_width(costs, width)
    return weights, cache


def _table_width(costs: Sequence[LayerCost], width: float) -> float:
    """Return the bytes of one element of the token table that the head uses too."""
    first = costs[0]
    if first.kind != "embedding":
        return width
    return first.gathered_bytes / max(1, first.elements)


def _taken_ratio(spec: ModelSpec, sequences: int) -> float:
    shape = spec.shape
    if shape is None or not shape.experts:
        return 1.0
    return float(1 - (1 - shape.experts_run / shape.experts) ** sequences)


def rank_seconds(
    costs: Sequence[LayerCost],
    spec: ModelSpec,
    workload: Workload,
    sharding: Sharding,
    offer: GpuOffer,
    link: SlowestLink,
) -> float:
    """Return the time of one token of a rank's sequences: memory, host memory, and
    other Gpus.
    """
    sequences = workload.microbatch(sharding.data_degree)
    weights, cache = read_bytes(costs, spec, sequences, sharding)
    spent = (weights + cache) / bandwidth(offer)
    if workload.offload_parameters:
        # Whole layers come from the node's memory for every token, unused experts too.
        streamed = sum(cost.gathered_bytes for cost in costs)
        spent = streamed / PCIE_BYTES_PER_SECOND + cache / bandwidth(offer)
    degree = sharding.data_degree
    if sharding.stage == 3 and degree > 1:
        spent += weights * (degree - 1) / degree / link.bytes_per_second
    if sharding.tensor_degree > 1:
        inner = [cost for cost in costs if cost.kind not in ("embedding", "head")]
        stream = sum(cost.output_bytes for cost in inner) / max(1, _length(workload))
        moved = 2 * all_reduce_bytes(stream, sharding.tensor_degree)
        spent += moved / link.bytes_per_second + 2 * LATENCY_SECONDS * len(inner)
    return spent


def _length(workload: Workload) -> int:
    return workload.target_length or workload.sequence_length


def is_generated(spec: ModelSpec, workload: Workload) -> bool:
    """Return whether the model makes one token after another."""
    return not workload.trains and spec.head in ("causal_lm", "seq2seq_lm")
