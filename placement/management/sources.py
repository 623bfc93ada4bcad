"""SOURCE of `manage.py estimate`: a name, a file, or somebody's module:callable."""

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
from placement.planner.values.errors import SpecInvalid
from placement.plans.model_registry import kind_of, run_parser

_ENTRY = re.compile(r"[^/\\]+:[^/\\]+\Z")
ENTRY_SECONDS = 300
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Source:
    """A model, for the closed form and where there is code for it, for the other."""

    spec: ModelSpec | None
    """None where only code can say it."""
    model: Mapping[str, Any] | None
    """A Case's model; None: sizes without code (.safetensors, ONNX)."""


def find(text: str) -> Source:
    """What a SOURCE is.

    Raises:
        SpecInvalid: no such name or file, or the file cannot be read; by field.
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
    understood = run_parser([kind_of(path.name)], [path.resolve()], name=path.stem)
    model = None if understood.config is None else {"config": dict(understood.config)}
    return Source(understood.spec, model)


def spec_of_entry(entry: str, folder: str) -> ModelSpec:
    """The ModelSpec of somebody's module:callable. Runs their code, in a child.

    Raises:
        SpecInvalid: what the code's process said.
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
