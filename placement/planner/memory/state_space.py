"""A Mamba mixer on a tape, as Jamba's code in transformers runs it without kernels.

The scan runs token by token: autograd keeps the decay of each token and each state of
each token (arXiv:2312.00752; transformers 5.23, modeling_jamba.py,
mamba_selective_scan). The kernels of mamba-ssm make the states again in backward and
need less.
"""

from placement.planner.memory.matrix_products import linear, vector_gradient_bytes
from placement.planner.memory.norm_operators import multiply, rms_norm
from placement.planner.memory.tape import Tape, Value
from placement.planner.model.block_shape import TransformerShape

PART = "other"
"""Component of a mixer's parameters."""


def mixer(tape: Tape, shape: TransformerShape, x: Value, batch: int) -> Value:
    """Record projection, convolution, scan, gate and output projection.

    Args:
        x: tokens x hidden elements. Every tensor-parallel rank runs the whole mixer.
        batch: sequences.
    """
    rows = x.elements // shape.hidden
    inner, states, rank = shape.state_inner, shape.state_dim, shape.state_rank
    bias = shape.state_bias
    both = linear(tape, x, shape.hidden, 2 * inner, bias=bias, component=PART)
    read, gate = tape.split(both, [rows * inner, rows * inner])
    mixed = _convolve(tape, shape, read, batch)
    mixed = tape.simple([mixed], rows * inner, mixed.width, kept=[mixed])
    # The transposed tensor is copied before its product.
    flat = tape.simple([mixed], mixed.elements, mixed.width)
    made = linear(tape, flat, inner, rank + 2 * states, bias=False, component=PART)
    step, taken, given = tape.split(made, [rows * rank, rows * states, rows * states])
    step = rms_norm(tape, shape, step, rank, PART)
    taken = rms_norm(tape, shape, taken, states, PART)
    given = rms_norm(tape, shape, given, states, PART)
    step = linear(tape, step, rank, inner, bias=True, component=PART)
    biased = tape.simple([step], rows * inner, 4.0)
    step = tape.simple([biased], rows * inner, 4.0, kept=[biased])
    out = _scan(tape, shape, (mixed, step, taken, given), rows)
    skipped = tape.simple(
        [mixed],
        rows * inner,
        4.0,
        kept=[mixed],
        backward_temp_bytes=4.0 * rows * inner,
        weight_grad_bytes=vector_gradient_bytes(tape, inner, PART),
    )
    out = tape.add(out, skipped)
    out = multiply(
        tape, out, tape.simple([gate], gate.elements, gate.width, kept=[gate])
    )
    out = tape.simple([out], rows * inner, x.width)
    return linear(tape, out, inner, shape.hidden, bias=bias, component=PART)


def _convolve(tape: Tape, shape: TransformerShape, x: Value, batch: int) -> Value:
    """Record the causal convolution of each channel, with its padded output."""
    size = shape.state_inner * (shape.state_kernel + 1)
    read = tape.half(x)
    wider = x.elements + batch * shape.state_inner * (shape.state_kernel - 1)
    return tape.simple(
        [read],
        wider,
        tape.compute_width,
        kept=[read],
        forward_temp_bytes=read.size_bytes,
        backward_temp_bytes=read.size_bytes,
        weight_grad_bytes=vector_gradient_bytes(tape, size, PART),
    )


def _scan(
    tape: Tape,
    shape: TransformerShape,
    given: tuple[Value, Value, Value, Value],
    rows: int,
) -> Value:
    """Record the decays, the inputs of the states, and the states token by token."""
    mixed, step, taken, read = given
    inner = shape.state_inner
    every = rows * inner * shape.state_dim
    full = 4.0 * every
    exponent = tape.simple(
        [step],
        every,
        4.0,
        kept=[step],
        backward_temp_bytes=full,
        weight_grad_bytes=vector_gradient_bytes(tape, inner * shape.state_dim, PART),
    )
    decay = tape.simple([exponent], every, 4.0, keep_output=True)
    wide = tape.cast(taken, 4.0)
    fed = tape.simple(
        [step, wide], every, 4.0, kept=[step, wide], backward_temp_bytes=full
    )
    wide = tape.cast(mixed, 4.0)
    inputs = tape.simple(
        [fed, wide], every, 4.0, kept=[fed, wide], backward_temp_bytes=full
    )
    # Each token makes a state, its product with the decay, and one column of output.
    copies = 0.0 if tape.compute_width == 4.0 else tape.compute_width * every
    return tape.simple(
        [decay, inputs, read],
        rows * inner,
        tape.compute_width,
        kept=[decay, read],
        kept_bytes=full + copies,
        forward_temp_bytes=(0.0 if tape.saves else full)
        + tape.compute_width * rows * inner,
        backward_temp_bytes=full,
    )
