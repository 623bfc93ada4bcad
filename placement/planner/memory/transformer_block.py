"""A transformer block, operator by operator, in the order of Hugging Face's code.

There is one generic block. Its TransformerShape has the differences between families.
Each function names the tensors that autograd saves. Sources: transformers 5.23 modeling
files and torch's derivatives.yaml. `t` is the tensor-parallel degree: heads and the
MLP's inner size are divided. Norms and the residual stream are whole on each rank, or
divided by tokens with sequence parallelism (arXiv:2205.05198 section 4.2.2).
"""

from collections.abc import Callable

from placement.planner.memory.attention import BlockSetting, Tokens, attention
from placement.planner.memory.matrix_products import linear
from placement.planner.memory.norm_operators import activation, multiply, norm
from placement.planner.memory.state_space import mixer
from placement.planner.memory.tape import Op, Tape, Value
from placement.planner.model.block_shape import TransformerShape

__all__ = ["BlockSetting", "Tokens", "activation", "block", "image_input", "mlp"]

layer_norm = norm
"""The name under which older callers import it."""


def mlp(tape: Tape, shape: TransformerShape, x: Value, t: int) -> Value:
    """Record up (gate), nonlinearity, down."""
    return _dense(tape, shape, x, max(1, shape.intermediate // t))


def _dense(tape: Tape, shape: TransformerShape, x: Value, inner: int) -> Value:
    """Record the plain MLP with an inner size."""
    rows = x.elements // shape.hidden
    bias = shape.biases and not shape.gated

    def product(source: Value, inputs: int, outputs: int) -> Value:
        return linear(tape, source, inputs, outputs, bias=bias, component="mlp")

    if shape.gated and shape.fused_gate:
        both = product(x, shape.hidden, 2 * inner)
        gate, up = tape.split(both, [rows * inner, rows * inner])
        bent = multiply(tape, up, activation(tape, shape, gate))
    elif shape.gated:
        gate = product(x, shape.hidden, inner)
        bent = activation(tape, shape, gate)
        up = product(x, shape.hidden, inner)
        bent = multiply(tape, bent, up)
    else:
        up = product(x, shape.hidden, inner)
        bent = activation(tape, shape, up)
    bent = tape.dropout(bent, shape.activation_dropout_ratio)
    return product(bent, inner, shape.hidden)


def experts(
    tape: Tape,
    shape: TransformerShape,
    x: Value,
    t: int,
    spread: int = 1,
    expert_degree: int | None = None,
) -> Value:
    """Record a mixture of experts.

    It has the router, each token's copy through its experts (grouped products), and the
    parameters that every token uses. `spread`: ranks that share the experts (each then
    gets as many tokens as it sends away, if the router is fair).
    """
    inner = shape.expert_intermediate or shape.intermediate
    inner = max(1, inner // (expert_degree or t))
    rows = x.elements // shape.hidden
    chosen = rows * shape.experts_run
    linear(tape, x, shape.hidden, shape.experts, bias=False, component="router")
    if shape.every_expert:
        copies = tape.simple([x], chosen * shape.hidden, x.width)
        routed = tape.simple([copies], copies.elements, x.width, kept=[copies])
    else:
        routed = tape.simple(
            [x], chosen * shape.hidden, x.width, kept_bytes=24 * chosen
        )
    others = max(1, shape.experts // spread) - 1
    ups = 2 if shape.gated else 1
    up = linear(
        tape,
        routed,
        shape.hidden,
        ups * inner,
        bias=False,
        component="mlp",
        extra=others * shape.hidden * ups * inner,
    )
    if shape.gated:
        gate, value = tape.split(up, [chosen * inner, chosen * inner])
        if shape.clamped_gate:
            bent = _clamped_gate(tape, gate, value)
        else:
            bent = multiply(tape, activation(tape, shape, gate), value)
    else:
        bent = activation(tape, shape, up)
    down = linear(
        tape,
        bent,
        inner,
        shape.hidden,
        bias=False,
        component="mlp",
        extra=others * inner * shape.hidden,
    )
    if not shape.every_expert:
        # The scores weight the results. Llama 4 has weighted the inputs.
        down = tape.simple([down], down.elements, down.width, kept=[down])
    out = tape.simple([down], x.elements, x.width)
    if not shape.shared_intermediate:
        return out
    shared = _dense(tape, shape, x, max(1, shape.shared_intermediate // t))
    if shape.shared_gate:
        weight = linear(tape, x, shape.hidden, 1, bias=False, component="router")
        weight = tape.simple([weight], rows, weight.width, keep_output=True)
        shared = tape.simple(
            [shared, weight], shared.elements, shared.width, kept=[shared]
        )
    return tape.add(out, shared)


def _clamped_gate(tape: Tape, gate: Value, up: Value) -> Value:
    """Record (clamp(up) + 1) x clamp(gate) sigmoid(1.702 clamp(gate)).

    As in transformers' modeling_gpt_oss.py: clamp keeps its input, products keep both
    factors.
    """
    size, width = gate.elements, gate.width
    near = tape.simple([gate], size, width, kept=[gate])
    other = tape.simple([up], size, width, kept=[up])
    scaled = tape.simple([near], size, width)
    bent = tape.simple([scaled], size, width, keep_output=True)
    glu = tape.simple([near, bent], size, width, kept=[near, bent])
    more = tape.simple([other], size, width)
    return tape.simple([more, glu], size, width, kept=[more, glu])


def block(
    tape: Tape,
    shape: TransformerShape,
    x: Value,
    tokens: Tokens,
    setting: BlockSetting,
    memory: Value | None = None,
    memory_tokens: Tokens | None = None,
    *,
    routed: bool | None = None,
    recurrent: bool = False,
    spread: int = 1,
    expert_degree: int | None = None,
) -> Value:
    """Record one whole block. `memory` adds cross attention.

    `routed`: whether this block has experts (None: if the model has). `recurrent`: it
    has a Mamba mixer instead of attention.
    """
    t = setting.tensor_degree
    ratio = shape.hidden_dropout_ratio
    mixes = bool(shape.experts) if routed is None else routed

    def think(read: Value) -> Value:
        if mixes:
            return experts(tape, shape, read, t, spread, expert_degree)
        return mlp(tape, shape, read, t)

    if shape.parallel:
        read = _whole(tape, norm(tape, shape, x), setting)
        mixed = tape.dropout(attention(tape, shape, read, tokens, setting), ratio)
        if not shape.shared_norm:
            read = _whole(tape, norm(tape, shape, x), setting)
        bent = tape.dropout(think(read), ratio)
        return tape.add(tape.add(_part(tape, mixed, setting), bent), x)

    def attend(read: Value) -> Value:
        if recurrent:
            return mixer(tape, shape, read, tokens.batch)
        return attention(tape, shape, read, tokens, setting)

    x = _sublayer(tape, shape, x, setting, attend)
    if memory is not None and memory_tokens is not None:
        cross = Tokens(tokens.batch, tokens.length, memory_tokens.length)

        def attend_cross(read: Value) -> Value:
            return attention(tape, shape, read, cross, setting, memory)

        x = _sublayer(tape, shape, x, setting, attend_cross)
    return _sublayer(tape, shape, x, setting, think)


def _whole(tape: Tape, x: Value, setting: BlockSetting) -> Value:
    """Record the gathering of tokens before a product in sequence parallelism.

    Megatron keeps only the rank's own part and gathers again in backward. torch's
    products save the gathered tensor (torch/distributed/tensor/_redistribute.py;
    traced).
    """
    if not setting.sequence_parallel:
        return x
    size = x.elements * setting.tensor_degree
    if not setting.regathers:
        return tape.simple([x], size, x.width)
    out = Value(size, x.width, foreign=True)
    temp = size * x.width
    return tape.record(
        Op((x,), (out,), (x,), forward_temp_bytes=temp, backward_temp_bytes=temp)
    )


def _part(tape: Tape, x: Value, setting: BlockSetting) -> Value:
    """Record the scattering of a product's sum over the tokens in sequence
    parallelism.
    """
    if not setting.sequence_parallel:
        return x
    return tape.simple([x], x.elements // setting.tensor_degree, x.width)


def _sublayer(
    tape: Tape,
    shape: TransformerShape,
    x: Value,
    setting: BlockSetting,
    compute: Callable[[Value], Value],
) -> Value:
    """Record norm, part, dropout and the sum with the residual stream."""
    inside = shape.norm_place in ("before", "both")
    read = norm(tape, shape, x) if inside else x
    out = _part(tape, compute(_whole(tape, read, setting)), setting)
    if shape.norm_place in ("both", "output"):
        out = norm(tape, shape, out)
    out = tape.dropout(out, shape.hidden_dropout_ratio)
    total = tape.add(x, out)
    return norm(tape, shape, total) if shape.norm_place == "after" else total


def image_input(tape: Tape, elements: int) -> Value:
    """Record the pixels, which the first convolution keeps and which have no
    gradient.
    """
    pixels = Value(elements, tape.compute_width, constant=True)
    tape.ops.append(Op((), (pixels,)))
    return pixels
