"""Attention on a tape: projections, scores or flash, latent (DeepSeek) and windowed.

Sources: transformers 5.23 modeling files, torch's sdp_utils and derivatives.yaml. With
tensor parallelism of degree t each rank has 1/t of the heads.
"""

from dataclasses import dataclass

from placement.planner.memory.matrix_products import linear
from placement.planner.memory.norm_operators import rms_norm, unit_norm
from placement.planner.memory.tape import Tape, Value
from placement.planner.model.block_shape import TransformerShape
from placement.planner.values.workload import Attention


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
    """The properties of a block that a Workload determines."""

    attention: Attention
    tensor_degree: int = 1
    cpu: bool = False
    recompute_scores: bool = False
    """Selective checkpointing: the core of attention runs again in backward."""
    sequence_parallel: bool = False
    """Norms, dropouts and the residual stream hold 1/t of the tokens."""
    regathers: bool = True
    """Gathered inputs of a product are not kept but gathered again (Megatron)."""
    broadcast_keys: bool = False
    """One key head for all (Falcon 7B). No fused kernel supports it, so scores are
    computed.
    """


@dataclass(frozen=True, slots=True)
class _Heads:
    """Sizes of one rank's heads."""

    queries: int
    keys: int
    width: int
    value_width: int


def attention(
    tape: Tape,
    shape: TransformerShape,
    x: Value,
    tokens: Tokens,
    setting: BlockSetting,
    memory: Value | None = None,
) -> Value:
    """Record projections, scores and output projection. `memory`: the encoder's
    output.
    """
    t = setting.tensor_degree
    heads = _Heads(
        max(1, shape.heads // t),
        max(1, shape.kv_heads // t),
        shape.head_dim,
        shape.value_dim or shape.head_dim,
    )
    if shape.latent_kv:
        q, k, v = _latent(tape, shape, x, heads)
    else:
        q, k, v = _project(tape, shape, x, memory, heads)
    out = _core(tape, shape, (q, k, v), tokens, setting, heads, memory is not None)
    width = heads.queries * heads.value_width
    return linear(
        tape, out, width, shape.hidden, bias=shape.biases, component="attention"
    )


def _core(
    tape: Tape,
    shape: TransformerShape,
    qkv: tuple[Value, Value, Value],
    tokens: Tokens,
    setting: BlockSetting,
    heads: _Heads,
    cross: bool,
) -> Value:
    """Record softmax(q k) v by the kernel that the Workload chose, if it can run
    here.
    """
    # Both fused kernels save the same tensors (derivatives.yaml).
    kernel = "flash" if setting.attention == "efficient" else setting.attention
    relative = shape.norm == "rmsnorm_t5" and not cross
    refused = shape.alibi or shape.softcap or shape.sinks
    if kernel == "flash" and (refused or setting.broadcast_keys):
        kernel = "math" if setting.broadcast_keys else "eager"
    if kernel == "flash" and setting.cpu:
        # The CPU's kernel supports neither a trained bias nor unequal head sizes.
        unequal = heads.value_width != heads.width
        kernel = "math" if relative or unequal else "flash"
    if kernel == "flash" and not setting.cpu and heads.queries != heads.keys:
        # Of CUDA's fused kernels only flash takes grouped heads (pytorch issue 154363).
        takes = setting.attention == "flash" and tape.compute_width < 4.0
        kernel = "flash" if takes else "math"
    count = heads.queries * tokens.count
    q, k, v = qkv
    if kernel != "flash" and setting.recompute_scores:
        temp = 3 * 4.0 * count * tokens.keys
        return _flash(tape, q, k, v, count, heads, backward_temp_bytes=temp)
    if kernel == "flash":
        # A trained bias gets a gradient as large as the scores.
        temp = tape.compute_width * count * tokens.keys if relative else 0.0
        out = _flash(tape, q, k, v, count, heads, backward_temp_bytes=temp)
        if setting.cpu and shape.rotary == "partial":
            out = tape.simple([out], out.elements, out.width)
        return out
    return _scores(tape, shape, qkv, tokens, heads, kernel)


def _project(
    tape: Tape,
    shape: TransformerShape,
    x: Value,
    memory: Value | None,
    heads: _Heads,
) -> tuple[Value, Value, Value]:
    bias = shape.biases
    query_width, key_width = heads.queries * heads.width, heads.keys * heads.width
    rows = x.elements // shape.hidden

    def product(source: Value, width: int) -> Value:
        return linear(
            tape, source, shape.hidden, width, bias=bias, component="attention"
        )

    if shape.fused_qkv and memory is None:
        fused = product(x, query_width + 2 * key_width)
        sizes = [rows * query_width, rows * key_width, rows * key_width]
        q, k, v = tape.split(fused, sizes)
    else:
        source = x if memory is None else memory
        q = product(x, query_width)
        k, v = product(source, key_width), product(source, key_width)
    if shape.qk_norm:
        q_size = query_width if shape.qk_norm_whole else heads.width
        k_size = key_width if shape.qk_norm_whole else heads.width
        q = rms_norm(tape, shape, q, q_size, "attention")
        k = rms_norm(tape, shape, k, k_size, "attention")
    if shape.rotary == "complex":
        q, k = _rotate_pairs(tape, q), _rotate_pairs(tape, k)
    elif shape.rotary != "none":
        q, k = _rotate(tape, q), _rotate(tape, k)
    if shape.qk_unit:
        q, k = unit_norm(tape, q, heads.width), unit_norm(tape, k, heads.width)
    return tape.half(q), tape.half(k), v


def _latent(
    tape: Tape, shape: TransformerShape, x: Value, heads: _Heads
) -> tuple[Value, Value, Value]:
    """Record DeepSeek's latent attention as transformers runs it: keys and values
    expanded.

    The latents are on every tensor-parallel rank. Their expansions are divided.
    """
    rows = x.elements // shape.hidden
    query_width = heads.queries * heads.width
    plain = heads.width - shape.rope_dim

    def product(source: Value, inputs: int, outputs: int) -> Value:
        return linear(tape, source, inputs, outputs, bias=False, component="attention")

    latent = product(x, shape.hidden, shape.latent_kv + shape.rope_dim)
    kept, turned = tape.split(latent, [rows * shape.latent_kv, rows * shape.rope_dim])
    kept = rms_norm(tape, shape, kept, shape.latent_kv, "attention")
    wide = heads.queries * (plain + heads.value_width)
    both = product(kept, shape.latent_kv, wide)
    sizes = [rows * heads.queries * plain, rows * heads.queries * heads.value_width]
    k_plain, v = tape.split(both, sizes)
    if shape.latent_query:
        low = product(x, shape.hidden, shape.latent_query)
        low = rms_norm(tape, shape, low, shape.latent_query, "attention")
        q = product(low, shape.latent_query, query_width)
    else:
        q = product(x, shape.hidden, query_width)
    turned = _rotate(tape, turned)
    q = tape.simple([q], q.elements, q.width, forward_temp_bytes=q.size_bytes)
    k = tape.simple([k_plain, turned], rows * query_width, q.width)
    return tape.half(q), tape.half(k), v


def _rotate(tape: Tape, x: Value) -> Value:
    """Record rotary positions: x cos + rotate(x) sin. cos and sin are kept once per
    model.
    """
    width = 4.0 if tape.autocast else x.width
    return tape.simple(
        [x],
        x.elements,
        width,
        forward_temp_bytes=2 * x.elements * width,
        backward_temp_bytes=2 * x.elements * width,
    )


def _rotate_pairs(tape: Tape, x: Value) -> Value:
    """Record rotary positions as products of complex fp32 numbers, cast back."""
    wide = tape.cast(x, 4.0)
    return tape.cast(tape.simple([wide], x.elements, 4.0), x.width)


def _flash(
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    rows: int,
    heads: _Heads,
    *,
    backward_temp_bytes: float = 0.0,
) -> Value:
    """Record flash attention, which keeps q, k, v, its output and one fp32 number per
    row.
    """
    return tape.simple(
        [q, k, v],
        rows * heads.value_width,
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
    heads: _Heads,
    kernel: str,
) -> Value:
    """Record attention that stores the scores: SDPA's math kernel, or eager code."""
    math = kernel == "math"
    width = 4.0 if math else tape.compute_width
    keys = tokens.batch * tokens.keys * heads.queries
    mixed_elements = tokens.count * heads.queries * heads.value_width
    q = tape.simple([qkv[0]], qkv[0].elements, width)
    k = tape.simple([qkv[1]], keys * heads.width, width)
    v = tape.simple([qkv[2]], keys * heads.value_width, width)
    count = tokens.count * tokens.keys * heads.queries
    scores = tape.simple([q, k], count, width, kept=[q, k])
    if shape.softcap:
        bent = tape.simple([scores], count, width, keep_output=True)
        scores = tape.simple([bent], count, width)
    elif not math:
        scores = tape.simple([scores], count, width, forward_temp_bytes=count * width)
    if shape.sinks and not math:
        # The sinks are concatenated to the scores, then the largest score is
        # subtracted.
        beside = count + tokens.count * heads.queries
        scores = tape.simple([scores], beside, width)
        scores = tape.simple([scores], beside, width)
    wide = math or shape.softmax_fp32 or tape.autocast
    probabilities = tape.simple(
        [scores], count, 4.0 if wide else width, keep_output=True
    )
    if not math:
        probabilities = tape.cast(probabilities, width)
    probabilities = tape.dropout(probabilities, shape.attention_dropout_ratio)
    mixed = tape.simple(
        [probabilities, v], mixed_elements, width, kept=[probabilities, v]
    )
    return tape.simple([mixed], mixed_elements, tape.compute_width)
