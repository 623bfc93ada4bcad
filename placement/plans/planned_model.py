"""The ModelSpec of a plan on the page and in the API, as the command has it.

A model whose arithmetic the planner does not know is followed by a worker, which takes
seconds. Its answer is stored as a Refinement. Until it is there, plans use the guess of
the closed form and say so.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import kombu.exceptions

from placement.models import Refinement
from placement.planner.model.adaptation import adapted
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import as_published
from placement.planner.symbolic.case import Case
from placement.planner.symbolic.child_process import SymbolicFailed
from placement.planner.symbolic.followed_model import adapted_and_followed
from placement.planner.symbolic.torch_check import torch_installed
from placement.planner.values.workload import Workload
from placement.plans import refinement
from placement.plans.tasks import refine
from reservations.models import User
from telemetry.protocol.sentences import sentence

logger = logging.getLogger(__name__)
OUTAGES = (kombu.exceptions.OperationalError, ConnectionError, TimeoutError)


class _Pending(Exception):
    """No worker has followed the Case yet."""


def _asked(case: Case, user: User, now: datetime) -> Refinement:
    row, is_new = refinement.ask(case, user=user, now=now)
    if is_new:
        try:
            refine.delay(row.pk)
        except OUTAGES as error:
            # The row is sent again once it is stale.
            logger.warning("refinement %s was not sent: %s", row.pk, error)
    return row


@dataclass(frozen=True)
class PlannedModel:
    """The model of a plan."""

    spec: ModelSpec
    is_followed_now: bool = False
    """Whether a worker follows its code, so that the next plan has better figures."""


def planned_model(
    base: ModelSpec,
    workload: Workload,
    *,
    config: Callable[[], Mapping[str, Any]],
    weights: str,
    lora_rank: int,
    lora_targets: Sequence[str],
    user: User,
    now: datetime,
    asks: bool = True,
) -> PlannedModel:
    """Return a model with its adapters and weights, and with its followed figures.

    Args:
        base: as its source has it.
        config: returns its config.json. Called only if the activations are a guess.
            Raises SpecInvalid if it has none.
        asks: whether a worker follows a model that none has followed yet.
    """
    changes = {
        "weights": weights,
        "lora_rank": lora_rank,
        "lora_targets": lora_targets,
    }
    base = as_published(base, trains=workload.trains)
    if (
        not base.activations_are_a_guess
        or base.source in ("safetensors", "onnx")
        or not torch_installed()
    ):
        return PlannedModel(adapted(base, **changes))  # type: ignore[arg-type]

    def stored(case: Case) -> Mapping[str, Any]:
        row = _asked(case, user, now) if asks else refinement.stored(case)
        if row is None:
            raise _Pending
        if row.state == Refinement.State.DONE and row.answer is not None:
            return dict(row.answer)
        if row.state == Refinement.State.FAILED:
            # Whatever the reason was, a shorter sequence may have an answer.
            raise SymbolicFailed("too-slow", row.problem)
        raise _Pending

    try:
        spec = adapted_and_followed(
            base,
            {"config": config()},
            workload,
            follow=stored,
            **changes,  # type: ignore[arg-type]
        )
    except _Pending:
        note = sentence(
            "a worker follows the model's own code now; the next plan uses its figures"
        )
        spec = adapted(base, **changes)  # type: ignore[arg-type]
        return PlannedModel(replace(spec, notes=(*spec.notes, note)), True)
    return PlannedModel(spec)
