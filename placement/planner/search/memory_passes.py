"""The passes over a Gpu's memory beside the matrix products: optimizer, loss, copies.

Seconds = bytes / (the data sheet's bandwidth x STREAM_RATIO x share of the card). The
bytes are those that each operator of torch reads and writes, from its sources. Nothing
is fitted to a measurement. A microbatch never takes less than the start of its kernels.
docs/accuracy.md has these seconds beside measured steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.planner.memory.layer_costs import LayerCost
from placement.planner.memory.parameter_states import widths
from placement.planner.model.sharding import Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.search.step_time import memory_rate
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.workload import Workload

STREAM_RATIO = 0.9
"""Part of the data sheet's bandwidth that elementwise kernels reach. A prior:
BabelStream's triad reaches 0.88 to 0.92 on A100 and H100 (github.com/UoB-HPC).
"""
LOSS_BYTES = 52.0
"""Bytes that torch's cross entropy moves for each 16-bit logit. transformers converts
logits to fp32 (2 + 4). log_softmax reads them three times, for the maximum, the sum and
the result, and writes it (16): a row of a large vocabulary fits into no cache. Backward
writes the gradient of the result (4), and reads both twice to write that of the logits
(20), which is converted back (4 + 2) (aten/src/ATen/native/cuda/SoftMax.cu).
"""
WIDE_LOSS_BYTES = 40.0
"""The same of fp32 logits, which are not converted."""
GELU_BYTES = 194.0
"""Bytes for each element of transformers' NewGELUActivation on CUDA under autocast,
which computes the cube in fp32, and with it all that follows. Forward: 0.5 x (4), x in
fp32 (6), the cube (8), times 0.044715 (8), plus x (10), times the root of 2 / pi (8),
tanh (8), plus 1 (8), the product (10), 16 bits (6). Backward: a cast (6), the factors
(10, 12 and a cast of 6), tanh (12), the constants (8, 8, 4), casts (6, 6), the cube
(28), two sums of gradients (12).
"""
GELU_FORWARD_BYTES = 76.0
"""Its forward pass, which recomputation repeats."""
CAST_BYTES = 12.0
"""Autocast: bytes for each weight of a microbatch. fp32 is read and 16 bits are written
in forward, and the reverse for the gradient in backward.
"""
SUM_PASSES = 3.0
"""Accumulation: a gradient and its sum are read, and the sum is written. Megatron-LM's
products add to the sum themselves, at no pass (gradient accumulation fusion).
"""
GATHER_PASSES = 4.0
"""FSDP: gathered weights are copied out of the buffer of their collective, in forward
and in backward. Each copy is a read and a write.
"""
SCATTER_PASSES = 2.0
"""FSDP: gradients are copied into the buffer of their collective."""
ACCESSES: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "adamw": {"fused": (2, 1, 4), "foreach": (4, 2, 14)},
    "adam": {"fused": (2, 1, 4), "foreach": (2, 2, 14)},
    "momentum": {"fused": (2, 1, 2), "foreach": (2, 1, 5)},
    "sgd": {"fused": (2, 1, 0), "foreach": (2, 1, 0)},
}
"""Optimizer, loop -> how often a step reads or writes each element of the weights, the
gradients, and the moments with the temporaries. fused: everything once. foreach and
for-loop: every operation of torch/optim/adamw.py and sgd.py passes over memory. Of
AdamW: mul (weights), lerp (first moment, gradient), mul and addcmul (second moment,
gradient), sqrt, div and add (temporary), addcdiv (weights, first moment, temporary).
"""
OTHER_ACCESSES = (2.0, 1.0)
"""Other optimizers: weights and gradients once, and their state is read and written
once. This is the least.
"""
FORWARD_BLOCK_SECONDS = 1.8e-3
"""The least time of one block of a transformers' model in forward, in which Python
starts each kernel: 57 ms for the 32 blocks of Llama 3 8B on an H200, for one token of 1
and of 32 sequences (tests/data/memory/measured_h200.json). It depends on the processor.
"""
TRAINED_BLOCK_SECONDS = 2.9e-3
"""Its least time in forward and backward: `bench/compute_rate.py` on an H200. torch's
autograd starts the kernels of backward without Python.
"""
STARTED_KINDS = ("block", "encoder", "decoder")
"""Layers of transformers' models. The least time of others was not measured."""


@dataclass(frozen=True, slots=True)
class MemoryPasses:
    """The bytes that layers move beside their matrix products, by how often they do."""

    token_bytes: float
    """Of each microbatch. They grow with its tokens."""
    weight_bytes: float
    """Of each microbatch, whatever its size."""
    summed_bytes: float
    """Of each microbatch after the first one: gradients are added to their sum."""
    updated_bytes: float
    """Of each step: the optimizer."""
    start_seconds: float = 0.0
    """Least time of a microbatch, in which its kernels are started."""

    def of_rank(
        self, runs: int, stage: int, parts: int, tokens_ratio: float = 1.0
    ) -> tuple[float, float]:
        """Return the mean bytes of a microbatch, and those of the optimizer in a step.

        Args:
            runs: microbatches of the step.
            stage: of ZeRO, which divides summed gradients and the optimizer.
            parts: ranks that share what the stage divides.
            tokens_ratio: tokens of a microbatch, over those that were counted.
        """
        summed = self.summed_bytes * (runs - 1) / runs
        if stage >= 2:
            summed /= parts
        each = tokens_ratio * self.token_bytes + self.weight_bytes + summed
        return each, self.updated_bytes / (parts if stage else 1)


@dataclass(frozen=True, slots=True)
class RankTime:
    """The time that a rank computes: for each microbatch, and once in a step."""

    each_seconds: float
    once_seconds: float = 0.0

    def step_seconds(self, runs: int) -> float:
        """Return the time of a step of so many microbatches."""
        return runs * self.each_seconds + self.once_seconds


def memory_bandwidth(offer: GpuOffer) -> float:
    """Return the bytes per second of a Gpu's memory that elementwise kernels reach."""
    return STREAM_RATIO * memory_rate(offer)


def memory_passes(
    costs: Sequence[LayerCost],
    spec: ModelSpec,
    workload: Workload,
    *,
    tokens: float,
    fetched: bool,
    tensor_degree: int = 1,
) -> MemoryPasses:
    """Return the passes of layers on one rank.

    Args:
        costs: of the layers, for one microbatch.
        spec: the model.
        workload: what runs. An offloaded optimizer passes over the node's memory.
        tokens: of one microbatch.
        fetched: the weights are gathered for each layer (FSDP).
        tensor_degree: ranks over which each layer is cut.
    """
    start = start_seconds(costs, workload)
    if not workload.trains:
        return MemoryPasses(0.0, 0.0, 0.0, 0.0, start)
    width = widths(workload)
    trained = sum(cost.trained_elements for cost in costs)
    wide = width.compute >= 4
    logits = sum(cost.logits_bytes for cost in costs) / width.compute
    by_token = logits * (WIDE_LOSS_BYTES if wide else LOSS_BYTES)
    by_weight = 0.0
    if fetched:
        by_weight += GATHER_PASSES * sum(cost.gathered_bytes for cost in costs)
        by_weight += SCATTER_PASSES * width.compute * trained
    elif width.autocast:
        by_weight += CAST_BYTES * trained
    if width.autocast:
        by_token += _gelu_bytes(costs, spec, workload, tokens) / tensor_degree
    fused_sum = workload.precision == "megatron_bf16"
    gradients = 0.0 if fused_sum else sum(cost.gradient_bytes for cost in costs)
    kept = workload.offload == "none"
    updated = sum(_update_bytes(cost, workload) for cost in costs) if kept else 0.0
    return MemoryPasses(by_token, by_weight, SUM_PASSES * gradients, updated, start)


def start_seconds(costs: Sequence[LayerCost], workload: Workload) -> float:
    """Return the least time of a microbatch, in which the kernels of its blocks are
    started. Recomputation starts those of forward twice. A processor starts none.
    """
    if workload.accelerator == "cpu":
        return 0.0
    each = FORWARD_BLOCK_SECONDS
    if workload.trains:
        each = TRAINED_BLOCK_SECONDS
        if workload.checkpointing == "full":
            each += FORWARD_BLOCK_SECONDS
    return each * sum(cost.kind in STARTED_KINDS for cost in costs)


def rank_time(
    products: float,
    passes: MemoryPasses,
    bandwidth: float,
    *,
    runs: int,
    sharding: Sharding,
) -> RankTime:
    """Return the time that a rank computes.

    Args:
        products: seconds of the matrix products of one microbatch.
        passes: of the rank's layers.
        bandwidth: of its Gpu (`memory_bandwidth`).
        runs: microbatches of a step.
        sharding: of the rank.
    """
    each, once = passes.of_rank(runs, sharding.stage, sharding.shard_degree)
    busy = max(products + each / bandwidth, passes.start_seconds)
    return RankTime(busy, once / bandwidth)


def _gelu_bytes(
    costs: Sequence[LayerCost], spec: ModelSpec, workload: Workload, tokens: float
) -> float:
    """Return the bytes of GELUs of several operators, which autocast widens.

    They count with FSDP too: accelerate and transformers' Trainer run it inside
    autocast. The portal's recipes do not.
    """
    shape = spec.shape
    if shape is None or shape.activation != "gelu_new":
        return 0.0
    blocks = sum(cost.kind not in ("embedding", "head") for cost in costs)
    each = GELU_BYTES
    if workload.checkpointing == "full":
        each += GELU_FORWARD_BYTES
    return each * blocks * tokens * shape.intermediate


def _update_bytes(cost: LayerCost, workload: Workload) -> float:
    """Return the bytes that one step of the optimizer moves for a layer."""
    width = widths(workload)
    stepped = width.master or width.parameter
    loop = "fused" if workload.optimizer_loop == "fused" else "foreach"
    known = ACCESSES.get(workload.optimizer)
    if known is None:
        weights, gradients = OTHER_ACCESSES
        each = weights * stepped + gradients * width.gradient
        return each * cost.trained_elements + 2 * cost.optimizer_bytes
    weights, gradients, moments = known[loop]
    each = weights * stepped + gradients * width.gradient + moments * cost.moment_width
    return each * cost.trained_elements
