"""The peak of one rank as a maximum over phases, by strategy.

See docs/design/placement.md#phases.

Every phase has a base, which is alive throughout. Each layer adds the saved tensors of
earlier layers, the gradients of later layers and its own temporary memory. Sharding
changes the base (rank_states.py) and adds gathered layers
(parameter_gather.py); a stage of torch's pipelines is walked piece by piece
(pipeline_schedule.py)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from placement.planner.memory.layer_costs import LayerCost
from placement.planner.memory.parameter_gather import ENDS, Gathers, gathers_of
from placement.planner.memory.parameter_states import (
    muon_temporary_bytes,
    optimizer_temporary_bytes,
    widths,
)
from placement.planner.memory.pipeline_schedule import Beside, besides_of, runs_by_torch
from placement.planner.memory.rank_states import (
    DEEPSPEED_DEFAULT_BUCKET,
    RankTotals,
    rank_of,
)
from placement.planner.model.sharding import Sharding
from placement.planner.values.workload import Workload

__all__ = ["DEEPSPEED_DEFAULT_BUCKET", "Phases", "rank_phases"]
_Layer = TypeVar("_Layer")

NAMED_TENSORS = 3
"""Tensors of a block's output size that the code of transformers' models refers to
without needing them: the embeddings, the block's input and the MLP's input. In training
autograd keeps them anyway. Measured on an H200 (docs/accuracy.md).
"""


@dataclass(frozen=True, slots=True)
class Phases:
    """The peak of each phase, and the parts that are alive at the largest one."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    bucket_bytes: int
    phase_bytes: dict[str, float]
    peak_phase: str
    peak_bytes: float
    components: dict[str, int]


@dataclass(slots=True)
class _Moment:
    """The bytes alive at one moment of a phase, without the base."""

    activations: float
    transients: float
    gradients: float = 0.0
    logits: float = 0.0
    passing: float = 0.0
    """Tensors that pass between stages."""

    total: float = field(init=False)
    """Return all of it."""

    def __post_init__(self) -> None:
        running = self.activations + self.transients + self.logits
        self.total = running + self.gradients + self.passing

    def parts(self, rank: RankTotals, bucket: float) -> dict[str, float]:
        """Return the bytes by component, with the base."""
        parts = _base(rank, self.gradients, bucket)
        parts["activations"] = self.activations
        parts["logits"] = self.logits
        parts["transients"] = self.transients
        parts["between_stages"] = self.passing
        return parts


def rank_phases(
    costs: Sequence[LayerCost],
    workload: Workload,
    sharding: Sharding,
) -> Phases:
    """Return the peaks of one rank. Linear in the number of layers."""
    stage = stage_layers(costs, sharding)
    rank = rank_of(stage, costs, workload, sharding)
    gloo = workload.accelerator == "cpu"
    moving = gathers_of(stage, rank.gather, sharding.shard_degree, gloo=gloo)
    if runs_by_torch(sharding):
        besides = besides_of(stage, costs, rank, workload, sharding)
    else:
        besides = [Beside(0, len(stage), _earlier(stage, sharding))]
    phases = {"forward": _forward(stage, rank, besides, moving, workload)}
    if workload.trains:
        phases["backward"] = _backward(stage, rank, besides, moving)
        phases["optimizer"] = _optimizer(rank, workload)
        phases["optimizer"]["between_stages"] = besides[0].standing
    for parts in phases.values():
        parts["total"] = sum(parts.values())
    name = max(phases, key=lambda phase: phases[phase]["total"])
    parts = {part: size for part, size in phases[name].items() if part != "total"}
    return Phases(
        parameter_bytes=int(rank.parameters),
        gradient_bytes=int(rank.gradients * rank.gradient_share),
        optimizer_bytes=int(rank.optimizer),
        bucket_bytes=int(rank.bucket),
        phase_bytes={phase: parts["total"] for phase, parts in phases.items()},
        peak_phase=name,
        peak_bytes=phases[name]["total"],
        components=_rounded(parts, phases[name]["total"]),
    )


def stage_layers(layers: Sequence[_Layer], sharding: Sharding) -> Sequence[_Layer]:
    """Return the layers of one rank (or their costs), all its pieces in order."""
    if sharding.chunks:
        return [one for first, last in sharding.chunks for one in layers[first:last]]
    return layers[sharding.first_layer : sharding.last_layer]


def _looked(stage: Sequence[LayerCost], first: int, last: int) -> list[bool]:
    """Return the layers of a piece at which a peak can be.

    Between equal layers the bytes alive grow or shrink evenly, so those inside a run of
    them are never the largest. The two layers at each end may be gathered in another
    way.
    """
    looked = [True] * (last - first)
    start = first
    for index in range(first + 1, last + 1):
        if index == last or stage[index] is not stage[index - 1]:
            for inside in range(start + 2, index - 2):
                looked[inside - first] = False
            start = index
    return looked


def _rounded(parts: dict[str, float], total: float) -> dict[str, int]:
    """Return whole bytes that add up to the whole total."""
    whole = {name: int(size) for name, size in parts.items() if size >= 1}
    rest = int(total) - sum(whole.values())
    if rest:
        whole["transients"] = whole.get("transients", 0) + rest
    return whole


def _base(rank: RankTotals, gradients: float, bucket: float) -> dict[str, float]:
    return {
        "parameters": rank.parameters,
        "gradients": gradients,
        "optimizer": rank.optimizer,
        "buckets": bucket,
    }


def _stays(rank: RankTotals) -> float:
    """Return the gradients between a backward and the next forward."""
    return rank.gradients * rank.gradient_share if rank.held_gradients else 0.0


def _earlier(stage: Sequence[LayerCost], sharding: Sharding) -> float:
    """Return the activations of the other microbatches in flight.

    With several pieces per rank each microbatch in flight is of one piece, and one walk
    has all pieces. Only GPipe keeps the head's activations: the other schedules run it
    backward at once.
    """
    pieces = max(1, sharding.virtual_stages)
    others = max(0, sharding.in_flight - pieces) / pieces
    if not others:
        return 0.0
    waits = sharding.keeps_every_microbatch
    kept = sum(c.kept_bytes for c in stage if waits or c.kind != "head")
    return float(others * kept)


def _fuller(best: _Moment, found: Iterable[_Moment]) -> _Moment:
    """Return the moment with more bytes alive, or the earlier one of two equal
    moments.
    """
    for moment in found:
        if moment.total > best.total:
            best = moment
    return best


def _forward(
    stage: Sequence[LayerCost],
    rank: RankTotals,
    besides: Sequence[Beside],
    moving: Gathers,
    workload: Workload,
) -> dict[str, float]:
    best = _Moment(-1.0, 0.0)
    for beside in besides:
        held = _stays(rank) if beside.gradients is None else beside.gradients
        passing = beside.passing - beside.output
        kept, copies = beside.activations, 0.0
        looked = _looked(stage, beside.first, beside.last)
        for index in range(beside.first, beside.last):
            cost = stage[index]
            if looked[index - beside.first] or not moving.even:
                own = float(cost.forward_peak_bytes)
                logits = own if cost.kind == "head" else 0.0
                running = moving.forward[index] + copies + own - logits
                if not workload.trains and cost.kind not in ENDS:
                    running += NAMED_TENSORS * cost.run_output_bytes
                moments = [_Moment(kept, running, held, logits, passing)]
                if not moving.empty:
                    coming = moving.fetching[index] + copies
                    moments.append(_Moment(kept, coming, held, 0.0, passing))
                best = _fuller(best, moments)
            copies += cost.weight_copy_bytes
            kept += cost.kept_bytes
    parts = best.parts(rank, rank.bucket if rank.bucket_stays else 0.0)
    if not workload.trains:
        parts["kv_cache"] = float(sum(cost.cache_bytes for cost in stage))
    return parts


def _backward(
    stage: Sequence[LayerCost],
    rank: RankTotals,
    besides: Sequence[Beside],
    moving: Gathers,
) -> dict[str, float]:
    """Walk from the head to the embedding. See the module's docstring."""
    best = _Moment(-1.0, 0.0)
    for beside in besides:
        layers = range(beside.first, beside.last)
        kept = beside.activations + float(sum(stage[n].kept_bytes for n in layers))
        made = 0.0
        looked = _looked(stage, beside.first, beside.last)
        for index in reversed(layers):
            kept -= stage[index].kept_bytes
            if looked[index - beside.first] or not moving.even:
                alive = _alive_gradients(rank, beside, made)
                found = _moments(stage, index, rank, moving, kept, alive, beside)
                best = _fuller(best, found)
            made += _staying_gradients(stage[index], moving, rank)
        if rank.reduce_end:
            alive = _alive_gradients(rank, beside, made)
            end = _Moment(beside.activations, rank.reduce_end, alive)
            best = _fuller(best, [end])
    return best.parts(rank, rank.bucket)


def _moments(
    stage: Sequence[LayerCost],
    index: int,
    rank: RankTotals,
    moving: Gathers,
    kept: float,
    alive: float,
    beside: Beside,
) -> Iterator[_Moment]:
    """Yield a layer's moments: its weights are gathered, it runs backward, its
    gradients are reduced.
    """
    cost = stage[index]
    own = float(cost.backward_peak_bytes)
    if beside.fresh:
        own = max(own, float(cost.first_backward_bytes))
    if rank.tied and cost.kind == "embedding":
        own += rank.tied
    logits = own if cost.kind == "head" else 0.0
    passing = beside.passing
    if index == beside.last - 1:
        passing -= beside.incoming
    yield _Moment(kept, own - logits + moving.backward[index], alive, logits, passing)
    if not moving.empty:
        yield _Moment(
            kept + cost.kept_bytes, moving.refetching[index], alive, 0.0, passing
        )
        yield _Moment(kept, moving.reducing[index], alive, 0.0, passing)
    heard = cost.kind == "decoder" and index and stage[index - 1].kind == "encoder"
    if heard and stage[0].kind == "embedding" and rank.tied:
        # The target's look-up runs backward before the encoder: the table's gradient
        # once more, and its sum with the head's, beside the encoder's activations.
        made = alive + float(cost.gradient_bytes)
        yield _Moment(kept, 2 * rank.tied, made, 0.0, passing)


def _alive_gradients(rank: RankTotals, beside: Beside, made: float) -> float:
    """Return the gradients on this rank after later layers have made theirs."""
    if beside.gradients is not None:
        return beside.gradients + (made if beside.fresh else 0.0)
    if rank.partition:
        return rank.partition
    if rank.held_gradients:
        return rank.gradients * rank.gradient_share
    return made


def _staying_gradients(cost: LayerCost, moving: Gathers, rank: RankTotals) -> float:
    """Return the gradients that stay after a layer's backward."""
    tied = rank.tied if cost.kind == "head" else 0.0
    if moving.empty:
        return cost.gradient_bytes + tied
    whole = moving.whole_ends and cost.kind in ENDS
    return (cost.gradient_bytes + tied) * (1.0 if whole else rank.gradient_share)


def _optimizer(rank: RankTotals, workload: Workload) -> dict[str, float]:
    gradients = rank.gradients * rank.gradient_share
    if rank.step_copies and not rank.bucket_stays:
        gradients = 0.0
    parts = _base(rank, gradients, rank.bucket if rank.bucket_stays else 0.0)
    elements = int(rank.step_elements * (1 - rank.muon_share))
    temporary = rank.moment_width / widths(workload).moment
    temporary *= optimizer_temporary_bytes(
        workload, elements=elements, largest=rank.largest
    )
    if rank.muon_largest:
        temporary = max(temporary, muon_temporary_bytes(workload, rank.muon_largest))
    # The flat copy is made while the gradients exist, and is then used for the step.
    flat = rank.step_copies
    partition = rank.partition or rank.gradients * rank.gradient_share
    parts["transients"] = max(flat + temporary, flat + partition if flat else 0.0)
    return parts
