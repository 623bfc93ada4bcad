"""Bytes per parameter of weights, gradients and optimizer, by precision and optimizer.

See docs/design/placement.md#states. Weights and gradients are countable to the byte;
the optimizers' states follow torch.optim 2.13 (Adam's one 4-byte step per tensor
included), bitsandbytes for 8-bit Adam, and the ZeRO paper (arXiv:1910.02054) for mixed
fp16. Frozen parameters are weights only; adapters are fp32 in everything (PEFT);
quantized weights take the bytes that their source says.
"""

from dataclasses import dataclass

from placement.planner.model.spec import LayerPart, LayerSpec
from placement.planner.values.workload import Workload

BITSANDBYTES_BLOCK = 256
"""bitsandbytes keeps one fp32 maximum per block and moment."""
ADAPTER_WIDTH = 4


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


@dataclass(frozen=True, slots=True)
class Cut:
    """How one rank's part of each layer is cut out of it."""

    tensor_degree: int = 1
    expert_degree: int = 1
    expert_tensor_degree: int = 1
    """Ranks that share one expert."""

    @property
    def is_whole(self) -> bool:
        """True if nothing is cut."""
        return self.tensor_degree * self.expert_degree * self.expert_tensor_degree == 1


WHOLE = Cut()


def widths(workload: Workload) -> Widths:
    """Bytes per element for a Workload's precision."""
    return _BY_PRECISION[workload.precision]


def tensor_parallel_part(one: LayerPart, degree: int) -> int:
    """Elements of a LayerPart on one of `degree` tensor-parallel ranks.

    Norms and routers are whole on each rank; of attention, MLP, tables and heads each
    rank has its share, biases included.
    """
    if degree == 1 or one.component in ("norm", "router", "other"):
        return one.parameters
    return -(-one.parameters // degree)


def part_elements(one: LayerPart, layer: LayerSpec, cut: Cut) -> int:
    """Elements of a LayerPart on one rank.

    Expert parallelism divides the stacked experts of a layer that routes. What every
    token takes beside them stays.
    """
    if cut.is_whole:
        return one.parameters
    if one.component != "mlp" or not _routes(layer):
        return tensor_parallel_part(one, cut.tensor_degree)
    stacked = stacked_elements(one)
    beside = -(-(one.parameters - stacked) // cut.tensor_degree)
    return beside + -(-stacked // (cut.expert_degree * cut.expert_tensor_degree))


def stacked_elements(one: LayerPart) -> int:
    """Elements of all experts of a LayerPart: what its named products do not have."""
    shared = sum(x.outputs * x.inputs * x.copies for x in one.linears)
    return max(0, one.parameters - shared)


def expert_elements(layer: LayerSpec, cut: Cut) -> int:
    """Elements of experts on one rank."""
    if not _routes(layer):
        return 0
    whole = sum(stacked_elements(one) for one in layer.parts if one.component == "mlp")
    return -(-whole // (cut.expert_degree * cut.expert_tensor_degree))


def _routes(layer: LayerSpec) -> bool:
    return any(one.component == "router" for one in layer.parts)


def layer_elements(layer: LayerSpec, degree: int = 1, cut: Cut | None = None) -> int:
    """Elements that this layer owns on one rank."""
    cut = cut or Cut(degree, expert_tensor_degree=degree)
    return sum(part_elements(one, layer, cut) for one in layer.parts)


def trained_elements(layer: LayerSpec, cut: Cut = WHOLE) -> int:
    """Those of them that have a gradient."""
    return sum(part_elements(one, layer, cut) for one in layer.parts if not one.frozen)


def parameter_bytes(layer: LayerSpec, workload: Workload, cut: Cut = WHOLE) -> int:
    """Weights of one layer on one rank."""
    width = widths(workload).parameter
    total = 0.0
    for one in layer.parts:
        elements = part_elements(one, layer, cut)
        if one.weight_bits is not None:
            total += one.stored_bytes * elements / max(1, one.parameters)
        elif one.component == "adapter":
            total += ADAPTER_WIDTH * elements
        else:
            total += width * elements
    return int(total)


def gradient_bytes(layer: LayerSpec, workload: Workload, cut: Cut = WHOLE) -> int:
    """Gradients of one layer on one rank; 0 to infer."""
    if not workload.trains:
        return 0
    width = widths(workload).gradient
    return int(
        sum(
            part_elements(one, layer, cut)
            * (ADAPTER_WIDTH if one.component == "adapter" else width)
            for one in layer.parts
            if not one.frozen
        )
    )


def optimizer_bytes(
    layer: LayerSpec, workload: Workload, degree: int = 1, cut: Cut | None = None
) -> int:
    """Optimizer state of one layer on one rank, master copy included; 0 to infer."""
    if not workload.trains:
        return 0
    cut = cut or Cut(degree, expert_tensor_degree=degree)
    return sum(
        _part_optimizer_bytes(one, part_elements(one, layer, cut), workload, cut)
        for one in layer.parts
        if not one.frozen
    )


def _part_optimizer_bytes(
    one: LayerPart, elements: int, workload: Workload, cut: Cut
) -> int:
    width = widths(workload)
    adapter = one.component == "adapter"
    moment = ADAPTER_WIDTH if adapter else width.moment
    master = 0 if adapter else int(width.master * elements)
    kind = workload.optimizer
    if kind == "sgd":
        return master
    if kind == "momentum":
        return master + int(moment * elements)
    if kind == "adafactor":
        edges = -(-one.edges // cut.tensor_degree)
        return master + int(moment * edges) + 4 * one.tensors
    if kind == "adam8bit":
        return master + 2 * elements + 8 * -(-elements // BITSANDBYTES_BLOCK)
    return master + 2 * int(moment * elements) + 4 * one.tensors


def optimizer_temporary_bytes(
    workload: Workload, *, elements: int, largest: int
) -> int:
    """Alive for a moment inside optimizer.step(), besides the states.

    torch/optim/adam.py: the for-loop makes the square root of the second moment and
    its quotient (2 x the largest tensor); foreach makes the square roots of all
    tensors at once; fused makes nothing. SGD updates in place. Adafactor steps tensor
    by tensor, making one update at a time (torch/optim/_adafactor.py). Megatron's
    optimizer is fused (Apex, TransformerEngine).
    """
    width = widths(workload).moment
    if workload.optimizer in ("sgd", "momentum", "adam8bit"):
        return 0
    if workload.precision == "megatron_bf16":
        return 0
    if workload.optimizer == "adafactor":
        return int(width * largest)
    if workload.optimizer_loop == "fused":
        return 0
    if workload.optimizer_loop == "forloop":
        return int(2 * width * largest)
    return int(width * elements)
