"""Estimate the memory of models, and plan, split and place them over GPUs.

The planner is a library without Django and without the portal. README.md has examples;
``python -m placement.planner`` is its command line.

Everything is in bytes, seconds, FLOP and bytes per second. A function that is given
something it cannot use raises `BadInput`, which names each wrong field. All errors are
`CodedError`.

Models:
    read_model(source): a well-known name, a file or ``module:callable`` -> ModelSpec.
    ModelSpec: a model's layers, with the bytes and operations of each.
    Workload: what to run with it: task, batch, precision, optimizer.

Memory:
    estimate(spec, workload, sharding): the bytes that one rank needs -> Estimate.
    Sharding: which part of the model's work one rank has.

Plans:
    offers_from_list(rows): GPUs as a list of plain objects -> list of GpuOffer.
    plan(spec, workload, offers): ranked Plans, and why the others lost -> PlanSet.
    PlanLimits: what the planner may change to make a model fit.
    launch_files(plan, spec): files for torchrun, DeepSpeed and accelerate.

Splits:
    split(case): the exact optimum of one splitting problem, as plain objects.

A name is loaded when it is first used, so that an import of one module of the planner
does not load the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placement.planner.launch.files import launch_files as launch_files
    from placement.planner.memory.estimate import Estimate as Estimate
    from placement.planner.memory.estimate import estimate as estimate
    from placement.planner.model.sharding import Sharding as Sharding
    from placement.planner.model.spec import ModelSpec as ModelSpec
    from placement.planner.reference.split_cases import split as split
    from placement.planner.sandbox.model_source import read_model as read_model
    from placement.planner.search.memory_savings import PlanLimits as PlanLimits
    from placement.planner.search.planner import plan as plan
    from placement.planner.values.errors import BadInput as BadInput
    from placement.planner.values.gpu_availability import GpuOffer as GpuOffer
    from placement.planner.values.gpu_list import offers_from_list as offers_from_list
    from placement.planner.values.plan import Plan as Plan
    from placement.planner.values.plan import PlanSet as PlanSet
    from placement.planner.values.workload import Workload as Workload
    from telemetry.protocol.coded_error import CodedError as CodedError

_HOMES = {
    "BadInput": "values.errors",
    "Estimate": "memory.estimate",
    "GpuOffer": "values.gpu_availability",
    "PlanLimits": "search.memory_savings",
    "ModelSpec": "model.spec",
    "CodedError": "values.errors",
    "Plan": "values.plan",
    "PlanSet": "values.plan",
    "Sharding": "model.sharding",
    "Workload": "values.workload",
    "estimate": "memory.estimate",
    "launch_files": "launch.files",
    "offers_from_list": "values.gpu_list",
    "plan": "search.planner",
    "read_model": "sandbox.model_source",
    "split": "reference.split_cases",
}
"""Public name -> the module of the planner that defines it."""

__all__ = [
    "BadInput",
    "CodedError",
    "Estimate",
    "GpuOffer",
    "ModelSpec",
    "Plan",
    "PlanLimits",
    "PlanSet",
    "Sharding",
    "Workload",
    "estimate",
    "launch_files",
    "offers_from_list",
    "plan",
    "read_model",
    "split",
]


def __getattr__(name: str) -> object:
    """Return a public name from the module that defines it.

    Raises:
        AttributeError: the planner has no such public name.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names beside the others."""
    return sorted({*globals(), *_HOMES})
