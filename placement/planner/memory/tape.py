"""A tape of one layer: which tensors its operators read, write and save.

Question: how many bytes does autograd keep of a layer, and how much more is alive for
a moment inside its forward and its backward pass? A Tape records the layer's operators
on sizes alone; autograd_replay.py walks it the way torch's autograd engine allocates
and frees:

* an operator's output lives till its last reader, or till backward if an operator
  saved it (torch/tools/autograd/derivatives.yaml says which operator saves what);
* under autocast an fp32 input of a matrix product is copied to 16 bits for each
  product, and each weight once; the copies live as long as what saved them.

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
    """Another layer keeps it already (the encoder's output inside a decoder)."""

    @property
    def storage(self) -> "Value":
        """The value that owns the bytes."""
        return self.root.storage if self.root is not None else self

    @property
    def size_bytes(self) -> float:
        """Bytes of the elements (of a view: of the part it shows)."""
        return self.elements * self.width


@dataclass(slots=True, eq=False)
class Op:
    """One operator: the values it reads, writes and saves, and its temporary bytes."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    kept: tuple[Value, ...] = ()
    kept_bytes: float = 0.0
    """Saved bytes that are no Value of the tape: masks, statistics, weight copies."""
    held_bytes: float = 0.0
    """Alive till the end of forward although nothing saved them: autocast's cache."""
    passes_gradient: bool = False
    """The inputs' gradient is the output's own tensor (add, view)."""
    views_gradient: bool = False
    """The inputs' gradients are views of parts of the output's (concatenation)."""
    in_place: bool = False
    """The gradient is written over what was saved."""
    forward_temp_bytes: float = 0.0
    backward_temp_bytes: float = 0.0
    weight_grad_bytes: float = 0.0
    """Parameter gradients that this operator's backward makes."""
    casts_gradient: bool = False
    """Those are made by a cast after this operator has freed what it saved; until then
    `backward_temp_bytes` hold them in the compute width (autocast)."""


@dataclass(slots=True)
class Tape:
    """Records operators; `replay` walks them forward and backward."""

    compute_width: float
    """Bytes per element of a matrix product's output."""
    residual_width: float
    """Bytes per element of the residual stream."""
    autocast: bool = False
    grad_width: float = 4.0
    """Bytes per element of a parameter's gradient."""
    mask_width: float = 1.0
    """Bytes per element of a dropout mask; 0 stands for "as wide as the input"."""
    saves: bool = True
    """False for inference: nothing is kept."""
    reorders: bool = False
    """Convolutions copy to a layout of their own and back (oneDNN, on CPU)."""
    weights: Weights = field(default_factory=Weights)
    """Which of the layer's parameters learn, and where adapters are."""
    copied_bytes: float = 0.0
    """16-bit copies of weights that autocast holds till its context ends."""
    ops: list[Op] = field(default_factory=list)

    def record(self, op: Op) -> Value:
        """Append an operator; answers its first output.

        Where no gradient flows into it and it has no parameter that learns, autograd
        saves nothing and no gradient flows out of it.
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
        """An operator with one new output and a new gradient for each input."""
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
        """Another look at the same storage; its gradient is a view too."""
        out = Value(elements or source.elements, source.width, root=source)
        return self.record(Op((source,), (out,), passes_gradient=True))

    def split(self, source: Value, sizes: Sequence[int]) -> list[Value]:
        """Several views of one tensor; backward puts their gradients together."""
        outs = [Value(size, source.width, root=source) for size in sizes]
        self.record(Op((source,), tuple(outs)))
        return outs

    def add(self, left: Value, right: Value) -> Value:
        """Sum. Nothing is kept; both inputs get the output's gradient."""
        out = Value(left.elements, max(left.width, right.width))
        return self.record(Op((left, right), (out,), passes_gradient=True))

    def cast(self, source: Value, width: float) -> Value:
        """A copy in another width; the same value if it already has it."""
        if source.width == width:
            return source
        return self.simple([source], source.elements, width)

    def half(self, source: Value) -> Value:
        """What autocast does to the input of a matrix product."""
        return self.cast(source, self.compute_width) if self.autocast else source

    def cached(self, read: Value, copies: float) -> tuple[float, float]:
        """(kept, held) bytes of autocast's copies of weights: a product saves its
        weight only to make its input's gradient; the cache holds the rest."""
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
        """x W + b over the last axis. `extra`: other parameters counted with it.

        A frozen weight has no gradient: its product saves the weight alone, and
        autocast does not cache its copy. `unpacked_bytes`: a quantized weight made
        whole for a moment, in both passes.
        """
        read = self.half(source)
        weight = inputs * outputs
        parameters = weight + (outputs if bias else 0) + extra
        copies = self.compute_width * parameters if self.autocast else 0.0
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
            forward_temp_bytes=unpacked_bytes,
            backward_temp_bytes=self.compute_width * weight * casts + unpacked_bytes,
            weight_grad_bytes=0.0 if frozen else self.grad_width * parameters,
            casts_gradient=casts,
        )

    def dropout(self, source: Value, ratio: float) -> Value:
        """Dropout keeps a mask; with probability 0 it is not there."""
        if ratio <= 0 or not self.saves:
            return source
        mask = (self.mask_width or source.width) * source.elements
        return self.simple([source], source.elements, source.width, kept_bytes=mask)
