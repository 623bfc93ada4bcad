"""Choose the library that distributes a recipe's training: torch or DeepSpeed.

Both follow the Plan. torch supports everything that the recipes can do, DeepSpeed only
a part. This module refuses the rest with a reason. The portal calls it before it sends
a job, and the node calls it again. ``agent.runtime.by_deepspeed`` checks at the start
what only a node can know, such as whether an operator can be compiled there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placement.planner.values.strategies import Axis, Strategy, strategy_of
from telemetry.protocol.sentences import sentence

TORCH = "torch"
DEEPSPEED = "deepspeed"
BACKENDS = (TORCH, DEEPSPEED)
FIELD = "recipe_settings.backend"
PRECISIONS = ("fp32", "autocast_bf16")
"""With fp16 and pure bf16 weights DeepSpeed has a second, fp32 copy that no Plan
counts.
"""
NEEDS_PLAN = sentence(
    "deepspeed needs a plan with ZeRO-1, 2 or 3, or with stages: make one first"
)


def why_not_deepspeed(plan: Mapping[str, Any]) -> str:
    """Return why DeepSpeed cannot run a Plan (as JSON) of a recipe; "" if it can.

    Call it only for Plans that ``execution.why_not`` accepts.

    >>> why_not_deepspeed({"strategy": "zero1", "launch": {}})
    ''
    """
    launch = plan.get("launch", {})
    strategy = str(plan.get("strategy", ""))
    known = strategy_of(strategy)
    if DEEPSPEED not in known.backends:
        return sentence(
            "deepspeed supports equal shares (ZeRO-1, 2, 3) and stages with 1F1B; "
            "the strategy {strategy} needs torch",
            strategy=strategy[:40],
        )
    if (precision := launch.get("precision", "fp32")) not in PRECISIONS:
        return sentence(
            "with deepspeed the recipe runs {known}, not {precision}",
            known=" and ".join(PRECISIONS),
            precision=str(precision)[:40],
        )
    return _why_not_offload(known, launch)


def _why_not_offload(strategy: Strategy, launch: Mapping[str, Any]) -> str:
    where = launch.get("offload", "none")
    if where == "none" and not launch.get("offload_optimizer"):
        return ""
    if strategy.axis is Axis.STAGE:
        return sentence("deepspeed cannot offload in a pipeline; torch can")
    if strategy.zero_stage != 3 and where == "nvme":
        return sentence(
            "deepspeed offloads to NVMe with ZeRO-3 only; torch with any strategy"
        )
    if strategy.zero_stage != 3 and launch.get("offload_parameters"):
        return sentence("deepspeed offloads weights with ZeRO-3 only")
    return ""


def backend_problem(
    settings: Mapping[str, Any],
    plan: Mapping[str, Any] | None,
    extras: Mapping[str, Any],
) -> str:
    """Return why a recipe cannot be run with the backend of its settings; "" if it can.

    Args:
        settings: checked settings of the recipe.
        plan: the Plan (as JSON) by which the recipe runs, if any.
        extras: node name -> optional packages of its worker.
    """
    if settings.get("backend", TORCH) == TORCH:
        return ""
    if plan is None:
        return NEEDS_PLAN
    lacking = sorted(name for name, has in extras.items() if DEEPSPEED not in has)
    if lacking:
        return sentence(
            "deepspeed is not installed on {lacking}: choose torch, or ask the lab "
            "admin to install it",
            lacking=", ".join(lacking),
        )
    return why_not_deepspeed(plan)
