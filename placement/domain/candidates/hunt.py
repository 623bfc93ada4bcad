"""One search on one Node: needs of ranks, cached, and the making of Plans."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from placement.domain.costs import LayerCost
from placement.domain.estimate import (
    Estimate,
    estimate_from_costs,
    interval,
    rank_costs,
)
from placement.domain.offer import GpuOffer
from placement.domain.phases import rank_phases
from placement.domain.plan import TITLES, Plan, Refusal, Shard
from placement.domain.remedies import Limits, Setting, explain
from placement.domain.sharding import Sharding
from placement.domain.spec import ModelSpec
from placement.domain.timing import StepTime, joined_by_fast_links
from placement.domain.words import gib
from placement.domain.workload import Workload

CLASS_ROUNDING_BYTES = 64 * 2**20
"""Free bytes are rounded down to this, so that equally idle Gpus are one class."""


@dataclass(slots=True)
class Search:
    """What is asked, the Gpus of one Node, and what has been computed already."""

    spec: ModelSpec
    asked: Workload
    offers: tuple[GpuOffer, ...]
    limits: Limits
    tight: bool = False
    """Plan by the least possible need instead of the likely one."""
    cost_cache: dict[object, tuple[LayerCost, ...]] = field(default_factory=dict)
    need_cache: dict[object, int] = field(default_factory=dict)

    @property
    def most_gpus(self) -> int:
        """Gpus that a Plan may use."""
        return min(len(self.offers), self.limits.max_gpus or len(self.offers))

    def costs(self, setting: Setting, sharding: Sharding) -> tuple[LayerCost, ...]:
        """Layer costs, cached by what they depend on."""
        workload = setting.workload
        pieces = workload.accumulation * sharding.microbatches
        key = (
            workload.microbatch(sharding.data_degree * sharding.microbatches),
            pieces > 1,
            workload.checkpointing,
            workload.optimizer,
            workload.sequence_length,
            workload.batch if not workload.trains else 0,
            workload.precision,
            sharding.tensor_degree,
            sharding.strategy == "fsdp",
        )
        if key not in self.cost_cache:
            self.cost_cache[key] = rank_costs(self.spec, workload, sharding)
        return self.cost_cache[key]

    def need_bytes(self, setting: Setting, sharding: Sharding) -> int:
        """Bytes that a Gpu must offer to a rank."""
        key = (setting, sharding, self.tight)
        known = self.need_cache.get(key)
        if known is None:
            costs = self.costs(setting, sharding)
            peak = rank_phases(costs, setting.workload, sharding).peak_bytes
            low, likely, _ = interval(peak, setting.workload)
            known = low if self.tight else likely
            self.need_cache[key] = known
        return known

    def estimate(self, setting: Setting, sharding: Sharding) -> Estimate:
        """The whole Estimate of a rank."""
        return estimate_from_costs(
            self.spec, setting.workload, sharding, self.costs(setting, sharding)
        )

    def shard(
        self,
        rank: int,
        offer: GpuOffer,
        made: Estimate,
        sharding: Sharding,
    ) -> Shard:
        """One rank of a Plan."""
        last = sharding.last_layer
        return Shard(
            rank=rank,
            gpu_uuid=offer.uuid,
            gpu_label=offer.label,
            gpu_name=offer.name,
            first_layer=sharding.first_layer,
            last_layer=len(self.spec.layers) if last is None else last,
            share_ratio=sharding.share_ratio,
            components=dict(made.components),
            low_bytes=made.low_bytes,
            likely_bytes=made.likely_bytes,
            high_bytes=made.high_bytes,
            total_bytes=offer.memory_total_bytes,
            used_bytes=offer.used_bytes,
            free_bytes=offer.free_bytes,
        )

    def plan(
        self,
        strategy: str,
        setting: Setting,
        chosen: Sequence[GpuOffer],
        shardings: Sequence[Sharding],
        time: StepTime,
        *,
        why: Sequence[str],
        launch: dict[str, Any],
    ) -> Plan:
        """A Plan out of its ranks."""
        made = self.estimates(setting, shardings)
        shards = tuple(
            self.shard(rank, offer, made[sharding], sharding)
            for rank, (offer, sharding) in enumerate(
                zip(chosen, shardings, strict=True)
            )
        )
        largest = max(shardings, key=lambda one: made[one].likely_bytes)
        remedies = explain(
            self.asked,
            setting,
            lambda tried: self.need_bytes(
                tried, replace(largest, offload_optimizer=tried.offload)
            ),
        )
        notes = list(dict.fromkeys(note for one in made.values() for note in one.notes))
        comfortable = all(shard.headroom_bytes >= 0 for shard in shards)
        if not comfortable:
            notes.append(
                "Tight: it fits only if the allocator wastes nothing. Out of memory is "
                "possible."
            )
        return Plan(
            strategy=strategy,
            title=TITLES[strategy],
            model=self.spec.name,
            parameter_count=self.spec.parameter_count,
            layer_count=len(self.spec.layers),
            node=chosen[0].node,
            workload=setting.workload,
            remedies=remedies,
            shards=shards,
            fit="comfortable" if comfortable else "tight",
            step_seconds=time.total_seconds,
            compute_seconds=time.compute_seconds,
            communication_seconds=time.communication_seconds,
            bubble_seconds=time.bubble_seconds,
            # Tensors without a matrix product (a bare embedding) take no known time.
            units_per_second=(
                self.units(setting.workload) / time.total_seconds
                if time.total_seconds
                else 0.0
            ),
            why=tuple(why),
            notes=tuple(notes),
            activations_are_a_guess=made[shardings[0]].activations_are_a_guess,
            launch=self.launch(strategy, setting, chosen, launch),
        )

    def estimates(
        self, setting: Setting, shardings: Sequence[Sharding]
    ) -> dict[Sharding, Estimate]:
        """An Estimate per kind of rank; those of equal ranks are made once."""
        return {one: self.estimate(setting, one) for one in dict.fromkeys(shardings)}

    def units(self, workload: Workload) -> float:
        """Tokens (text) or images (vision) of one step."""
        vision = self.spec.shape is not None and self.spec.shape.image_tokens
        length = 1 if vision else workload.sequence_length
        return float(workload.batch * length)

    def launch(
        self,
        strategy: str,
        setting: Setting,
        chosen: Sequence[GpuOffer],
        extra: dict[str, Any],
    ) -> dict[str, Any]:
        """What a runner needs to start it; see planner.py for the keys."""
        workload = setting.workload
        return {
            "engine": "deepspeed" if strategy == "zero2" else "torch",
            "strategy": strategy,
            "nproc": len(chosen),
            "gpu_uuids": [offer.uuid for offer in chosen],
            "fast_links": joined_by_fast_links(chosen),
            "task": workload.task,
            "batch": workload.batch,
            "sequence_length": workload.sequence_length,
            "accumulation": workload.accumulation,
            "precision": workload.precision,
            "optimizer": workload.optimizer,
            "optimizer_loop": workload.optimizer_loop,
            "checkpointing": workload.checkpointing,
            "attention": workload.attention,
            "offload_optimizer": setting.offload,
            **extra,
        }


def refusal(
    strategy: str,
    reason: str,
    *,
    code: str = "not_applicable",
    gpu: GpuOffer | None = None,
    missing_bytes: int = 0,
    cheapest_change: str = "",
) -> Refusal:
    """A Refusal in few words."""
    return Refusal(
        strategy=strategy,
        title=TITLES[strategy],
        code=code,
        reason=reason,
        gpu_label=gpu.label if gpu else "",
        gpu_uuid=gpu.uuid if gpu else "",
        missing_bytes=missing_bytes,
        cheapest_change=cheapest_change,
    )


def too_small(
    strategy: str, gpu: GpuOffer | None, missing_bytes: int, change: str
) -> Refusal:
    """The Refusal of a strategy whose smallest Gpu lacks memory."""
    if gpu is None:
        reason = "This node has too few GPUs for it."
    else:
        need = gpu.free_bytes + missing_bytes
        reason = (
            f"{gpu.label} has {gib(gpu.free_bytes)} free, but {gib(need)} are needed "
            f"even with every remedy: {gib(missing_bytes)} are missing."
        )
    return refusal(
        strategy,
        reason,
        code="too_small",
        gpu=gpu,
        missing_bytes=missing_bytes,
        cheapest_change=change,
    )
