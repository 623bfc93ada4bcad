"""Frozen weights in 4 or 8 bits below trained adapters (QLoRA, arXiv:2305.14314).

Recipe ``fine-tune`` keeps them so on one GPU, and where each GPU has all weights. This
module refuses the rest with a reason. Both the web and the node call it.
"""

from collections.abc import Mapping
from typing import Any

from placement.planner.values.strategies import Strategy
from telemetry.protocol.sentences import sentence

AS_PLANNED = "auto"
"""As planned. Without a plan the weights stay as they are."""
FULL = "full"
QUANTIZED = ("int8", "nf4")
WEIGHT_FORMS = (AS_PLANNED, FULL, *QUANTIZED)
"""Values of the setting ``weights``."""
WEIGHTS_FIELD = "recipe_settings.weights"
NEEDS_ADAPTERS = sentence("quantized weights cannot be trained: set a LoRA rank")


def planned_form(plan: Mapping[str, Any], spec: Mapping[str, Any] | None = None) -> str:
    """Return the form of the weights in a Plan (as JSON).

    The search may have chosen it, or its ModelSpec (as JSON) may have it already.

    >>> planned_form({"launch": {}}, {"quantized_as": "nf4"})
    'nf4'
    """
    chosen = str(plan.get("launch", {}).get("weights", FULL))
    return chosen if chosen != FULL else (spec or {}).get("quantized_as") or FULL


def why_not_quantized(form: str, strategy: Strategy, launch: Mapping[str, Any]) -> str:
    """Return why a Plan cannot have frozen weights of a form; "" if it can.

    >>> from placement.planner.values.strategies import DDP
    >>> why_not_quantized("nf4", DDP, {})
    ''
    """
    if form not in QUANTIZED:
        return sentence("its weights are quantized ({weights})", weights=form[:40])
    whole = strategy.keeps_model_whole and not strategy.shares_gradients
    if not whole:
        return sentence(
            "its weights are quantized ({weights}). The recipe needs one GPU, or all "
            "weights on each GPU",
            weights=form,
        )
    if launch.get("offload", "none") != "none" or launch.get("offload_optimizer"):
        return sentence(
            "its weights are quantized ({weights}). The recipe cannot offload then",
            weights=form,
        )
    return ""
