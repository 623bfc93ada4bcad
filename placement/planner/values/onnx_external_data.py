"""The external files of an ONNX model's weights: the allowed ones and the needed ones.

ONNX defines the location as a path relative to the folder of the model's own file
(https://onnx.ai/onnx/repo-docs/ExternalData.html). With another path the runtime would
read a file of the machine, so it is refused before anything is written or opened, at
the portal and again at the node.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from placement.planner.values.errors import SpecInvalid
from placement.planner.values.json_value import JsonValue
from telemetry.protocol.sentences import sentence

MOST_PARTS = 512
MOST_NAME_BYTES = 255
MOST_FOLDERS = 8
OWN_NAME = "model.onnx"
"""Name of the model's own file if there are others beside it."""
_PIECE = re.compile(r"[^\x00-\x1f\x7f/\\:]{1,255}")


@dataclass(frozen=True, slots=True)
class ModelFilePart(JsonValue):
    """One file of a model with several files. The model's own is the first."""

    name: str
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    size_bytes: Annotated[int, Meta(ge=0)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", checked_name(self.name))


def checked_name(name: object) -> str:
    """Return a path that stays inside the model's folder.

    >>> checked_name("./weights/a.bin")
    'weights/a.bin'

    Raises:
        SpecInvalid: it is absolute, leaves the folder, or is no name of a file.
    """
    text = name if isinstance(name, str) else ""
    pieces = [piece for piece in text.split("/") if piece != "."]
    good = (
        bool(pieces)
        and len(text.encode(errors="replace")) <= MOST_NAME_BYTES
        and len(pieces) <= MOST_FOLDERS
        and all(_PIECE.fullmatch(piece) and piece != ".." for piece in pieces)
    )
    if not good:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "{text} is not a path inside the model's folder. Only relative "
                    "names without .. are allowed",
                    text=f"{text[:80]!r}",
                )
            }
        )
    return "/".join(pieces)


def from_folder_of(model: str, names: Sequence[str]) -> dict[str, str]:
    """Return the names relative to the model -> the given names. Others are left out.

    >>> from_folder_of("export/m.onnx", ["export/m.onnx", "export/w/a", "README"])
    {'w/a': 'export/w/a'}
    """
    folder = model.rpartition("/")[0]
    start = f"{folder}/" if folder else ""
    return {
        name.removeprefix(start): name
        for name in names
        if name.startswith(start) and name != model
    }


def check_there(needed: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    """Refuse if a file that the model names is missing or too short.

    Args:
        needed: location -> bytes that the model reads of it, from its start.
        sizes: name -> bytes of the given files.

    Raises:
        SpecInvalid: with the names.
    """
    missing = sorted(name for name in needed if name not in sizes)
    if missing:
        named = ", ".join(name[:80] for name in missing[:3])
        if len(missing) > 3:
            more = f"{len(missing) - 3:,}"
            named = sentence("{named} and {more} more", named=named, more=more)
        raise SpecInvalid(
            {
                "upload": sentence(
                    "its weights lie in other files ({named}): choose them "
                    "together with it, or upload the folder as .zip or .tar",
                    named=named,
                )
            }
        )
    for name, size in needed.items():
        if sizes[name] < size:
            raise SpecInvalid(
                {
                    "upload": sentence(
                        "{name} has {sizes} bytes, the model reads {size} of it: it "
                        "is cut off",
                        name=name[:80],
                        sizes=f"{sizes[name]:,}",
                        size=f"{size:,}",
                    )
                }
            )
    if OWN_NAME in needed:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "keeps weights in a file named {own_name}", own_name=OWN_NAME
                )
            }
        )


def sum_of(parts: Sequence[ModelFilePart]) -> str:
    """Return one checksum of all parts, names included."""
    text = json.dumps([part.to_json() for part in parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
