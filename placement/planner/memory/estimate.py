"""The bytes that one rank needs, in closed form.

See docs/design/placement.md#memory.

States are exact. Activations and transients come from replaying each kind of layer once
(tape.py). The peak is a maximum over phases (end of forward, inside backward, optimizer
step), never a sum. Memory outside the tensors (context, workspaces, allocator slack) is
an interval: out-of-memory happens near `low`, nvidia-smi shows `likely`, and `high` is
the 90th percentile of slack.

Cost: one pass over the layers, well under 5 ms for 100 of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from placement.planner.memory.layer_costs import LayerCost, Replays, layer_costs
from placement.planner.memory.step_phases import Phases, rank_phases, stage_layers
from placement.planner.model.sharding import (
    ONE_RANK,
    Sharding,
    check_fit,
    sequence_tokens,
)
from placement.planner.model.spec import ModelSpec
from placement.planner.values.json_value import JsonValue
from placement.planner.values.workload import Workload
from telemetry.protocol.gpu_cards import GpuCard
from telemetry.protocol.sentences import sentence

CONTEXT_BYTES = 300_000_000
"""CUDA context of one process, CUDA >= 11.7, where that of the card's generation is
unknown (docs/design/placement.md#outside-the-tensors). `context_of` is never less.
"""
OLD_CONTEXT_BYTES = 1000 * 2**20
"""The context before CUDA 11.7, which loads kernels lazily (pytorch/pytorch issue
107667).
"""
WORKSPACE_BYTES = 100 * 2**20
"""cuBLAS and cuDNN workspaces, median 92 MiB of 202 runs, rounded up."""
LIKELY_RATIO = 1.13
"""Reserved over allocated, median of replayed traces
(docs/design/placement.md#outside-the-tensors)."""
HIGH_RATIO = 1.26
"""Reserved over allocated, 90th percentile."""


@dataclass(frozen=True, slots=True)
class LayerEstimate:
    """One layer's part of an Estimate, in bytes on this rank."""

    name: str
    kind: str
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(JsonValue):
    """Bytes that one rank needs, by component. See the module's docstring."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    phase_bytes: dict[str, int]
    """Peak inside each phase: forward, backward, optimizer (inference: forward)."""
    peak_phase: str
    peak_bytes: int
    """Most tensor bytes alive at once."""
    components: dict[str, int]
    """The bytes alive at the peak by component, context included. They add up to
    `low_bytes`.
    """
    low_bytes: int
    likely_bytes: int
    high_bytes: int
    activations_are_a_guess: bool
    layers: tuple[LayerEstimate, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def state_bytes(self) -> int:
        """Return the bytes of weights, gradients and optimizer state."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


def context_of(card: GpuCard | None) -> int:
    """Return the bytes of a CUDA context on a card.

    Contexts that were read before any kernel ran can be less than `CONTEXT_BYTES`.
    """
    return max(CONTEXT_BYTES, (card.context_bytes if card else None) or 0)


def outside_bytes(workload: Workload, context_bytes: int = CONTEXT_BYTES) -> int:
    """Return the bytes of one process outside its tensors: context and workspaces."""
    return context_bytes + WORKSPACE_BYTES if workload.accelerator == "cuda" else 0


def interval(
    peak_bytes: float, workload: Workload, *, context_bytes: int = CONTEXT_BYTES
) -> tuple[int, int, int]:
    """Return (low, likely, high) bytes on the card for a tensor peak.

    The ratios are those of the allocator: `low` is a peak without any slack, `likely`
    and `high` the median and the 90th percentile of replayed traces.
    """
    if workload.accelerator == "cpu":
        return (int(peak_bytes),) * 3
    outside = context_bytes + WORKSPACE_BYTES
    return (
        int(peak_bytes) + outside,
        int(peak_bytes * LIKELY_RATIO) + outside,
        int(peak_bytes * HIGH_RATIO) + outside,
    )


def tape_workload(workload: Workload, sharding: Sharding) -> Workload:
    """Return the Workload as a rank runs it.

    Pipelines accumulate over microbatches, and context ranks have a part of each
    sequence.
    """
    if sharding.context_degree > 1:
        share = -(-workload.sequence_length // sharding.context_degree)
        workload = workload.replace(sequence_length=share)
    if sharding.microbatches > 1:
        pieces = workload.accumulation * sharding.microbatches
        return workload.replace(accumulation=min(pieces, workload.batch))
    return workload


def rank_costs(
    spec: ModelSpec,
    workload: Workload,
    sharding: Sharding,
    replays: Replays | None = None,
) -> tuple[LayerCost, ...]:
    """Return the costs of all layers for one rank of this kind of sharding.

    `replays`: see `layer_costs`.
    """
    lowered = tape_workload(workload, sharding)
    return layer_costs(
        spec,
        lowered,
        microbatch=lowered.microbatch(sharding.data_degree),
        tensor_degree=sharding.tensor_degree,
        gathered=sharding.stage == 3,
        expert_degree=sharding.expert_degree,
        expert_tensor_degree=sharding.expert_tensor_degree,
        sequence_parallel=sharding.sequence_parallel,
        regathers=sharding.buffers_of == "megatron",
        replays=replays,
    )


def estimate(
    spec: ModelSpec,
    workload: Workload,
    sharding: Sharding = ONE_RANK,
    *,
    context_bytes: int = CONTEXT_BYTES,
) -> Estimate:
    """Return the Estimate of one rank. Pure and deterministic; a few hundred
    microseconds.

    `context_bytes`: of the CUDA context on its card (`context_of`).

    Raises WorkloadInvalid, by field, if the model cannot be run or cut this way.
    """
    check_fit(spec, workload, sharding)
    costs = rank_costs(spec, workload, sharding)
    return estimate_from_costs(spec, workload, sharding, costs, context_bytes)


def estimate_from_costs(
    spec: ModelSpec,
    workload: Workload,
    sharding: Sharding,
    costs: Sequence[LayerCost],
    context_bytes: int = CONTEXT_BYTES,
) -> Estimate:
    """Return the Estimate from layer costs that the caller already has."""
    phases = rank_phases(costs, workload, sharding)
    low, likely, high = interval(
        phases.peak_bytes, workload, context_bytes=context_bytes
    )
    components = dict(phases.components)
    outside = outside_bytes(workload, context_bytes)
    if outside:
        components["context"] = outside
    return Estimate(
        parameter_bytes=phases.parameter_bytes,
        gradient_bytes=phases.gradient_bytes,
        optimizer_bytes=phases.optimizer_bytes,
        phase_bytes={name: int(size) for name, size in phases.phase_bytes.items()},
        peak_phase=phases.peak_phase,
        peak_bytes=int(phases.peak_bytes),
        components=components,
        low_bytes=low,
        likely_bytes=likely,
        high_bytes=high,
        activations_are_a_guess=spec.activations_are_a_guess,
        layers=tuple(
            LayerEstimate(
                layer.name,
                cost.kind,
                cost.parameter_bytes,
                cost.gradient_bytes,
                cost.optimizer_bytes,
                cost.kept_bytes + cost.cache_bytes,
            )
            for layer, cost in zip(
                stage_layers(spec.layers, sharding),
                stage_layers(costs, sharding),
                strict=True,
            )
        ),
        notes=_notes(spec, workload, sharding, phases),
    )


def _notes(
    spec: ModelSpec, workload: Workload, sharding: Sharding, phases: Phases
) -> tuple[str, ...]:
    notes = []
    if spec.activations_are_a_guess:
        notes.append(
            sentence(
                "Activations are a guess: the file names tensors, not how they are "
                "used. Weights, gradients and optimizer state are exact."
            )
        )
    shape = spec.shape
    length = sequence_tokens(spec, workload)
    if shape is not None and shape.rotary != "none" and length > shape.positions:
        notes.append(
            sentence(
                "The model is configured for {most} positions. Sequences of {length} "
                "tokens run, but it was not trained for them.",
                most=f"{shape.positions:,}",
                length=f"{length:,}",
            )
        )
    no_flash = shape is not None and (shape.softcap or shape.alibi or shape.sinks)
    if no_flash and workload.attention in ("flash", "efficient"):
        notes.append(
            sentence(
                "This family's attention has no flash kernel in transformers; the "
                "scores are counted."
            )
        )
    if sharding.buffers_of == "deepspeed" and sharding.bucket_elements is None:
        notes.append(
            sentence(
                "The reduce bucket is sized from the model: {bucket} MiB.",
                bucket=f"{phases.bucket_bytes / 2**20:,.0f}",
            )
        )
    return tuple(notes)
