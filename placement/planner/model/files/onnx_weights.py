"""An ONNX file's weights: names, shapes and types of initializers and constants.

Message numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto. Weights inside
the file are skipped, external data is never opened, and nothing is executed. The use of
a whole-number tensor in a node shows whether it is a quantized weight (an input of
DequantizeLinear, QLinearMatMul, MatMulNBits ...) or a shape, which is no parameter.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from placement.planner.model.files.protobuf import ByteSpan, Wire
from placement.planner.model.files.tensor_inventory import (
    MAX_DIMENSIONS,
    TensorInfo,
    checked_shape,
    spec_from_inventory,
)
from placement.planner.model.spec import DTYPE_BYTES, ModelSpec
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.onnx_external_data import MOST_PARTS, checked_name
from telemetry.protocol.sentences import sentence

MAX_DEPTH = 16
"""Deepest nesting of graphs inside attributes of nodes of graphs."""
MAX_NAME_BYTES = 1024
MAX_TENSORS = 500_000
MAX_NODES = 2_000_000
ONNX_DTYPES = {
    1: "fp32",
    2: "int8",
    3: "int8",
    4: "int16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "fp16",
    11: "fp64",
    12: "int32",
    13: "int64",
    14: "complex64",
    15: "complex128",
    16: "bf16",
    17: "fp8",
    18: "fp8",
    19: "fp8",
    20: "fp8",
    21: "int4",
    22: "int4",
    23: "fp4",
    24: "fp8",
    25: "int2",
    26: "int2",
    27: "fp6",
    28: "fp6",
}
"""onnx.TensorProto.DataType. 8 is text, which is no weight."""
TEXT = 8
QUANTIZED_INPUTS: dict[str, dict[int, tuple[int, ...]]] = {
    "DequantizeLinear": {0: (1, 2)},
    "QuantizeLinear": {-1: (1, 2)},
    "QLinearMatMul": {0: (1, 2), 3: (4, 5), -1: (6, 7)},
    "QLinearConv": {0: (1, 2), 3: (4, 5), -1: (6, 7)},
    "QGemm": {0: (1, 2), 3: (4, 5), -1: (7, 8)},
    "MatMulInteger": {0: (2,), 1: (3,)},
    "ConvInteger": {0: (2,), 1: (3,)},
    "DynamicQuantizeMatMul": {1: (2, 3)},
    "MatMulIntegerToFloat": {0: (2, 4), 1: (3, 5)},
    "MatMulNBits": {1: (2, 3, 4)},
    "MatMulBnb4": {1: (2,)},
    "GatherBlockQuantized": {0: (2, 3)},
}
"""Operator -> input with a quantized weight -> inputs with its scales and zero points
(-1: scales of a computed value). ONNX's operators and ONNX Runtime's own.
"""
_SMALL = ("int8", "int4", "int2", "fp8", "fp6", "fp4")
_NUMBERED = re.compile(r"(^|[./])\d{1,9}([./]|$)")


@dataclass(slots=True)
class _Found:
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    scales: dict[str, str] = field(default_factory=dict)
    """Constant of a quantized weight -> that weight; "" for the constant of an
    activation.
    """
    bits: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Weight of MatMulNBits -> (bits, outputs, inputs)."""
    used_by: dict[str, str] = field(default_factory=dict)
    nodes: int = 0
    graphs: int = 0
    external: int = 0
    outside: list[tuple[str, dict[str, str], int]] = field(default_factory=list)
    """Tensors in other files: name, location, bytes needed."""


def parse_onnx(file: BinaryIO, size: int, *, name: str) -> ModelSpec:
    """Return the ModelSpec of an open ONNX file of `size` bytes. Raises SpecInvalid.

    Time grows with the number of tensors and nodes, memory with their names.
    """
    found = _all(file, size)
    if not found.graphs:
        raise SpecInvalid({"file": sentence("is not an ONNX model: it has no graph")})
    tensors, notes = _whole(found)
    if found.external:
        notes.append(
            sentence(
                "the data of {external} tensors is in other files, which were not read",
                external=f"{found.external:,}",
            )
        )
    return spec_from_inventory(
        tensors, name=name, source="onnx", family="onnx", notes=notes
    )


def external_files(file: BinaryIO, size: int) -> dict[str, int]:
    """Return the external files of an open file -> bytes read there.

    Raises SpecInvalid: the file cannot be read, or a location is outside its folder.
    """
    files: dict[str, int] = {}
    for label, place, needed in _all(file, size).outside:
        location, end = _place(label, place, needed)
        files[location] = max(files.get(location, 0), end)
        if len(files) >= MOST_PARTS:
            raise SpecInvalid(
                {
                    "upload": sentence(
                        "has {most_parts} files of weights or more",
                        most_parts=MOST_PARTS,
                    )
                }
            )
    return files


def _all(file: BinaryIO, size: int) -> _Found:
    wire, found = Wire(file, size), _Found()
    for number, value in wire.fields(wire.whole()):
        if number == 7 and isinstance(value, ByteSpan):
            found.graphs += 1
            _graph(wire, value, found, 0)
        elif number == 25 and isinstance(value, ByteSpan):
            _nodes(wire, value, found, 0, field_number=7)
    return found


def _graph(wire: Wire, span: ByteSpan, found: _Found, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise SpecInvalid(
            {
                "graph": sentence(
                    "graphs nested deeper than {max_depth}", max_depth=MAX_DEPTH
                )
            }
        )
    for number, value in wire.fields(span):
        if not isinstance(value, ByteSpan):
            continue
        if number == 1:
            _node(wire, value, found, depth)
        elif number == 5:
            _keep(found, _tensor(wire, value, found))
        elif number == 15:
            for inner, values in wire.fields(value):
                if inner == 1 and isinstance(values, ByteSpan):
                    _keep(found, _tensor(wire, values, found))


def _nodes(
    wire: Wire, span: ByteSpan, found: _Found, depth: int, *, field_number: int
) -> None:
    for number, value in wire.fields(span):
        if number == field_number and isinstance(value, ByteSpan):
            _node(wire, value, found, depth)


def _node(wire: Wire, span: ByteSpan, found: _Found, depth: int) -> None:
    found.nodes += 1
    if found.nodes > MAX_NODES:
        raise SpecInvalid(
            {
                "graph": sentence(
                    "more than {max_nodes} nodes", max_nodes=f"{MAX_NODES:,}"
                )
            }
        )
    inputs: list[str] = []
    name = operator = output = ""
    numbers: dict[str, int] = {}
    constants: list[TensorInfo | None] = []
    for number, value in wire.fields(span):
        if not isinstance(value, ByteSpan):
            continue
        if number == 1:
            inputs.append(wire.text(value, MAX_NAME_BYTES))
        elif number == 2:
            output = output or wire.text(value, MAX_NAME_BYTES)
        elif number == 3:
            name = wire.text(value, MAX_NAME_BYTES)
        elif number == 4:
            operator = wire.text(value, MAX_NAME_BYTES)
        elif number == 5:
            constants += _attribute(wire, value, found, numbers, depth)
    for constant in constants:
        if constant is not None and operator == "Constant":
            _keep(
                found,
                TensorInfo(output, constant.shape, constant.dtype),
            )
    for one in inputs:
        found.used_by.setdefault(one, name)
    _uses(found, operator, inputs, numbers)


def _uses(
    found: _Found, operator: str, inputs: list[str], numbers: dict[str, int]
) -> None:
    """Note which inputs are scales of which quantized weight."""
    for weight, constants in QUANTIZED_INPUTS.get(operator, {}).items():
        owner = inputs[weight] if 0 <= weight < len(inputs) else ""
        for index in constants:
            if index < len(inputs) and inputs[index]:
                found.scales.setdefault(inputs[index], owner)
        if operator == "MatMulNBits" and owner:
            sizes = (numbers.get("bits", 4), numbers.get("N", 0), numbers.get("K", 0))
            found.bits[owner] = sizes


def _attribute(
    wire: Wire, span: ByteSpan, found: _Found, numbers: dict[str, int], depth: int
) -> Iterator[TensorInfo | None]:
    """Read the tensors in an attribute. Its graphs are walked, and its number is
    noted.
    """
    name, whole = "", None
    for number, value in wire.fields(span):
        if isinstance(value, int):
            whole = value if number == 3 else whole
        elif number == 1:
            name = wire.text(value, MAX_NAME_BYTES)
        elif number in (5, 10):
            yield _tensor(wire, value, found)
        elif number in (6, 11):
            _graph(wire, value, found, depth + 1)
    if whole is not None:
        numbers[name] = whole


def _tensor(wire: Wire, span: ByteSpan, found: _Found) -> TensorInfo | None:
    """Read one tensor; None for text. Raises SpecInvalid by its name."""
    name, dims, kind, raw, external = "", [], 0, None, False
    place: dict[str, str] = {}
    for number, value in wire.fields(span):
        if isinstance(value, int):
            if number == 1:
                dims.append(value)
            elif number == 2:
                kind = value
            elif number == 14:
                external = value == 1
        elif number == 1:
            dims += wire.numbers(value, MAX_DIMENSIONS + 1)
        elif number == 8:
            name = wire.text(value, MAX_NAME_BYTES)
        elif number == 9:
            raw = value
        elif number == 13:
            place |= _entry(wire, value)
    label = name[:80] or "constant"
    if kind == TEXT:
        if external:
            raise SpecInvalid(
                {label: sentence("keeps texts in another file, which ONNX forbids")}
            )
        return None
    if kind not in ONNX_DTYPES:
        raise SpecInvalid(
            {label: sentence("has the unknown element type {kind}", kind=kind)}
        )
    made = TensorInfo(name, checked_shape(label, dims), ONNX_DTYPES[kind])
    needed = -(-int(made.elements * 8 * DTYPE_BYTES[made.dtype]) // 8)
    if raw is not None and not external and raw.length and raw.length != needed:
        raise SpecInvalid(
            {
                label: sentence(
                    "holds {length} bytes, its shape needs {needed}",
                    length=f"{raw.length:,}",
                    needed=f"{needed:,}",
                )
            }
        )
    if external:
        found.external += 1
        found.outside.append((label, place, needed))
    return made


def _entry(wire: Wire, span: ByteSpan) -> dict[str, str]:
    """Read StringStringEntryProto: key 1, value 2."""
    texts = {1: "", 2: ""}
    for number, value in wire.fields(span):
        if number in texts and isinstance(value, ByteSpan):
            texts[number] = wire.text(value, MAX_NAME_BYTES)
    return {texts[1]: texts[2]}


def _place(label: str, place: dict[str, str], needed: int) -> tuple[str, int]:
    """Return the file of a tensor's data, and the end of the data. Raises
    SpecInvalid.
    """
    location = checked_name(place.get("location"))
    numbers = [place.get("offset", "0"), place.get("length", str(needed))]
    if not all(text.isdecimal() and len(text) < 16 for text in numbers):
        raise SpecInvalid({label: sentence("gives no offset and length of its data")})
    offset, length = map(int, numbers)
    if length != needed:
        raise SpecInvalid(
            {
                label: sentence(
                    "reads {length} bytes, its shape needs {needed}",
                    length=f"{length:,}",
                    needed=f"{needed:,}",
                )
            }
        )
    return location, offset + length


def _keep(found: _Found, tensor: TensorInfo | None) -> None:
    if tensor is None:
        return
    if len(found.tensors) >= MAX_TENSORS:
        raise SpecInvalid(
            {
                "graph": sentence(
                    "more than {max_tensors} tensors", max_tensors=f"{MAX_TENSORS:,}"
                )
            }
        )
    found.tensors[tensor.name] = tensor


def _whole(found: _Found) -> tuple[list[TensorInfo], list[str]]:
    """Return the parameters. Scales and zero points are joined with their weights."""
    constants: dict[str, int] = {}
    for name, owner in found.scales.items():
        tensor = found.tensors.get(name)
        if tensor is not None and owner in found.tensors:
            constants[owner] = constants.get(owner, 0) + tensor.stored_bytes
    answer: list[TensorInfo] = []
    quantized = 0
    for name, tensor in found.tensors.items():
        if name in found.scales:
            continue
        packed = tensor.dtype in _SMALL and (len(tensor.shape) > 1 or name in constants)
        shape, size = tensor.shape, None
        if packed:
            quantized += 1
            size = tensor.stored_bytes + constants.get(name, 0)
            shape = _logical(found, tensor)
        answer.append(
            TensorInfo(_placed(found, name), shape, tensor.dtype, packed_bytes=size)
        )
    notes: list[str] = []
    if quantized:
        notes.append(
            sentence(
                "{quantized} weights are quantized: counted as they unpack, bytes "
                "as they are stored with their scales",
                quantized=f"{quantized:,}",
            )
        )
    return answer, notes


def _logical(found: _Found, tensor: TensorInfo) -> tuple[int, ...]:
    """Return the shape of the weights in a packed tensor."""
    bits, outputs, inputs = found.bits.get(tensor.name, (0, 0, 0))
    if outputs > 0 and inputs > 0:
        return checked_shape(tensor.name[:80], [outputs, inputs])
    if bits in (2, 4) and tensor.dtype == "int8":
        return (*tensor.shape[:-1], tensor.shape[-1] * 8 // bits)
    return tensor.shape


def _placed(found: _Found, name: str) -> str:
    """Return a name with the layer.

    If an exporter named a weight `onnx::MatMul_12`, the node that uses it has the
    layer's name.
    """
    user = found.used_by.get(name, "")
    if _NUMBERED.search(name) or not _NUMBERED.search(user):
        return name
    return f"{user}/{name.replace('/', '_').replace('.', '_')}"[:MAX_NAME_BYTES]
