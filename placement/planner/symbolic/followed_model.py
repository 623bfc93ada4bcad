"""Activations and operations of a model whose arithmetic the closed form only guesses.

A config.json of a family that the planner does not know, or a user's own module, has
exact states, but its activations are a guess. The symbolic form follows the model's own
code. If the two peaks differ by more than a tenth, the guess is scaled until they
agree, so that every plan of the model uses the symbolic figure. The operations of
forward are those that the code takes, counted by torch's formulas.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from placement.planner.memory.estimate import estimate, rank_costs
from placement.planner.model.adaptation import (
    ALL_LINEAR,
    adapted,
    target_names,
    usual_targets,
)
from placement.planner.model.sharding import ONE_RANK
from placement.planner.model.spec import MOST_RATIO as MOST_FLOPS_RATIO
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import as_published
from placement.planner.symbolic.case import Adapter, Case, of_workload
from placement.planner.symbolic.child_process import SymbolicFailed, run
from placement.planner.values.humanize import gib
from placement.planner.values.workload import Workload
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence

AGREES_RATIO = 0.1
"""Peaks that differ by no more than this part count as equal."""
MOST_RATIO = 1024.0
HALVINGS = 40
FOLLOW_SECONDS = 30
"""Processor time for the requested length. 8 billion parameters take under two."""
SHORT_TOKENS = 256
"""Length that is followed instead if the requested one takes too long. Without its
kernels a recurrent family (Mamba) runs one operator after another for every token.
"""
ALIKE = {"mixed_fp16": "fp16", "megatron_bf16": "bf16"}
"""Precisions whose activations are as wide as in another one, which can be followed."""


def adapted_and_followed(
    base: ModelSpec,
    model: Mapping[str, Any] | None,
    workload: Workload,
    *,
    weights: str = "full",
    lora_rank: int = 0,
    lora_targets: Sequence[str] = (),
    path: str = "",
    follow: Callable[[Case], Mapping[str, Any]] | None = None,
) -> ModelSpec:
    """Return the model of a plan: adapted, and followed if its activations are a guess.

    Quantized weights are followed as they are, because their activations are the same.

    Args:
        base: as its source has it.
        model: the model of a Case; None: it has no code.
        workload, path, follow: as for `followed`.
        weights, lora_rank, lora_targets: as for `adapted`.
    """
    base = as_published(base, trains=workload.trains)
    if model is not None and base.activations_are_a_guess:
        seen = followed(
            adapted(base, lora_rank=lora_rank, lora_targets=lora_targets),
            model,
            workload,
            path=path,
            adapter=_adapter(base, lora_rank, lora_targets),
            follow=follow,
        )
        base = replace(
            base,
            activation_ratio=seen.activation_ratio,
            flops_ratio=seen.flops_ratio,
            notes=seen.notes,
        )
    return adapted(
        base, weights=weights, lora_rank=lora_rank, lora_targets=lora_targets
    )


def _adapter(base: ModelSpec, rank: int, named: Sequence[str]) -> Adapter | None:
    """Return the adapters for the symbolic form. None: there are none."""
    if not rank:
        return None
    targets = tuple(named or usual_targets(base))
    if targets == (ALL_LINEAR,):
        targets = target_names(base)
    return Adapter(rank=rank, targets=targets)


def followed(
    spec: ModelSpec,
    model: Mapping[str, Any],
    workload: Workload,
    *,
    path: str = "",
    adapter: Adapter | None = None,
    follow: Callable[[Case], Mapping[str, Any]] | None = None,
) -> ModelSpec:
    """Return the model with the activations of its own code, and with a note.

    The model is returned unchanged if its arithmetic is known, or if both peaks agree.
    If it cannot be followed, a note gives the reason.

    Args:
        spec: of the same model.
        model: the model of a Case.
        workload: followed on one GPU.
        path: folder of an entry point's module.
        adapter: the adapters of `spec`, if it has some.
        follow: makes the symbolic answer of a Case; None: in a child process.
    """
    if not spec.activations_are_a_guess:
        return spec
    ask = follow or partial(_in_child, path=path)
    workload = _followable(workload)
    try:
        case = replace(of_workload(model, {}, workload), adapter=adapter)
        try:
            told = ask(case)
        except SymbolicFailed as error:
            if error.code != "too-slow" or workload.sequence_length <= SHORT_TOKENS:
                raise
            workload = workload.replace(sequence_length=SHORT_TOKENS)
            case = replace(of_workload(model, {}, workload), adapter=adapter)
            told = ask(case)
    except CodedError as error:
        why = sentence(
            "the model's own code could not be followed: {error}", error=error
        )
        return replace(spec, notes=(*spec.notes, why))
    found = scaled(spec, workload, int(told["peak_bytes"]))
    return with_flops(found, workload, int(told.get("forward_flops", 0)))


def with_flops(spec: ModelSpec, workload: Workload, forward_flops: int) -> ModelSpec:
    """Return the model with the operations that its code takes forward.

    The closed form multiplies every matrix with every token. A convolution strides, and
    a head may see one token.

    Args:
        spec: without a shape.
        workload: followed on one GPU.
        forward_flops: of one microbatch. 0: unknown, and the model is unchanged.
    """
    guessed = sum(one.forward_flops for one in rank_costs(spec, workload, ONE_RANK))
    if not forward_flops or not guessed:
        return spec
    ratio = spec.flops_ratio * forward_flops / guessed
    return replace(
        spec, flops_ratio=min(max(ratio, 1 / MOST_FLOPS_RATIO), MOST_FLOPS_RATIO)
    )


def _followable(workload: Workload) -> Workload:
    """Return a workload with the same activations that the symbolic form can follow."""
    return workload.replace(
        precision=ALIKE.get(workload.precision, workload.precision),
        offload="none",
        offload_parameters=False,
        loss="plain",
        checkpointing="none"
        if workload.checkpointing == "selective"
        else workload.checkpointing,
    )


def _in_child(case: Case, path: str) -> Mapping[str, Any]:
    answer = run([case], cpu_seconds=FOLLOW_SECONDS, path=path).answers[0]
    if isinstance(answer, CodedError):
        raise answer
    return answer


def scaled(spec: ModelSpec, workload: Workload, peak_bytes: int) -> ModelSpec:
    """Return the model with its guess scaled until one GPU's peak is `peak_bytes`.

    The peak never falls when the activations grow, so the scale is found by bisection.
    """
    guessed = estimate(spec, workload).peak_bytes
    if abs(guessed / peak_bytes - 1) <= AGREES_RATIO:
        return spec
    low, high = 1 / MOST_RATIO, MOST_RATIO
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        tried = replace(spec, activation_ratio=middle)
        if estimate(tried, workload).peak_bytes < peak_bytes:
            low = middle
        else:
            high = middle
    note = sentence(
        "the closed form guesses a peak of {guessed} on one GPU, the model's own code "
        "needs {peak}",
        peak=gib(peak_bytes),
        guessed=gib(guessed),
    )
    return replace(spec, activation_ratio=high, notes=(*spec.notes, note))
