"""Bytes per parameter of weights, gradients and optimizer, by precision and optimizer.

See docs/design/placement.md#states. Weights and gradients are countable to the byte.
The optimizers' states follow torch.optim 2.13 (Adam's one 4-byte step per tensor
included), bitsandbytes for those in 8 bits, Lion's paper (arXiv:2302.06675), and the
ZeRO paper (arXiv:1910.02054) for mixed fp16. Frozen parameters are weights only.
Adapters are fp32 in all parts (PEFT). Quantized weights take the bytes of their source.
"""

from dataclasses import dataclass

from placement.planner.model.spec import LayerPart, LayerSpec
from placement.planner.values.workload import Workload

BITSANDBYTES_BLOCK = 256
"""bitsandbytes keeps one fp32 maximum per block and moment."""
ADAPTER_WIDTH = 4
EIGHT_BIT_MOMENTS = {"adam8bit": 2, "adamw8bit": 2, "lion8bit": 1, "rmsprop8bit": 1}
"""Optimizers of bitsandbytes (optim/adam.py, lion.py, rmsprop.py) and their moments."""
ONE_MOMENT = ("momentum", "lion", "rmsprop")


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes per parameter element."""

    parameter: float
    """Weights with which the model computes."""
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
    """The part of each layer on one rank."""

    tensor_degree: int = 1
    expert_degree: int = 1
    expert_tensor_degree: int = 1
    """Ranks that share one expert."""

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is cut."""
        return self.tensor_degree * self.expert_degree * self.expert_tensor_degree == 1


WHOLE = Cut()


def widths(workload: Workload) -> Widths:
    """Return bytes per element for a Workload's precision."""
    return _BY_PRECISION[workload.precision]


def tensor_parallel_part(one: LayerPart, degree: int) -> int:
    """Return elements of a LayerPart on one of `degree` tensor-parallel ranks.

    Norms and routers are whole on each rank. Of attention, MLP, tables and heads each
    rank has its share, biases included.
    """
    if degree == 1 or one.component in ("norm", "router", "other"):
        return one.parameters
    return -(-one.parameters // degree)


def part_elements(one: LayerPart, layer: LayerSpec, cut: Cut) -> int:
    """Return elements of a LayerPart on one rank.

    Expert parallelism divides the stacked experts of a layer with a router. The
    parameters that every token uses stay.
    """
    if cut.is_whole:
        return one.parameters
    if one.component != "mlp" or not _routes(layer):
        return tensor_parallel_part(one, cut.tensor_degree)
    stacked = stacked_elements(one)
    beside = -(-(one.parameters - stacked) // cut.tensor_degree)
    return beside + -(-stacked // (cut.expert_degree * cut.expert_tensor_degree))


def stacked_elements(one: LayerPart) -> int:
    """Return elements of all experts of a LayerPart, which its named products do not
    have.
    """
    shared = sum(x.outputs * x.inputs * x.copies for x in one.linears)
    return max(0, one.parameters - shared)


def expert_elements(layer: LayerSpec, cut: Cut) -> int:
    """Return elements of experts on one rank."""
    if not _routes(layer):
        return 0
    whole = sum(stacked_elements(one) for one in layer.parts if one.component == "mlp")
    return -(-whole // (cut.expert_degree * cut.expert_tensor_degree))


def _routes(layer: LayerSpec) -> bool:
    return any(one.component == "router" for one in layer.parts)


def layer_elements(layer: LayerSpec, cut: Cut = WHOLE) -> int:
    """Return the elements that this layer owns on one rank."""
    return sum(part_elements(one, layer, cut) for one in layer.parts)


def trained_elements(layer: LayerSpec, cut: Cut = WHOLE) -> int:
    """Return the elements of this layer on one rank that have a gradient."""
    return sum(part_elements(one, layer, cut) for one in layer.parts if not one.frozen)


def parameter_bytes(layer: LayerSpec, workload: Workload, cut: Cut = WHOLE) -> int:
    """Return the bytes of weights of one layer on one rank."""
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
    """Return the bytes of gradients of one layer on one rank; 0 for inference."""
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
    """Return the bytes of optimizer state of one layer on one rank, master copy
    included.

    0 for inference.
    """
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
    if kind in ONE_MOMENT:
        steps = 4 * one.tensors if kind == "rmsprop" else 0
        return master + int(moment * elements) + steps
    if kind == "muon":
        by_muon = muon_part_elements(one, elements)
        steps = 4 * (one.tensors - (len(one.linears) if by_muon else 0))
        return (
            master
            + int(moment * by_muon)
            + 2 * int(moment * (elements - by_muon))
            + steps
        )
    if kind == "adafactor":
        edges = -(-one.edges // cut.tensor_degree)
        return master + int(moment * edges) + 4 * one.tensors
    moments = EIGHT_BIT_MOMENTS.get(kind)
    if moments:
        return master + moments * (elements + 4 * -(-elements // BITSANDBYTES_BLOCK))
    return master + 2 * int(moment * elements) + 4 * one.tensors


def muon_part_elements(one: LayerPart, elements: int) -> int:
    """Return those of `elements` on one rank that Muon steps: named matrices of
    attention and MLP.

    AdamW steps the rest (torch/optim/_muon.py refuses all but 2D parameters).
    """
    if one.component not in ("attention", "mlp", "adapter") or not one.parameters:
        return 0
    named = sum(x.outputs * x.inputs * x.copies for x in one.linears)
    return elements * min(named, one.parameters) // one.parameters


def muon_temporary_bytes(workload: Workload, largest: int) -> int:
    """Return the bytes alive while Muon steps its largest matrix of m x n.

    torch/optim/_muon.py: the update in the moments' width, its bf16 copy and the next
    iterate, and two m x m products in bf16, counted as m x n (a bound).
    """
    return int((widths(workload).moment + 2 + 2 + 2 + 2) * largest)


def optimizer_temporary_bytes(
    workload: Workload, *, elements: int, largest: int
) -> int:
    """Return the bytes alive for a moment inside optimizer.step(), besides the states.

    torch/optim/adam.py: the for-loop makes the square root of the second moment and its
    quotient (2 x the largest tensor); foreach makes the square roots of all tensors at
    once; fused makes nothing. SGD updates in place. Adafactor steps tensor by tensor,
    making one update at a time (torch/optim/_adafactor.py). Megatron's optimizer is
    fused (Apex, TransformerEngine). RMSprop makes square roots like Adam (rmsprop.py).
    Lion steps tensor by tensor: the update and its copy. Those in 8 bits step in place
    in one kernel.
    """
    width = widths(workload).moment
    if workload.optimizer in ("sgd", "momentum", *EIGHT_BIT_MOMENTS):
        return 0
    if workload.precision == "megatron_bf16":
        return 0
    if workload.optimizer == "adafactor":
        return int(width * largest)
    if workload.optimizer == "lion":
        return int(2 * width * largest)
    forloop = workload.optimizer_loop == "forloop"
    if workload.optimizer == "rmsprop" and forloop:
        return int(width * largest)
    if workload.optimizer_loop == "fused" and workload.optimizer != "rmsprop":
        return 0
    if workload.optimizer_loop == "forloop":
        return int(2 * width * largest)
    return int(width * elements)
