"""Read the inputs and outputs of an ONNX model, and decide whether it may be served.

Message numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto. Only inputs,
outputs and the names of the operator sets are read. Operators outside ONNX's and ONNX
Runtime's own sets are refused, because they would need a user's native library.
"""

from typing import BinaryIO

from placement.planner.model.files.protobuf import ByteSpan, Wire
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.tensor_signature import (
    DATATYPES,
    FREE,
    MOST_NAME_BYTES,
    Signature,
    Tensor,
)
from telemetry.protocol.sentences import sentence

OPERATOR_SETS = (
    *("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training"),
    *("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"),
)
MOST_TENSORS = 64
MOST_DIMENSIONS = 16
MOST_SETS = 32


def parse_signature(file: BinaryIO, size: int) -> Signature:
    """Return the signature of an open ONNX file of `size` bytes.

    Raises:
        SpecInvalid: it may not be served, with the reason.
    """
    wire = Wire(file, size)
    sets: list[str] = []
    graph: ByteSpan | None = None
    for number, value in wire.fields(wire.whole()):
        if number == 8 and isinstance(value, ByteSpan):
            sets.append(_first_text(wire, value, 1))
            if len(sets) > MOST_SETS:
                raise SpecInvalid({"upload": sentence("names too many operator sets")})
        elif number == 7 and isinstance(value, ByteSpan):
            graph = value
        elif number == 25:
            raise SpecInvalid(
                {
                    "upload": sentence(
                        "defines functions of its own: export it with inlining"
                    )
                }
            )
    if graph is None:
        raise SpecInvalid({"upload": sentence("is not an ONNX model: it has no graph")})
    strange = sorted(set(sets) - set(OPERATOR_SETS))
    if strange:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "needs operators of {strange}: only ONNX's own and ONNX "
                    "Runtime's are served, never a library of operators",
                    strange=", ".join(strange)[:120],
                )
            }
        )
    return _signature(wire, graph, tuple(sets))


def _signature(wire: Wire, graph: ByteSpan, sets: tuple[str, ...]) -> Signature:
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    weights: set[str] = set()
    for number, value in wire.fields(graph):
        if not isinstance(value, ByteSpan):
            continue
        if number in (11, 12):
            (inputs if number == 11 else outputs).append(_tensor(wire, value))
        elif number == 5:
            weights.add(_weight(wire, value))
        if max(len(inputs) - len(weights), len(outputs)) > MOST_TENSORS:
            raise SpecInvalid(
                {
                    "upload": sentence(
                        "more than {most_tensors} inputs or outputs",
                        most_tensors=MOST_TENSORS,
                    )
                }
            )
    # Before IR version 4 weights had to be listed among the inputs.
    asked = tuple(one for one in inputs if one.name not in weights)
    if not asked or not outputs:
        raise SpecInvalid(
            {"upload": sentence("has no input or no output, so it cannot be called")}
        )
    return Signature(asked, tuple(outputs), sets)


def _weight(wire: Wire, span: ByteSpan) -> str:
    """Return a weight's name."""
    return _first_text(wire, span, 8)


def _tensor(wire: Wire, span: ByteSpan) -> Tensor:
    """Read ValueInfoProto: name 1, type 2. Raises SpecInvalid by its name."""
    name, tensor = "", None
    for number, value in wire.fields(span):
        if number == 1 and isinstance(value, ByteSpan):
            name = wire.text(value, MOST_NAME_BYTES)
        elif number == 2 and isinstance(value, ByteSpan):
            # TypeProto: tensor_type 1. Other fields are sequences, maps and the like.
            for inner, inside in wire.fields(value):
                if inner == 1 and isinstance(inside, ByteSpan):
                    tensor = inside
    label = name[:80] or sentence("an input")
    if tensor is None:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "{label} is not a tensor, so it cannot be sent", label=label
                )
            }
        )
    kind = 0
    shape: tuple[int, ...] = ()
    for number, value in wire.fields(tensor):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, ByteSpan):
            shape = _shape(wire, value)
    if kind not in DATATYPES:
        raise SpecInvalid(
            {"upload": sentence("{label} has a type that cannot be sent", label=label)}
        )
    return Tensor(name, DATATYPES[kind], shape)


def _shape(wire: Wire, span: ByteSpan) -> tuple[int, ...]:
    """Read TensorShapeProto: dim 1 {dim_value 1, dim_param 2}."""
    shape: list[int] = []
    for number, value in wire.fields(span):
        if number != 1 or not isinstance(value, ByteSpan):
            continue
        size = FREE
        for inner, inside in wire.fields(value):
            if inner == 1 and isinstance(inside, int) and inside >= 0:
                size = inside
        shape.append(size)
        if len(shape) > MOST_DIMENSIONS:
            raise SpecInvalid(
                {
                    "upload": sentence(
                        "more than {most_dimensions} dimensions",
                        most_dimensions=MOST_DIMENSIONS,
                    )
                }
            )
    return tuple(shape)


def _first_text(wire: Wire, span: ByteSpan, wanted: int) -> str:
    for number, value in wire.fields(span):
        if number == wanted and isinstance(value, ByteSpan):
            return wire.text(value, MOST_NAME_BYTES)
    return ""
