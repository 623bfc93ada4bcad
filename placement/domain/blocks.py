"""How a transformer block computes, operator by operator, as Hugging Face writes it.

One generic block whose TransformerShape says what a family does differently. Each
function names the tensors that autograd saves; sources: transformers 5.23 modeling
files and torch's derivatives.yaml. `t` is the tensor-parallel degree: heads and the
MLP's inner size are divided, norms and the residual stream are whole on each rank.
"""

from dataclasses import dataclass

from placement.domain.spec import TransformerShape
from placement.domain.tape import Op, Tape, Value
from placement.domain.workload import Attention


@dataclass(frozen=True, slots=True)
class Tokens:
    """One microbatch on one Gpu."""

    batch: int
    length: int
    """Queries per sequence."""
    keys: int
    """Keys per sequence (cross attention: the encoder's length)."""

    @property
    def count(self) -> int:
        """Tokens in the microbatch."""
        return self.batch * self.length


@dataclass(frozen=True, slots=True)
class BlockSetting:
    """What a Workload decides about a block."""

    attention: Attention
    tensor_degree: int = 1
    cpu: bool = False
    recompute_scores: bool = False
    """Selective checkpointing: attention's core runs again in backward."""


def layer_norm(tape: Tape, shape: TransformerShape, x: Value) -> Value:
    """The family's norm over the hidden size; x has tokens x hidden elements."""
    rows = x.elements // shape.hidden
    if shape.norm == "layernorm":
        return tape.simple(
            [x],
            x.elements,
            x.width,
            kept=[x],
            kept_bytes=8 * rows,
            weight_grad_bytes=2 * shape.hidden * tape.grad_width,
        )
    return rms_norm(tape, shape, x, shape.hidden)


def rms_norm(tape: Tape, shape: TransformerShape, x: Value, size: int) -> Value:
    """x / rms(x) * w, the mean taken in fp32.

    Keeps the fp32 copy of x, and the normalised x in the width that multiplies w.
    T5 multiplies the 16-bit x itself and so keeps that too.
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
    out = tape.simple(
        [normal],
        x.elements,
        normal.width,
        kept=[normal],
        weight_grad_bytes=size * tape.grad_width,
        backward_temp_bytes=normal.size_bytes,
    )
    return tape.cast(out, x.width)


def activation(tape: Tape, shape: TransformerShape, x: Value) -> Value:
    """The MLP's nonlinearity and what it saves."""
    if shape.activation == "relu":
        return tape.simple([x], x.elements, x.width, keep_output=True)
    if shape.activation == "gelu_new":
        # 0.5 * x * (1 + tanh(c * (x + 0.044715 * x ** 3))): each factor is saved.
        inner = tape.simple([x], x.elements, x.width, kept=[x])
        bent = tape.simple([inner], x.elements, x.width, keep_output=True)
        one_plus = tape.simple([bent], x.elements, x.width)
        half = tape.simple([x], x.elements, x.width)
        return tape.simple([half, one_plus], x.elements, x.width, kept=[half, one_plus])
    if shape.activation == "quick_gelu":
        gate = tape.simple([x], x.elements, x.width, keep_output=True)
        return tape.simple([x, gate], x.elements, x.width, kept=[x, gate])
    return tape.simple([x], x.elements, x.width, kept=[x])


def multiply(tape: Tape, left: Value, right: Value) -> Value:
    """A product keeps both factors."""
    return tape.simple(
        [left, right], left.elements, max(left.width, right.width), kept=[left, right]
    )


def mlp(tape: Tape, shape: TransformerShape, x: Value, t: int) -> Value:
    """Up (gate), nonlinearity, down."""
    if shape.experts:
        return _experts(tape, shape, x, t)
    inner = max(1, shape.intermediate // t)
    if shape.gated:
        gate = tape.linear(x, shape.hidden, inner, bias=False)
        bent = activation(tape, shape, gate)
        up = tape.linear(x, shape.hidden, inner, bias=False)
        bent = multiply(tape, bent, up)
    else:
        up = tape.linear(x, shape.hidden, inner, bias=shape.biases)
        bent = activation(tape, shape, up)
    bent = tape.dropout(bent, shape.activation_dropout_ratio)
    return tape.linear(bent, inner, shape.hidden, bias=shape.biases and not shape.gated)


def _experts(tape: Tape, shape: TransformerShape, x: Value, t: int) -> Value:
    """Router, then each token's copy through its experts (grouped products)."""
    inner = max(1, shape.intermediate // t)
    rows = x.elements // shape.hidden
    chosen = rows * shape.experts_per_token
    tape.linear(x, shape.hidden, shape.experts, bias=False)
    routed = tape.simple([x], chosen * shape.hidden, x.width, kept_bytes=24 * chosen)
    others = shape.experts - 1
    up = tape.linear(
        routed,
        shape.hidden,
        2 * inner,
        bias=False,
        extra=others * shape.hidden * 2 * inner,
    )
    gate, value = tape.split(up, [chosen * inner, chosen * inner])
    bent = multiply(tape, activation(tape, shape, gate), value)
    down = tape.linear(
        bent, inner, shape.hidden, bias=False, extra=others * inner * shape.hidden
    )
    weighted = tape.simple([down], down.elements, down.width, kept=[down])
    return tape.simple([weighted], x.elements, x.width)


def attention(
    tape: Tape,
    shape: TransformerShape,
    x: Value,
    tokens: Tokens,
    setting: BlockSetting,
    memory: Value | None = None,
) -> Value:
    """Projections, scores, output projection. `memory`: the encoder's output."""
    t = setting.tensor_degree
    heads, kv_heads = max(1, shape.heads // t), max(1, shape.kv_heads // t)
    query_width, key_width = heads * shape.head_dim, kv_heads * shape.head_dim
    q, k, v = _project(tape, shape, x, memory, query_width, key_width)
    no_flash = setting.attention != "flash" or shape.alibi or shape.softcap
    if no_flash and setting.recompute_scores:
        temp = 3 * 4.0 * heads * tokens.count * tokens.keys
        out = _flash(tape, q, k, v, heads * tokens.count, backward_temp_bytes=temp)
    elif not no_flash:
        out = _flash(tape, q, k, v, heads * tokens.count)
        if setting.cpu and shape.rotary == "partial":
            out = tape.simple([out], out.elements, out.width)
    else:
        kernel = "math" if setting.attention == "math" else "eager"
        out = _scores(tape, shape, (q, k, v), tokens, heads, kernel)
    return tape.linear(out, query_width, shape.hidden, bias=shape.biases)


def _project(
    tape: Tape,
    shape: TransformerShape,
    x: Value,
    memory: Value | None,
    query_width: int,
    key_width: int,
) -> tuple[Value, Value, Value]:
    bias = shape.biases
    rows = x.elements // shape.hidden
    if shape.fused_qkv:
        total = query_width + 2 * key_width
        fused = tape.linear(x, shape.hidden, total, bias=bias)
        sizes = [rows * query_width, rows * key_width, rows * key_width]
        q, k, v = tape.split(fused, sizes)
    else:
        source = x if memory is None else memory
        q = tape.linear(x, shape.hidden, query_width, bias=bias)
        k = tape.linear(source, shape.hidden, key_width, bias=bias)
        v = tape.linear(source, shape.hidden, key_width, bias=bias)
    if shape.qk_norm:
        q = rms_norm(tape, shape, q, shape.head_dim)
        k = rms_norm(tape, shape, k, shape.head_dim)
    if shape.rotary != "none":
        q, k = _rotate(tape, q), _rotate(tape, k)
    return tape.half(q), tape.half(k), v


def _rotate(tape: Tape, x: Value) -> Value:
    """Rotary positions: x cos + rotate(x) sin. cos and sin are kept once per model."""
    width = 4.0 if tape.autocast else x.width
    return tape.simple(
        [x],
        x.elements,
        width,
        forward_temp_bytes=2 * x.elements * width,
        backward_temp_bytes=2 * x.elements * width,
    )


def _flash(
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    rows: int,
    *,
    backward_temp_bytes: float = 0.0,
) -> Value:
    """Flash attention keeps q, k, v, its output and one fp32 number per row."""
    return tape.simple(
        [q, k, v],
        q.elements,
        q.width,
        kept=[q, k, v],
        keep_output=True,
        kept_bytes=4 * rows,
        backward_temp_bytes=backward_temp_bytes,
    )


def _scores(
    tape: Tape,
    shape: TransformerShape,
    qkv: tuple[Value, Value, Value],
    tokens: Tokens,
    heads: int,
    kernel: str,
) -> Value:
    """Attention that writes the scores out: SDPA's math kernel, or eager code."""
    math = kernel == "math"
    width = 4.0 if math else tape.compute_width
    key_elements = tokens.batch * tokens.keys * heads * shape.head_dim
    q = tape.simple([qkv[0]], qkv[0].elements, width)
    k = tape.simple([qkv[1]], key_elements, width)
    v = tape.simple([qkv[2]], key_elements, width)
    count = tokens.count * tokens.keys * heads
    scores = tape.simple([q, k], count, width, kept=[q, k])
    if shape.softcap:
        bent = tape.simple([scores], count, width, keep_output=True)
        scores = tape.simple([bent], count, width)
    elif not math:
        scores = tape.simple([scores], count, width, forward_temp_bytes=count * width)
    wide = math or shape.softmax_fp32 or tape.autocast
    probabilities = tape.simple(
        [scores], count, 4.0 if wide else width, keep_output=True
    )
    if not math:
        probabilities = tape.cast(probabilities, width)
    probabilities = tape.dropout(probabilities, shape.attention_dropout_ratio)
    mixed = tape.simple([probabilities, v], q.elements, width, kept=[probabilities, v])
    return tape.simple([mixed], q.elements, tape.compute_width)


def block(
    tape: Tape,
    shape: TransformerShape,
    x: Value,
    tokens: Tokens,
    setting: BlockSetting,
    memory: Value | None = None,
    memory_tokens: Tokens | None = None,
) -> Value:
    """One whole block; `memory` adds T5's cross attention."""
    t = setting.tensor_degree
    ratio = shape.hidden_dropout_ratio
    if shape.parallel:
        read = layer_norm(tape, shape, x)
        mixed = tape.dropout(attention(tape, shape, read, tokens, setting), ratio)
        if not shape.shared_norm:
            read = layer_norm(tape, shape, x)
        bent = tape.dropout(mlp(tape, shape, read, t), ratio)
        return tape.add(tape.add(mixed, bent), x)

    def attend(read: Value) -> Value:
        return attention(tape, shape, read, tokens, setting)

    x = _sublayer(tape, shape, x, attend)
    if memory is not None and memory_tokens is not None:
        cross = Tokens(tokens.batch, tokens.length, memory_tokens.length)

        def attend_cross(read: Value) -> Value:
            return attention(tape, shape, read, cross, setting, memory)

        x = _sublayer(tape, shape, x, attend_cross)
    return _sublayer(tape, shape, x, lambda read: mlp(tape, shape, read, t))


def _sublayer(tape: Tape, shape: TransformerShape, x: Value, compute) -> Value:  # type: ignore[no-untyped-def]
    """Norm, part, dropout and the sum with the residual stream."""
    read = x if shape.norm_place == "after" else layer_norm(tape, shape, x)
    out = compute(read)
    if shape.norm_place == "both":
        out = layer_norm(tape, shape, out)
    out = tape.dropout(out, shape.hidden_dropout_ratio)
    total = tape.add(x, out)
    return layer_norm(tape, shape, total) if shape.norm_place == "after" else total


def image_input(tape: Tape, elements: int) -> Value:
    """Pixels: kept by the first convolution, no gradient."""
    pixels = Value(elements, tape.compute_width, constant=True)
    tape.ops.append(Op((), (pixels,)))
    return pixels
