"""The header of one .safetensors file; no weights.

Format: https://huggingface.co/docs/safetensors, "Format": 8 bytes little-endian length
of the header, then JSON {name: {dtype, shape, data_offsets}}. A model in several files
is in `safetensors_shards.py`.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from placement.planner.model.files.packed_weights import unpacked
from placement.planner.model.files.tensor_inventory import (
    TensorInfo,
    checked_shape,
    spec_from_inventory,
)
from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

MAX_HEADER_BYTES = 100 * 2**20
"""Limit of the reference implementation of safetensors."""
MAX_TENSORS = 500_000
MAX_NAME_LENGTH = 1024
SAFETENSORS_DTYPES = {
    "F64": "fp64",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "F8_E8M0": "fp8",
    "F6_E2M3": "fp6",
    "F6_E3M2": "fp6",
    "F4": "fp4",
    "C64": "complex64",
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


def parse_safetensors_header(
    data: bytes | Mapping[str, Any],
    *,
    name: str = "model",
    file_bytes: int | None = None,
) -> ModelSpec:
    """Return the ModelSpec of a .safetensors file, of its beginning, or of its header
    alone.

    `data` is the beginning of the file (8-byte length first), the header's JSON text,
    or the parsed header. `file_bytes`: the whole file's size, if known; the tensors'
    offsets must then fit it. Raises SpecInvalid.
    """
    return spec_of_tensors(safetensors_tensors(data, file_bytes=file_bytes), name=name)


def spec_of_tensors(
    tensors: Sequence[TensorInfo], *, name: str, notes: Sequence[str] = ()
) -> ModelSpec:
    """Return the ModelSpec of a checkpoint's tensors, with quantized ones joined
    first.
    """
    whole, found = unpacked(tensors)
    return spec_from_inventory(
        whole, name=name, source="safetensors", notes=[*notes, *found]
    )


def safetensors_tensors(
    data: bytes | Mapping[str, Any], *, file_bytes: int | None = None
) -> list[TensorInfo]:
    """Return the tensors that a safetensors header names. Raises SpecInvalid."""
    header_bytes = 0
    if isinstance(data, bytes):
        data, header_bytes = _read_header(data)
    if not isinstance(data, Mapping):
        raise SpecInvalid({"header": sentence("must be a JSON object of tensors")})
    if len(data) > MAX_TENSORS:
        raise SpecInvalid(
            {
                "header": sentence(
                    "more than {max_tensors} tensors", max_tensors=f"{MAX_TENSORS:,}"
                )
            }
        )
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
    """Return the JSON object, and the bytes before the tensors' data (0: header
    alone).
    """
    text, used = data, 0
    if data[:1] not in (b"{", b" "):
        if len(data) < 8:
            raise SpecInvalid(
                {"header": sentence("shorter than the 8 bytes of its length")}
            )
        length = int.from_bytes(data[:8], "little")
        if length > MAX_HEADER_BYTES:
            raise SpecInvalid(
                {
                    "header": sentence(
                        "says {length} bytes; at most {max_header}",
                        length=f"{length:,}",
                        max_header=f"{MAX_HEADER_BYTES:,}",
                    )
                }
            )
        if len(data) < 8 + length:
            raise SpecInvalid(
                {
                    "header": sentence(
                        "says {length} bytes, only {data} are there",
                        length=f"{length:,}",
                        data=f"{len(data) - 8:,}",
                    )
                }
            )
        text, used = data[8 : 8 + length], 8 + length
    try:
        return json.loads(text, object_pairs_hook=no_twins), used
    except (ValueError, RecursionError) as error:
        problem = str(error)[:120] or sentence("nested too deep")
        raise SpecInvalid(
            {"header": sentence("is not JSON: {problem}", problem=problem)}
        ) from error


def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object whose keys all differ. A repeated name means a broken
    file.
    """
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            break
        seen.add(name)
    raise ValueError(sentence("the name '{name}' appears twice", name=name[:80]))


def _safetensors_tensor(name: str, entry: Any, room: int | None) -> TensorInfo:
    field = name[:80]
    if len(name) > MAX_NAME_LENGTH:
        raise SpecInvalid(
            {
                field: sentence(
                    "a name longer than {max_name_length} letters",
                    max_name_length=MAX_NAME_LENGTH,
                )
            }
        )
    if not isinstance(entry, Mapping):
        raise SpecInvalid(
            {field: sentence("must be an object with dtype, shape, data_offsets")}
        )
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_DTYPES:
        raise SpecInvalid(
            {
                field: sentence(
                    "has an unknown dtype {dtype}", dtype=f"{str(dtype)[:20]!r}"
                )
            }
        )
    shape = checked_shape(field, entry.get("shape"))
    made = TensorInfo(
        name, shape, SAFETENSORS_DTYPES[dtype], product=_product(name, shape)
    )
    offsets = entry.get("data_offsets")
    size = made.stored_bytes
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or any(type(offset) is not int for offset in offsets)
        or not 0 <= offsets[0] <= offsets[1]
        or offsets[1] - offsets[0] != size
    ):
        raise SpecInvalid(
            {
                field: sentence(
                    "data_offsets do not span its {size} bytes", size=f"{size:,}"
                )
            }
        )
    if room is not None and offsets[1] > room:
        beyond = offsets[1] - room
        raise SpecInvalid(
            {
                field: sentence(
                    "its data lies {beyond} bytes beyond the end of the file",
                    beyond=f"{beyond:,}",
                )
            }
        )
    return made


def _product(name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return (outputs, inputs) of a tensor with the name of a linear layer's weight.

    In PyTorch's order. GPT-2's Conv1D stores them the other way around, which changes
    neither an adapter's size nor, if both are multiples of 64, a quantized weight's.
    """
    if len(shape) != 2 or not name.endswith(".weight"):
        return None
    words = ("emb", "wte", "wpe", "norm", "relative_attention_bias", "shared")
    if any(word in name.lower() for word in words):
        return None
    return shape[0], shape[1]


def _check_overlap(data: Mapping[str, Any]) -> None:
    spans = sorted(
        tuple(entry["data_offsets"])
        for name, entry in data.items()
        if name != "__metadata__"
    )
    for (_, end), (start, stop) in pairwise(spans):
        if start < end and stop > start:
            raise SpecInvalid({"header": sentence("tensors overlap in the file")})
