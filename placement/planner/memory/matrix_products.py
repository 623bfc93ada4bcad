"""Matrix products on a tape: plain, with frozen weights, and with low-rank adapters."""

from placement.planner.memory.tape import Tape, Value


def linear(
    tape: Tape,
    x: Value,
    inputs: int,
    outputs: int,
    *,
    bias: bool,
    component: str,
    extra: int = 0,
) -> Value:
    """Record x W + b over the last axis, with the adapter beside W.

    `extra`: other parameters counted with it. A frozen weight makes no gradient, so its
    product does not keep its input (derivatives.yaml: mm saves what the other side's
    gradient needs).
    """
    frozen = component in tape.weights.frozen
    packed = component in tape.weights.quantized
    out = tape.linear(
        x,
        inputs,
        outputs,
        bias=bias,
        extra=extra,
        frozen=frozen,
        unpacked_bytes=tape.compute_width * inputs * outputs if packed else 0.0,
    )
    rank = tape.weights.rank_beside(component, inputs, outputs)
    return _adapted(tape, x, out, inputs, outputs, rank) if rank else out


def _adapted(
    tape: Tape, x: Value, out: Value, inputs: int, outputs: int, rank: int
) -> Value:
    """Record PEFT's LoRA: out + scale x B(A(x)), A and B in fp32, the sum cast back.

    peft/tuners/lora/layer.py, Linear.forward: the input is cast to the adapter's dtype
    (each target makes its own copy), and B's output is scaled into a new tensor.
    """
    wide = tape.cast(x, 4.0)
    low = _small(tape, wide, inputs, rank)
    up = _small(tape, low, rank, outputs)
    scaled = tape.simple([up], up.elements, up.width)
    total = tape.add(out, scaled)
    return tape.cast(total, out.width)


def _small(tape: Tape, x: Value, inputs: int, outputs: int) -> Value:
    """Record one adapter matrix: fp32 weights and gradients, computed in fp32 or
    autocast.
    """
    read = tape.half(x)
    width = tape.compute_width if tape.autocast else 4.0
    return tape.simple(
        [read],
        read.elements // inputs * outputs,
        width,
        kept=[read],
        kept_bytes=width * inputs * outputs if tape.autocast else 0.0,
        weight_grad_bytes=4.0 * inputs * outputs,
    )


def vector_gradient_bytes(tape: Tape, size: int, component: str) -> float:
    """Return the gradient of a norm's weight or bias; 0 if it is frozen."""
    return 0.0 if component in tape.weights.frozen else size * tape.grad_width
