"""Read model files in a separate process.

    python -m placement.planner.sandbox.model_file_reader KIND PATH [NAME]
        KIND: config, safetensors, index, header, json, onnx
    python -m placement.planner.sandbox.model_file_reader set NAME PATH...
        an index and all its shards' headers, or the shards alone
    python -m placement.planner.sandbox.model_file_reader served PATH NAME
        an ONNX file to be served: also "signature", and "beside": files of weights

Prints one line of JSON. Exit 0: a ModelSpec (planner.model.spec.ModelSpec.to_json).
Exit 2: {"error": code, "field": field, "detail": text}. Any other exit is a crash or a
limit. The ModelSpec of a config.json also has "config", the file itself. The files are
data: nothing in them is executed, no weights are read, no external data is opened, no
pickle, nothing is unpacked. Limits: see placement.planner.sandbox.jail. The files are
opened before the limits are set, so nothing else can be opened. The caller gives a
clean environment and its own timeout. Families that are not known here:
placement.planner.sandbox.config_build.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from placement.planner.model.families.config_json import parse_config
from placement.planner.model.families.diffusion import parse_diffusers
from placement.planner.model.files.onnx_signature import parse_signature
from placement.planner.model.files.onnx_weights import external_files, parse_onnx
from placement.planner.model.files.safetensors import (
    MAX_HEADER_BYTES,
    no_twins,
    safetensors_tensors,
    spec_of_tensors,
)
from placement.planner.model.files.safetensors_shards import (
    index_alone,
    joined,
    spec_of_index,
)
from placement.planner.model.files.tensor_inventory import TensorInfo
from placement.planner.model.spec import ModelSpec
from placement.planner.sandbox.jail import (
    EXIT_REFUSED,
    limit,
    open_regular,
    problem,
)
from placement.planner.values.errors import BadInput, FileRefused, SpecInvalid

KINDS = ("config", "safetensors", "index", "header", "json", "onnx")
CPU_SECONDS = 10
CONFIG_MAX_BYTES = 2**20
JSON_MAX_BYTES = 32 * 2**20
ONNX_MAX_BYTES = 2**31 - 1
"""protobuf's own limit on one message. Only names and shapes of it are read."""
FILES_MOST = 512
SET_MAX_BYTES = 128 * 2**20
"""Limit of the headers of all files of a set together."""
BASE_ADDRESS_BYTES = 256 * 2**20
BYTES_PER_JSON_BYTE = 24
"""Memory, per byte of JSON, that reading it may take beyond the base."""
ONNX_ADDRESS_BYTES = 512 * 2**20
ARCHIVES = {
    b"PK\x03\x04": "a ZIP archive (a PyTorch .bin or .pt is one)",
    b"\x1f\x8b": "compressed with gzip",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"\x80\x02": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
}


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that is opened before the limits prevent opening."""

    name: str
    file: BinaryIO
    size: int


def main(arguments: list[str]) -> int:
    """Parse one file, or a set of files, and print the answer. Return 0 or
    EXIT_REFUSED.
    """
    try:
        if arguments[:1] == ["served"] and len(arguments) == 3:
            print(json.dumps(served(Path(arguments[1]), arguments[2])))
            return 0
        spec, config = parsed(arguments)
        print(json.dumps(with_config(spec, config)))
        return 0
    except BadInput as error:
        return refuse(error.code, error.field, error.detail)
    except MemoryError:
        return refuse("too-large", "file", "parsing it needs too much memory")
    except RecursionError:
        return refuse("too-deep", "file", "is nested too deep")


def with_config(spec: ModelSpec, config: Any) -> dict[str, Any]:
    """Return a ModelSpec in its printed form, with its config.json, if any."""
    return spec.to_json() | ({"config": config} if config is not None else {})


def parsed(arguments: Sequence[str]) -> tuple[ModelSpec, Any]:
    """Return (the requested ModelSpec, its config.json or None).

    Raises BadInput.
    """
    if len(arguments) in (2, 3) and arguments[0] in KINDS:
        kind, path = arguments[0], Path(arguments[1])
        one = opened(path)
        limit_process(kind, [one])
        name = arguments[2] if len(arguments) == 3 else path.stem
        return read(kind, one, name[:120])
    if len(arguments) >= 3 and arguments[0] == "set":
        if len(arguments) - 2 > FILES_MOST:
            raise FileRefused("too-large", "files", f"more than {FILES_MOST}")
        files = [opened(Path(one)) for one in arguments[2:]]
        limit_process("set", files)
        return read_set(files, arguments[1][:120]), None
    usage = f"KIND PATH [NAME], KIND one of {', '.join(KINDS)}; or set NAME PATH..."
    raise FileRefused("usage", "kind", usage)


def served(path: Path, name: str) -> dict[str, Any]:
    """Return the description of an ONNX file to serve, with its inputs and outputs.

    Raises BadInput.
    """
    one = opened(path)
    limit_process("onnx", [one])
    spec, _ = read("onnx", one, name[:120])
    signature = parse_signature(one.file, one.size)
    beside = external_files(one.file, one.size)
    return spec.to_json() | {"signature": signature.to_json(), "beside": beside}


def refuse(code: str, field: str, detail: str) -> int:
    """Print a problem as one line of JSON."""
    print(json.dumps(problem(code, field, detail)))
    return EXIT_REFUSED


def opened(path: Path) -> OpenedFile:
    """Return an open regular file. Raises FileRefused."""
    file = os.fdopen(open_regular(path), "rb")
    return OpenedFile(path.name, file, os.fstat(file.fileno()).st_size)


def limit_process(kind: str, files: Sequence[OpenedFile]) -> None:
    """Limit this process by the size of its input. It opens no file afterwards."""
    if kind == "onnx":
        address = ONNX_ADDRESS_BYTES
    else:
        text = sum(min(one.size, bytes_to_read(kind)) for one in files)
        address = BASE_ADDRESS_BYTES + BYTES_PER_JSON_BYTE * min(text, SET_MAX_BYTES)
    limit(address_bytes=address, cpu_seconds=CPU_SECONDS, files=0)


def bytes_to_read(kind: str) -> int:
    """Return the most bytes of a file of this kind that are ever read."""
    if kind == "config":
        return CONFIG_MAX_BYTES
    if kind == "onnx":
        return ONNX_MAX_BYTES
    return MAX_HEADER_BYTES + 8 if kind in ("safetensors", "set") else JSON_MAX_BYTES


def read(kind: str, one: OpenedFile, name: str) -> tuple[ModelSpec, Any]:
    """Return (the ModelSpec of an open file, its config.json or None)."""
    refuse_archive(one)
    if kind == "safetensors":
        return spec_of_tensors(read_header(one), name=name), None
    most = bytes_to_read(kind)
    if one.size > most:
        raise FileRefused("too-large", "file", f"{one.size:,} bytes; at most {most:,}")
    if kind == "onnx":
        return parse_onnx(one.file, one.size, name=name), None
    data = read_json(one.file.read())
    if kind == "json":
        kind = kind_of_json(data)
        if kind == "config" and one.size > CONFIG_MAX_BYTES:
            detail = f"{one.size:,} bytes; at most {CONFIG_MAX_BYTES:,} of a config"
            raise FileRefused("too-large", "file", detail)
    if kind == "diffusers":
        # Without a config.json, because transformers cannot build it.
        return parse_diffusers(data, name=name if name != "config" else ""), None
    if kind == "config":
        return parse_config(data, name=name if name != "config" else ""), data
    if kind == "header":
        return spec_of_tensors(safetensors_tensors(data), name=name), None
    raise index_alone(data)


def kind_of_json(data: Any) -> str:
    """Return config, diffusers, index or header, by the fields of the object. Raises
    SpecInvalid.
    """
    if not isinstance(data, dict):
        raise SpecInvalid({"file": "must be a JSON object"})
    if "weight_map" in data:
        return "index"
    values = [value for name, value in data.items() if name != "__metadata__"]
    if values and all(
        isinstance(value, dict) and "data_offsets" in value for value in values
    ):
        return "header"
    if "model_type" in data or "architectures" in data or "hidden_size" in data:
        return "config"
    if "_class_name" in data:
        return "diffusers"
    raise SpecInvalid(
        {
            "file": "is not a config.json (model_type), a configuration of diffusers "
            "(_class_name), an index (weight_map) or a "
            "safetensors header (data_offsets)"
        }
    )


def refuse_archive(one: OpenedFile) -> None:
    """Raise FileRefused for a file that would first have to be unpacked or executed."""
    start = one.file.read(8)
    one.file.seek(0)
    for mark, words in ARCHIVES.items():
        if start.startswith(mark):
            detail = (
                f"is {words}: not read here. Give config.json, .safetensors or ONNX"
            )
            raise FileRefused("archive", "file", detail)


def read_json(text: bytes) -> Any:
    """Return a JSON value.

    Numbers that are too long, NaN, too deep nesting and repeated names are refused.
    """

    def no_constant(word: str) -> float:
        raise ValueError(f"{word} is not a number")

    try:
        return json.loads(text, parse_constant=no_constant, object_pairs_hook=no_twins)
    except (ValueError, UnicodeDecodeError) as error:
        raise FileRefused("not-json", "file", str(error)[:200]) from error


def read_header(one: OpenedFile) -> list[TensorInfo]:
    """Return the tensors of a .safetensors file, or of its header alone."""
    start = one.file.read(8)
    if start[:1] in (b"{", b" "):
        if one.size > MAX_HEADER_BYTES:
            raise FileRefused("too-large", "file", "a header of more than 100 MiB")
        return safetensors_tensors(start + one.file.read())
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER_BYTES:
        detail = f"says {length:,} bytes; at most {MAX_HEADER_BYTES:,}"
        raise FileRefused("spec-invalid", "header", detail)
    # A file cut off right after its header counts as the header: no offsets to check.
    whole = one.size if one.size > 8 + length else None
    return safetensors_tensors(start + one.file.read(length), file_bytes=whole)


def read_set(files: Sequence[OpenedFile], name: str) -> ModelSpec:
    """Read an index with all its shards' headers, or the shards alone."""
    shards: list[list[TensorInfo]] = []
    index: Any = None
    read_bytes = 0
    for one in files:
        refuse_archive(one)
        if not one.name.endswith(".json"):
            shards.append(read_header(one))
            read_bytes += one.file.tell()
        else:
            if one.size > JSON_MAX_BYTES:
                detail = f"{one.name}: at most {JSON_MAX_BYTES:,} bytes"
                raise FileRefused("too-large", "file", detail)
            data = read_json(one.file.read())
            read_bytes += one.size
            kind = kind_of_json(data)
            if kind == "header":
                shards.append(safetensors_tensors(data))
            elif kind == "config":
                raise SpecInvalid({"file": "upload config.json alone"})
            elif index is not None:
                raise SpecInvalid({"weight_map": "there are two indexes"})
            else:
                index = data
        if read_bytes > SET_MAX_BYTES:
            raise FileRefused(
                "too-large", "files", f"more than {SET_MAX_BYTES:,} bytes"
            )
    if index is not None:
        return spec_of_index(index, shards, name=name)
    return spec_of_tensors(joined(shards), name=name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
