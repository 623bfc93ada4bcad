"""Recipe ``export-onnx``: write a model as one ONNX file, and compare both.

    python -m placement.agent.runtime.onnx_export '{...}'

The model is a Hugging Face folder (or a name in the cache), or a callable as
``module:callable`` that returns a torch module and a tuple of its example inputs. torch
exports it (``torch.onnx.export`` with ``dynamo``). onnxruntime then answers the example
inputs, and its outputs must equal those of torch. The file can be served as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placement.agent.job_folder import RESULTS
from placement.agent.runtime.fine_tune_inputs import config_of, model_folder
from placement.planner.values.entry_point import EntryPoint
from placement.planner.values.errors import BadInput, LaunchInvalid, SpecInvalid

CANNOT_RUN = 2
FILE = "model.onnx"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MOST_BYTES = 2**31
"""Of one ONNX file, which is a protobuf message."""
TOLERANCE = 1e-3
"""Of outputs, relative to the largest one of torch."""
EXAMPLE_ROWS = 2
EXAMPLE_TOKENS = 8
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
HEADS = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForImageClassification": "AutoModelForImageClassification",
}
"""End of an architecture's name -> the class of transformers that loads it."""


@dataclass(frozen=True)
class Example:
    """A model with inputs to trace it with."""

    model: Any
    names: tuple[str, ...]
    inputs: tuple[Any, ...]
    dynamic: tuple[dict[int, Any], ...]
    """Of each input: dimension -> the range of sizes it may have."""
    outputs: tuple[str, ...] | None = None
    """Names. None: the exporter's own."""


def check_packages() -> None:
    """Check what the export needs beyond torch. Raises LaunchInvalid."""
    lacking = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        raise LaunchInvalid(
            {
                "model": f"this node needs {' and '.join(lacking)} to export a model. "
                f"Install it there: {sys.executable} -m pip install {' '.join(lacking)}"
            }
        )


def head_class(config: Mapping[str, Any]) -> str:
    """Return the class of transformers that loads a config.json. Raises LaunchInvalid.

    >>> head_class({"architectures": ["ViTForImageClassification"]})
    'AutoModelForImageClassification'
    """
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    for end, found in HEADS.items():
        if name.endswith(end):
            return found
    raise LaunchInvalid(
        {
            "model": f"the architecture {name or '(none)'} has no head that this "
            f"recipe exports: {', '.join(HEADS)}. Name a module:callable instead"
        }
    )


def of_folder(folder: Path, most_tokens: int) -> Example:
    """Return a Hugging Face model with example inputs. Raises LaunchInvalid."""
    _, config = config_of(folder, reads_weights=True)
    kind = head_class(config)
    os.environ |= OFFLINE
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        model = getattr(transformers, kind).from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            dtype=torch.float32,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        why = " ".join(str(error).split())[:400]
        raise LaunchInvalid(
            {"model": f"transformers cannot load {folder}: {why}"}
        ) from error
    rows = torch.export.Dim("batch", min=1, max=1024)
    if kind == "AutoModelForImageClassification":
        size = getattr(model.config, "image_size", 224)
        if not isinstance(size, int):
            raise LaunchInvalid({"model": f"its images are not square: {size}"})
        channels = getattr(model.config, "num_channels", 3)
        image = torch.rand((EXAMPLE_ROWS, channels, size, size))
        return Example(
            _logits_of(model, ("pixel_values",), {}),
            ("pixel_values",),
            (image,),
            ({0: rows},),
            ("logits",),
        )
    names = ("input_ids", "attention_mask")
    longest = getattr(model.config, "max_position_embeddings", most_tokens)
    count = torch.export.Dim("sequence", min=1, max=min(most_tokens, longest))
    shape = (EXAMPLE_ROWS, EXAMPLE_TOKENS)
    tokens = torch.randint(0, model.config.vocab_size, shape)
    mask = torch.ones(shape, dtype=torch.long)
    extra = {"use_cache": False} if kind == "AutoModelForCausalLM" else {}
    sizes = {0: rows, 1: count}
    return Example(
        _logits_of(model, names, extra),
        names,
        (tokens, mask),
        (sizes, dict(sizes)),
        ("logits",),
    )


def _logits_of(model: Any, names: Sequence[str], extra: Mapping[str, Any]) -> Any:
    """Return a module whose inputs are positional, and whose output are the logits."""
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            named = dict(zip(names, inputs, strict=True))
            return self.model(**named, **extra, return_dict=True).logits

    return Logits()


def of_callable(entry: EntryPoint, folder: str) -> Example:
    """Return the module and the inputs that a callable returns.

    The first dimension of each input may change.

    Raises:
        SpecInvalid: it is not there, or returns something else.
    """
    import torch

    sys.path.insert(0, folder or str(Path.home()))
    try:
        found: Any = importlib.import_module(entry.module)
        for piece in entry.callable.split("."):
            found = getattr(found, piece)
        made = found()
    except (ImportError, AttributeError) as error:
        raise SpecInvalid({"model": f"{entry} is not there: {error}"[:300]}) from error
    is_pair = isinstance(made, tuple) and len(made) == 2
    model, inputs = made if is_pair else (None, ())
    tensors = isinstance(inputs, tuple | list) and all(
        isinstance(one, torch.Tensor) and one.ndim for one in inputs
    )
    if not isinstance(model, torch.nn.Module) or not inputs or not tensors:
        wrong = f"{entry} must return (module, (tensor, ...)): the example inputs"
        raise SpecInvalid({"model": wrong})
    rows = torch.export.Dim("batch", min=1, max=1024)
    names = tuple(f"input_{number}" for number in range(len(inputs)))
    return Example(model, names, tuple(inputs), tuple({0: rows} for _ in inputs))


def export(example: Example, path: Path) -> float:
    """Write an ONNX file. Return the largest difference of its outputs.

    Raises:
        LaunchInvalid: it is too large, torch cannot export it, or the outputs differ.
    """
    import onnxruntime
    import torch

    model = example.model.eval()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    if size >= MOST_BYTES:
        raise LaunchInvalid(
            {
                "model": f"its weights have {size:,} bytes. One ONNX file has at most "
                f"{MOST_BYTES:,}. Serve it as a language model instead"
            }
        )
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    try:
        with torch.no_grad():
            expected = model(*example.inputs)
        torch.onnx.export(
            model,
            example.inputs,
            path,
            dynamo=True,
            input_names=list(example.names),
            output_names=example.outputs,
            dynamic_shapes=_shapes(model, example),
            external_data=False,
            verbose=False,
        )
    except Exception as error:
        # The exporter raises exceptions of many kinds, and so does the user's module.
        why = " ".join(str(error).split())[:400]
        raise LaunchInvalid({"model": f"torch cannot export it: {why}"}) from error
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = zip(example.names, example.inputs, strict=True)
    got = session.run(None, {name: one.numpy() for name, one in given})
    wanted = expected if isinstance(expected, tuple | list) else [expected]
    worst = 0.0
    for one, other in zip(wanted, got, strict=True):
        scale = max(1.0, float(one.abs().max()))
        worst = max(worst, float((one - torch.from_numpy(other)).abs().max()) / scale)
    if not worst <= TOLERANCE:
        raise LaunchInvalid(
            {"model": f"the outputs of the ONNX file differ from torch's by {worst:g}"}
        )
    for one in session.get_inputs():
        print(f"input {one.name}: {one.type} {one.shape}", flush=True)
    for one in session.get_outputs():
        print(f"output {one.name}: {one.type} {one.shape}", flush=True)
    return worst


def _shapes(model: Any, example: Example) -> Any:
    """Return the ranges in the form of the module's arguments."""
    if type(model).__name__ == "Logits":
        return {"inputs": example.dynamic}
    return example.dynamic


def main(argv: list[str]) -> int:
    """Export the model that the settings in argv[1] name."""
    settings: Mapping[str, Any] = json.loads(argv[1])
    name = settings["model"]
    folder = Path(RESULTS)
    draft, target = folder / f".{FILE}", folder / FILE
    try:
        check_packages()
        folder.mkdir(parents=True, exist_ok=True)
        if ":" in name:
            example = of_callable(EntryPoint.read(name), settings["folder"])
        else:
            example = of_folder(model_folder(name, os.environ), settings["seq"])
        print(f"export-onnx: exporting {name}", flush=True)
        worst = export(example, draft)
        draft.replace(target)
    except (BadInput, OSError) as error:
        draft.unlink(missing_ok=True)
        print(f"export-onnx: {error}", flush=True)
        return CANNOT_RUN
    size = target.stat().st_size
    print(
        f"model saved to {target}: {size:,} bytes, difference {worst:.2g}", flush=True
    )
    number = os.environ.get("GPUPORTAL_JOB", "JOB")
    print(f"to serve it: gp files {number} {FILE} --get", flush=True)
    print(f"             gp serve {FILE} --hours 4", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
