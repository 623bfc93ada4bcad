"""One model in several .safetensors files: their tensors joined, and their index.

A sharded checkpoint adds `model.safetensors.index.json`: {"metadata": {"total_size"},
"weight_map": {tensor: file}}, which names tensors but gives no shapes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from placement.planner.model.files.safetensors import MAX_TENSORS, spec_of_tensors
from placement.planner.model.files.tensor_inventory import TensorInfo
from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

MAX_TOTAL_BYTES = 2**53
"""Largest whole number that every reader of JSON keeps exactly."""


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
    if total is not None and (
        type(total) is not int or not 0 < total < MAX_TOTAL_BYTES
    ):
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
