"""Headers of .safetensors files and the index of a sharded checkpoint; no weights.

Format: https://huggingface.co/docs/safetensors, "Format": 8 bytes little-endian length
of the header, then JSON {name: {dtype, shape, data_offsets}}. A sharded checkpoint adds
`model.safetensors.index.json`: {"metadata": {"total_size"}, "weight_map": {tensor:
file}}, which names tensors but gives no shapes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
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
MAX_OFFSET = 2**53
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


def joined(shards: Iterable[Sequence[TensorInfo]]) -> list[TensorInfo]:
    """Return the tensors of several shards as one model. Raises SpecInvalid for
    duplicates.
    """
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for tensor in shard:
            if tensor.name in tensors:
                raise SpecInvalid(
                    {
                        tensor.name[:80]: sentence(
                            "is in two of the files: not one model's shards"
                        )
                    }
                )
            tensors[tensor.name] = tensor
    if len(tensors) > MAX_TENSORS:
        raise SpecInvalid(
            {
                "header": sentence(
                    "more than {max_tensors} tensors in all",
                    max_tensors=f"{MAX_TENSORS:,}",
                )
            }
        )
    return list(tensors.values())


def read_index(data: Any) -> tuple[dict[str, str], int | None]:
    """Return (tensor -> file, total bytes if known) of an index. Raises SpecInvalid."""
    files = data.get("weight_map") if isinstance(data, Mapping) else None
    if not isinstance(files, Mapping) or not files:
        raise SpecInvalid(
            {"weight_map": sentence("is missing: not a safetensors index")}
        )
    if len(files) > MAX_TENSORS:
        raise SpecInvalid(
            {
                "weight_map": sentence(
                    "more than {max_tensors} tensors", max_tensors=f"{MAX_TENSORS:,}"
                )
            }
        )
    for name, file in files.items():
        if not isinstance(file, str) or not file or len(file) > 255:
            raise SpecInvalid(
                {f"weight_map.{name[:80]}": sentence("must be a file's name")}
            )
    metadata = data.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise SpecInvalid({"metadata": sentence("must be an object")})
    total = (metadata or {}).get("total_size")
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if total is not None and (type(total) is not int or not 0 < total < MAX_OFFSET):
        raise SpecInvalid(
            {"metadata.total_size": sentence("must be a number of bytes above 0")}
        )
    return dict(files), total


def index_alone(data: Any) -> SpecInvalid:
    """Return the error of an index alone, which does not make a ModelSpec."""
    files, total = read_index(data)
    shards = sorted(set(files.values()))
    told = {
        "files": f"{len(files):,}",
        "shards": f"{len(shards):,}",
        "first": shards[0][:60],
    }
    if total is None:
        why = sentence(
            "names {files} tensors in {shards} files, but no shapes and no types, so "
            "no layer's size is known. Give the model's config.json, or with the index "
            "all {shards} files' headers ({first} ...)",
            **told,
        )
    else:
        why = sentence(
            "names {files} tensors in {shards} files, {total} bytes in all, but no "
            "shapes and no types, so no layer's size is known. Give the model's "
            "config.json, or with the index all {shards} files' headers ({first} ...)",
            total=f"{total:,}",
            **told,
        )
    return SpecInvalid({"weight_map": why})


def spec_of_index(
    data: Any, shards: Iterable[Sequence[TensorInfo]], *, name: str
) -> ModelSpec:
    """Return the exact ModelSpec of an index with the headers of all its shards.

    Raises SpecInvalid if a shard is missing or the sizes disagree.
    """
    files, total = read_index(data)
    tensors = joined(shards)
    if not tensors:
        raise index_alone(data)
    there = {tensor.name for tensor in tensors}
    missing = sorted({files[one] for one in files if one not in there})
    if missing:
        raise SpecInvalid(
            {
                "weight_map": sentence(
                    "{missing} of its files are not among the headers: {missing2}",
                    missing=f"{len(missing):,}",
                    missing2=", ".join(one[:60] for one in missing[:3]),
                )
            }
        )
    extra = sorted(there - set(files))
    if extra:
        raise SpecInvalid(
            {extra[0][:80]: sentence("is in a header but not in the index")}
        )
    found_bytes = sum(tensor.stored_bytes for tensor in tensors)
    notes = []
    if total is not None and total != found_bytes:
        notes.append(
            sentence(
                "the index says {total} bytes, its files' headers say {found}: the "
                "headers count",
                total=f"{total:,}",
                found=f"{found_bytes:,}",
            )
        )
    return spec_of_tensors(tensors, name=name, notes=notes)


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
