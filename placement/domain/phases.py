"""The peak of one rank as a maximum over phases (PLACEMENT.md 1.3), by strategy.

Every phase has a base (what is alive throughout) and, layer by layer, what earlier
layers keep, what later layers' gradients hold and what the layer itself needs for a
moment. ZeRO and FSDP change the base and add buckets or gathered layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.domain.costs import LayerCost
from placement.domain.sharding import Sharding
from placement.domain.states import optimizer_temporary_bytes, widths
from placement.domain.workload import Workload

DEEPSPEED_DEFAULT_BUCKET = 500_000_000
"""DeepSpeed's reduce_bucket_size when nobody sizes it: 2 GB in fp32."""


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
class _Rank:
    """Sums over the layers of one rank, before and after sharding; bytes."""

    parameters: float
    gradients: float
    optimizer: float
    tied: float
    elements: int
    largest: int
    bucket: float = 0.0
    """Communication buffers that live as long as the phase."""
    held_gradients: bool = False
    """Gradients are alive during forward too."""
    gradient_share: float = 1.0
    """Part of a layer's gradients that stays after its backward."""
    gathers: bool = False
    """FSDP: layers are gathered whole while they run."""
    step_elements: float = 0.0
    """Elements that this rank's optimizer steps."""


def rank_phases(
    costs: Sequence[LayerCost], workload: Workload, sharding: Sharding
) -> Phases:
    """Peaks of one rank. Linear in the number of layers."""
    stage = costs[sharding.first_layer : sharding.last_layer]
    rank = _rank(stage, costs, workload, sharding)
    if not workload.trains:
        return _inference(stage, rank)
    phases = {
        "forward": _forward(stage, rank, sharding),
        "backward": _backward(stage, rank, sharding),
        "optimizer": _optimizer(rank, workload, sharding),
    }
    name = max(phases, key=lambda phase: phases[phase]["total"])
    parts = {k: int(v) for k, v in phases[name].items() if k != "total" and v >= 1}
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


def _rounded(parts: dict[str, int], total: float) -> dict[str, int]:
    """Whole bytes that add up to the whole total."""
    rest = int(total) - sum(parts.values())
    if rest:
        parts["transients"] = parts.get("transients", 0) + rest
    return parts


def _rank(
    stage: Sequence[LayerCost],
    costs: Sequence[LayerCost],
    workload: Workload,
    sharding: Sharding,
) -> _Rank:
    width = widths(workload)
    rank = _Rank(
        parameters=sum(cost.parameter_bytes for cost in stage),
        gradients=sum(cost.gradient_bytes for cost in stage),
        optimizer=sum(cost.optimizer_bytes for cost in stage),
        tied=0.0,
        elements=sum(cost.elements for cost in stage),
        largest=max(cost.largest for cost in stage),
    )
    tied = sum(cost.tied_elements for cost in stage)
    owner_here = sharding.first_layer == 0
    if tied and not owner_here:
        rank.parameters += width.parameter * tied
        rank.elements += tied
        if workload.trains:
            owner = costs[0]
            rank.gradients += width.gradient * tied
            rank.optimizer += owner.optimizer_bytes * tied / max(1, owner.elements)
    elif tied and workload.trains:
        rank.tied = width.gradient * tied
    rank.step_elements = rank.elements
    rank.held_gradients = workload.accumulation > 1 or sharding.microbatches > 1
    if workload.trains:
        _shard(rank, stage, workload, sharding)
    elif sharding.strategy == "fsdp":
        rank.parameters /= sharding.data_degree
        rank.gathers = True
    return rank


def _shard(
    rank: _Rank, stage: Sequence[LayerCost], workload: Workload, sharding: Sharding
) -> None:
    degree = sharding.data_degree
    share = sharding.share_ratio if sharding.share_ratio is not None else 1 / degree
    if sharding.strategy in ("ddp", "zero1"):
        if sharding.bucket_view:
            rank.held_gradients = True
        else:
            rank.bucket = rank.gradients
    if sharding.strategy == "zero1":
        whole_tensor = rank.largest / max(1, rank.elements)
        if sharding.share_ratio is None:
            share = max(share, whole_tensor)
        rank.optimizer *= share
        rank.step_elements *= share
    if sharding.strategy == "zero2":
        if widths(workload).master == 0:
            rank.optimizer += 4.0 * rank.elements
        rank.optimizer /= degree
        rank.step_elements /= degree
        rank.largest = int(rank.step_elements)
        rank.gradient_share = 1 / degree
        wanted = sharding.bucket_elements
        if wanted is None:
            layer = max(cost.elements for cost in stage)
            wanted = min(max(layer, rank.largest), DEEPSPEED_DEFAULT_BUCKET)
        rank.bucket = widths(workload).gradient * wanted
    if sharding.strategy == "fsdp":
        rank.parameters /= degree
        rank.optimizer /= degree
        rank.step_elements /= degree
        rank.largest = -(-rank.largest // degree)
        rank.gradient_share = 1 / degree
        rank.gathers = True
    if sharding.offload_optimizer:
        rank.optimizer = 0.0
        rank.step_elements = 0.0
        rank.largest = 0


def _gathered(stage: Sequence[LayerCost]) -> list[float]:
    """FSDP2: bytes of whole weights alive while each layer runs.

    The root's own weights (both ends) stay; the running block is whole, and so is the
    one before or after it that is fetched ahead.
    """
    sizes = [
        0 if cost.kind in ("embedding", "head") else cost.gathered_bytes
        for cost in stage
    ]
    ends = sum(cost.gathered_bytes for cost in stage) - sum(sizes)
    last = len(sizes) - 1
    return [
        float(ends + size + max(sizes[max(0, i - 1)], sizes[min(last, i + 1)]))
        for i, size in enumerate(sizes)
    ]


def _inference(stage: Sequence[LayerCost], rank: _Rank) -> Phases:
    cache = sum(cost.cache_bytes for cost in stage)
    gathered = _gathered(stage) if rank.gathers else [0.0] * len(stage)
    moment = max(
        cost.forward_peak_bytes + whole
        for cost, whole in zip(stage, gathered, strict=True)
    )
    total = rank.parameters + cache + moment
    parts = {
        "parameters": int(rank.parameters),
        "kv_cache": cache,
        "transients": int(moment),
    }
    parts = {name: size for name, size in parts.items() if size}
    return Phases(
        parameter_bytes=int(rank.parameters),
        gradient_bytes=0,
        optimizer_bytes=0,
        bucket_bytes=0,
        phase_bytes={"forward": total},
        peak_phase="forward",
        peak_bytes=total,
        components=_rounded(parts, total),
    )


def _base(rank: _Rank, gradients: float) -> dict[str, float]:
    return {
        "parameters": rank.parameters,
        "gradients": gradients,
        "optimizer": rank.optimizer,
        "buckets": rank.bucket,
    }


def _with_total(parts: dict[str, float]) -> dict[str, float]:
    parts["total"] = sum(parts.values())
    return parts


def _forward(
    stage: Sequence[LayerCost], rank: _Rank, sharding: Sharding
) -> dict[str, float]:
    kept = 0.0
    copies = 0.0
    best = (-1.0, 0.0, 0.0, 0.0)
    gathered = _gathered(stage) if rank.gathers else [0.0] * len(stage)
    for cost, whole in zip(stage, gathered, strict=True):
        moment = cost.forward_peak_bytes + whole + copies
        copies += cost.weight_copy_bytes
        if kept + moment > best[0]:
            logits = cost.forward_peak_bytes if cost.kind == "head" else 0.0
            best = (kept + moment, kept, logits, moment - logits)
        kept += cost.kept_bytes
    held = rank.gradients * rank.gradient_share if rank.held_gradients else 0.0
    earlier = (sharding.in_flight - 1) * kept
    parts = _base(rank, held)
    parts["activations"] = best[1] + earlier
    parts["logits"] = best[2]
    parts["transients"] = best[3]
    return _with_total(parts)


def _backward(
    stage: Sequence[LayerCost], rank: _Rank, sharding: Sharding
) -> dict[str, float]:
    """Walk from the head to the embedding; see the module's docstring."""
    all_kept = sum(cost.kept_bytes for cost in stage)
    kept = float(all_kept)
    gradients = 0.0
    bucket_width = min(rank.bucket, rank.gradients) if rank.gradient_share < 1 else 0.0
    best: tuple[float, dict[str, float]] = (-1.0, {})
    gathered = _gathered(stage) if rank.gathers else []
    for index in range(len(stage) - 1, -1, -1):
        cost = stage[index]
        kept -= cost.kept_bytes
        own = float(cost.backward_peak_bytes)
        if rank.gathers:
            own += gathered[index] + cost.gradient_bytes
        if rank.tied and cost.kind == "embedding" and not rank.gathers:
            own += rank.tied
        alive = gradients
        if rank.held_gradients:
            alive = rank.gradients * rank.gradient_share
        elif bucket_width and not rank.gathers:
            alive = min(gradients, bucket_width + gradients * rank.gradient_share)
        total = kept + own + alive
        if total > best[0]:
            logits = own if cost.kind == "head" else 0.0
            best = (
                total,
                {
                    "activations": kept,
                    "logits": logits,
                    "transients": own - logits,
                    "gradients": alive,
                },
            )
        gradients += cost.gradient_bytes * (
            rank.gradient_share if rank.gathers else 1.0
        )
        if cost.kind == "head" and not rank.gathers:
            gradients += rank.tied
    parts = _base(rank, best[1]["gradients"])
    parts["activations"] = best[1]["activations"] + (
        (sharding.in_flight - 1) * all_kept
    )
    parts["logits"] = best[1]["logits"]
    parts["transients"] = best[1]["transients"]
    return _with_total(parts)


def _optimizer(rank: _Rank, workload: Workload, sharding: Sharding) -> dict[str, float]:
    parts = _base(rank, rank.gradients * rank.gradient_share)
    if sharding.strategy == "zero2":
        parts["buckets"] = 0.0
    temporary = optimizer_temporary_bytes(
        workload, elements=int(rank.step_elements), largest=rank.largest
    )
    parts["transients"] = float(temporary) if not sharding.offload_optimizer else 0.0
    return _with_total(parts)
