"""Tensors of the Open Inference Protocol v2, as JSON and as its binary extension.

https://github.com/kserve/open-inference-protocol and, for the binary form,
https://github.com/triton-inference-server/server (extension_binary_data.md): the body
is `Inference-Header-Content-Length` bytes of JSON and then the raw little-endian
tensors in the order of the inputs that say `binary_data_size`.

Everything wrong names its field; nothing is read beyond what its shape says.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placement.planner.values.tensor_signature import Tensor
from placement.protocol.call_refusal import CallRefused

MOST_DIMENSIONS = 16
MOST_ELEMENTS = 2**26
MOST_INPUTS = 64
MOST_HEADER_BYTES = 8 * 2**20
DATATYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
OF_ONNX = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}


class TensorInvalid(CallRefused):
    """A call whose tensors cannot be used: which field, and why."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__("tensors", f"{field}: {why}", fields={field: why})


@dataclass(slots=True)
class InferenceRequest:
    """One inference request, read and checked."""

    inputs: dict[str, Any]
    outputs: tuple[str, ...]
    id: str = ""
    deadline_ms: float | None = None
    binary: frozenset[str] = field(default_factory=frozenset)
    """Outputs that are to come back in the binary form."""


def read_request(
    body: bytes,
    header_bytes: int | None,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> InferenceRequest:
    """Read a request for a model with such inputs and outputs.

    Args:
        body: of the HTTP request.
        header_bytes: its `Inference-Header-Content-Length`; None: all is JSON.

    Raises:
        TensorInvalid: by field.
    """
    if header_bytes is not None and not 0 < header_bytes <= len(body):
        raise TensorInvalid(
            "Inference-Header-Content-Length",
            f"is {header_bytes}, the body has {len(body)} bytes",
        )
    head, blob = body[:header_bytes], body[header_bytes or len(body) :]
    said = _object(head)
    known = {one.name: one for one in inputs}
    listed = said.get("inputs")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_INPUTS:
        raise TensorInvalid("inputs", f"must be a list of 1 to {MOST_INPUTS} tensors")
    found: dict[str, Any] = {}
    at = 0
    for index, item in enumerate(listed):
        place = f"inputs[{index}]"
        if not isinstance(item, dict):
            raise TensorInvalid(place, "must be an object")
        info = known.get(str(item.get("name")))
        if info is None or info.name in found:
            names = ", ".join(known)
            raise TensorInvalid(
                f"{place}.name", f"must be one of {names}, each of them once"
            )
        found[info.name], at = _tensor(item, info, place, blob, at)
    missing = [name for name in known if name not in found]
    if missing:
        raise TensorInvalid("inputs", f"{', '.join(missing)} is missing")
    if at != len(blob):
        raise TensorInvalid(
            "Inference-Header-Content-Length",
            f"{len(blob) - at} bytes follow that belong to no input",
        )
    return _outputs_and_deadline(said, found, outputs)


def _object(head: bytes) -> dict[str, Any]:
    if len(head) > MOST_HEADER_BYTES:
        raise TensorInvalid("body", f"more than {MOST_HEADER_BYTES} bytes of JSON")
    try:
        said = json.loads(head, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise TensorInvalid("body", f"is no JSON: {str(error)[:120]}") from None
    if not isinstance(said, dict):
        raise TensorInvalid("body", "must be an object")
    return said


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number; send it in the binary form")


def _outputs_and_deadline(
    said: Mapping[str, Any], found: dict[str, Any], outputs: Sequence[Tensor]
) -> InferenceRequest:
    """Return the requested outputs and the deadline."""
    parameters = said.get("parameters", {})
    if not isinstance(parameters, dict):
        raise TensorInvalid("parameters", "must be an object")
    name = said.get("id", "")
    if not isinstance(name, str) or len(name) > 128:
        raise TensorInvalid("id", "must be a text of at most 128 characters")
    everywhere = _flag(parameters, "binary_data_output", "parameters")
    known = [one.name for one in outputs]
    wanted, binary = [], set()
    listed = said.get("outputs") or [{"name": name} for name in known]
    if not isinstance(listed, list) or len(listed) > MOST_INPUTS:
        raise TensorInvalid("outputs", "must be a list of outputs")
    for index, item in enumerate(listed):
        place = f"outputs[{index}]"
        if not isinstance(item, dict) or item.get("name") not in known:
            raise TensorInvalid(f"{place}.name", f"must be one of {', '.join(known)}")
        if item["name"] in wanted:
            raise TensorInvalid(f"{place}.name", "appears twice")
        options = item.get("parameters", {})
        if not isinstance(options, dict):
            raise TensorInvalid(f"{place}.parameters", "must be an object")
        wanted.append(item["name"])
        if _flag(options, "binary_data", f"{place}.parameters", everywhere):
            binary.add(item["name"])
    return InferenceRequest(
        inputs=found,
        outputs=tuple(wanted),
        id=name,
        deadline_ms=deadline_of(
            parameters.get("deadline_ms"), "parameters.deadline_ms"
        ),
        binary=frozenset(binary),
    )


def deadline_of(value: Any, field: str) -> float | None:
    """A deadline in milliseconds from now; None: none was named.

    Raises:
        TensorInvalid: it is no number above 0 and at most an hour.
    """
    if value is None:
        return None
    try:
        number = float(value)
        if isinstance(value, bool) or not 0 < number <= 3_600_000:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise TensorInvalid(
            field, "must be milliseconds, above 0 and at most 3600000"
        ) from None
    return number


def _flag(
    options: Mapping[str, Any], name: str, place: str, default: bool = False
) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise TensorInvalid(f"{place}.{name}", "must be true or false")
    return value


def _tensor(
    item: Mapping[str, Any], info: Tensor, place: str, blob: bytes, at: int
) -> tuple[Any, int]:
    """One input and where the next binary one begins."""
    shape = _shape(item.get("shape"), info, place)
    if item.get("datatype") != info.datatype:
        raise TensorInvalid(f"{place}.datatype", f"must be {info.datatype}")
    options = item.get("parameters", {})
    if not isinstance(options, dict):
        raise TensorInvalid(f"{place}.parameters", "must be an object")
    size = options.get("binary_data_size")
    if size is None:
        return _from_json(item.get("data"), info, shape, place), at
    if "data" in item:
        raise TensorInvalid(f"{place}.data", "there is binary data of it too")
    where = f"{place}.parameters.binary_data_size"
    if type(size) is not int or not 0 <= size <= len(blob) - at:
        raise TensorInvalid(where, f"{len(blob) - at} bytes of binary data are left")
    return _from_bytes(blob[at : at + size], info, shape, where), at + size


def _shape(said: Any, info: Tensor, place: str) -> tuple[int, ...]:
    good = isinstance(said, list) and all(type(n) is int and n >= 0 for n in said)
    if not good or len(said) > MOST_DIMENSIONS:
        raise TensorInvalid(f"{place}.shape", "must be a list of whole numbers")
    fits = len(said) == len(info.shape) and all(
        wanted in (-1, given) for given, wanted in zip(said, info.shape, strict=True)
    )
    if not fits:
        raise TensorInvalid(
            f"{place}.shape", f"is {said}, the model takes {list(info.shape)}"
        )
    if math.prod(said) > MOST_ELEMENTS:
        raise TensorInvalid(f"{place}.shape", f"more than {MOST_ELEMENTS:,} elements")
    return tuple(said)


def _from_json(
    data: Any, info: Tensor, shape: tuple[int, ...], place: str
) -> np.ndarray:
    """Flat or nested, in row-major order."""
    where = f"{place}.data"
    if not isinstance(data, list):
        raise TensorInvalid(where, "must be a list of the elements")
    count = math.prod(shape)
    flat: list[Any] = []
    _flatten(data, flat, count, where, 0)
    if len(flat) != count:
        raise TensorInvalid(where, f"{len(flat)} elements, the shape says {count}")
    kind = DATATYPES[info.datatype]
    wanted: tuple[type, ...] = (int, float)
    if info.datatype == "BOOL":
        wanted = (bool,)
    elif info.datatype == "BYTES":
        wanted = (str,)
    elif not info.datatype.startswith("FP"):
        wanted = (int,)
    for index, one in enumerate(flat):
        if not isinstance(one, wanted) or (
            isinstance(one, bool) and bool not in wanted
        ):
            raise TensorInvalid(
                where, f"element {index} is not a valid {info.datatype}"
            )
    try:
        with np.errstate(over="ignore"):
            made = np.array(flat, dtype=kind).reshape(shape)
    except (OverflowError, ValueError):
        made = None
    if made is None or (made.dtype.kind == "f" and not np.isfinite(made).all()):
        raise TensorInvalid(where, f"holds a number beyond {info.datatype}")
    return made


def _flatten(
    data: list[Any], flat: list[Any], most: int, where: str, deep: int
) -> None:
    if deep > MOST_DIMENSIONS:
        raise TensorInvalid(where, "is nested too deep")
    for one in data:
        if isinstance(one, list):
            _flatten(one, flat, most, where, deep + 1)
        elif len(flat) > most:
            raise TensorInvalid(where, f"more than {most} elements")
        else:
            flat.append(one)


def _from_bytes(
    raw: bytes, info: Tensor, shape: tuple[int, ...], where: str
) -> np.ndarray:
    count = math.prod(shape)
    if info.datatype == "BYTES":
        return _texts(raw, count, where).reshape(shape)
    kind = np.dtype(DATATYPES[info.datatype]).newbyteorder("<")
    if len(raw) != count * kind.itemsize:
        raise TensorInvalid(
            where, f"is {len(raw)}, the shape needs {count * kind.itemsize}"
        )
    return (
        np.frombuffer(raw, dtype=kind).astype(DATATYPES[info.datatype]).reshape(shape)
    )


def _texts(raw: bytes, count: int, where: str) -> np.ndarray:
    """Each text is its length in four bytes and then UTF-8."""
    found: list[str] = []
    at = 0
    while at + 4 <= len(raw) and len(found) < count:
        (length,) = struct.unpack_from("<I", raw, at)
        text = raw[at + 4 : at + 4 + length]
        if len(text) != length:
            break
        try:
            found.append(text.decode())
        except UnicodeDecodeError:
            raise TensorInvalid(where, f"text {len(found)} is not UTF-8") from None
        at += 4 + length
    if len(found) != count or at != len(raw):
        raise TensorInvalid(where, f"does not hold {count} texts")
    return np.array(found, dtype=np.object_)
