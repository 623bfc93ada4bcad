"""The memory of DeepSpeed on each GPU of a Plan that may have been made for torch.

DeepSpeed 0.19.8 steps an fp32 copy of the weights with fp32 moments wherever the
weights themselves are bf16 or fp16 (`runtime/fp16/unfused_optimizer.py`,
`runtime/bf16_optimizer.py`, `runtime/zero/stage_1_and_2.py`, `stage3.py`): 12 bytes of
each trained parameter, where torch's optimizers keep 4 for weights in pure bf16. With
ZeRO it steps such a copy of fp32 weights too.
"""

from dataclasses import dataclass, replace
from typing import Any

from placement.planner.launch.files.launch_file_error import NoSuchLaunch
from placement.planner.memory.estimate import estimate
from placement.planner.model.adaptation import with_quantized
from placement.planner.model.sharding import Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.values.humanize import gib
from placement.planner.values.plan import Plan, Shard
from placement.planner.values.strategies import strategy_of
from telemetry.protocol.sentences import sentence

HELD_AS: dict[str, str] = {
    "bf16": "mixed_fp16",
    "fp16": "mixed_fp16",
    "megatron_bf16": "mixed_fp16",
}
"""Precision of a Plan -> the precision whose bytes DeepSpeed's weights and states
take.
"""
HELD_BY_TRAINER = HELD_AS | {
    "autocast_bf16": "mixed_fp16",
    "autocast_fp16": "mixed_fp16",
}
"""The same mapping for `--bf16` or `--fp16` of the Trainer. The weights then become
bf16 or fp16, and autocast is not used.
"""
WORTH_A_NOTE = 1.02
"""A need that is this many times that of the Plan gets a note."""


@dataclass(frozen=True, slots=True)
class DeepSpeedNeed:
    """Bytes of one rank under DeepSpeed."""

    shard: Shard
    low_bytes: int
    likely_bytes: int


def deepspeed_needs(
    plan: Plan,
    spec: ModelSpec,
    section: dict[str, Any],
    held_as: dict[str, str],
) -> list[DeepSpeedNeed]:
    """Return the need of each rank, by rank.

    Args:
        plan: of a strategy that DeepSpeed can run.
        spec: the Plan's model, adapters included.
        section: `zero_optimization` of the configuration.
        held_as: precision of the Plan -> the precision whose bytes DeepSpeed takes.
    """
    precision = plan.launch["precision"]
    workload = plan.workload.replace(precision=held_as.get(precision, precision))
    weights = plan.launch.get("weights", "full")
    if weights != "full" and not spec.is_quantized:
        spec = with_quantized(spec, weights)
    known: dict[Sharding, tuple[int, int]] = {}
    needs = []
    for shard in plan.shards:
        sharding = _sharding(plan, shard, section)
        if sharding not in known:
            made = estimate(spec, workload, sharding)
            known[sharding] = made.low_bytes, made.likely_bytes
        low, likely = known[sharding]
        # The site's measurements correct this estimate as they corrected the Plan's.
        measured = shard.likely_bytes / (shard.prior_likely_bytes or shard.likely_bytes)
        needs.append(DeepSpeedNeed(shard, low, int(likely * measured)))
    return needs


def _sharding(plan: Plan, shard: Shard, section: dict[str, Any]) -> Sharding:
    launch, stage = plan.launch, section["stage"]
    strategy = strategy_of(plan.strategy)
    offload = "offload_optimizer" in section
    if strategy.has_stages:
        pieces, stages = launch["microbatches"], launch["pipeline_degree"]
        stage_of = Sharding(
            strategy=plan.strategy,
            first_layer=shard.first_layer,
            last_layer=shard.last_layer,
            microbatches=pieces,
            pipeline_degree=stages,
            pipeline_schedule=strategy.schedule or "1f1b",
            offload_optimizer=offload,
        )
        every = stage_of.keeps_every_microbatch
        alive = pieces if every else min(pieces, stages - shard.stage)
        return replace(stage_of, in_flight=alive)
    degree = launch["data_degree"]
    if not stage:
        # It reduces gradients in buckets that exist beside them.
        return Sharding(
            strategy=plan.strategy, data_degree=degree, bucket_view=degree == 1
        )
    return Sharding(
        strategy=f"zero{stage}",
        engine="deepspeed",
        data_degree=degree,
        bucket_elements=section["reduce_bucket_size"],
        offload_optimizer=offload,
    )


def memory_notes(plan: Plan, needs: list[DeepSpeedNeed], name: str) -> tuple[str, ...]:
    """Return notes on DeepSpeed's need beside the Plan's.

    Args:
        plan: the Plan.
        needs: of its ranks.
        name: of the file to which the needs belong.

    Raises:
        NoSuchLaunch: a GPU of the Plan does not have enough memory for it.
    """
    worst = min(needs, key=lambda one: one.shard.free_bytes - one.likely_bytes)
    free = worst.shard.free_bytes
    if worst.low_bytes > free:
        raise NoSuchLaunch(
            sentence(
                "DeepSpeed keeps fp32 copies of the weights and fp32 moments, which "
                "this plan does not count: it needs {need} on {gpu}, which has {free} "
                "free. Use torchrun or FSDP, or plan with “fp16 with fp32 master”.",
                need=gib(worst.likely_bytes),
                gpu=worst.shard.gpu_label,
                free=gib(free),
            )
        )
    notes = []
    if worst.likely_bytes > WORTH_A_NOTE * worst.shard.likely_bytes:
        notes.append(
            sentence(
                "With {file}, {gpu} needs {need} instead of {plan}: DeepSpeed keeps "
                "fp32 copies of the weights, fp32 moments and its own buffers.",
                file=name,
                gpu=worst.shard.gpu_label,
                need=gib(worst.likely_bytes),
                plan=gib(worst.shard.likely_bytes),
            )
        )
    if worst.likely_bytes > free and plan.fit == "comfortable":
        notes.append(
            sentence(
                "With {file} the job may run out of memory on {gpu}: {free} are free "
                "there.",
                file=name,
                gpu=worst.shard.gpu_label,
                free=gib(free),
            )
        )
    return tuple(notes)
