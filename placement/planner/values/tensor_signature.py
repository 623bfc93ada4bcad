"""The inputs and outputs of a served model: its tensors, by the Open Inference
Protocol.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from placement.planner.values.json_value import JsonValue

DATATYPES = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: "BYTES",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
}
"""onnx.TensorProto.DataType -> the Open Inference Protocol's word."""
MOST_NAME_BYTES = 512
MOST_SET_CHARACTERS = 100
FREE = -1
"""A dimension of any size."""


Datatype = Annotated[str, Meta(pattern=rf"\A(?:{'|'.join(DATATYPES.values())})\Z")]


@dataclass(frozen=True, slots=True)
class Tensor(JsonValue):
    """One input or output. A free dimension is -1."""

    name: str
    datatype: Datatype
    shape: tuple[Annotated[int, Meta(ge=FREE)], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name[:MOST_NAME_BYTES])


@dataclass(frozen=True, slots=True)
class Signature(JsonValue):
    """The inputs and outputs of a model."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operator_sets: tuple[str, ...]

    def __post_init__(self) -> None:
        sets = tuple(one[:MOST_SET_CHARACTERS] for one in self.operator_sets)
        object.__setattr__(self, "operator_sets", sets)
