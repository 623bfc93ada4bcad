"""The peak of one rank as a maximum over phases (PLACEMENT.md 1.3), by strategy.

Every phase has a base (what is alive throughout) and, layer by layer, what earlier
layers keep, what later layers' gradients hold and what the layer itself needs for a
moment. Sharding changes the base (ranks.py) and adds gathered layers (gathers.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement.domain.costs import LayerCost
from placement.domain.gathers import ENDS, Gathers, gathers_of
from placement.domain.ranks import DEEPSPEED_DEFAULT_BUCKET, Rank, rank_of
from placement.domain.sharding import Sharding
from placement.domain.states import optimizer_temporary_bytes, widths
from placement.domain.workload import Workload

__all__ = ["DEEPSPEED_DEFAULT_BUCKET", "Phases", "rank_phases"]


@dataclass(frozen=True, slots=True)
class Phases:
    """Peaks by phase and what is alive at the largest."""

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
    """What is alive at one moment of a phase beside the base."""

    activations: float
    transients: float
    gradients: float = 0.0
    logits: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.activations + self.transients + self.gradients + self.logits


def rank_phases(
    costs: Sequence[LayerCost],
    workload: Workload,
    sharding: Sharding,
    *,
    fixed_bytes: float = 0.0,
) -> Phases:
    """Peaks of one rank. Linear in the number of layers.

    `fixed_bytes`: alive throughout and no part of the model: the batch, buffers.
    """
    stage = stage_layers(costs, sharding)
    rank = rank_of(stage, costs, workload, sharding)
    gloo = workload.accelerator == "cpu"
    moving = gathers_of(stage, rank.gather, sharding.data_degree, gloo=gloo)
    phases = {"forward": _forward(stage, rank, sharding, moving, workload)}
    if workload.trains:
        phases["backward"] = _backward(stage, rank, sharding, moving)
        phases["optimizer"] = _optimizer(rank, workload)
    for parts in phases.values():
        if fixed_bytes:
            parts["input"] = fixed_bytes
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


def stage_layers(costs: Sequence[LayerCost], sharding: Sharding) -> Sequence[LayerCost]:
    """The layers of one rank, all its pieces in order."""
    if sharding.chunks:
        return [cost for first, last in sharding.chunks for cost in costs[first:last]]
    return costs[sharding.first_layer : sharding.last_layer]


def _rounded(parts: dict[str, float], total: float) -> dict[str, int]:
    """Whole bytes that add up to the whole total."""
    whole = {name: int(size) for name, size in parts.items() if size >= 1}
    rest = int(total) - sum(whole.values())
    if rest:
        whole["transients"] = whole.get("transients", 0) + rest
    return whole


def _base(rank: Rank, gradients: float, bucket: float) -> dict[str, float]:
    return {
        "parameters": rank.parameters,
        "gradients": gradients,
        "optimizer": rank.optimizer,
        "buckets": bucket,
    }


def _stays(rank: Rank) -> float:
    """Gradients between a backward and the next forward."""
    return rank.gradients * rank.gradient_share if rank.held_gradients else 0.0


def _earlier(stage: Sequence[LayerCost], sharding: Sharding) -> float:
    """Activations of the other microbatches in flight. With several pieces per rank a
    microbatch in flight is one of one piece, and one walk has all pieces. The head's
    are kept by GPipe alone: the others run it backward at once."""
    pieces = max(1, sharding.virtual_stages)
    others = max(0, sharding.in_flight - pieces) / pieces
    if not others:
        return 0.0
    waits = "gpipe" in (sharding.strategy, sharding.pipeline_schedule)
    kept = sum(c.kept_bytes for c in stage if waits or c.kind != "head")
    return float(others * kept)


def _forward(
    stage: Sequence[LayerCost],
    rank: Rank,
    sharding: Sharding,
    moving: Gathers,
    workload: Workload,
) -> dict[str, float]:
    kept = copies = 0.0
    best = _Moment(-1.0, 0.0)
    for index, cost in enumerate(stage):
        own = float(cost.forward_peak_bytes)
        logits = own if cost.kind == "head" else 0.0
        running = moving.forward[index] + copies + own - logits
        coming = moving.fetching[index] + copies
        for moment in (
            _Moment(kept, running, logits=logits),
            _Moment(kept, coming),
        ):
            best = max(best, moment, key=lambda one: one.total)
        copies += cost.weight_copy_bytes
        kept += cost.kept_bytes
    parts = _base(rank, _stays(rank), rank.bucket if rank.bucket_stays else 0.0)
    parts["activations"] = best.activations + _earlier(stage, sharding)
    parts["logits"] = best.logits
    parts["transients"] = best.transients
    if not workload.trains:
        parts["kv_cache"] = float(sum(cost.cache_bytes for cost in stage))
    return parts


def _backward(
    stage: Sequence[LayerCost], rank: Rank, sharding: Sharding, moving: Gathers
) -> dict[str, float]:
    """Walk from the head to the embedding; see the module's docstring."""
    kept = float(sum(cost.kept_bytes for cost in stage))
    made = 0.0
    best = _Moment(-1.0, 0.0)
    for index in range(len(stage) - 1, -1, -1):
        cost = stage[index]
        kept -= cost.kept_bytes
        alive = _alive_gradients(rank, made)
        for moment in _moments(stage, index, rank, moving, kept, alive):
            best = max(best, moment, key=lambda one: one.total)
        made += _staying_gradients(cost, moving, rank)
    alive = _alive_gradients(rank, made)
    if rank.reduce_end:
        end = _Moment(0.0, rank.reduce_end, alive)
        best = max(best, end, key=lambda one: one.total)
    parts = _base(rank, best.gradients, rank.bucket)
    parts["activations"] = best.activations + _earlier(stage, sharding)
    parts["logits"] = best.logits
    parts["transients"] = best.transients
    return parts


def _moments(
    stage: Sequence[LayerCost],
    index: int,
    rank: Rank,
    moving: Gathers,
    kept: float,
    alive: float,
) -> Iterator[_Moment]:
    """A layer's weights come, it runs backward, its gradients are reduced."""
    cost = stage[index]
    own = float(cost.backward_peak_bytes)
    if rank.tied and cost.kind == "embedding":
        own += rank.tied
    logits = own if cost.kind == "head" else 0.0
    yield _Moment(kept, own - logits + moving.backward[index], alive, logits)
    if not moving.empty:
        yield _Moment(kept + cost.kept_bytes, moving.refetching[index], alive)
        yield _Moment(kept, moving.reducing[index], alive)
    heard = cost.kind == "decoder" and index and stage[index - 1].kind == "encoder"
    if heard and stage[0].kind == "embedding" and rank.tied:
        # The target's look-up runs backward before the encoder: the table's gradient
        # once more, and its sum with the head's, beside the encoder's activations.
        yield _Moment(kept, 2 * rank.tied, alive + float(cost.gradient_bytes))


def _alive_gradients(rank: Rank, made: float) -> float:
    """Gradients on this rank once later layers have made theirs."""
    if rank.partition:
        return rank.partition
    if rank.held_gradients:
        return rank.gradients * rank.gradient_share
    return made


def _staying_gradients(cost: LayerCost, moving: Gathers, rank: Rank) -> float:
    """What a layer's backward leaves behind."""
    tied = rank.tied if cost.kind == "head" else 0.0
    if moving.empty:
        return cost.gradient_bytes + tied
    whole = moving.whole_ends and cost.kind in ENDS
    return (cost.gradient_bytes + tied) * (1.0 if whole else rank.gradient_share)


def _optimizer(rank: Rank, workload: Workload) -> dict[str, float]:
    gradients = rank.gradients * rank.gradient_share
    if rank.step_copies and not rank.bucket_stays:
        gradients = 0.0
    parts = _base(rank, gradients, rank.bucket if rank.bucket_stays else 0.0)
    elements = int(rank.step_elements)
    temporary = rank.moment_width / widths(workload).moment
    temporary *= optimizer_temporary_bytes(
        workload, elements=elements, largest=rank.largest
    )
    # The flat copy is made while the gradients are there, and then stepped with.
    flat = rank.step_copies
    partition = rank.partition or rank.gradients * rank.gradient_share
    parts["transients"] = max(flat + temporary, flat + partition if flat else 0.0)
    return parts
