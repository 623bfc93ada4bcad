"""Bytes per parameter of weights, gradients and optimizer, by precision and optimizer.

PLACEMENT.md 1.1. Weights and gradients are countable to the byte; the optimizers'
states follow torch.optim 2.13 (Adam's one 4-byte step per tensor included),
bitsandbytes for 8-bit Adam, and the ZeRO paper (arXiv:1910.02054) for mixed fp16.
"""

from dataclasses import dataclass

from placement.domain.spec import LayerSpec, Part
from placement.domain.workload import Workload

BITSANDBYTES_BLOCK = 256
"""bitsandbytes keeps one fp32 maximum per block and moment."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes per parameter element."""

    parameter: float
    """The weights the model computes with."""
    gradient: float
    compute: float
    """Activations: outputs of matrix products."""
    residual: float
    """The residual stream."""
    master: float
    """An extra fp32 copy that the optimizer steps."""
    moment: float
    """One optimizer moment."""
    autocast: bool


_FP32 = Widths(4, 4, 4, 4, 0, 4, False)
_PURE_16 = Widths(2, 2, 2, 2, 0, 2, False)
_BY_PRECISION = {
    "fp32": _FP32,
    "bf16": _PURE_16,
    "fp16": _PURE_16,
    "autocast_bf16": Widths(4, 4, 2, 4, 0, 4, True),
    "autocast_fp16": Widths(4, 4, 2, 4, 0, 4, True),
    "mixed_fp16": Widths(2, 2, 2, 2, 4, 4, False),
    "megatron_bf16": Widths(2, 4, 2, 2, 4, 4, False),
}


def widths(workload: Workload) -> Widths:
    """Bytes per element for a Workload's precision."""
    return _BY_PRECISION[workload.precision]


def tensor_parallel_part(one: Part, degree: int) -> int:
    """Elements of a Part on one of `degree` tensor-parallel ranks.

    Norms and routers are whole on each rank; of attention, MLP, tables and heads each
    rank has its share, biases included.
    """
    if degree == 1 or one.component in ("norm", "router", "other"):
        return one.parameters
    return -(-one.parameters // degree)


def layer_elements(layer: LayerSpec, degree: int = 1) -> int:
    """Elements that this layer owns on one tensor-parallel rank."""
    if degree == 1:
        return layer.parameters
    return sum(tensor_parallel_part(one, degree) for one in layer.parts)


def optimizer_bytes(layer: LayerSpec, workload: Workload, degree: int = 1) -> int:
    """Optimizer state of one layer on one rank, master copy included; 0 to infer."""
    if not workload.trains:
        return 0
    width = widths(workload)
    elements = layer_elements(layer, degree)
    master = int(width.master * elements)
    kind = workload.optimizer
    if kind == "sgd":
        return master
    if kind == "momentum":
        return master + int(width.moment * elements)
    if kind == "adafactor":
        edges = sum(
            part.edges if degree == 1 else -(-part.edges // degree)
            for part in layer.parts
        )
        return master + int(width.moment * edges) + 4 * layer.tensors
    if kind == "adam8bit":
        return master + 2 * elements + 8 * -(-elements // BITSANDBYTES_BLOCK)
    return master + 2 * int(width.moment * elements) + 4 * layer.tensors


def optimizer_temporary_bytes(
    workload: Workload, *, elements: int, largest: int
) -> int:
    """Alive for a moment inside optimizer.step(), besides the states.

    torch/optim/adam.py: the for-loop makes the square root of the second moment and
    its quotient (2 x the largest tensor); foreach makes the square roots of all
    tensors at once; fused makes nothing. SGD updates in place. Adafactor steps tensor
    by tensor, making one update at a time (torch/optim/_adafactor.py).
    """
    width = widths(workload).moment
    if workload.optimizer in ("sgd", "momentum", "adam8bit"):
        return 0
    if workload.optimizer == "adafactor":
        return int(width * largest)
    if workload.optimizer_loop == "fused":
        return 0
    if workload.optimizer_loop == "forloop":
        return int(2 * width * largest)
    return int(width * elements)
