"""The passes over a Gpu's memory beside the matrix products: optimizer, loss, copies.

Seconds = bytes / (the data sheet's bandwidth x STREAM_RATIO x share of the card). The
bytes are those that each operator of torch reads and writes, from its sources. Nothing
is fitted to a measurement. The ranking of Plans does not count these seconds: they are
shown beside the time of a step. docs/accuracy.md has both beside measured steps.
"""

from collections.abc import Mapping, Sequence

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


def memory_bandwidth(offer: GpuOffer) -> float:
    """Return the bytes per second of a Gpu's memory that elementwise kernels reach."""
    return STREAM_RATIO * memory_rate(offer)


def passed_bytes(
    costs: Sequence[LayerCost],
    spec: ModelSpec,
    workload: Workload,
    sharding: Sharding,
    *,
    tokens: float,
) -> float:
    """Return the bytes that one rank moves in a step, beside the matrix products.

    Args:
        costs: of the rank's layers, for one microbatch.
        spec: the model.
        workload: what runs. An offloaded optimizer passes over the node's memory.
        sharding: of the rank.
        tokens: of one microbatch.
    """
    if not workload.trains:
        return 0.0
    width = widths(workload)
    runs = max(sharding.microbatches, workload.accumulation)
    trained = sum(cost.trained_elements for cost in costs)
    gradients = sum(cost.gradient_bytes for cost in costs)
    stage, parts = sharding.stage, sharding.shard_degree
    fetched = stage == 3
    wide = width.compute >= 4
    logits = sum(cost.logits_bytes for cost in costs) / width.compute
    each = logits * (WIDE_LOSS_BYTES if wide else LOSS_BYTES)
    if fetched:
        each += GATHER_PASSES * sum(cost.gathered_bytes for cost in costs)
        each += SCATTER_PASSES * width.compute * trained
    elif width.autocast:
        gelu = _gelu_bytes(costs, spec, workload, tokens)
        each += CAST_BYTES * trained + gelu / sharding.tensor_degree
    if workload.precision != "megatron_bf16":
        summed = SUM_PASSES * gradients * (runs - 1) / runs
        each += summed / parts if stage >= 2 else summed
    if workload.offload != "none":
        return runs * each
    updated = sum(_update_bytes(cost, workload) for cost in costs)
    return runs * each + (updated / parts if stage else updated)


def _gelu_bytes(
    costs: Sequence[LayerCost], spec: ModelSpec, workload: Workload, tokens: float
) -> float:
    """Return the bytes of GELUs of several operators, which autocast widens."""
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
