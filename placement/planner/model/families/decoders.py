"""Readers for decoders with layer norms: GPT-2, OPT, BLOOM, Phi, GPT-NeoX, Falcon."""

from placement.planner.model.block_layout import LinearNames, Tensors
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
)
from placement.planner.model.spec import (
    Linear,
    ModelSpec,
)
from telemetry.protocol.sentences import sentence

_OPT = LinearNames(out="out_proj", up="fc1", down="fc2")
_FUSED = LinearNames(
    fused="query_key_value", out="dense", up="dense_h_to_4h", down="dense_4h_to_h"
)


def gpt2(fields: Fields, width: float) -> ModelSpec:
    """GPT-2: learned positions, one fused query/key/value projection, tied head."""
    hidden = fields.whole("n_embd", "hidden_size", default=768, high=2**18)
    heads = fields.whole("n_head", "num_attention_heads", default=12, high=8192)
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_size(fields, hidden, heads, "n_head"),
        intermediate=fields.whole("n_inner", default=4 * hidden, high=2**21),
        vocab=vocab(fields, 50257),
        positions=positions(
            fields, "n_positions", "max_position_embeddings", default=1024
        ),
        norm="layernorm",
        activation=fields.choice(  # type: ignore[arg-type]
            "activation_function", options=ACTIVATIONS, default="gelu_new"
        ),
        biases=True,
        fused_qkv=True,
        softmax_fp32=False,
        embedding_dropout_ratio=fields.ratio("embd_pdrop", default=0.1),
        attention_dropout_ratio=fields.ratio("attn_pdrop", default=0.1),
        hidden_dropout_ratio=fields.ratio("resid_pdrop", default=0.1),
    )
    tensors = Tensors(
        names=LinearNames(fused="c_attn", out="c_proj", up="c_fc", down="c_proj"),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        embedding=[(shape.vocab, hidden), (shape.positions, hidden)],
    )
    groups = tie(fields, shape, tensors, default=True)
    count = blocks(fields, "n_layer", "num_hidden_layers", default=12)
    return finish("causal_lm", shape, tensors, count, width, groups)


def opt(fields: Fields, width: float) -> ModelSpec:
    """OPT: two extra position rows; the 350M model projects its token table."""
    hidden = fields.whole("hidden_size", default=768, high=2**18)
    heads = fields.whole("num_attention_heads", default=12, high=8192)
    bias = fields.flag("enable_bias", default=True)
    before = fields.flag("do_layer_norm_before", default=True)
    table = fields.whole("word_embed_proj_dim", default=hidden, high=2**18)
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_size(fields, hidden, heads, "num_attention_heads"),
        intermediate=fields.whole("ffn_dim", default=3072, high=2**21),
        vocab=vocab(fields, 50272),
        positions=positions(fields, "max_position_embeddings", default=2048),
        norm="layernorm",
        norm_place="before" if before else "after",
        activation=fields.choice(  # type: ignore[arg-type]
            "activation_function", options=ACTIVATIONS, default="relu"
        ),
        biases=bias,
        attention_dropout_ratio=fields.ratio("attention_dropout"),
        hidden_dropout_ratio=fields.ratio("dropout", default=0.1),
    )
    affine = fields.flag("layer_norm_elementwise_affine", default=True)
    final = before and not fields.flag("_remove_final_layer_norm")
    projections = [(hidden, table)] if table != hidden else []
    tensors = Tensors(
        names=_OPT,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
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


def bloom(fields: Fields, width: float) -> ModelSpec:
    """BLOOM: ALiBi positions, a norm after the token table, tied head."""
    hidden = fields.whole("hidden_size", "n_embed", default=64, high=2**18)
    heads = fields.whole("n_head", "num_attention_heads", default=8, high=8192)
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_size(fields, hidden, heads, "n_head"),
        intermediate=4 * hidden,
        vocab=vocab(fields, 250880),
        positions=positions(fields, "seq_length", default=2048),
        norm="layernorm",
        activation="gelu",
        biases=True,
        alibi=True,
        embedding_norm=True,
        attention_dropout_ratio=fields.ratio("attention_dropout"),
        hidden_dropout_ratio=fields.ratio("hidden_dropout"),
        fused_qkv=True,
    )
    tensors = Tensors(
        names=_FUSED,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        embedding=[(shape.vocab, hidden)],
    )
    groups = tie(fields, shape, tensors, default=True)
    count = blocks(fields, "n_layer", "num_hidden_layers", default=2)
    return finish("causal_lm", shape, tensors, count, width, groups)


def phi(fields: Fields, width: float) -> ModelSpec:
    """Phi 1 to 2: attention and MLP side by side behind one norm."""
    hidden = fields.whole("hidden_size", default=2048, high=2**18)
    heads = fields.whole("num_attention_heads", default=32, high=8192)
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=fields.whole("num_key_value_heads", default=heads, high=8192),
        head_dim=head_size(fields, hidden, heads, "num_attention_heads"),
        intermediate=fields.whole("intermediate_size", default=8192, high=2**21),
        vocab=vocab(fields, 51200),
        positions=positions(fields, "max_position_embeddings", default=2048),
        norm="layernorm",
        activation=fields.choice(  # type: ignore[arg-type]
            "hidden_act", options=ACTIVATIONS, default="gelu_new"
        ),
        biases=True,
        rotary="partial",
        parallel=True,
        shared_norm=True,
        qk_norm=fields.flag("qk_layernorm"),
        embedding_dropout_ratio=fields.ratio("embd_pdrop"),
        attention_dropout_ratio=fields.ratio("attention_dropout"),
        hidden_dropout_ratio=fields.ratio("resid_pdrop"),
    )
    tensors = Tensors(
        names=LinearNames(out="dense", up="fc1", down="fc2"),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        norms=1,
        embedding=[(shape.vocab, hidden)],
        head=[(shape.vocab,)],
    )
    groups = tie(fields, shape, tensors, default=False)
    count = blocks(fields, "num_hidden_layers", default=24)
    return finish("causal_lm", shape, tensors, count, width, groups)


def gpt_neox(fields: Fields, width: float) -> ModelSpec:
    """GPT-NeoX and Pythia: side by side with a norm each, a head of its own."""
    hidden = fields.whole("hidden_size", default=6144, high=2**18)
    heads = fields.whole("num_attention_heads", default=64, high=8192)
    bias = fields.flag("attention_bias", default=True)
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_size(fields, hidden, heads, "num_attention_heads"),
        intermediate=fields.whole("intermediate_size", default=24576, high=2**21),
        vocab=vocab(fields, 50432),
        positions=positions(fields, "max_position_embeddings", default=2048),
        norm="layernorm",
        activation=fields.choice(  # type: ignore[arg-type]
            "hidden_act", options=ACTIVATIONS, default="gelu"
        ),
        biases=bias,
        rotary="partial",
        fused_qkv=True,
        parallel=fields.flag("use_parallel_residual", default=True),
        embedding_dropout_ratio=fields.ratio("hidden_dropout"),
        attention_dropout_ratio=fields.ratio("attention_dropout"),
        hidden_dropout_ratio=fields.ratio("hidden_dropout"),
    )
    tensors = Tensors(
        names=_FUSED,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        norm_bias=True,
        embedding=[(shape.vocab, hidden)],
    )
    groups = tie(fields, shape, tensors, default=False)
    count = blocks(fields, "num_hidden_layers", default=44)
    return finish("causal_lm", shape, tensors, count, width, groups)


def falcon(fields: Fields, width: float) -> ModelSpec:
    """Falcon: one key/value head (7B) or a few (40B), side by side, tied head."""
    hidden = fields.whole("hidden_size", default=4544, high=2**18)
    heads = fields.whole("num_attention_heads", "n_head", default=71, high=8192)
    new = fields.flag("new_decoder_architecture")
    multi_query = fields.flag("multi_query", default=True)
    given_kv = fields.whole("num_kv_heads", "n_head_kv", default=heads, high=8192)
    bias = fields.flag("bias")
    side_by_side = fields.flag("parallel_attn", default=True)
    parallel = new or side_by_side
    norms = fields.whole(
        "num_ln_in_parallel_attn", default=2 if new else 1, low=1, high=2
    )
    if not side_by_side:
        norms = 2
    alibi = fields.flag("alibi")
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=given_kv if new else (1 if multi_query else heads),
        head_dim=head_size(fields, hidden, heads, "num_attention_heads"),
        intermediate=fields.whole("ffn_hidden_size", default=4 * hidden, high=2**21),
        vocab=vocab(fields, 65024),
        positions=positions(fields, "max_position_embeddings", default=2048),
        norm="layernorm",
        activation=fields.choice(  # type: ignore[arg-type]
            "activation", options=ACTIVATIONS, default="gelu"
        ),
        biases=bias,
        rotary="none" if alibi else "full",
        fused_qkv=True,
        parallel=parallel,
        shared_norm=parallel and norms == 1,
        alibi=alibi,
        attention_dropout_ratio=fields.ratio("attention_dropout"),
        hidden_dropout_ratio=fields.ratio("hidden_dropout"),
    )
    tensors = Tensors(
        names=_FUSED,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norm_bias=True,
        norms=norms,
        embedding=[(shape.vocab, hidden)],
    )
    groups = tie(fields, shape, tensors, default=True)
    count = blocks(fields, "num_hidden_layers", "n_layer", default=32)
    return finish("causal_lm", shape, tensors, count, width, groups)


def gptj(fields: Fields, width: float) -> ModelSpec:
    """GPT-J: side by side behind one norm, part of each head rotated, a biased head."""
    hidden = fields.whole("n_embd", "hidden_size", default=4096, high=2**18)
    heads = fields.whole("n_head", "num_attention_heads", default=16, high=8192)
    head_dim = head_size(fields, hidden, heads, "n_head")
    rotated = fields.whole("rotary_dim", default=64, low=0, high=2**16)
    fields.must(
        "rotary_dim",
        rotated <= head_dim,
        sentence(
            "{rotated} of {head_dim} numbers a head", rotated=rotated, head_dim=head_dim
        ),
    )
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        intermediate=fields.whole("n_inner", default=4 * hidden, high=2**21),
        vocab=vocab(fields, 50400),
        positions=positions(fields, "n_positions", default=2048),
        norm="layernorm",
        activation=fields.choice(  # type: ignore[arg-type]
            "activation_function", options=ACTIVATIONS, default="gelu_new"
        ),
        rotary="partial",
        rotary_ratio=min(1.0, rotated / head_dim),
        parallel=True,
        shared_norm=True,
        embedding_dropout_ratio=fields.ratio("embd_pdrop"),
        attention_dropout_ratio=fields.ratio("attn_pdrop"),
        hidden_dropout_ratio=fields.ratio("resid_pdrop"),
    )
    tensors = Tensors(
        names=LinearNames(out="out_proj", up="fc_in", down="fc_out"),
        mlp_bias=True,
        norm_bias=True,
        norms=1,
        embedding=[(shape.vocab, hidden)],
        head=[(shape.vocab,)],
    )
    groups = tie(fields, shape, tensors, default=False)
    count = blocks(fields, "n_layer", "num_hidden_layers", default=28)
    return finish("causal_lm", shape, tensors, count, width, groups)
