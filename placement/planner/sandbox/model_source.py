"""Find the model that a SOURCE names: a well-known name, a file or module:callable."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import WELL_KNOWN, well_known_spec
from placement.planner.sandbox.parser_process import ROOT, kind_of, parsed_files
from placement.planner.values.errors import SpecInvalid

ENTRY_SECONDS = 300
_ENTRY = re.compile(r"[^/\\]+:[^/\\]+\Z")


@dataclass(frozen=True, slots=True)
class Source:
    """A model: its layers for the closed form, and its code for the symbolic
    estimate.
    """

    spec: ModelSpec | None
    """None if only the code has it."""
    model: Mapping[str, Any] | None
    """A Case's model. None: sizes without code (.safetensors, ONNX)."""

    def closed_spec(self) -> ModelSpec:
        """Return the ModelSpec. Runs the code of a module:callable, in a child process.

        Raises:
            SpecInvalid: with the report of the code's process.
        """
        if self.spec is not None:
            return self.spec
        assert self.model is not None
        return spec_of_entry(self.model["entry"], str(Path.cwd()))


def read_model(source: str) -> ModelSpec:
    """Return the layers of a model, with the bytes and operations of each.

    Args:
        source: a well-known name such as ``gpt2``, the path of a config.json,
            .safetensors or .onnx file, or ``module:callable``, which is looked for in
            the working folder first. A file is parsed, and a callable is run, in a
            child process.

    Raises:
        SpecInvalid: there is no such name or file, or it cannot be read; by field.
    """
    return find(source).closed_spec()


def find(text: str) -> Source:
    """Return the Source of a text. Parses a file in a child process.

    Raises:
        SpecInvalid: there is no such name or file, or it cannot be read; by field.
    """
    if text in WELL_KNOWN:
        config = dict(WELL_KNOWN[text].config)
        return Source(well_known_spec(text), {"config": config})
    if _ENTRY.match(text) and not Path(text).exists():
        return Source(None, {"entry": text})
    path = Path(text)
    if not path.is_file():
        names = ", ".join(WELL_KNOWN)
        detail = (
            f"'{text[:80]}' is not a file, not module:callable, and not one of {names}"
        )
        raise SpecInvalid({"source": detail})
    understood = parsed_files([kind_of(path.name)], [path.resolve()], name=path.stem)
    model = None if understood.config is None else {"config": dict(understood.config)}
    return Source(understood.spec, model)


def spec_of_entry(entry: str, folder: str) -> ModelSpec:
    """Return the ModelSpec of a user's module:callable. Runs the code, in a child
    process.

    Raises:
        SpecInvalid: with the report of the code's process.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "placement.planner.sandbox.entry_build", entry],
            cwd=folder,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ENTRY_SECONDS,
            check=False,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise SpecInvalid({"entry": f"took more than {ENTRY_SECONDS} s"}) from None
    except ValueError:
        raise SpecInvalid({"entry": "its process ended without an answer"}) from None
    if done.returncode != 0:
        raise SpecInvalid({str(answer.get("field", "entry")): str(answer["detail"])})
    return ModelSpec.from_json(answer)
