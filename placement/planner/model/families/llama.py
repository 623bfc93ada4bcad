"""Readers for LLaMA and its relatives: RMS norms, rotary positions, a gated MLP."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from placement.planner.model.block_layout import Tensors
from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.config_reader import Fields
from placement.planner.model.families.config_fields import (
    ACTIVATIONS,
    blocks,
    finish,
    head_size,
    positions,
    tie,
    vocab,
    windowed,
)
from placement.planner.model.spec import (
    ModelSpec,
)
from telemetry.protocol.sentences import sentence


@dataclass(frozen=True)
class LlamaDefaults:
    """What a family's config class assumes when config.json is silent."""

    vocab: int = 32000
    hidden: int = 4096
    intermediate: int = 11008
    blocks: int = 32
    heads: int = 32
    kv_heads: int | None = None
    head_dim: int | None = None
    positions: int = 2048
    activation: str = "silu"
    tied: bool = False
    qkv_bias: bool = False
    norm: Literal["rmsnorm", "rmsnorm_gemma"] = "rmsnorm"
    window: int = 0
    """Sliding window where config.json is silent."""
    window_flag: str = ""
    """The switch that turns the window on; silent means off."""
    full_every: int = 0
    """One block of so many is not windowed; 0: all blocks are alike."""


def read_llama(
    fields: Fields,
    width: float,
    defaults: LlamaDefaults,
    *,
    plain_blocks: Iterable[int] = (),
    **shape_extra: Any,
) -> ModelSpec:
    """A decoder in LLaMA's manner; `shape_extra` says what the family does else.

    `plain_blocks`: in a model with experts, the blocks that have none.
    """
    attention_bias = fields.flag("attention_bias", default=False)
    qkv_bias = fields.flag("qkv_bias", default=defaults.qkv_bias) or attention_bias
    count = blocks(fields, "num_hidden_layers", default=defaults.blocks)
    window, sliding = windowed(
        fields,
        count,
        default=defaults.window,
        flag=defaults.window_flag,
        full_every=defaults.full_every,
    )
    shape = _shape(
        fields,
        defaults,
        biases=qkv_bias,
        sliding_window=window,
        sliding_blocks=sliding,
        **shape_extra,
    )
    tensors = Tensors(
        qkv_bias=qkv_bias,
        out_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
        norms=4 if shape.norm_place == "both" else 2,
        embedding=[(shape.vocab, shape.hidden)],
        plain_blocks=frozenset(plain_blocks),
    )
    groups = tie(fields, shape, tensors, default=defaults.tied)
    return finish("causal_lm", shape, tensors, count, width, groups)


def _shape(fields: Fields, defaults: LlamaDefaults, **extra: Any) -> TransformerShape:
    hidden = fields.whole("hidden_size", default=defaults.hidden, high=2**18)
    heads = fields.whole("num_attention_heads", default=defaults.heads, high=8192)
    kv_heads = fields.whole(
        "num_key_value_heads", default=defaults.kv_heads or heads, high=8192
    )
    head_dim = extra.pop("head_dim", 0) or (
        fields.whole("head_dim", default=defaults.head_dim, high=2**16)
        if defaults.head_dim
        else head_size(fields, hidden, heads, "num_attention_heads")
    )
    fields.must(
        "num_key_value_heads",
        kv_heads <= heads and heads % kv_heads == 0,
        sentence(
            "{kv_heads} key/value heads do not divide {heads} heads",
            kv_heads=kv_heads,
            heads=heads,
        ),
    )
    return TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=fields.whole(
            "intermediate_size", default=defaults.intermediate, high=2**21
        ),
        vocab=vocab(fields, defaults.vocab),
        positions=positions(
            fields, "max_position_embeddings", default=defaults.positions
        ),
        norm=defaults.norm,
        activation=fields.choice(  # type: ignore[arg-type]
            "hidden_activation",
            "hidden_act",
            options=ACTIVATIONS,
            default=defaults.activation,
        ),
        gated=True,
        rotary=extra.pop("rotary", "full"),
        attention_dropout_ratio=fields.ratio("attention_dropout"),
        **extra,
    )


def llama(fields: Fields, width: float) -> ModelSpec:
    """LLaMA 1 to 3 and everything with `model_type: llama`."""
    return read_llama(fields, width, LlamaDefaults())


def mistral(fields: Fields, width: float) -> ModelSpec:
    """Mistral 7B: grouped queries, a wider MLP."""
    return read_llama(
        fields,
        width,
        LlamaDefaults(intermediate=14336, kv_heads=8, positions=131072, window=4096),
    )


def olmo2(fields: Fields, width: float) -> ModelSpec:
    """OLMo 2: norms on the sublayers' outputs, and on queries and keys as a whole."""
    return read_llama(
        fields,
        width,
        LlamaDefaults(vocab=50304),
        norm_place="output",
        qk_norm=True,
        qk_norm_whole=True,
    )


def smollm3(fields: Fields, width: float) -> ModelSpec:
    """SmolLM 3: LLaMA, tied, one block of four without rotary positions."""
    defaults = LlamaDefaults(
        vocab=128256,
        hidden=2048,
        blocks=36,
        heads=16,
        kv_heads=4,
        positions=32768,
        tied=True,
        window_flag="use_sliding_window",
    )
    return read_llama(fields, width, defaults)


def phi3(fields: Fields, width: float) -> ModelSpec:
    """Phi 3 and 4: LLaMA with one product for q, k, v and one for gate and up."""
    defaults = LlamaDefaults(
        vocab=32064, hidden=3072, intermediate=8192, positions=4096
    )
    ratio = fields.ratio("partial_rotary_factor", default=1.0)
    return read_llama(
        fields,
        width,
        defaults,
        fused_qkv=True,
        fused_gate=True,
        rotary="full" if ratio == 1.0 else "partial",
        rotary_ratio=ratio,
        embedding_dropout_ratio=fields.ratio("embd_pdrop"),
        hidden_dropout_ratio=fields.ratio("resid_pdrop"),
    )


def qwen2(fields: Fields, width: float) -> ModelSpec:
    """Qwen 2 and 2.5: biases on query, key, value only."""
    defaults = LlamaDefaults(
        vocab=151936,
        intermediate=22016,
        positions=32768,
        qkv_bias=True,
        kv_heads=32,
        window=4096,
        window_flag="use_sliding_window",
    )
    return read_llama(fields, width, defaults)


def qwen3(fields: Fields, width: float) -> ModelSpec:
    """Qwen 3: no biases, a norm on each query and key head."""
    defaults = LlamaDefaults(
        vocab=151936,
        intermediate=22016,
        positions=32768,
        head_dim=128,
        kv_heads=32,
        window=4096,
        window_flag="use_sliding_window",
    )
    return read_llama(fields, width, defaults, qk_norm=True)


def gemma(fields: Fields, width: float) -> ModelSpec:
    """Gemma 1: wide heads, the token table tied and scaled."""
    defaults = LlamaDefaults(
        vocab=256000,
        hidden=3072,
        intermediate=24576,
        blocks=28,
        heads=16,
        kv_heads=16,
        head_dim=256,
        positions=8192,
        activation="gelu_pytorch_tanh",
        tied=True,
        norm="rmsnorm_gemma",
    )
    return read_llama(fields, width, defaults, scaled_embedding=True)


def gemma2(fields: Fields, width: float) -> ModelSpec:
    """Gemma 2: norms before and after, soft caps on scores and logits."""
    defaults = LlamaDefaults(
        vocab=256000,
        hidden=2304,
        intermediate=9216,
        blocks=26,
        heads=8,
        kv_heads=4,
        head_dim=256,
        positions=8192,
        activation="gelu_pytorch_tanh",
        tied=True,
        norm="rmsnorm_gemma",
        window=4096,
        full_every=2,
    )
    return read_llama(
        fields,
        width,
        defaults,
        scaled_embedding=True,
        norm_place="both",
        softcap=True,
        final_softcap=True,
    )


def gemma3(fields: Fields, width: float) -> ModelSpec:
    """Gemma 3's text model: norms on queries and keys, five blocks of six windowed."""
    defaults = LlamaDefaults(
        vocab=262208,
        hidden=2304,
        intermediate=9216,
        blocks=26,
        heads=8,
        kv_heads=4,
        head_dim=256,
        positions=131072,
        activation="gelu_pytorch_tanh",
        tied=True,
        norm="rmsnorm_gemma",
        window=4096,
        full_every=6,
    )
    return read_llama(
        fields,
        width,
        defaults,
        scaled_embedding=True,
        norm_place="both",
        qk_norm=True,
        softcap=fields.peek("attn_logit_softcapping") is not None,
        final_softcap=fields.peek("final_logit_softcapping") is not None,
    )
