"""A ModelSpec from a bare list of tensors: of a file, or of a module on meta.

Weights are never read, because names, shapes and types are enough for exact states.
Tensors are grouped into layers by the first whole number among the dotted (or slashed)
parts of their names, because every framework numbers its blocks so. The layers'
arithmetic is unknown, so `shape` stays None, and activations become a guess with a
note.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from placement.planner.model.spec import (
    COMPONENTS,
    DTYPE_BYTES,
    MAX_LAYERS,
    MAX_PARAMETERS,
    Component,
    LayerKind,
    LayerPart,
    LayerSpec,
    Linear,
    ModelSpec,
    check,
)
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

MAX_DIMENSIONS = 16
TRAINABLE = ("fp64", "fp32", "bf16", "fp16", "fp8")

_HEAD_NAMES = re.compile(
    r"(^|[._/])(lm_head|head|classifier|score|fc|output|logits|embed_out|cls|pooler|"
    r"ln_f|final_layer_norm|final_norm|norm)([._/]|$)"
)
_EMBEDDING_NAMES = re.compile(
    r"emb|wte|wpe|tok|patch|cls_token|position|stem|shared", re.I
)
_COMPONENT_NAMES: tuple[tuple[Component, re.Pattern[str]], ...] = (
    ("norm", re.compile(r"norm|(^|[._/])ln|bn\d*([._/]|$)", re.I)),
    ("router", re.compile(r"router|gate\.weight$|block_sparse_moe\.gate", re.I)),
    ("attention", re.compile(r"att|[._/](q|k|v|o)_?proj|qkv", re.I)),
    ("mlp", re.compile(r"mlp|ffn|feed_?forward|fc\d|expert|dense|intermediate", re.I)),
)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One named tensor."""

    name: str
    shape: tuple[int, ...]
    """Logical sizes of the weights, regardless of their packing."""
    dtype: str
    """One of spec.DTYPE_BYTES."""
    frozen: bool = False
    packed_bytes: int | None = None
    """Quantized weights: bytes with all their constants. None: not quantized."""
    product: tuple[int, int] | None = None
    """(outputs, inputs) if a linear layer multiplies with it."""
    edges: int | None = None
    """Numbers that its product keeps for each token. None: from the shape."""

    @property
    def elements(self) -> int:
        """Return the product of the shape; 1 for a scalar."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def stored_bytes(self) -> int:
        """Return the bytes in the source, constants of quantized blocks included."""
        if self.packed_bytes is not None:
            return self.packed_bytes
        return ceil(self.elements * DTYPE_BYTES[self.dtype])

    @property
    def is_parameter(self) -> bool:
        """Return False for position ids, masks and other whole numbers."""
        return self.packed_bytes is not None or self.dtype in TRAINABLE


def checked_shape(field: str, shape: Any) -> tuple[int, ...]:
    """Return a list of sizes from zero up with a bounded product. Raises
    SpecInvalid.
    """
    if not isinstance(shape, list | tuple) or len(shape) > MAX_DIMENSIONS:
        raise SpecInvalid(
            {
                field: sentence(
                    "shape must list at most {max_dimensions} sizes",
                    max_dimensions=MAX_DIMENSIONS,
                )
            }
        )
    total = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise SpecInvalid(
                {
                    field: sentence(
                        "shape has a size that is not a whole number of 0 or more"
                    )
                }
            )
        total *= size
        if total > MAX_PARAMETERS:
            raise SpecInvalid(
                {field: sentence("shape has more elements than any model")}
            )
    return tuple(shape)


def spec_from_inventory(
    tensors: Iterable[TensorInfo],
    *,
    name: str,
    source: str,
    family: str = "unknown",
    tied_groups: Sequence[Sequence[str]] = (),
    notes: Sequence[str] = (),
    in_given_order: bool = False,
    sample_tokens: int = 0,
) -> ModelSpec:
    """Group tensors into layers, in the order in which numbers appear.

    Whole-number tensors (position ids, masks) are no parameters and are left out.
    `tied_groups` name tensors that share one storage: the first owns it, the layers of
    the others only use it. `in_given_order`: the tensors are in the order in which the
    model runs them (those of a module are, those of a file's header are not).
    `sample_tokens`: see ModelSpec.
    """
    groups, shared, dtype = _grouped(tensors, tied_groups, in_given_order)
    seen = {prefix: -index for index, (prefix, _) in enumerate(reversed(groups))}
    layers = [
        LayerSpec(
            _layer_name(key), _layer_kind(key), _parts(groups[key]), shared.get(key, 0)
        )
        for key in sorted(
            groups, key=lambda key: _order(key, seen if in_given_order else {})
        )
    ]
    spec = ModelSpec(
        family=family,
        name=name[:120],
        head="none",
        layers=tuple(layers),
        shape=None,
        dtype=dtype,
        source=source,
        tied_groups=tuple(tuple(group) for group in tied_groups),
        notes=tuple(notes),
        sample_tokens=sample_tokens,
    )
    check(spec)
    return spec


Key = tuple[str, int]
_START: Key = ("<embedding>", 0)
_END: Key = ("<head>", 0)


def _grouped(
    tensors: Iterable[TensorInfo], tied_groups: Sequence[Sequence[str]], ordered: bool
) -> tuple[dict[Key, list[TensorInfo]], dict[Key, int], str]:
    """Return (tensors by layer, elements that a layer only uses, the dtype of most
    elements).
    """
    owners = {twin: group[0] for group in tied_groups for twin in group[1:]}
    groups: dict[Key, list[TensorInfo]] = {}
    shared: dict[Key, int] = {}
    homes: dict[str, Key] = {}
    dtypes: dict[str, int] = {}
    begun = False
    for tensor in tensors:
        if not tensor.is_parameter:
            continue
        key = _layer_key(tensor.name)
        if ordered and key[0].startswith("<"):
            key = _END if begun and not _EMBEDDING_NAMES.search(tensor.name) else _START
        begun = begun or not key[0].startswith("<")
        homes[tensor.name] = key
        group = groups.setdefault(key, [])
        if tensor.name not in owners:
            group.append(tensor)
            dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.elements
        elif homes.get(owners[tensor.name]) != key:
            shared[key] = shared.get(key, 0) + tensor.elements
    if not dtypes:
        raise SpecInvalid({"tensors": sentence("it contains no weights")})
    if len(groups) > MAX_LAYERS:
        raise SpecInvalid(
            {
                "tensors": sentence(
                    "more than {max_layers} layers", max_layers=f"{MAX_LAYERS:,}"
                )
            }
        )
    return groups, shared, max(dtypes, key=lambda dtype: dtypes[dtype])


def _layer_key(name: str) -> tuple[str, int]:
    """Return ("encoder.block", 3) for numbered tensors; ("<embedding>", 0), ("<head>",
    0).
    """
    pieces = re.split(r"[./]", name)
    for index, piece in enumerate(pieces):
        if piece.isascii() and piece.isdigit() and len(piece) < 10:
            return ".".join(pieces[:index]), int(piece)
    if _HEAD_NAMES.search(name) and not _EMBEDDING_NAMES.search(name):
        return _END
    return _START


def _order(key: tuple[str, int], seen: Mapping[str, int]) -> tuple[int, int, str, int]:
    """Return a sort key: embedding, numbered groups by prefix and number, head.

    Decoders come after the encoders that they read. `seen`: prefixes in order of
    appearance.
    """
    prefix, number = key
    rank = {"<embedding>": 0, "<head>": 3}.get(prefix, 1)
    if rank == 1 and "decoder" in prefix:
        rank = 2
    return rank, seen.get(prefix, 0), prefix, number


def _layer_name(key: tuple[str, int]) -> str:
    prefix, number = key
    if prefix.startswith("<"):
        return prefix.strip("<>")
    return f"{prefix}.{number}"[:120] if prefix else f"layer {number}"


def _layer_kind(key: tuple[str, int]) -> LayerKind:
    if key[0] == "<embedding>":
        return "embedding"
    return "head" if key[0] == "<head>" else "other"


def _parts(tensors: Sequence[TensorInfo]) -> tuple[LayerPart, ...]:
    """Return one LayerPart for each component, frozen or not, quantized or not."""
    groups: dict[tuple[Component, bool, bool], list[TensorInfo]] = {}
    for tensor in tensors:
        key = (_component(tensor), tensor.frozen, tensor.packed_bytes is not None)
        groups.setdefault(key, []).append(tensor)
    return tuple(
        _part(key[0], groups[key])
        for key in sorted(groups, key=lambda key: (COMPONENTS.index(key[0]), key))
    )


_ROUTED = re.compile(r"(^|[./])experts[./]")
"""Tensors of experts among which a router selects, stacked or single."""


def _part(component: Component, tensors: Sequence[TensorInfo]) -> LayerPart:
    edges = matrices = routed_edges = routed = 0
    linears: dict[tuple[str, int, int], int] = {}
    for tensor in tensors:
        shape = tensor.shape
        before = edges
        if tensor.edges is not None:
            edges += tensor.edges
            matrices += tensor.elements if len(shape) > 1 else 0
        elif len(shape) == 3 and _ROUTED.search(tensor.name):
            edges += shape[0] * (shape[1] + shape[2])
            matrices += tensor.elements
        elif len(shape) < 2 or not tensor.elements:
            edges += tensor.elements
        else:
            edges += shape[0] + tensor.elements // shape[0]
            matrices += tensor.elements
        if _ROUTED.search(tensor.name) and len(shape) > 1:
            routed_edges += edges - before
            routed += tensor.elements
        if tensor.product is not None:
            key = (_product_name(tensor.name), *tensor.product)
            linears[key] = linears.get(key, 0) + 1
    parameters = sum(tensor.elements for tensor in tensors)
    stored_bytes = sum(tensor.stored_bytes for tensor in tensors)
    quantized = tensors[0].packed_bytes is not None
    return LayerPart(
        component=component,
        parameters=parameters,
        tensors=len(tensors),
        largest=max(tensor.elements for tensor in tensors),
        edges=edges,
        matrix_parameters=matrices,
        stored_bytes=stored_bytes,
        frozen=tensors[0].frozen or quantized,
        weight_bits=round(8 * stored_bytes / max(1, parameters), 3)
        if quantized
        else None,
        linears=tuple(Linear(*key, copies) for key, copies in linears.items()),
        routed_parameters=routed,
        routed_edges=routed_edges,
    )


def _product_name(name: str) -> str:
    """Return a family's name of a linear layer: the part before `.weight`."""
    pieces = re.split(r"[./]", name)
    last = pieces[-2] if len(pieces) > 1 and pieces[-1] == "weight" else pieces[-1]
    return last[:80]


def _component(tensor: TensorInfo) -> Component:
    for component, pattern in _COMPONENT_NAMES:
        if pattern.search(tensor.name):
            return component
    if _layer_key(tensor.name)[0] == "<head>":
        return "head"
    if _EMBEDDING_NAMES.search(tensor.name):
        return "embedding"
    return "other"
