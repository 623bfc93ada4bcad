"""States and buffers of one rank before any layer runs, by strategy.

Sources: ZeRO (arXiv:1910.02054); DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py and
stage3.py; torch 2.13 DDP's reducer, ZeroRedundancyOptimizer and FSDP2; Megatron-LM's
param_and_grad_buffer. Traced with bench/measure_ranks.py.

DeepSpeed always steps an fp32 copy of its partition, also for fp32 models. Its reduce
bucket has `reduce_bucket_size` elements, however small the model is. Stage 1 keeps
whole gradients until the end of backward. Stage 2 keeps its partition, allocated at
once. Stage 3 also keeps a partition's gradients and the bucket between steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.planner.memory.layer_costs import LayerCost
from placement.planner.memory.parameter_states import widths
from placement.planner.model.sharding import Sharding
from placement.planner.values.strategies import STRATEGIES
from placement.planner.values.workload import Workload

DEEPSPEED_DEFAULT_BUCKET = 500_000_000
"""DeepSpeed's default of reduce_bucket_size: 2 GB in fp32."""
MASTER_BYTES = 4.0


@dataclass(slots=True)
class RankTotals:
    """Sums over the layers of one rank, before and after sharding, in bytes."""

    parameters: float
    gradients: float
    """Whole gradients, as autograd makes them."""
    optimizer: float
    elements: int
    """Unsharded elements that have a gradient."""
    largest: int
    """Elements of the largest tensor that the optimizer steps."""
    tied: float = 0.0
    """Gradient of a table that another layer of this rank uses too."""
    bucket: float = 0.0
    """Communication buffers alive in backward."""
    bucket_stays: bool = False
    """They are also alive in forward and in the step."""
    held_gradients: bool = False
    """Gradients are also alive during forward."""
    gradient_share: float = 1.0
    """Part of the gradients that stays on this rank after backward."""
    partition: float = 0.0
    """Gradients of this rank's partition, alive from the start of backward."""
    reduce_end: float = 0.0
    """Bytes alive for a moment at the end of backward, beside the whole gradients."""
    gather: str = ""
    """How a layer gets its weights: fsdp, zero3, layers; empty: they stay."""
    step_elements: float = 0.0
    """Elements that this rank's optimizer steps."""
    step_copies: float = 0.0
    """Flat fp32 gradients that the step makes (DeepSpeed)."""
    moment_width: float = 4.0
    muon_share: float = 0.0
    """Part of the stepped elements that Muon steps."""
    muon_largest: int = 0
    experts: float = 0.0
    """Share of the elements that belong to experts."""


def rank_of(
    stage: Sequence[LayerCost],
    costs: Sequence[LayerCost],
    workload: Workload,
    sharding: Sharding,
) -> RankTotals:
    """Return the RankTotals of a stage's layers under a Sharding."""
    rank = _whole(stage, costs, workload, sharding)
    if not workload.trains:
        if sharding.stage == 3:
            rank.parameters /= sharding.shard_degree
            rank.gather = _gather(sharding)
    elif sharding.buffers_of == "deepspeed" and sharding.stage:
        _deepspeed(rank, stage, workload, sharding)
    elif sharding.buffers_of == "megatron":
        _megatron(rank, sharding)
    else:
        _torch(rank, sharding)
    _offload(rank, workload, sharding)
    return rank


def _whole(
    stage: Sequence[LayerCost],
    costs: Sequence[LayerCost],
    workload: Workload,
    sharding: Sharding,
) -> RankTotals:
    """Return a rank of one replica: all states of its layers, with a tied table where
    it is used.
    """
    width = widths(workload)
    rank = RankTotals(
        parameters=sum(cost.parameter_bytes for cost in stage),
        gradients=sum(cost.gradient_bytes for cost in stage),
        optimizer=sum(cost.optimizer_bytes for cost in stage),
        elements=sum(cost.trained_elements for cost in stage),
        largest=max(cost.largest for cost in stage),
        moment_width=max(cost.moment_width for cost in stage),
    )
    tied = sum(cost.tied_elements for cost in stage)
    owner = costs[0]
    learns = workload.trains and owner.trained_elements > 0
    if tied and not any(cost is owner for cost in stage):
        rank.parameters += width.parameter * tied
        rank.largest = max(rank.largest, tied)
        if learns:
            rank.elements += tied
            rank.gradients += width.gradient * tied
            rank.optimizer += owner.optimizer_bytes * tied / max(1, owner.elements)
    elif tied and learns:
        rank.tied = width.gradient * tied
    rank.experts = sum(cost.expert_elements for cost in stage)
    rank.experts /= max(1, sum(cost.elements for cost in stage))
    rank.step_elements = rank.elements
    muon = sum(cost.muon_elements for cost in stage)
    rank.muon_share = muon / max(1, rank.elements)
    rank.muon_largest = max(cost.muon_largest for cost in stage)
    several = workload.accumulation > 1 or sharding.microbatches > 1
    rank.held_gradients = several or workload.keeps_gradients
    return rank


def _gather(sharding: Sharding) -> str:
    return "zero3" if sharding.buffers_of == "deepspeed" else "fsdp"


def _torch(rank: RankTotals, sharding: Sharding) -> None:
    """Set the totals for DDP, ZeroRedundancyOptimizer and FSDP2."""
    degree = sharding.shard_degree
    if sharding.stage == 3:
        rank.parameters /= degree
        rank.optimizer /= degree
        rank.step_elements /= degree
        rank.largest = -(-rank.largest // degree)
        rank.gradient_share = 1 / degree
        rank.gather = "fsdp"
        return
    if degree > 1 or STRATEGIES[sharding.strategy].uses_ddp:
        if sharding.bucket_view:
            rank.held_gradients = True
        else:
            rank.bucket = rank.gradients
            rank.bucket_stays = True
    if sharding.stage:
        share = sharding.share_ratio
        if share is None:
            # Whole tensors are distributed, so some rank holds the largest one.
            share = max(1 / degree, rank.largest / max(1, rank.elements))
        rank.optimizer *= share
        rank.step_elements *= share
        if sharding.stage == 2:
            rank.gradient_share = 1 / degree


def _megatron(rank: RankTotals, sharding: Sharding) -> None:
    """Set the totals for Megatron.

    It has one contiguous fp32 gradient buffer that always exists. With the distributed
    optimizer each replica steps 1/N of it and gathers the weights in place.
    """
    rank.held_gradients = True
    if sharding.stage:
        experts = rank.experts
        share = (1 - experts) / sharding.shard_degree
        share += experts / sharding.expert_replicas
        rank.optimizer *= share
        rank.step_elements *= share
    if sharding.stage == 3:
        rank.parameters /= sharding.shard_degree
        rank.gather = "fsdp"
    if sharding.stage >= 2:
        rank.gradient_share = 1 / sharding.shard_degree
        rank.held_gradients = True


def _deepspeed(
    rank: RankTotals, stage: Sequence[LayerCost], workload: Workload, sharding: Sharding
) -> None:
    width = widths(workload)
    degree = sharding.shard_degree
    whole = float(rank.elements)
    if not width.master:
        rank.optimizer *= MASTER_BYTES / width.moment
        rank.optimizer += MASTER_BYTES * whole
    rank.moment_width = MASTER_BYTES
    rank.optimizer /= degree
    rank.step_elements = whole / degree
    rank.largest = int(rank.step_elements)
    rank.step_copies = MASTER_BYTES * rank.step_elements
    wanted = sharding.bucket_elements
    if wanted is None:
        layer = max(cost.elements for cost in stage)
        wanted = min(max(layer, rank.largest), DEEPSPEED_DEFAULT_BUCKET)
    rank.bucket = width.gradient * wanted
    if sharding.overlap and sharding.stage < 3:
        rank.bucket *= 2
    partition = rank.gradients / degree
    if sharding.stage == 1:
        rank.reduce_end = partition
        rank.gradient_share = 1 / degree
        return
    rank.gradient_share = 1 / degree
    rank.partition = partition
    if sharding.stage == 3:
        rank.parameters /= degree
        rank.gather = "zero3"
        rank.held_gradients = True
        rank.bucket_stays = True


def _offload(rank: RankTotals, workload: Workload, sharding: Sharding) -> None:
    """Set the totals with optimizer state (and its step) in the node's memory or on
    its drive.

    DeepSpeed and FSDP then keep no gradients on the Gpu either. Weights are offloaded
    on request.
    """
    if not (sharding.offload_optimizer or workload.offload != "none"):
        return
    rank.optimizer = rank.step_elements = rank.step_copies = 0.0
    rank.largest = rank.muon_largest = 0
    if workload.trains and sharding.stage >= 2:
        rank.gradient_share = 0.0
        rank.partition = 0.0
        rank.held_gradients = False
    if workload.offload_parameters:
        rank.parameters = 0.0
        rank.gather = rank.gather or "layers"
        if workload.trains:
            rank.gradient_share = 0.0
            rank.held_gradients = False
