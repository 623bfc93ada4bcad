"""A tape of one layer: the tensors that its operators read, write and save.

It determines the bytes that autograd keeps of a layer, and the additional bytes alive
for a moment inside its forward and its backward pass. A Tape records the layer's
operators on sizes alone. autograd_replay.py replays it with the allocations of torch's
autograd engine:

* an operator's output lives until its last reader, or until backward if an operator
  saved it (torch/tools/autograd/derivatives.yaml lists the saved tensors of each
  operator);
* under autocast an fp32 input of a matrix product is copied to 16 bits for each
  product, and each weight once. The copies live as long as the tensors that saved them.

Identical layers are replayed once, so the cost is a few dozen operators per model.
Checked against the CPU allocator's event stream in bench/estimate.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from placement.planner.memory.trainable_weights import Weights


@dataclass(slots=True, eq=False)
class Value:
    """A tensor as a size. A view shares its root's storage."""

    elements: int
    width: float
    """Bytes per element."""
    root: "Value | None" = None
    constant: bool = False
    """No gradient flows to it (token ids, images)."""
    foreign: bool = False
    """Another layer already keeps it (the encoder's output inside a decoder)."""

    @property
    def storage(self) -> "Value":
        """Return the value that owns the bytes."""
        return self.root.storage if self.root is not None else self

    @property
    def size_bytes(self) -> float:
        """Return the bytes of the elements (of a view: of the part that it shows)."""
        return self.elements * self.width


@dataclass(slots=True, eq=False)
class Op:
    """One operator: the values it reads, writes and saves, and its temporary bytes."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    kept: tuple[Value, ...] = ()
    kept_bytes: float = 0.0
    """Saved bytes outside the Values of the tape: masks, statistics, weight copies."""
    held_bytes: float = 0.0
    """Bytes alive until the end of forward although nothing saved them: autocast's
    cache.
    """
    passes_gradient: bool = False
    """The inputs' gradient is the output's own tensor (add, view)."""
    views_gradient: bool = False
    """The inputs' gradients are views of parts of the output's (concatenation)."""
    in_place: bool = False
    """The gradient overwrites the saved tensor."""
    forward_temp_bytes: float = 0.0
    backward_temp_bytes: float = 0.0
    weight_grad_bytes: float = 0.0
    """Parameter gradients that this operator's backward makes."""
    casts_gradient: bool = False
    """A cast makes these gradients after this operator has freed its saved tensors.
    Until then `backward_temp_bytes` hold them in the compute width (autocast).
    """


@dataclass(slots=True)
class Tape:
    """Records operators. `replay` replays them forward and backward."""

    compute_width: float
    """Bytes per element of a matrix product's output."""
    residual_width: float
    """Bytes per element of the residual stream."""
    autocast: bool = False
    grad_width: float = 4.0
    """Bytes per element of a parameter's gradient."""
    mask_width: float = 1.0
    """Bytes per element of a dropout mask; 0: the width of the input."""
    saves: bool = True
    """False for inference: nothing is kept."""
    reorders: bool = False
    """Convolutions copy to another layout and back (oneDNN, on CPU)."""
    weights: Weights = field(default_factory=Weights)
    """The trained parameters of the layer, and its adapters."""
    copied_bytes: float = 0.0
    """16-bit copies of weights that autocast holds until its context ends."""
    ops: list[Op] = field(default_factory=list)

    @property
    def powers_are_wide(self) -> bool:
        """Return whether autocast computes powers in fp32: on CUDA only ("CUDA
        Ops that can autocast to float32" in the docs of torch.amp).
        """
        return self.autocast and not self.reorders

    def record(self, op: Op) -> Value:
        """Append an operator. Return its first output.

        If no gradient flows into it and it has no trained parameter, autograd saves
        nothing and no gradient flows out of it.
        """
        unused = not op.weight_grad_bytes and all(v.constant for v in op.inputs)
        if not self.saves or (unused and op.inputs):
            op.kept = ()
            op.kept_bytes = 0.0
        if unused and op.inputs:
            for value in op.outputs:
                value.constant = True
        self.ops.append(op)
        return op.outputs[0]

    def simple(
        self,
        inputs: Sequence[Value],
        elements: int,
        width: float,
        *,
        kept: Sequence[Value] = (),
        keep_output: bool = False,
        kept_bytes: float = 0.0,
        held_bytes: float = 0.0,
        forward_temp_bytes: float = 0.0,
        backward_temp_bytes: float = 0.0,
        weight_grad_bytes: float = 0.0,
        casts_gradient: bool = False,
    ) -> Value:
        """Record an operator with one new output and a new gradient for each input."""
        out = Value(elements, width)
        return self.record(
            Op(
                tuple(inputs),
                (out,),
                (*kept, out) if keep_output else tuple(kept),
                kept_bytes,
                held_bytes,
                forward_temp_bytes=forward_temp_bytes,
                backward_temp_bytes=backward_temp_bytes,
                weight_grad_bytes=weight_grad_bytes,
                casts_gradient=casts_gradient,
            )
        )

    def view(self, source: Value, elements: int | None = None) -> Value:
        """Record a view of the same storage. Its gradient is a view too."""
        out = Value(elements or source.elements, source.width, root=source)
        return self.record(Op((source,), (out,), passes_gradient=True))

    def split(self, source: Value, sizes: Sequence[int]) -> list[Value]:
        """Record several views of one tensor. Backward joins their gradients."""
        outs = [Value(size, source.width, root=source) for size in sizes]
        self.record(Op((source,), tuple(outs)))
        return outs

    def add(self, left: Value, right: Value) -> Value:
        """Record a sum. Nothing is kept, and both inputs get the output's gradient."""
        out = Value(left.elements, max(left.width, right.width))
        return self.record(Op((left, right), (out,), passes_gradient=True))

    def cast(self, source: Value, width: float) -> Value:
        """Record a copy in another width. Return the same value if it already has that
        width.
        """
        if source.width == width:
            return source
        return self.simple([source], source.elements, width)

    def half(self, source: Value) -> Value:
        """Record autocast's copy of the input of a matrix product."""
        return self.cast(source, self.compute_width) if self.autocast else source

    def cached(self, read: Value, copies: float) -> tuple[float, float]:
        """Return (kept, held) bytes of autocast's copies of weights.

        A product saves its weight only to make its input's gradient. The cache holds
        the rest.
        """
        return (0.0, copies) if read.constant else (copies, 0.0)

    def linear(
        self,
        source: Value,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
        extra: int = 0,
        frozen: bool = False,
        unpacked_bytes: float = 0.0,
    ) -> Value:
        """Record x W + b over the last axis. `extra`: other parameters counted with it.

        A frozen weight has no gradient: its product saves only the weight, and autocast
        does not cache its copy, so that a copy that nothing saves is alive only inside
        the product. `unpacked_bytes`: a quantized weight that is dequantized for a
        moment, in both passes. Its product saves the packed weight (bitsandbytes,
        autograd/_functions.py), and autocast copies nothing.
        """
        read = self.half(source)
        weight = inputs * outputs
        parameters = weight + (outputs if bias else 0) + extra
        copied = self.autocast and not unpacked_bytes
        copies = self.compute_width * parameters if copied else 0.0
        saved = self.saves and not read.constant
        passing = copies if frozen and not saved else 0.0
        self.copied_bytes += 0.0 if frozen else copies
        kept, held = self.cached(read, copies)
        casts = self.autocast and not frozen
        return self.simple(
            [read],
            read.elements // inputs * outputs,
            self.compute_width,
            kept=[] if frozen else [read],
            kept_bytes=kept,
            held_bytes=0.0 if frozen else held,
            forward_temp_bytes=unpacked_bytes + passing,
            backward_temp_bytes=self.compute_width * weight * casts + unpacked_bytes,
            weight_grad_bytes=0.0 if frozen else self.grad_width * parameters,
            casts_gradient=casts,
        )

    def dropout(self, source: Value, ratio: float) -> Value:
        """Record a dropout, which keeps a mask. With probability 0 nothing is
        recorded.
        """
        if ratio <= 0 or not self.saves:
            return source
        mask = (self.mask_width or source.width) * source.elements
        return self.simple([source], source.elements, source.width, kept_bytes=mask)
