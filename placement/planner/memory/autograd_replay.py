"""Replay a tape forward and backward: the bytes kept, and the largest number alive.

The order is that of torch's autograd engine (torch/csrc/autograd/engine.cpp,
input_buffer.cpp). Operators run backward in the reverse order of their forward. The
gradient of a value lives from its first contribution until its producer has run
backward. A second contribution is summed into the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.planner.memory.tape import Op, Value


@dataclass(frozen=True, slots=True)
class LayerReplay:
    """The result of replaying one layer: bytes for one microbatch on one Gpu."""

    kept_bytes: float
    """Bytes alive from the end of the layer's forward until its backward."""
    output_bytes: float
    """Bytes of the layer's output, which a pipeline sends on and full recomputation
    keeps.
    """
    input_bytes: float
    forward_peak_bytes: float
    """Most bytes alive inside forward, input included."""
    backward_peak_bytes: float
    """Most bytes alive inside backward, kept bytes and new gradients included."""
    first_backward_bytes: float = 0.0
    """The peak of a backward without earlier gradients; 0: the same."""


def replay(
    ops: Sequence[Op], source: Value, result: Value, *, accumulates: bool = False
) -> LayerReplay:
    """Replay a layer forward, then backward. Linear in the number of operators.

    `accumulates`: gradients of earlier microbatches exist already, so each new
    parameter gradient lives only until it has been added.
    """
    kept = _kept_storages(ops)
    kept_bytes = sum(v.size_bytes for v in kept) + sum(op.kept_bytes for op in ops)
    backward_peak = _backward(ops, kept, kept_bytes, result, accumulates)
    first = 0.0
    if accumulates:
        first = _backward(ops, kept, kept_bytes, result, accumulates=False)
    return LayerReplay(
        kept_bytes=kept_bytes,
        output_bytes=result.storage.size_bytes,
        input_bytes=source.storage.size_bytes,
        forward_peak_bytes=_forward_peak(ops, kept, source, result),
        backward_peak_bytes=backward_peak,
        first_backward_bytes=first,
    )


def _kept_storages(ops: Sequence[Op]) -> dict[Value, int]:
    """Return the saved storages, with the number of operators that saved each."""
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
    """One gradient tensor: its bytes and the number of values that refer to it."""

    size_bytes: float
    references: int = 0


class _Gradients:
    """Gradient tensors alive in backward. One tensor may serve several values."""

    def __init__(self) -> None:
        self.tensor_of: dict[Value, _Tensor] = {}
        self.live_bytes = 0.0

    def new(self, size_bytes: float) -> _Tensor:
        """Return a tensor that no value refers to yet."""
        self.live_bytes += size_bytes
        return _Tensor(size_bytes)

    def add_contribution(self, value: Value, tensor: _Tensor) -> None:
        """Add a value's first contribution, or sum in a second one.

        Summing needs a new tensor if the present one is shared or is a part of a larger
        one (torch/csrc/autograd/input_buffer.cpp).
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
        """Free a tensor that no value refers to."""
        if tensor.references == 0:
            self.live_bytes -= tensor.size_bytes
            tensor.size_bytes = 0.0

    def drop(self, value: Value) -> None:
        """Release a value whose producer has run backward."""
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
) -> float:
    """Return the most bytes alive inside backward."""
    grads = _Gradients()
    if not result.constant:
        grads.add_contribution(result, grads.new(result.size_bytes))
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
            grads.add_contribution(value, tensor)
        for value in op.outputs:
            grads.drop(value)
        peak = max(peak, saved + now + grads.live_bytes)
        if not op.in_place:
            saved -= _released(op, waiting)
        if op.casts_gradient:
            cast = weights + op.backward_temp_bytes
            peak = max(peak, saved + cast + grads.live_bytes)
    return peak


def _released(op: Op, waiting: dict[Value, int]) -> float:
    """Return the bytes of saved tensors that only this operator still needed."""
    freed = op.kept_bytes
    for storage in {value.storage for value in op.kept}:
        if storage in waiting:
            waiting[storage] -= 1
            if not waiting[storage]:
                freed += storage.size_bytes
    return freed
