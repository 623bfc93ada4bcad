"""Readers for decoders with layer norms: GPT-2, OPT, BLOOM, Phi, GPT-NeoX, Falcon."""

from dataclasses import dataclass, replace
from typing import Any

from placement.planner.model.block_layout import LinearNames, Tensors
from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.config_reader import ConfigFields
from placement.planner.model.families.config_fields import (
    ShapeFields,
    Size,
    blocks,
    finish,
    read_shape,
    tie,
)
from placement.planner.model.spec import Linear, ModelSpec
from telemetry.protocol.sentences import sentence

_FUSED = LinearNames(
    fused="query_key_value", out="dense", up="dense_h_to_4h", down="dense_4h_to_h"
)


@dataclass(frozen=True, kw_only=True)
class DecoderFields(ShapeFields):
    """A decoder's names of its sizes in config.json, and its tensors."""

    blocks: Size
    names: LinearNames
    tied: bool
    """The logits' weights are the token table, unless config.json has another value."""
    learned_positions: bool = False
    head_bias: bool = False


_GPT2 = DecoderFields(
    hidden=(("n_embd", "hidden_size"), 768),
    heads=(("n_head", "num_attention_heads"), 12),
    inner=(("n_inner",), 0),
    vocab=50257,
    positions=(("n_positions", "max_position_embeddings"), 1024),
    activation=("activation_function", "gelu_new"),
    embedding_dropout=("embd_pdrop", 0.1),
    attention_dropout=("attn_pdrop", 0.1),
    hidden_dropout=("resid_pdrop", 0.1),
    blocks=(("n_layer", "num_hidden_layers"), 12),
    names=LinearNames(fused="c_attn", out="c_proj", up="c_fc", down="c_proj"),
    tied=True,
    learned_positions=True,
)
_OPT = DecoderFields(
    hidden=(("hidden_size",), 768),
    heads=(("num_attention_heads",), 12),
    inner=(("ffn_dim",), 3072),
    vocab=50272,
    activation=("activation_function", "relu"),
    attention_dropout=("attention_dropout", 0.0),
    hidden_dropout=("dropout", 0.1),
    blocks=(("num_hidden_layers",), 12),
    names=LinearNames(out="out_proj", up="fc1", down="fc2"),
    tied=True,
)
_BLOOM = DecoderFields(
    hidden=(("hidden_size", "n_embed"), 64),
    heads=(("n_head", "num_attention_heads"), 8),
    vocab=250880,
    positions=(("seq_length",), 2048),
    activation=("", "gelu"),
    attention_dropout=("attention_dropout", 0.0),
    hidden_dropout=("hidden_dropout", 0.0),
    blocks=(("n_layer", "num_hidden_layers"), 2),
    names=_FUSED,
    tied=True,
)
_PHI = DecoderFields(
    hidden=(("hidden_size",), 2048),
    heads=(("num_attention_heads",), 32),
    kv_heads=(("num_key_value_heads",), 0),
    inner=(("intermediate_size",), 8192),
    vocab=51200,
    activation=("hidden_act", "gelu_new"),
    embedding_dropout=("embd_pdrop", 0.0),
    attention_dropout=("attention_dropout", 0.0),
    hidden_dropout=("resid_pdrop", 0.0),
    blocks=(("num_hidden_layers",), 24),
    names=LinearNames(out="dense", up="fc1", down="fc2"),
    tied=False,
    head_bias=True,
)
_GPT_NEOX = DecoderFields(
    hidden=(("hidden_size",), 6144),
    heads=(("num_attention_heads",), 64),
    inner=(("intermediate_size",), 24576),
    vocab=50432,
    embedding_dropout=("hidden_dropout", 0.0),
    attention_dropout=("attention_dropout", 0.0),
    hidden_dropout=("hidden_dropout", 0.0),
    blocks=(("num_hidden_layers",), 44),
    names=_FUSED,
    tied=False,
)
_FALCON = DecoderFields(
    hidden=(("hidden_size",), 4544),
    heads=(("num_attention_heads", "n_head"), 71),
    kv_heads=(("num_kv_heads", "n_head_kv"), 0),
    inner=(("ffn_hidden_size",), 0),
    vocab=65024,
    activation=("activation", "gelu"),
    attention_dropout=("attention_dropout", 0.0),
    hidden_dropout=("hidden_dropout", 0.0),
    blocks=(("num_hidden_layers", "n_layer"), 32),
    names=_FUSED,
    tied=True,
)
_GPTJ = DecoderFields(
    hidden=(("n_embd", "hidden_size"), 4096),
    heads=(("n_head", "num_attention_heads"), 16),
    inner=(("n_inner",), 0),
    vocab=50400,
    positions=(("n_positions",), 2048),
    activation=("activation_function", "gelu_new"),
    embedding_dropout=("embd_pdrop", 0.0),
    attention_dropout=("attn_pdrop", 0.0),
    hidden_dropout=("resid_pdrop", 0.0),
    blocks=(("n_layer", "num_hidden_layers"), 28),
    names=LinearNames(out="out_proj", up="fc_in", down="fc_out"),
    tied=False,
    head_bias=True,
)


def _decoder(
    fields: ConfigFields,
    width: float,
    row: DecoderFields,
    shape: TransformerShape,
    **tensors: Any,
) -> ModelSpec:
    """Return the model of a shape.

    Args:
        tensors: differences from the biases of the shape and from one token table.
    """
    sizes = [(shape.vocab, shape.hidden)]
    if row.learned_positions:
        sizes.append((shape.positions, shape.hidden))
    usual: dict[str, Any] = {
        "names": row.names,
        "qkv_bias": shape.biases,
        "out_bias": shape.biases,
        "mlp_bias": shape.biases,
        "norm_bias": True,
        "embedding": sizes,
        "head": [(shape.vocab,)] if row.head_bias else [],
    }
    made = Tensors(**{**usual, **tensors})
    groups = tie(fields, shape, made, default=row.tied)
    names, default = row.blocks
    count = blocks(fields, *names, default=default)
    return finish("causal_lm", shape, made, count, width, groups)


def gpt2(fields: ConfigFields, width: float) -> ModelSpec:
    """GPT-2: learned positions, one fused query/key/value projection, tied head."""
    shape = read_shape(fields, _GPT2, biases=True, fused_qkv=True, softmax_fp32=False)
    return _decoder(fields, width, _GPT2, shape)


def opt(fields: ConfigFields, width: float) -> ModelSpec:
    """OPT: two extra position rows; the 350M model projects its token table."""
    before = fields.flag("do_layer_norm_before", default=True)
    shape = read_shape(
        fields,
        _OPT,
        norm_place="before" if before else "after",
        biases=fields.flag("enable_bias", default=True),
    )
    hidden = shape.hidden
    table = fields.whole("word_embed_proj_dim", default=hidden, high=2**18)
    affine = fields.flag("layer_norm_elementwise_affine", default=True)
    final = before and not fields.flag("_remove_final_layer_norm")
    projections = [(hidden, table)] if table != hidden else []
    tensors = Tensors(
        names=_OPT.names,
        qkv_bias=shape.biases,
        out_bias=shape.biases,
        mlp_bias=shape.biases,
        norm_bias=True,
        norms=2 if affine else 0,
        final_norm=final and affine,
        embedding=[
            (shape.vocab, table),
            (shape.positions + 2, hidden),
            *projections,
        ],
        head=[(table, hidden)] if projections else [],
    )
    if fields.flag("tie_word_embeddings", default=True):
        tensors.tied = shape.vocab * table
        groups: tuple[tuple[str, ...], ...] = (("embedding.tokens", "head.logits"),)
    else:
        tensors.head.append((shape.vocab, table))
        tensors.head_linears.append(Linear("lm_head", shape.vocab, table))
        groups = ()
    count = blocks(fields, "num_hidden_layers", default=12)
    return finish("causal_lm", shape, tensors, count, width, groups)


def bloom(fields: ConfigFields, width: float) -> ModelSpec:
    """BLOOM: ALiBi positions, a norm after the token table, tied head."""
    shape = read_shape(
        fields, _BLOOM, biases=True, alibi=True, embedding_norm=True, fused_qkv=True
    )
    return _decoder(fields, width, _BLOOM, shape)


def phi(fields: ConfigFields, width: float) -> ModelSpec:
    """Phi 1 to 2: attention and MLP in parallel after one norm."""
    shape = read_shape(
        fields,
        _PHI,
        biases=True,
        rotary="partial",
        parallel=True,
        shared_norm=True,
        qk_norm=fields.flag("qk_layernorm"),
    )
    return _decoder(fields, width, _PHI, shape, norms=1)


def gpt_neox(fields: ConfigFields, width: float) -> ModelSpec:
    """GPT-NeoX and Pythia: parallel with a norm each, and a separate head."""
    shape = read_shape(
        fields,
        _GPT_NEOX,
        biases=fields.flag("attention_bias", default=True),
        rotary="partial",
        fused_qkv=True,
        parallel=fields.flag("use_parallel_residual", default=True),
    )
    return _decoder(fields, width, _GPT_NEOX, shape, mlp_bias=True)


def falcon(fields: ConfigFields, width: float) -> ModelSpec:
    """Falcon: one key/value head (7B) or a few (40B), parallel, tied head."""
    new = fields.flag("new_decoder_architecture")
    multi_query = fields.flag("multi_query", default=True)
    side_by_side = fields.flag("parallel_attn", default=True)
    parallel = new or side_by_side
    norms = fields.whole(
        "num_ln_in_parallel_attn", default=2 if new else 1, low=1, high=2
    )
    if not side_by_side:
        norms = 2
    alibi = fields.flag("alibi")
    shape = read_shape(
        fields,
        _FALCON,
        biases=fields.flag("bias"),
        rotary="none" if alibi else "full",
        fused_qkv=True,
        parallel=parallel,
        shared_norm=parallel and norms == 1,
        alibi=alibi,
    )
    if not new:
        shape = replace(shape, kv_heads=1 if multi_query else shape.heads)
    return _decoder(fields, width, _FALCON, shape, norms=norms)


def gptj(fields: ConfigFields, width: float) -> ModelSpec:
    """GPT-J: parallel after one norm, part of each head rotated, a biased head."""
    rotated = fields.whole("rotary_dim", default=64, low=0, high=2**16)
    shape = read_shape(fields, _GPTJ, rotary="partial", parallel=True, shared_norm=True)
    head_dim = shape.head_dim
    fields.require(
        "rotary_dim",
        rotated <= head_dim,
        sentence(
            "{rotated} of {head_dim} numbers a head", rotated=rotated, head_dim=head_dim
        ),
    )
    shape = replace(shape, rotary_ratio=min(1.0, rotated / head_dim))
    return _decoder(fields, width, _GPTJ, shape, mlp_bias=True, norms=1)
