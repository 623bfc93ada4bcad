"""Families of Hugging Face models that the recipes can cut into stages.

The portal knows them without importing transformers. The node checks again by the
model itself.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from placement.planner.launch.tensor_families import TENSOR_FAMILIES
from placement.planner.values.strategies import GPIPE, INTERLEAVED, PIPELINE
from telemetry.protocol.sentences import sentence

PIPELINE_FAMILIES = TENSOR_FAMILIES - {"bloom", "opt"}
"""Values of ``model_type``. The blocks of OPT are within a decoder, and those of BLOOM
return tuples. Gradients of each were compared with those of one process.
"""
SCHEDULES = (PIPELINE.schedule, GPIPE.schedule, INTERLEAVED.schedule)


def why_not_family(family: str) -> str:
    """Return why a recipe cannot cut a model into stages; "": it can.

    Args:
        family: ``model_type`` of its config.json.
    """
    if family in PIPELINE_FAMILIES:
        return ""
    return sentence(
        "the recipe cannot cut models of the family {family} into stages",
        family=family[:40],
    )


def why_not_stages(launch: Mapping[str, Any]) -> str:
    """Return why the recipes cannot run the stages of a Plan; "": they can.

    Args:
        launch: of a Plan with a schedule.

    >>> why_not_stages({"schedule": "1f1b", "zero_stage": 1})
    ''
    """
    schedule = str(launch.get("schedule"))
    if schedule not in SCHEDULES:
        return sentence(
            "the recipe runs stages with 1F1B, GPipe or interleaved 1F1B, not "
            "{schedule}",
            schedule=schedule[:40],
        )
    if int(launch.get("zero_stage", 0)) >= 2:
        return sentence(
            "the recipe cannot cut this model into stages and also share out its "
            "gradients"
        )
    return ""


def why_not_adapters(bounds: Sequence[int]) -> str:
    """Return why pieces cannot train adapters, which only blocks have; "": they can.

    Args:
        bounds: the first layer of each piece, and the end. The embedding is layer 0,
            the head the last one.

    >>> why_not_adapters([0, 2, 6])
    ''
    """
    last = bounds[-1] - 1
    for number, (first, end) in enumerate(itertools.pairwise(bounds), 1):
        if max(first, 1) >= min(end, last):
            return sentence(
                "piece {number} of the model has no block, so no adapters to train",
                number=number,
            )
    return ""
