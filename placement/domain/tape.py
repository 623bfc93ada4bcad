"""A tape of one layer: which tensors exist when, forward and backward.

Question: how many bytes does autograd keep of a layer, and how much more is alive for
a moment inside its forward and its backward pass? Answered by replaying the layer's
operators on sizes alone, the way torch's autograd engine allocates and frees:

* an operator's output lives till its last reader, or till backward if an operator
  saved it (torch/tools/autograd/derivatives.yaml says which operator saves what);
* the gradient of a value lives from its first contribution till its producer has
  run backward; a second contribution is summed into the first;
* under autocast an fp32 input of a matrix product is copied to 16 bits for each
  product, and each weight once; the copies live as long as what saved them.

Identical layers are replayed once, so the cost is a few dozen operators per model.
Checked against the CPU allocator's event stream in bench/estimate.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from placement.domain.weights import Weights


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
    """One operator: what it reads, writes, saves, and needs for a moment."""

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


@dataclass(frozen=True, slots=True)
class LayerReplay:
    """What replaying one layer found; bytes for one microbatch on one Gpu."""

    kept_bytes: float
    """Alive from the end of the layer's forward till its backward."""
    output_bytes: float
    """The layer's output: what a pipeline sends on, what full recomputation keeps."""
    input_bytes: float
    forward_peak_bytes: float
    """Most bytes alive inside forward, input included."""
    backward_peak_bytes: float
    """Most bytes alive inside backward, kept bytes and new gradients included."""
    backward_end_bytes: float
    """Alive right after backward: parameter gradients and the input's gradient."""


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
    ) -> Value:
        """x W + b over the last axis. `extra`: other parameters counted with it.

        A frozen weight has no gradient: its product saves the weight alone, and
        autocast does not cache its copy.
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
            backward_temp_bytes=self.compute_width * weight if casts else 0.0,
            weight_grad_bytes=0.0 if frozen else self.grad_width * parameters,
            casts_gradient=casts,
        )

    def dropout(self, source: Value, ratio: float) -> Value:
        """Dropout keeps a mask; with probability 0 it is not there."""
        if ratio <= 0 or not self.saves:
            return source
        mask = (self.mask_width or source.width) * source.elements
        return self.simple([source], source.elements, source.width, kept_bytes=mask)


def replay(
    ops: Sequence[Op], source: Value, result: Value, *, accumulates: bool = False
) -> LayerReplay:
    """Walk a layer forward, then backward. Linear in the number of operators.

    `accumulates`: gradients of earlier microbatches are there already, so each new
    parameter gradient lives only until it has been added.
    """
    kept = _kept_storages(ops)
    kept_bytes = sum(v.size_bytes for v in kept) + sum(op.kept_bytes for op in ops)
    backward_peak, backward_end = _backward(ops, kept, kept_bytes, result, accumulates)
    return LayerReplay(
        kept_bytes=kept_bytes,
        output_bytes=result.storage.size_bytes,
        input_bytes=source.storage.size_bytes,
        forward_peak_bytes=_forward_peak(ops, kept, source, result),
        backward_peak_bytes=backward_peak,
        backward_end_bytes=backward_end,
    )


def _kept_storages(ops: Sequence[Op]) -> dict[Value, int]:
    """Saved storages, with the number of operators that saved each."""
    kept: dict[Value, int] = {}
    for op in ops:
        for storage in {value.storage for value in op.kept}:
            if not storage.foreign:
                kept[storage] = kept.get(storage, 0) + 1
    return kept


def _forward_peak(
    ops: Sequence[Op], kept: dict[Value, int], source: Value, result: Value
) -> float:
    last_reader: dict[Value, int] = {}
    for index, op in enumerate(ops):
        for value in op.inputs:
            last_reader[value.storage] = index
        for value in op.outputs:
            last_reader.setdefault(value.storage, index)
    last_reader[result.storage] = len(ops)
    live = source.storage.size_bytes
    peak = live
    alive = {source.storage}
    for index, op in enumerate(ops):
        for value in op.outputs:
            if value.storage not in alive and not value.storage.foreign:
                alive.add(value.storage)
                live += value.storage.size_bytes
        live += op.kept_bytes + op.held_bytes
        peak = max(peak, live + op.forward_temp_bytes)
        for storage in {value.storage for value in (*op.inputs, *op.outputs)}:
            held = storage in kept or storage.foreign
            if last_reader[storage] == index and not held:
                live -= storage.size_bytes
                alive.discard(storage)
    return peak


@dataclass(slots=True, eq=False)
class _Tensor:
    """One gradient tensor: its bytes and how many values refer to it."""

    size_bytes: float
    references: int = 0


class _Gradients:
    """Gradient tensors alive in backward; one tensor may serve several values."""

    def __init__(self) -> None:
        self.tensor_of: dict[Value, _Tensor] = {}
        self.live_bytes = 0.0

    def new(self, size_bytes: float) -> _Tensor:
        """A tensor that nothing refers to yet."""
        self.live_bytes += size_bytes
        return _Tensor(size_bytes)

    def give(self, value: Value, tensor: _Tensor) -> None:
        """A value's first contribution, or a second one summed in.

        Summing needs a new tensor where the present one is shared or is a part of a
        larger one (torch/csrc/autograd/input_buffer.cpp).
        """
        present = self.tensor_of.get(value)
        if present is None:
            tensor.references += 1
            self.tensor_of[value] = tensor
            return
        if present.references > 1 or present.size_bytes != value.size_bytes:
            total = self.new(value.size_bytes)
            total.references = 1
            present.references -= 1
            self.free_unused(present)
            self.tensor_of[value] = total
        self.free_unused(tensor)

    def free_unused(self, tensor: _Tensor) -> None:
        """Free a tensor nobody refers to."""
        if tensor.references == 0:
            self.live_bytes -= tensor.size_bytes
            tensor.size_bytes = 0.0

    def drop(self, value: Value) -> None:
        """The value's producer has run backward."""
        tensor = self.tensor_of.pop(value, None)
        if tensor is not None:
            tensor.references -= 1
            self.free_unused(tensor)


def _backward(
    ops: Sequence[Op],
    kept: dict[Value, int],
    kept_bytes: float,
    result: Value,
    accumulates: bool,
) -> tuple[float, float]:
    grads = _Gradients()
    if not result.constant:
        grads.give(result, grads.new(result.size_bytes))
    waiting = dict(kept)
    saved = kept_bytes
    weights = 0.0
    peak = saved + grads.live_bytes
    for op in reversed(ops):
        if op.in_place:
            saved -= _released(op, waiting)
        given = [grads.tensor_of[v] for v in op.outputs if v in grads.tensor_of]
        made = []
        for value in op.inputs:
            if value.constant:
                continue
            if (op.views_gradient and given) or (
                op.passes_gradient and given and given[0].size_bytes == value.size_bytes
            ):
                made.append((value, given[0]))
            else:
                made.append((value, grads.new(value.size_bytes)))
        earlier = 0.0 if accumulates else weights
        weights = op.weight_grad_bytes + earlier
        now = earlier if op.casts_gradient else weights
        peak = max(peak, saved + now + grads.live_bytes + op.backward_temp_bytes)
        for value, tensor in made:
            grads.give(value, tensor)
        for value in op.outputs:
            grads.drop(value)
        peak = max(peak, saved + now + grads.live_bytes)
        if not op.in_place:
            saved -= _released(op, waiting)
        if op.casts_gradient:
            cast = weights + op.backward_temp_bytes
            peak = max(peak, saved + cast + grads.live_bytes)
    return peak, grads.live_bytes + (0.0 if accumulates else weights)


def _released(op: Op, waiting: dict[Value, int]) -> float:
    """Bytes that an operator's saved tensors free: those nothing else waits for."""
    freed = op.kept_bytes
    for storage in {value.storage for value in op.kept}:
        if storage in waiting:
            waiting[storage] -= 1
            if not waiting[storage]:
                freed += storage.size_bytes
    return freed
