"""Reader for Jamba: blocks of attention or of a Mamba mixer, some of them with experts
(arXiv:2403.19887).
"""

import math
from dataclasses import replace

from placement.planner.model.block_layout import (
    Shapes,
    Tensors,
    block_parts,
    embedding_layer,
    head_layer,
    linear,
)
from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.config_reader import ConfigFields
from placement.planner.model.families.config_fields import (
    MAX_BLOCKS,
    ShapeFields,
    blocks,
    made,
    read_shape,
    tie,
)
from placement.planner.model.families.mixture_of_experts import read_experts
from placement.planner.model.spec import LayerPart, LayerSpec, Linear, ModelSpec, part
from telemetry.protocol.sentences import sentence

_JAMBA = ShapeFields(
    hidden=(("hidden_size",), 4096),
    heads=(("num_attention_heads",), 32),
    kv_heads=(("num_key_value_heads",), 8),
    inner=(("intermediate_size",), 14336),
    vocab=65536,
    positions=(("max_position_embeddings",), 262144),
    activation=("hidden_act", "silu"),
    attention_dropout=("attention_dropout", 0.0),
)
_SCAN = sentence(
    "The scan of its Mamba mixers is counted as transformers runs it without the "
    "kernels of mamba-ssm, which need less memory."
)


def jamba(fields: ConfigFields, width: float) -> ModelSpec:
    """Jamba: of eight blocks one has attention, of two one has experts."""
    found = read_experts("num_experts", "num_local_experts", default=16, chosen=2)
    chosen = found(fields)
    hidden = fields.whole("hidden_size", default=4096, high=2**18)
    auto = fields.peek("mamba_dt_rank") in ("auto", None)
    rank = fields.whole("mamba_dt_rank", high=2**18) if not auto else 0
    shape = read_shape(
        fields,
        _JAMBA,
        norm="rmsnorm",
        gated=True,
        experts=chosen["experts"] if chosen["experts"] > 1 else 0,
        experts_per_token=chosen["experts_per_token"],
        state_dim=fields.whole("mamba_d_state", default=16, high=2**16),
        state_inner=hidden * fields.whole("mamba_expand", default=2, high=2**10),
        state_rank=rank or math.ceil(hidden / 16),
        state_kernel=fields.whole("mamba_d_conv", default=4, high=2**10),
        state_bias=fields.flag("mamba_proj_bias"),
    )
    conv_bias = fields.flag("mamba_conv_bias", default=True)
    count = blocks(fields, "num_hidden_layers", default=32)
    attends = _every(fields, "attn_layer", count, period=8, offset=4)
    routes = _every(fields, "expert_layer", count, period=2, offset=1)
    tensors = Tensors(embedding=[(shape.vocab, shape.hidden)])
    groups = tie(fields, shape, tensors, default=False)
    mixer = _mixer(shape, width, conv_bias)
    middle = []
    for index in range(count):
        experts = index in routes and shape.experts > 0
        parts = block_parts(shape, tensors, width, experts=experts)
        if index not in attends:
            parts = (mixer, *parts[1:])
        middle.append(LayerSpec(f"block {index}", "block", parts))
    layers = (
        embedding_layer(tensors.embedding, tensors, shape, width),
        *middle,
        head_layer(shape, tensors, width),
    )
    return replace(made("causal_lm", shape, layers, groups), notes=(_SCAN,))


def _every(
    fields: ConfigFields, name: str, count: int, *, period: int, offset: int
) -> range:
    """Return the blocks of a kind, one in each period."""
    step = fields.whole(f"{name}_period", default=period, high=MAX_BLOCKS)
    first = fields.whole(f"{name}_offset", default=offset, low=0, high=MAX_BLOCKS)
    fields.require(
        f"{name}_offset",
        first < step,
        sentence("{offset} in a period of {period}", offset=first, period=step),
    )
    return range(first, count, step)


def _mixer(shape: TransformerShape, width: float, conv_bias: bool) -> LayerPart:
    """Return the parameters of a Mamba mixer with Jamba's three norms."""
    inner, states, rank = shape.state_inner, shape.state_dim, shape.state_rank
    hidden, bias = shape.hidden, shape.state_bias
    narrow = rank + 2 * states
    shapes: Shapes = [
        *linear(hidden, 2 * inner, bias),
        (inner, 1, shape.state_kernel),
        *([(inner,)] if conv_bias else []),
        *linear(inner, narrow, False),
        *linear(rank, inner, True),
        (inner, states),
        (inner,),
        *linear(inner, hidden, bias),
        (rank,),
        (states,),
        (states,),
    ]
    linears = (
        Linear("in_proj", 2 * inner, hidden),
        Linear("x_proj", narrow, inner),
        Linear("dt_proj", inner, rank),
        Linear("out_proj", hidden, inner),
    )
    return part("other", shapes, element_bytes=width, linears=linears)
