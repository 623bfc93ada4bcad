"""Convert a torch module on the meta device to a ModelSpec: no weights, exact states.

Runs only in a separate process (placement.planner.sandbox.config_build,
placement.planner.sandbox.entry_build), because importing it imports torch.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from placement.planner.model.files.tensor_inventory import (
    TensorInfo,
    spec_from_inventory,
)
from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import SpecInvalid

DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "int8",
    torch.bool: "bool",
    torch.complex64: "complex64",
}
for _name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
    DTYPES[getattr(torch, _name)] = "fp8"


def spec_of_module(
    module: Any, *, name: str, source: str, family: str = "unknown", notes: Any = ()
) -> ModelSpec:
    """Return the ModelSpec of a built module. Its activations are an estimate.

    Raises SpecInvalid if it is not a module or has no parameters.
    """
    if not isinstance(module, nn.Module):
        raise SpecInvalid(
            {"module": f"is a {type(module).__name__}, not a torch module"}
        )
    products = _products(module)
    tensors: list[TensorInfo] = []
    first: dict[int, str] = {}
    groups: dict[str, list[str]] = {}
    for path, parameter in module.named_parameters(remove_duplicate=False):
        if nn.parameter.is_lazy(parameter):
            raise SpecInvalid({path[:80]: "is lazy: run it once before it has a size"})
        if parameter.dtype not in DTYPES:
            raise SpecInvalid({path[:80]: f"has the unknown dtype {parameter.dtype}"})
        owner = first.setdefault(id(parameter), path)
        if owner != path:
            groups.setdefault(owner, [owner]).append(path)
        tensors.append(
            TensorInfo(
                path,
                tuple(parameter.shape),
                DTYPES[parameter.dtype],
                frozen=not parameter.requires_grad,
                product=products.get(path),
            )
        )
    spec = spec_from_inventory(
        tensors,
        name=name,
        source=source,
        family=family,
        tied_groups=list(groups.values()),
        notes=list(notes),
        in_given_order=True,
    )
    return replace(spec, batch_norms=_batch_norms(module))


def _batch_norms(module: nn.Module) -> int:
    """Return the modules that normalise by the statistics of their batch."""
    return sum(isinstance(one, BatchNorm) for one in module.modules())


def _products(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Return the weight's path -> (outputs, inputs) of every linear layer."""
    found: dict[str, tuple[int, int]] = {}
    for path, inner in module.named_modules(remove_duplicate=False):
        weight = getattr(inner, "weight", None)
        if not isinstance(weight, nn.Parameter) or weight.dim() != 2:
            continue
        prefix = f"{path}." if path else ""
        rows, columns = weight.shape
        if isinstance(inner, nn.Linear):
            found[f"{prefix}weight"] = (rows, columns)
        elif type(inner).__name__ == "Conv1D":
            found[f"{prefix}weight"] = (columns, rows)
    return found
