"""Readers for LLaMA and its relatives: RMS norms, rotary positions, a gated MLP."""

from dataclasses import dataclass
from typing import Any, Literal

from placement.domain.config import Fields
from placement.domain.layout import Tensors
from placement.domain.reading import (
    ACTIVATIONS,
    blocks,
    finish,
    head_size,
    positions,
    tie,
    vocab,
)
from placement.domain.spec import ModelSpec, TransformerShape


@dataclass(frozen=True)
class _Defaults:
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


def _read(
    fields: Fields, width: float, defaults: _Defaults, **shape_extra: Any
) -> ModelSpec:
    hidden = fields.whole("hidden_size", default=defaults.hidden, high=2**18)
    heads = fields.whole("num_attention_heads", default=defaults.heads, high=8192)
    kv_heads = fields.whole(
        "num_key_value_heads", default=defaults.kv_heads or heads, high=8192
    )
    head_dim = (
        fields.whole("head_dim", default=defaults.head_dim, high=2**16)
        if defaults.head_dim
        else head_size(fields, hidden, heads, "num_attention_heads")
    )
    fields.must(
        "num_key_value_heads",
        kv_heads <= heads and heads % kv_heads == 0,
        f"{kv_heads} key/value heads do not divide {heads} heads",
    )
    attention_bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)
    shape = TransformerShape(
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
        rotary="full",
        biases=attention_bias or defaults.qkv_bias,
        attention_dropout_ratio=fields.ratio("attention_dropout"),
        **shape_extra,
    )
    tensors = Tensors(
        qkv_bias=attention_bias or defaults.qkv_bias,
        out_bias=attention_bias,
        mlp_bias=mlp_bias,
        norms=4 if shape.norm_place == "both" else 2,
        embedding=[(shape.vocab, hidden)],
    )
    groups = tie(fields, shape, tensors, default=defaults.tied)
    count = blocks(fields, "num_hidden_layers", default=defaults.blocks)
    return finish("causal_lm", shape, tensors, count, width, groups)


def llama(fields: Fields, width: float) -> ModelSpec:
    """LLaMA 1 to 3 and everything with `model_type: llama`."""
    return _read(fields, width, _Defaults())


def mistral(fields: Fields, width: float) -> ModelSpec:
    """Mistral 7B: grouped queries, a wider MLP."""
    return _read(
        fields, width, _Defaults(intermediate=14336, kv_heads=8, positions=131072)
    )


def mixtral(fields: Fields, width: float) -> ModelSpec:
    """Mixtral: each token runs through a few of the experts; all are in memory."""
    experts = fields.whole("num_local_experts", "num_experts", default=8, high=4096)
    chosen = fields.whole("num_experts_per_tok", default=2, high=4096)
    fields.must(
        "num_experts_per_tok",
        chosen <= experts,
        f"{chosen} experts per token of {experts}",
    )
    return _read(
        fields,
        width,
        _Defaults(intermediate=14336, kv_heads=8, positions=131072),
        experts=experts,
        experts_per_token=min(chosen, experts),
    )


def qwen2(fields: Fields, width: float) -> ModelSpec:
    """Qwen 2 and 2.5: biases on query, key, value only."""
    defaults = _Defaults(
        vocab=151936, intermediate=22016, positions=32768, qkv_bias=True, kv_heads=32
    )
    return _read(fields, width, defaults)


def qwen3(fields: Fields, width: float) -> ModelSpec:
    """Qwen 3: no biases, a norm on each query and key head."""
    defaults = _Defaults(
        vocab=151936, intermediate=22016, positions=32768, head_dim=128, kv_heads=32
    )
    return _read(fields, width, defaults, qk_norm=True)


def gemma(fields: Fields, width: float) -> ModelSpec:
    """Gemma 1: wide heads, the token table tied and scaled."""
    defaults = _Defaults(
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
    return _read(fields, width, defaults, scaled_embedding=True)


def gemma2(fields: Fields, width: float) -> ModelSpec:
    """Gemma 2: norms before and after, soft caps on scores and logits."""
    defaults = _Defaults(
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
    )
    return _read(
        fields,
        width,
        defaults,
        scaled_embedding=True,
        norm_place="both",
        softcap=True,
        final_softcap=True,
    )
