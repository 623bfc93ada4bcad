"""Build layers and parameters from a block's sizes, exact to the element.

There is one builder for decoders and encoders whose blocks are attention + MLP. The
families determine which tensors exist (biases, norms, experts). Checked against Hugging
Face's own counts in tests/placement/planner/model/families/test_config_json.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.spec import (
    LayerKind,
    LayerPart,
    LayerSpec,
    Linear,
    part,
)

Shapes = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LinearNames:
    """A family's names of the linear layers of a block, which adapters use."""

    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    fused: str = "qkv_proj"
    out: str = "o_proj"
    gate: str = "gate_proj"
    up: str = "up_proj"
    fused_gate: str = "gate_up_proj"
    down: str = "down_proj"


@dataclass(slots=True)
class Tensors:
    """The tensors of a family beyond its TransformerShape."""

    names: LinearNames = field(default_factory=LinearNames)
    qkv_bias: bool = False
    key_bias: bool | None = None
    """None: the same as `qkv_bias`."""
    out_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    norms: int = 2
    """Norms inside one block."""
    final_norm: bool = True
    embedding: Shapes = field(default_factory=list)
    head: Shapes = field(default_factory=list)
    head_linears: list[Linear] = field(default_factory=list)
    head_norms: int = 0
    """Norms inside the head itself (BERT's transform)."""
    head_norm_size: int = 0
    """Length of these norms; 0: the hidden size."""
    plain_blocks: frozenset[int] = frozenset()
    """In a model with experts: the blocks with a plain MLP instead."""
    tied: int = 0
    """Elements of the head that use the embedding's storage."""


def linear(inputs: int, outputs: int, bias: bool) -> Shapes:
    """Return the tensors of one linear layer.

    >>> linear(3, 4, True)
    [(4, 3), (4,)]
    """
    shapes: Shapes = [(outputs, inputs)]
    if bias:
        shapes.append((outputs,))
    return shapes


def norm_shapes(shape: TransformerShape, count: int, bias: bool) -> Shapes:
    """Return the tensors of `count` norms over the hidden size."""
    one: Shapes = [(shape.hidden,)]
    return one * (2 * count if bias else count)


def attention_part(
    shape: TransformerShape, tensors: Tensors, width: float
) -> LayerPart:
    """Return query, key, value and output projections, and per-head norms."""
    if shape.latent_kv:
        return _latent_attention(shape, tensors, width)
    names, hidden = tensors.names, shape.hidden
    query, key = shape.attention_width, shape.kv_width
    key_bias = tensors.qkv_bias if tensors.key_bias is None else tensors.key_bias
    if shape.fused_qkv:
        wide = query + 2 * key
        linears = [Linear(names.fused, wide, hidden)]
        shapes = linear(hidden, wide, tensors.qkv_bias)
    else:
        linears = [
            Linear(names.query, query, hidden),
            Linear(names.key, key, hidden),
            Linear(names.value, key, hidden),
        ]
        shapes = (
            linear(hidden, query, tensors.qkv_bias)
            + linear(hidden, key, key_bias)
            + linear(hidden, key, tensors.qkv_bias)
        )
    linears.append(Linear(names.out, hidden, query))
    shapes += linear(query, hidden, tensors.out_bias)
    if shape.qk_norm and shape.qk_norm_whole:
        shapes += [(query,), (key,)]
    elif shape.qk_norm:
        shapes += [(shape.head_dim,)] * (4 if tensors.norm_bias else 2)
    if shape.sinks:
        shapes.append((shape.heads,))
    return part("attention", shapes, element_bytes=width, linears=linears)


def _latent_attention(
    shape: TransformerShape, tensors: Tensors, width: float
) -> LayerPart:
    """Return DeepSeek's attention: keys and values are made from one narrow latent
    (arXiv:2405.04434).
    """
    hidden, heads, bias = shape.hidden, shape.heads, tensors.qkv_bias
    plain_dim = shape.head_dim - shape.rope_dim
    latent = shape.latent_kv
    made = [
        Linear("kv_a_proj_with_mqa", latent + shape.rope_dim, hidden),
        Linear("kv_b_proj", heads * (plain_dim + shape.value_dim), latent),
        Linear("o_proj", hidden, heads * shape.value_dim),
    ]
    if shape.latent_query:
        made += [
            Linear("q_a_proj", shape.latent_query, hidden),
            Linear("q_b_proj", shape.attention_width, shape.latent_query),
        ]
    else:
        made.append(Linear("q_proj", shape.attention_width, hidden))
    shapes: Shapes = [(one.outputs, one.inputs) for one in made]
    shapes += [(latent,), (shape.latent_query,)][: 2 if shape.latent_query else 1]
    if bias:
        biased = ("kv_a_proj_with_mqa", "o_proj", "q_a_proj")
        shapes += [(one.outputs,) for one in made if one.name in biased]
    return part("attention", shapes, element_bytes=width, linears=made)


def mlp_parts(
    shape: TransformerShape, tensors: Tensors, width: float, *, experts: bool
) -> list[LayerPart]:
    """Return up (and gate) and down projections; for experts, all of them and the
    router.
    """
    if experts:
        return _expert_parts(shape, tensors, width)
    return [_plain_mlp(shape, tensors, shape.intermediate, width)]


def _plain_mlp(
    shape: TransformerShape, tensors: Tensors, inner: int, width: float
) -> LayerPart:
    hidden, bias, names = shape.hidden, tensors.mlp_bias, tensors.names
    if shape.fused_gate:
        linears = [Linear(names.fused_gate, 2 * inner, hidden)]
    elif shape.gated:
        linears = [
            Linear(names.gate, inner, hidden),
            Linear(names.up, inner, hidden),
        ]
    else:
        linears = [Linear(names.up, inner, hidden)]
    linears.append(Linear(names.down, hidden, inner))
    shapes: Shapes = []
    for one in linears:
        shapes += linear(one.inputs, one.outputs, bias)
    return part("mlp", shapes, element_bytes=width, linears=linears)


def _expert_parts(
    shape: TransformerShape, tensors: Tensors, width: float
) -> list[LayerPart]:
    """Return the parts of a mixture of experts.

    All experts are in two tensors (no linear layers, so nothing adapts or quantizes
    them). Then come the router, and the MLP that every token uses.
    """
    hidden, count = shape.hidden, shape.experts
    inner = shape.expert_intermediate or shape.intermediate
    experts: Shapes = [(count, 2 * inner, hidden), (count, hidden, inner)]
    router: Shapes = [(count, hidden)]
    if shape.expert_biases:
        experts += [(count, 2 * inner), (count, hidden)]
        router.append((count,))
    gates = []
    if shape.every_expert:
        # Llama 4's router is a linear layer of torch, which adapters can take.
        gates.append(Linear("router", count, hidden))
    if shape.shared_gate:
        router.append((1, hidden))
        gates.append(Linear("shared_expert_gate", 1, hidden))
    parts = [part("mlp", experts, element_bytes=width)]
    if shape.shared_intermediate:
        parts.append(_plain_mlp(shape, tensors, shape.shared_intermediate, width))
    parts.append(part("router", router, element_bytes=width, linears=gates))
    return parts


def block_parts(
    shape: TransformerShape,
    tensors: Tensors,
    width: float,
    *,
    cross: bool = False,
    experts: bool | None = None,
) -> tuple[LayerPart, ...]:
    """Return one block: attention (twice with cross attention), MLP, norms.

    `experts`: whether this block has them; None: according to the shape.
    """
    if experts is None:
        experts = bool(shape.experts)
    attention = attention_part(shape, tensors, width)
    norms = norm_shapes(shape, tensors.norms + cross, tensors.norm_bias)
    parts = [attention] + ([attention] if cross else [])
    parts += mlp_parts(shape, tensors, width, experts=experts)
    if norms:
        parts.append(part("norm", norms, element_bytes=width))
    return tuple(parts)


def stack(
    shape: TransformerShape,
    tensors: Tensors,
    *,
    blocks: int,
    width: float,
    kind: LayerKind = "block",
) -> tuple[LayerSpec, ...]:
    """Return embedding, identical blocks, head. `width`: stored bytes per element."""
    parts = block_parts(shape, tensors, width)
    plain = block_parts(shape, tensors, width, experts=False)
    middle = tuple(
        LayerSpec(f"block {i}", kind, plain if i in tensors.plain_blocks else parts)
        for i in range(blocks)
    )
    return (
        embedding_layer(tensors.embedding, tensors, shape, width),
        *middle,
        head_layer(shape, tensors, width),
    )


def embedding_layer(
    shapes: Sequence[tuple[int, ...]],
    tensors: Tensors,
    shape: TransformerShape,
    width: float,
) -> LayerSpec:
    """Return token, position and type tables, and the norm that some families add."""
    parts = [part("embedding", shapes, element_bytes=width)]
    if shape.embedding_norm:
        one: Shapes = [(shape.embedding_width or shape.hidden,)]
        norms = one * (2 if tensors.norm_bias else 1)
        parts.append(part("norm", norms, element_bytes=width))
    return LayerSpec("embedding", "embedding", tuple(parts))


def head_layer(shape: TransformerShape, tensors: Tensors, width: float) -> LayerSpec:
    """Return the last norm and the projection of hidden states to logits."""
    norms = norm_shapes(shape, int(tensors.final_norm), tensors.norm_bias)
    inner: Shapes = [(tensors.head_norm_size or shape.hidden,)]
    norms += inner * tensors.head_norms * (2 if tensors.norm_bias else 1)
    parts = []
    if norms:
        parts.append(part("norm", norms, element_bytes=width))
    if tensors.head:
        parts.append(
            part(
                "head",
                tensors.head,
                element_bytes=width,
                linears=tensors.head_linears,
            )
        )
    return LayerSpec("head", "head", tuple(parts), tied_parameters=tensors.tied)


def with_extra(layer: LayerSpec, extra: LayerPart) -> LayerSpec:
    """Return a layer with one more LayerPart (T5's relative positions in block 0)."""
    return replace(layer, parts=(*layer.parts, extra))
