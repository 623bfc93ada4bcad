"""A ModelSpec from a bare list of tensors: a safetensors header, ONNX initializers.

Weights are never read: names, shapes and types are enough for exact states. Tensors
are grouped to layers by the first whole number among the dotted (or slashed) parts of
their names, as every framework numbers its blocks. How the layers compute is unknown,
so `shape` stays None and activations become a guess that says so.

Format: https://huggingface.co/docs/safetensors, "Format": 8 bytes little-endian length
of the header, then JSON {name: {dtype, shape, data_offsets}}.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from placement.domain.errors import SpecInvalid
from placement.domain.spec import (
    COMPONENTS,
    DTYPE_BYTES,
    MAX_LAYERS,
    MAX_PARAMETERS,
    Component,
    LayerKind,
    LayerSpec,
    ModelSpec,
    Part,
    check,
)

MAX_HEADER_BYTES = 100 * 2**20
"""What the reference implementation of safetensors accepts."""
MAX_TENSORS = 500_000
MAX_DIMENSIONS = 16
MAX_NAME_LENGTH = 1024
SAFETENSORS_DTYPES = {
    "F64": "fp64",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "I64": "int64",
    "U64": "int64",
    "I32": "int32",
    "U32": "int32",
    "I16": "int16",
    "U16": "int16",
    "I8": "int8",
    "U8": "int8",
    "BOOL": "bool",
}
TRAINABLE = ("fp64", "fp32", "bf16", "fp16", "fp8")

_HEAD_NAMES = re.compile(
    r"(^|[._/])(lm_head|head|classifier|score|fc|output|logits|embed_out|cls|pooler|"
    r"ln_f|final_layer_norm|final_norm|norm)([._/]|$)"
)
_EMBEDDING_NAMES = re.compile(r"emb|wte|wpe|tok|patch|cls_token|position|stem", re.I)
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
    dtype: str
    """One of spec.DTYPE_BYTES."""

    @property
    def elements(self) -> int:
        """Product of the shape; 1 for a scalar."""
        total = 1
        for size in self.shape:
            total *= size
        return total


def parse_safetensors_header(
    data: bytes | Mapping[str, Any],
    *,
    name: str = "model",
    file_bytes: int | None = None,
) -> ModelSpec:
    """The ModelSpec of a .safetensors file, of its beginning, or of its header alone.

    `data` is the beginning of the file (8-byte length first), the header's JSON text,
    or the header already read. `file_bytes`: the whole file's size, if known; then the
    tensors' offsets must fit it. Raises SpecInvalid.
    """
    return spec_from_inventory(
        safetensors_tensors(data, file_bytes=file_bytes),
        name=name,
        source="safetensors",
    )


def safetensors_tensors(
    data: bytes | Mapping[str, Any], *, file_bytes: int | None = None
) -> list[TensorInfo]:
    """The tensors that a safetensors header names. Raises SpecInvalid."""
    header_bytes = 0
    if isinstance(data, bytes):
        data, header_bytes = _read_header(data)
    if not isinstance(data, Mapping):
        raise SpecInvalid({"header": "must be a JSON object of tensors"})
    if len(data) > MAX_TENSORS:
        raise SpecInvalid({"header": f"more than {MAX_TENSORS:,} tensors"})
    room = None
    if file_bytes is not None and header_bytes:
        room = file_bytes - header_bytes
    tensors = [
        _safetensors_tensor(name, entry, room)
        for name, entry in data.items()
        if name != "__metadata__"
    ]
    _check_overlap(data)
    return tensors


def _read_header(data: bytes) -> tuple[Any, int]:
    """The JSON object, and the bytes before the tensors' data (0: header alone)."""
    text, used = data, 0
    if data[:1] not in (b"{", b" "):
        if len(data) < 8:
            raise SpecInvalid({"header": "shorter than the 8 bytes of its length"})
        length = int.from_bytes(data[:8], "little")
        if length > MAX_HEADER_BYTES:
            raise SpecInvalid(
                {"header": f"says {length:,} bytes; at most {MAX_HEADER_BYTES:,}"}
            )
        if len(data) < 8 + length:
            raise SpecInvalid(
                {"header": f"says {length:,} bytes, only {len(data) - 8:,} are there"}
            )
        text, used = data[8 : 8 + length], 8 + length
    try:
        return json.loads(text, object_pairs_hook=_no_twins), used
    except (ValueError, RecursionError) as error:
        problem = str(error)[:120] or "nested too deep"
        raise SpecInvalid({"header": f"is not JSON: {problem}"}) from error


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON objects whose keys differ: a tensor named twice is a broken file."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name appears twice")
    return made


def _safetensors_tensor(name: str, entry: Any, room: int | None) -> TensorInfo:
    field = name[:80]
    if len(name) > MAX_NAME_LENGTH:
        raise SpecInvalid({field: f"a name longer than {MAX_NAME_LENGTH} letters"})
    if not isinstance(entry, Mapping):
        raise SpecInvalid({field: "must be an object with dtype, shape, data_offsets"})
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_DTYPES:
        raise SpecInvalid({field: f"has an unknown dtype {str(dtype)[:20]!r}"})
    made = TensorInfo(
        name, checked_shape(field, entry.get("shape")), SAFETENSORS_DTYPES[dtype]
    )
    offsets = entry.get("data_offsets")
    size = int(made.elements * DTYPE_BYTES[made.dtype])
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or any(type(offset) is not int for offset in offsets)
        or not 0 <= offsets[0] <= offsets[1]
        or offsets[1] - offsets[0] != size
    ):
        raise SpecInvalid({field: f"data_offsets do not span its {size:,} bytes"})
    if room is not None and offsets[1] > room:
        raise SpecInvalid({field: "its data lies beyond the end of the file"})
    return made


def _check_overlap(data: Mapping[str, Any]) -> None:
    spans = sorted(
        tuple(entry["data_offsets"])
        for name, entry in data.items()
        if name != "__metadata__"
    )
    for (_, end), (start, stop) in pairwise(spans):
        if start < end and stop > start:
            raise SpecInvalid({"header": "tensors overlap in the file"})


def checked_shape(field: str, shape: Any) -> tuple[int, ...]:
    """A list of sizes from zero up whose product is bounded. Raises SpecInvalid."""
    if not isinstance(shape, list | tuple) or len(shape) > MAX_DIMENSIONS:
        raise SpecInvalid({field: f"shape must list at most {MAX_DIMENSIONS} sizes"})
    total = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise SpecInvalid({field: "shape has a size that is no whole number >= 0"})
        total *= size
        if total > MAX_PARAMETERS:
            raise SpecInvalid({field: "shape has more elements than any model"})
    return tuple(shape)


def spec_from_inventory(
    tensors: Iterable[TensorInfo],
    *,
    name: str,
    source: str,
    family: str = "unknown",
    tied_groups: Sequence[Sequence[str]] = (),
) -> ModelSpec:
    """Group tensors into layers, in the order in which numbers appear.

    Integer tensors (position ids, masks) are no parameters and are left out.
    `tied_groups` name tensors that share one storage: all but the first are dropped.
    """
    dropped = {twin for group in tied_groups for twin in group[1:]}
    groups: dict[tuple[str, int], list[TensorInfo]] = {}
    dtypes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.dtype not in TRAINABLE or tensor.name in dropped:
            continue
        groups.setdefault(_layer_key(tensor.name), []).append(tensor)
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.elements
    if not groups:
        raise SpecInvalid(
            {
                "tensors": "there are no floating-point weights in it (quantised "
                "weights cannot be planned)"
            }
        )
    if len(groups) > MAX_LAYERS:
        raise SpecInvalid({"tensors": f"more than {MAX_LAYERS:,} layers"})
    layers = [
        LayerSpec(_layer_name(key), _layer_kind(key), _parts(group))
        for key, group in sorted(groups.items(), key=lambda item: _order(item[0]))
    ]
    spec = ModelSpec(
        family=family,
        name=name[:120],
        head="none",
        layers=tuple(layers),
        shape=None,
        dtype=max(dtypes, key=lambda dtype: dtypes[dtype]),
        source=source,
        tied_groups=tuple(tuple(group) for group in tied_groups),
    )
    check(spec)
    return spec


def _layer_key(name: str) -> tuple[str, int]:
    """("encoder.block", 3) for numbered tensors; ("<embedding>", 0), ("<head>", 0)."""
    pieces = re.split(r"[./]", name)
    for index, piece in enumerate(pieces):
        if piece.isascii() and piece.isdigit() and len(piece) < 10:
            return ".".join(pieces[:index]), int(piece)
    if _HEAD_NAMES.search(name) and not _EMBEDDING_NAMES.search(name):
        return "<head>", 0
    return "<embedding>", 0


def _order(key: tuple[str, int]) -> tuple[int, str, int]:
    """Embedding first, numbered groups by prefix and number, decoders after the
    encoders they read from, head last."""
    prefix, number = key
    rank = {"<embedding>": 0, "<head>": 3}.get(prefix, 1)
    if rank == 1 and "decoder" in prefix:
        rank = 2
    return rank, prefix, number


def _layer_name(key: tuple[str, int]) -> str:
    prefix, number = key
    if prefix.startswith("<"):
        return prefix.strip("<>")
    return f"{prefix}.{number}"[:120] if prefix else f"layer {number}"


def _layer_kind(key: tuple[str, int]) -> LayerKind:
    if key[0] == "<embedding>":
        return "embedding"
    return "head" if key[0] == "<head>" else "other"


def _parts(tensors: Sequence[TensorInfo]) -> tuple[Part, ...]:
    by_component: dict[Component, list[TensorInfo]] = {}
    for tensor in tensors:
        by_component.setdefault(_component(tensor), []).append(tensor)
    return tuple(
        _part(component, by_component[component])
        for component in COMPONENTS
        if component in by_component
    )


def _part(component: Component, tensors: Sequence[TensorInfo]) -> Part:
    edges = matrices = stored = 0
    for tensor in tensors:
        shape = tensor.shape
        if len(shape) < 2 or not tensor.elements:
            edges += tensor.elements
        else:
            edges += shape[0] + tensor.elements // shape[0]
            matrices += tensor.elements
        stored += int(tensor.elements * DTYPE_BYTES[tensor.dtype])
    return Part(
        component=component,
        parameters=sum(tensor.elements for tensor in tensors),
        tensors=len(tensors),
        largest=max(tensor.elements for tensor in tensors),
        edges=edges,
        matrix_parameters=matrices,
        stored_bytes=stored,
    )


def _component(tensor: TensorInfo) -> Component:
    for component, pattern in _COMPONENT_NAMES:
        if pattern.search(tensor.name):
            return component
    if _layer_key(tensor.name)[0] == "<head>":
        return "head"
    if _EMBEDDING_NAMES.search(tensor.name):
        return "embedding"
    return "other"
