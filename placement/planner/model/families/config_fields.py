"""Shared parts of the family readers: common fields, heads, the ModelSpec."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from placement.planner.model.block_layout import Tensors, stack
from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.config_reader import ConfigFields
from placement.planner.model.spec import (
    LayerSpec,
    Linear,
    ModelSpec,
)
from telemetry.protocol.sentences import sentence

MAX_BLOCKS = 2_000
MAX_VOCAB = 2**24
MAX_POSITIONS = 2**24

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


Size = tuple[tuple[str, ...], int]
"""Names of a field, of which the first existing one counts, and the default."""
Ratio = tuple[str, float]
NO_RATIO: Ratio = ("", 0.0)


@dataclass(frozen=True, kw_only=True)
class ShapeFields:
    """A family's names in config.json of the sizes of a block, and their defaults."""

    hidden: Size
    heads: Size
    kv_heads: Size | None = None
    """None: the number of heads."""
    inner: Size | None = None
    """Width of the MLP. None, or a default of 0: four times the hidden size."""
    vocab: int
    """Default; 0: the family has no tokens."""
    positions: Size = (("max_position_embeddings",), 2048)
    activation: tuple[str, str] = ("hidden_act", "gelu")
    """Name and default; without a name the family has only one activation."""
    embedding_dropout: Ratio = NO_RATIO
    attention_dropout: Ratio = NO_RATIO
    hidden_dropout: Ratio = NO_RATIO


def read_shape(fields: ConfigFields, row: ShapeFields, **more: Any) -> TransformerShape:
    """Return the shape of a block with layer norms.

    Args:
        more: fields of the shape with another source in config.json, or that the family
            fixes.
    """
    hidden = _size(fields, row.hidden, high=2**18)
    heads = _size(fields, row.heads, high=8192)
    kv_heads = _size(fields, row.kv_heads, high=8192, silent=heads)
    sizes: dict[str, Any] = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_size(fields, hidden, heads, row.heads[0][0]),
        "intermediate": _size(fields, row.inner, high=2**21, silent=4 * hidden),
        "vocab": vocab(fields, row.vocab) if row.vocab else 0,
        "norm": "layernorm",
    }
    if "positions" not in more:
        names, default = row.positions
        sizes["positions"] = positions(fields, *names, default=default)
    name, usual = row.activation
    sizes["activation"] = (
        fields.choice(name, options=ACTIVATIONS, default=usual) if name else usual
    )
    for place in ("embedding", "attention", "hidden"):
        name, ratio = getattr(row, f"{place}_dropout")
        sizes[f"{place}_dropout_ratio"] = (
            fields.ratio(name, default=ratio) if name else ratio
        )
    return TransformerShape(**{**sizes, **more})


def _size(
    fields: ConfigFields, size: Size | None, *, high: int, silent: int = 0
) -> int:
    if size is None:
        return silent
    names, default = size
    return fields.whole(*names, default=default or silent, high=high)


def blocks(fields: ConfigFields, *names: str, default: int) -> int:
    """Return the number of blocks."""
    return fields.whole(*names, default=default, high=MAX_BLOCKS)


def vocab(fields: ConfigFields, default: int) -> int:
    """Return the rows of the token table."""
    return fields.whole("vocab_size", default=default, high=MAX_VOCAB)


def positions(fields: ConfigFields, *names: str, default: int) -> int:
    """Return the longest sequence."""
    return fields.whole(*names, default=default, high=MAX_POSITIONS)


def head_size(fields: ConfigFields, hidden: int, heads: int, heads_field: str) -> int:
    """Return `head_dim` if it exists, else hidden / heads, which must then divide."""
    given = fields.whole("head_dim", default=0, high=2**16)
    if given:
        return given
    fields.require(
        heads_field,
        hidden % heads == 0,
        sentence(
            "{heads} heads do not divide the hidden size {hidden}",
            heads=heads,
            hidden=hidden,
        ),
    )
    return max(1, hidden // heads)


def labels(fields: ConfigFields, config_labels: int = 2) -> int:
    """Return the number of classes of a classification head."""
    return fields.whole("num_labels", default=config_labels, high=10**6)


def tie(
    fields: ConfigFields,
    shape: TransformerShape,
    tensors: Tensors,
    *,
    default: bool,
) -> tuple[tuple[str, ...], ...]:
    """Tie the logits' weights to the token table, or give the head its own."""
    if fields.flag("tie_word_embeddings", default=default):
        tensors.tied = shape.vocab * shape.hidden
        return (("embedding.tokens", "head.logits"),)
    tensors.head.insert(0, (shape.vocab, shape.hidden))
    tensors.head_linears.append(Linear("lm_head", shape.vocab, shape.hidden))
    return ()


def windowed(
    fields: ConfigFields,
    count: int,
    *,
    default: int,
    flag: str = "",
    full_every: int = 0,
) -> tuple[int, int]:
    """Return (tokens of the sliding window, windowed blocks of `count`); (0, 0) for
    none.

    `layer_types` lists it block by block. Without it every block is windowed except one
    of `full_every`. `flag` names the switch that is off by default in some families.
    Qwen windows the blocks from `max_window_layers` on.
    """
    window = fields.whole("sliding_window", default=default, low=1, high=MAX_POSITIONS)
    off = bool(flag) and not fields.flag(flag)
    if off or not window or fields.is_null("sliding_window"):
        return 0, 0
    kinds = fields.peek("layer_types")
    if isinstance(kinds, list):
        fields.require(
            "layer_types",
            len(kinds) == count,
            sentence("{kinds} for {count} blocks", kinds=len(kinds), count=count),
        )
        sliding = sum(kind == "sliding_attention" for kind in kinds)
        return (window, min(sliding, count)) if sliding else (0, 0)
    if flag:
        first = fields.whole("max_window_layers", default=28, low=0, high=MAX_BLOCKS)
        count = max(0, count - first)
    elif full_every:
        every = fields.whole("sliding_window_pattern", default=full_every, high=1000)
        count -= count // every
    return (window, count) if count else (0, 0)


def finish(
    head: str,
    shape: TransformerShape,
    tensors: Tensors,
    count: int,
    width: float,
    tied_groups: Sequence[Sequence[str]] = (),
) -> ModelSpec:
    """Return a stack of identical blocks. The caller adds family, name, dtype,
    source.
    """
    return made(
        head, shape, stack(shape, tensors, blocks=count, width=width), tied_groups
    )


def made(
    head: str,
    shape: TransformerShape,
    layers: tuple[LayerSpec, ...],
    tied_groups: Sequence[Sequence[str]] = (),
) -> ModelSpec:
    """Return a ModelSpec without the fields that all families read in the same way."""
    return ModelSpec(
        family="",
        name="",
        head=head,
        layers=layers,
        shape=shape,
        dtype="fp32",
        source="config.json",
        tied_groups=tuple(tuple(group) for group in tied_groups),
    )
