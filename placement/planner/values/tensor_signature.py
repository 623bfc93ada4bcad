"""What a served model takes and gives: its tensors, by the Open Inference Protocol."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

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
FREE = -1
"""A dimension of any size."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output; a free dimension is -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """As the protocol's metadata says it."""
        return {
            "name": self.name,
            "datatype": self.datatype,
            "shape": list(self.shape),
        }


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operator_sets: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For the row of the file."""
        return {
            "inputs": [one.to_json() for one in self.inputs],
            "outputs": [one.to_json() for one in self.outputs],
            "operator_sets": list(self.operator_sets),
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> "Signature":
        """Read one back, every field checked. Raises SpecInvalid."""
        try:
            return cls(
                inputs=tuple(_read(one) for one in said["inputs"]),
                outputs=tuple(_read(one) for one in said["outputs"]),
                operator_sets=tuple(str(one)[:100] for one in said["operator_sets"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SpecInvalid(
                {
                    "signature": sentence(
                        "cannot be read: {error}", error=f"{error!r:.80}"
                    )
                }
            ) from None


def _read(said: Mapping[str, Any]) -> Tensor:
    shape = tuple(int(size) for size in said["shape"])
    if said["datatype"] not in DATATYPES.values() or min(shape, default=0) < FREE:
        raise ValueError(sentence("no tensor"))
    return Tensor(str(said["name"])[:MOST_NAME_BYTES], said["datatype"], shape)
