"""Is a Plan what it promises? Written apart from the planner, from the Plan alone.

Checks against the Gpus as they are offered now: every layer exactly once, one rank a
Gpu, nobody over the memory that may be used, parts that add up.
"""

from collections.abc import Mapping, Sequence

from placement.domain.errors import PlanInvalid
from placement.domain.offer import GpuOffer
from placement.domain.plan import Plan, Shard

STAGED = ("pipeline", "gpipe")
SHARE_TOLERANCE = 1e-6


def validate(plan: Plan, offers: Sequence[GpuOffer]) -> None:
    """Raise PlanInvalid with everything that is wrong."""
    problems = plan_problems(plan, offers)
    if problems:
        raise PlanInvalid(problems)


def plan_problems(plan: Plan, offers: Sequence[GpuOffer]) -> list[str]:
    """What is wrong with a Plan, in sentences; empty when nothing is."""
    if not plan.shards:
        return ["the plan has no ranks"]
    by_uuid = {offer.uuid: offer for offer in offers}
    problems = []
    uuids = [shard.gpu_uuid for shard in plan.shards]
    for uuid in sorted({uuid for uuid in uuids if uuids.count(uuid) > 1}):
        problems.append(f"two ranks on {uuid}: NCCL refuses that")
    if [shard.rank for shard in plan.shards] != list(range(len(plan.shards))):
        problems.append("ranks are not numbered from 0 in order")
    if plan.launch.get("nproc") != len(plan.shards):
        problems.append("launches another number of processes than it has ranks")
    for shard in plan.shards:
        problems += _shard_problems(plan, shard, by_uuid)
    problems += _layer_problems(plan)
    problems += _share_problems(plan)
    return problems


def _shard_problems(
    plan: Plan, shard: Shard, by_uuid: Mapping[str, GpuOffer]
) -> list[str]:
    offer = by_uuid.get(shard.gpu_uuid)
    if offer is None:
        return [f"{shard.gpu_label} is not offered"]
    problems = []
    if not offer.bookable:
        problems.append(f"{offer.label} cannot be booked: {offer.reason}")
    if offer.node != plan.node:
        problems.append(f"{offer.label} is not on {plan.node}")
    need = shard.low_bytes if plan.fit == "tight" else shard.likely_bytes
    if need > offer.free_bytes:
        problems.append(
            f"{offer.label} lacks {need - offer.free_bytes:,} bytes: needs {need:,}, "
            f"may use {offer.free_bytes:,}"
        )
    if not shard.low_bytes <= shard.likely_bytes <= shard.high_bytes:
        problems.append(f"{offer.label}: low, likely, high are out of order")
    if sum(shard.components.values()) != shard.low_bytes:
        problems.append(f"{offer.label}: components do not add up to the least need")
    if any(size < 0 for size in shard.components.values()):
        problems.append(f"{offer.label}: a component is negative")
    return problems


def _layer_problems(plan: Plan) -> list[str]:
    """Stages: each layer in exactly one. Elsewhere: all layers on each rank."""
    times = [0] * plan.layer_count
    for shard in plan.shards:
        if not 0 <= shard.first_layer < shard.last_layer <= plan.layer_count:
            return [f"rank {shard.rank} has layers that do not exist, or none"]
        for layer in range(shard.first_layer, shard.last_layer):
            times[layer] += 1
    wanted = 1 if plan.strategy in STAGED else len(plan.shards)
    wrong = [layer for layer, count in enumerate(times) if count != wanted]
    if wrong:
        return [f"layers {wrong[:5]} are not on exactly {wanted} ranks"]
    if plan.strategy not in STAGED:
        return []
    ends = [shard.last_layer for shard in plan.shards]
    starts = [shard.first_layer for shard in plan.shards]
    problems = []
    if starts[1:] != ends[:-1] or starts[0] != 0:
        problems.append("stages are not in the order of the ranks")
    if plan.launch.get("bounds") != [*starts, ends[-1]]:
        problems.append("launches other stages than it shows")
    return problems


def _share_problems(plan: Plan) -> list[str]:
    """ZeRO-1: the shares of the optimizer state make one whole."""
    if plan.strategy != "zero1_uneven":
        return []
    shares = [shard.share_ratio for shard in plan.shards]
    if any(share is None or share < 0 for share in shares):
        return ["a rank has no share of the optimizer state"]
    total = sum(share for share in shares if share is not None)
    if abs(total - 1) > SHARE_TOLERANCE:
        return [f"the shares of the optimizer state add up to {total:.6f}, not 1"]
    return []
