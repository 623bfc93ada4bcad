"""Readers for LLaMA and its relatives: RMS norms, rotary positions, a gated MLP."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from placement.planner.model.block_layout import Tensors
from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.config_reader import ConfigFields
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


@dataclass(frozen=True, kw_only=True)
class LlamaFamily:
    """The defaults of a family's config class."""

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
    attention_bias: bool = False
    """Biases of all four projections, if config.json does not set them."""
    out_bias: bool = True
    """The output projection has a bias if the other three have one."""
    norm: Literal["rmsnorm", "rmsnorm_gemma"] = "rmsnorm"
    window: int = 0
    """Sliding window, if config.json does not set it."""
    window_flag: str = ""
    """The switch that turns the window on. If it is missing, the window is off."""
    full_every: int = 0
    """One block of so many is not windowed; 0: all blocks are equal."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the shape in which the family differs from LLaMA."""
    read: Callable[[ConfigFields], Mapping[str, Any]] = lambda _fields: {}
    """Such fields from config.json. ``plain_blocks``: in a model with experts, the
    blocks without experts.
    """


def read_llama(fields: ConfigFields, width: float, family: LlamaFamily) -> ModelSpec:
    """Return a decoder of LLaMA's kind."""
    extra = {**family.shape, **family.read(fields)}
    plain_blocks = extra.pop("plain_blocks", ())
    attention_bias = fields.flag("attention_bias", default=family.attention_bias)
    qkv_bias = fields.flag("qkv_bias", default=family.qkv_bias) or attention_bias
    count = blocks(fields, "num_hidden_layers", default=family.blocks)
    window, sliding = windowed(
        fields,
        count,
        default=family.window,
        flag=family.window_flag,
        full_every=family.full_every,
    )
    shape = _shape(
        fields,
        family,
        biases=qkv_bias,
        **{"sliding_window": window, "sliding_blocks": sliding, **extra},
    )
    tensors = Tensors(
        qkv_bias=qkv_bias,
        out_bias=attention_bias and family.out_bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
        norms=4 if shape.norm_place == "both" else 2,
        embedding=[(shape.vocab, shape.hidden)],
        plain_blocks=frozenset(plain_blocks),
    )
    groups = tie(fields, shape, tensors, default=family.tied)
    return finish("causal_lm", shape, tensors, count, width, groups)


def _shape(fields: ConfigFields, family: LlamaFamily, **extra: Any) -> TransformerShape:
    hidden = fields.whole("hidden_size", default=family.hidden, high=2**18)
    heads = fields.whole("num_attention_heads", default=family.heads, high=8192)
    kv_heads = fields.whole(
        "num_key_value_heads", default=family.kv_heads or heads, high=8192
    )
    head_dim = extra.pop("head_dim", 0) or (
        fields.whole("head_dim", default=family.head_dim, high=2**16)
        if family.head_dim
        else head_size(fields, hidden, heads, "num_attention_heads")
    )
    fields.require(
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
        intermediate=extra.pop("intermediate", 0)
        or fields.whole("intermediate_size", default=family.intermediate, high=2**21),
        vocab=vocab(fields, family.vocab),
        positions=positions(
            fields, "max_position_embeddings", default=family.positions
        ),
        norm=family.norm,
        activation=fields.choice(  # type: ignore[arg-type]
            "hidden_activation",
            "hidden_act",
            options=ACTIVATIONS,
            default=family.activation,
        ),
        gated=True,
        rotary=extra.pop("rotary", "full"),
        attention_dropout_ratio=fields.ratio("attention_dropout"),
        **extra,
    )


def _phi3(fields: ConfigFields) -> dict[str, Any]:
    ratio = fields.ratio("partial_rotary_factor", default=1.0)
    return {
        "rotary": "full" if ratio == 1.0 else "partial",
        "rotary_ratio": ratio,
        "embedding_dropout_ratio": fields.ratio("embd_pdrop"),
        "hidden_dropout_ratio": fields.ratio("resid_pdrop"),
    }


def _gemma3(fields: ConfigFields) -> dict[str, Any]:
    return {
        "softcap": fields.peek("attn_logit_softcapping") is not None,
        "final_softcap": fields.peek("final_logit_softcapping") is not None,
    }


_QWEN = LlamaFamily(
    vocab=151936,
    intermediate=22016,
    positions=32768,
    kv_heads=32,
    window=4096,
    window_flag="use_sliding_window",
)
_GEMMA = LlamaFamily(
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
    shape={"scaled_embedding": True},
)
_GEMMA2 = replace(
    _GEMMA,
    hidden=2304,
    intermediate=9216,
    blocks=26,
    heads=8,
    kv_heads=4,
    window=4096,
    full_every=2,
    shape={
        "scaled_embedding": True,
        "norm_place": "both",
        "softcap": True,
        "final_softcap": True,
    },
)
LLAMA_FAMILIES: dict[str, LlamaFamily] = {
    # Wide heads, the token table tied and scaled.
    "gemma": _GEMMA,
    # Norms before and after, soft caps on scores and logits.
    "gemma2": _GEMMA2,
    # The text model: norms on queries and keys, five blocks of six windowed.
    "gemma3_text": replace(
        _GEMMA2,
        vocab=262208,
        positions=131072,
        full_every=6,
        shape={"scaled_embedding": True, "norm_place": "both", "qk_norm": True},
        read=_gemma3,
    ),
    # LLaMA 1 to 3 and everything with `model_type: llama`.
    "llama": LlamaFamily(),
    # Mistral 7B: grouped queries, a wider MLP.
    "mistral": LlamaFamily(
        intermediate=14336, kv_heads=8, positions=131072, window=4096
    ),
    # OLMo 2: norms on the sublayers' outputs, and on queries and keys as a whole.
    "olmo2": LlamaFamily(
        vocab=50304,
        shape={"norm_place": "output", "qk_norm": True, "qk_norm_whole": True},
    ),
    # Phi 3 and 4: one product for q, k, v and one for gate and up.
    "phi3": LlamaFamily(
        vocab=32064,
        hidden=3072,
        intermediate=8192,
        positions=4096,
        shape={"fused_qkv": True, "fused_gate": True},
        read=_phi3,
    ),
    # Qwen 2 and 2.5: biases on query, key, value only.
    "qwen2": replace(_QWEN, qkv_bias=True),
    # Qwen 3: no biases, a norm on each query and key head.
    "qwen3": replace(_QWEN, head_dim=128, shape={"qk_norm": True}),
    # SmolLM 3: tied, one block of four without rotary positions.
    "smollm3": LlamaFamily(
        vocab=128256,
        hidden=2048,
        blocks=36,
        heads=16,
        kv_heads=4,
        positions=32768,
        tied=True,
        window_flag="use_sliding_window",
    ),
}
