"""Read one model file in a process of its own: `python -m placement.runtime.parse`.

    python -m placement.runtime.parse KIND PATH [NAME]     KIND: config, safetensors,
                                                           index, onnx

Prints one line of JSON. Exit 0: a ModelSpec (domain.spec.ModelSpec.to_json). Exit 2:
{"error": code, "field": field, "detail": text}. Any other exit is a crash or a limit.
The file is data: nothing in it is executed, no weights are read, no external data is
opened, no pickle. Limits: address space, 10 s of processor time, size of written
files, no new processes. The caller gives a clean environment and its own timeout.
"""

import json
import os
import resource
import stat
import sys
from pathlib import Path
from typing import Any

from placement.domain.errors import BadInput, SpecInvalid
from placement.domain.families import parse_config
from placement.domain.inventory import (
    MAX_HEADER_BYTES,
    TensorInfo,
    checked_shape,
    parse_safetensors_header,
    spec_from_inventory,
)
from placement.domain.spec import ModelSpec

KINDS = ("config", "safetensors", "index", "onnx")
CPU_SECONDS = 10
CONFIG_MAX_BYTES = 2**20
INDEX_MAX_BYTES = 32 * 2**20
ONNX_MAX_BYTES = 2 * 2**30
"""protobuf's own limit on one message."""
BASE_ADDRESS_BYTES = 512 * 2**20
BYTES_PER_FILE_BYTE = {"config": 64, "safetensors": 24, "index": 24, "onnx": 3}
"""Memory that parsing may take beyond the base, per byte that is read."""
OUTPUT_MAX_BYTES = 64 * 2**20
"""A ModelSpec of 4,096 layers is a few MB, should the output go to a file."""
EXIT_REFUSED = 2
ONNX_DTYPES = {
    1: "fp32",
    2: "int8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "fp16",
    11: "fp64",
    16: "bf16",
    17: "fp8",
    18: "fp8",
    19: "fp8",
    20: "fp8",
}
"""onnx.TensorProto.DataType, those that weights have."""


class Refused(Exception):
    """The file cannot be parsed: code, field, detail."""

    def __init__(self, code: str, field: str, detail: str) -> None:
        self.code, self.field, self.detail = code, field, detail
        super().__init__(detail)


def main(arguments: list[str]) -> int:
    """Parse one file; print the answer; 0 or EXIT_REFUSED."""
    try:
        if len(arguments) not in (2, 3) or arguments[0] not in KINDS:
            usage = f"KIND PATH [NAME], KIND one of {', '.join(KINDS)}"
            raise Refused("usage", "kind", usage)
        kind, path = arguments[0], Path(arguments[1])
        name = arguments[2] if len(arguments) == 3 else path.stem
        descriptor = open_regular(path)
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            limit_process(kind, size)
            spec = read(kind, file, size, name[:120])
        print(json.dumps(spec.to_json()))
        return 0
    except Refused as refused:
        return refuse(refused.code, refused.field, refused.detail)
    except BadInput as error:
        return refuse(error.code, error.field, error.detail)
    except MemoryError:
        return refuse("too_large", "file", "parsing it needs too much memory")
    except RecursionError:
        return refuse("too_deep", "file", "is nested too deep")


def refuse(code: str, field: str, detail: str) -> int:
    """Print a problem as one line of JSON."""
    problem = {"error": code, "field": field[:120], "detail": detail[:400]}
    print(json.dumps(problem))
    return EXIT_REFUSED


def open_regular(path: Path) -> int:
    """A descriptor of a regular file; links and devices are refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        detail = error.strerror or "cannot be opened"
        raise Refused("unreadable", "file", detail) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused("unreadable", "file", "is not a regular file")
    return descriptor


def limit_process(kind: str, size: int) -> None:
    """Bound memory, time, files and processes before anything of the file is read.

    Address space counts what the interpreter and protobuf have mapped already, so the
    bound is what is mapped now, 512 MiB, and a multiple of what will be read.
    """
    mapped_pages = int(Path("/proc/self/statm").read_text().split()[0])
    mapped = mapped_pages * os.sysconf("SC_PAGE_SIZE")
    read_bytes = min(size, bytes_to_read(kind))
    if kind == "onnx":
        import onnx  # noqa: F401  (its libraries are mapped before the limit)
    address = mapped + BASE_ADDRESS_BYTES + BYTES_PER_FILE_BYTE[kind] * read_bytes
    for which, bound in (
        (resource.RLIMIT_AS, address),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, OUTPUT_MAX_BYTES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(which)
        ceiling = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(which, (ceiling, ceiling))


def bytes_to_read(kind: str) -> int:
    """Most bytes of a file of this kind that are ever read."""
    return {
        "config": CONFIG_MAX_BYTES,
        "safetensors": MAX_HEADER_BYTES + 8,
        "index": INDEX_MAX_BYTES,
        "onnx": ONNX_MAX_BYTES,
    }[kind]


def read(kind: str, file: Any, size: int, name: str) -> ModelSpec:
    """The ModelSpec of an open file."""
    if kind == "safetensors":
        return read_safetensors(file, size, name)
    if size > bytes_to_read(kind):
        most = bytes_to_read(kind)
        raise Refused("too_large", "file", f"{size:,} bytes; at most {most:,}")
    if kind == "onnx":
        return read_onnx(file.read(), name)
    data = read_json(file.read())
    if kind == "config":
        return parse_config(data, name=name if name != "config" else "")
    return read_index(data)


def read_json(text: bytes) -> Any:
    """A JSON value; numbers too long, NaN and nesting without end are refused."""

    def no_constant(word: str) -> float:
        raise ValueError(f"{word} is not a number")

    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, UnicodeDecodeError) as error:
        raise Refused("not_json", "file", str(error)[:200]) from error


def read_safetensors(file: Any, size: int, name: str) -> ModelSpec:
    """The header only; the file may be the header alone."""
    start = file.read(8)
    if start[:1] in (b"{", b" "):
        if size > MAX_HEADER_BYTES:
            raise Refused("too_large", "file", "a header of more than 100 MiB")
        return parse_safetensors_header(start + file.read(), name=name)
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER_BYTES:
        detail = f"says {length:,} bytes; at most {MAX_HEADER_BYTES:,}"
        raise Refused("spec_invalid", "header", detail)
    # A file cut off right behind its header is the header alone: no offsets to check.
    whole = size if size > 8 + length else None
    header = start + file.read(length)
    return parse_safetensors_header(header, name=name, file_bytes=whole)


def read_index(data: Any) -> ModelSpec:
    """model.safetensors.index.json names tensors and files, but no shapes."""
    files = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(files, dict):
        raise SpecInvalid({"weight_map": "is missing: not a safetensors index"})
    raise SpecInvalid(
        {
            "weight_map": f"names {len(files):,} tensors but no shapes. Give the "
            "model's config.json, or one of the .safetensors files' headers."
        }
    )


def read_onnx(data: bytes, name: str) -> ModelSpec:
    """Initializers' names, shapes and types; external data is never opened."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(data)
    except (DecodeError, ValueError) as error:
        raise Refused("not_onnx", "file", "is not an ONNX model") from error
    if not model.HasField("graph"):
        raise Refused("not_onnx", "graph", "the file has no graph")
    tensors = [
        TensorInfo(
            one.name,
            checked_shape(one.name[:80], list(one.dims)),
            onnx_dtype(one.name, one.data_type),
        )
        for one in model.graph.initializer
    ]
    return spec_from_inventory(tensors, name=name, source="onnx", family="onnx")


def onnx_dtype(name: str, number: int) -> str:
    """Our word for an ONNX element type. Raises SpecInvalid for types without one."""
    if number not in ONNX_DTYPES:
        raise SpecInvalid({name[:80]: f"has the unknown element type {number}"})
    return ONNX_DTYPES[number]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
