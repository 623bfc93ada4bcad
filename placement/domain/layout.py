"""From a block's sizes to its layers and parameters, exact to the element.

One builder for decoders and encoders whose blocks are attention + MLP; the families
say which tensors exist (biases, norms, experts). Checked against Hugging Face's own
counts in tests/placement/domain/test_families.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from placement.domain.spec import LayerKind, LayerSpec, Part, TransformerShape, part

Shapes = list[tuple[int, ...]]


@dataclass(slots=True)
class Tensors:
    """Which tensors a family has beyond what its TransformerShape says."""

    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    norms: int = 2
    """Norms inside one block."""
    final_norm: bool = True
    embedding: Shapes = field(default_factory=list)
    head: Shapes = field(default_factory=list)
    head_norms: int = 0
    """Norms inside the head itself (BERT's transform)."""
    tied: int = 0
    """Elements of the head that are the embedding's storage."""


def linear(inputs: int, outputs: int, bias: bool) -> Shapes:
    """Tensors of one linear layer.

    >>> linear(3, 4, True)
    [(4, 3), (4,)]
    """
    shapes: Shapes = [(outputs, inputs)]
    if bias:
        shapes.append((outputs,))
    return shapes


def norm_shapes(shape: TransformerShape, count: int, bias: bool) -> Shapes:
    """Tensors of `count` norms over the hidden size."""
    one: Shapes = [(shape.hidden,)]
    return one * (2 * count if bias else count)


def attention_part(shape: TransformerShape, tensors: Tensors, width: float) -> Part:
    """Query, key, value and output projections, and per-head norms."""
    query, key = shape.attention_width, shape.kv_width
    if shape.fused_qkv:
        shapes = linear(shape.hidden, query + 2 * key, tensors.qkv_bias)
    else:
        shapes = (
            linear(shape.hidden, query, tensors.qkv_bias)
            + linear(shape.hidden, key, tensors.qkv_bias)
            + linear(shape.hidden, key, tensors.qkv_bias)
        )
    shapes += linear(query, shape.hidden, tensors.out_bias)
    if shape.qk_norm:
        shapes += [(shape.head_dim,)] * (4 if tensors.norm_bias else 2)
    return part("attention", shapes, element_bytes=width)


def mlp_parts(shape: TransformerShape, tensors: Tensors, width: float) -> list[Part]:
    """Up (and gate) and down projections; for experts, all of them and the router."""
    hidden, inner, bias = shape.hidden, shape.intermediate, tensors.mlp_bias
    if shape.experts:
        experts: Shapes = [
            (shape.experts, 2 * inner, hidden),
            (shape.experts, hidden, inner),
        ]
        router: Shapes = [(shape.experts, hidden)]
        return [
            part("mlp", experts, element_bytes=width),
            part("router", router, element_bytes=width),
        ]
    shapes = linear(hidden, inner, bias) * (2 if shape.gated else 1)
    return [part("mlp", shapes + linear(inner, hidden, bias), element_bytes=width)]


def block_parts(
    shape: TransformerShape, tensors: Tensors, width: float, *, cross: bool = False
) -> tuple[Part, ...]:
    """One block: attention (twice with cross attention), MLP, norms."""
    attention = attention_part(shape, tensors, width)
    norms = norm_shapes(shape, tensors.norms + cross, tensors.norm_bias)
    parts = [attention] + ([attention] if cross else [])
    parts += mlp_parts(shape, tensors, width)
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
    """Embedding, identical blocks, head. `width`: stored bytes per element."""
    parts = block_parts(shape, tensors, width)
    middle = tuple(LayerSpec(f"block {i}", kind, parts) for i in range(blocks))
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
    """Token, position and type tables, and the norm that some families add."""
    parts = [part("embedding", shapes, element_bytes=width)]
    if shape.embedding_norm:
        norms = norm_shapes(shape, 1, tensors.norm_bias)
        parts.append(part("norm", norms, element_bytes=width))
    return LayerSpec("embedding", "embedding", tuple(parts))


def head_layer(shape: TransformerShape, tensors: Tensors, width: float) -> LayerSpec:
    """The last norm and what turns hidden states into logits."""
    count = tensors.head_norms + tensors.final_norm
    norms = norm_shapes(shape, count, tensors.norm_bias)
    parts = []
    if norms:
        parts.append(part("norm", norms, element_bytes=width))
    if tensors.head:
        parts.append(part("head", tensors.head, element_bytes=width))
    return LayerSpec("head", "head", tuple(parts), tied_parameters=tensors.tied)


def with_extra(layer: LayerSpec, extra: Part) -> LayerSpec:
    """The same layer with one more Part (T5's relative positions in block 0)."""
    return LayerSpec(
        layer.name, layer.kind, (*layer.parts, extra), layer.tied_parameters
    )
