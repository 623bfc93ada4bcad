"""Norms and nonlinearities on a tape, and the tensors that autograd keeps of each."""

from placement.planner.memory.matrix_products import vector_gradient_bytes
from placement.planner.memory.tape import Tape, Value
from placement.planner.model.block_shape import TransformerShape


def norm(tape: Tape, shape: TransformerShape, x: Value) -> Value:
    """Record the family's norm over the hidden size. x has tokens x hidden elements."""
    if shape.norm == "layernorm":
        return layer_norm(tape, x, shape.hidden)
    return rms_norm(tape, shape, x, shape.hidden)


def layer_norm(tape: Tape, x: Value, size: int) -> Value:
    """Record torch's LayerNorm, which keeps its input, mean and deviation of each
    row.
    """
    return tape.simple(
        [x],
        x.elements,
        x.width,
        kept=[x],
        kept_bytes=8 * (x.elements // size),
        weight_grad_bytes=vector_gradient_bytes(tape, 2 * size, "norm"),
    )


def rms_norm(
    tape: Tape, shape: TransformerShape, x: Value, size: int, component: str = "norm"
) -> Value:
    """Record x / rms(x) * w, with the mean in fp32.

    It keeps the fp32 copy of x and, if w is trained, the normalised x in the width that
    multiplies w. T5 multiplies the 16-bit x itself and so keeps that too.
    """
    wide = tape.cast(x, 4.0)
    rows = x.elements // size
    normal = tape.simple(
        [wide],
        x.elements,
        4.0,
        kept=[wide, x] if shape.norm == "rmsnorm_t5" else [wide],
        kept_bytes=8 * rows,
        forward_temp_bytes=4 * x.elements,
        backward_temp_bytes=2 * wide.size_bytes,
    )
    if shape.norm != "rmsnorm_gemma":
        normal = tape.cast(normal, x.width)
    grad_bytes = vector_gradient_bytes(tape, size, component)
    out = tape.simple(
        [normal],
        x.elements,
        normal.width,
        kept=[normal] if grad_bytes else [],
        weight_grad_bytes=grad_bytes,
        backward_temp_bytes=normal.size_bytes if grad_bytes else 0.0,
    )
    return tape.cast(out, x.width)


def unit_norm(tape: Tape, x: Value, size: int) -> Value:
    """Record x / rms(x) in fp32, without a weight (Llama 4's queries and keys)."""
    wide = tape.cast(x, 4.0)
    normal = tape.simple(
        [wide],
        x.elements,
        4.0,
        kept=[wide],
        kept_bytes=8 * (x.elements // size),
        forward_temp_bytes=4 * x.elements,
        backward_temp_bytes=2 * wide.size_bytes,
    )
    return tape.cast(normal, x.width)


def activation(tape: Tape, shape: TransformerShape, x: Value) -> Value:
    """Record the MLP's nonlinearity and the tensors that it saves for backward."""
    if shape.activation == "relu":
        return tape.simple([x], x.elements, x.width, keep_output=True)
    if shape.activation == "gelu_new":
        # 0.5 * x * (1 + tanh(c * (x + 0.044715 * x ** 3))): each factor is saved.
        base = tape.cast(x, 4.0) if tape.powers_are_wide else x
        inner = tape.simple([base], x.elements, base.width, kept=[base])
        bent = tape.simple([inner], x.elements, base.width, keep_output=True)
        one_plus = tape.simple([bent], x.elements, base.width)
        half = tape.simple([x], x.elements, x.width)
        return multiply(tape, half, one_plus)
    if shape.activation == "quick_gelu":
        gate = tape.simple([x], x.elements, x.width, keep_output=True)
        return tape.simple([x, gate], x.elements, x.width, kept=[x, gate])
    return tape.simple([x], x.elements, x.width, kept=[x])


def multiply(tape: Tape, left: Value, right: Value) -> Value:
    """Record a product, which keeps both factors."""
    return tape.simple(
        [left, right], left.elements, max(left.width, right.width), kept=[left, right]
    )
