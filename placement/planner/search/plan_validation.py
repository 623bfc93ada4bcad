"""Validate a Plan against its own promises, independently of the planner.

Checks against the present offers of the Gpus: every layer exactly once in each copy of
the model, one rank per Gpu, no rank over the usable memory, tensor-parallel ranks
inside fast links, degrees that multiply to the ranks, a batch whose samples are each
processed exactly once, and parts that add up. It shares no code with the planner.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import PlanInvalid
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.plan import Plan, Shard
from placement.planner.values.strategies import STRATEGIES, TITLES, Axis

SHARE_TOLERANCE = 1e-6
SECONDS_TOLERANCE = 1e-9


def validate(
    plan: Plan, offers: Sequence[GpuOffer], spec: ModelSpec | None = None
) -> None:
    """Raise PlanInvalid with all problems."""
    problems = plan_problems(plan, offers, spec)
    if problems:
        raise PlanInvalid(problems)


def plan_problems(
    plan: Plan, offers: Sequence[GpuOffer], spec: ModelSpec | None = None
) -> list[str]:
    """Return the problems of a Plan as sentences, or an empty list."""
    if not plan.shards:
        return ["the plan has no ranks"]
    if plan.strategy not in TITLES:
        return [f"{plan.strategy} is no strategy of a plan"]
    by_uuid = {offer.uuid: offer for offer in offers}
    problems = []
    uuids = [shard.gpu_uuid for shard in plan.shards]
    for uuid in sorted(uuid for uuid, times in Counter(uuids).items() if times > 1):
        problems.append(f"two ranks on {uuid}: NCCL refuses that")
    if [shard.rank for shard in plan.shards] != list(range(len(plan.shards))):
        problems.append("ranks are not numbered from 0 in order")
    for shard in plan.shards:
        problems += _shard_problems(plan, shard, by_uuid)
    problems += _launch_problems(plan)
    problems += _seat_problems(plan)
    problems += _layer_problems(plan)
    problems += _share_problems(plan)
    problems += _link_problems(plan, by_uuid)
    problems += _batch_problems(plan)
    problems += _time_problems(plan, by_uuid)
    return problems + (_model_problems(plan, spec) if spec is not None else [])


def _shard_problems(
    plan: Plan, shard: Shard, by_uuid: Mapping[str, GpuOffer]
) -> list[str]:
    offer = by_uuid.get(shard.gpu_uuid)
    if offer is None:
        return [f"{shard.gpu_label} is not offered"]
    problems = []
    if not offer.bookable:
        problems.append(f"{offer.label} cannot be booked: {offer.reason}")
    if offer.node not in plan.nodes or shard.node != offer.node:
        problems.append(f"{offer.label} is not on {', '.join(plan.nodes)}")
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


def _degrees(plan: Plan) -> tuple[int, int, int]:
    """Return (tensor, pipeline, data) degrees of the launch."""
    keys = ("tensor_degree", "pipeline_degree", "data_degree")
    tensor, stages, copies = (int(plan.launch.get(key, 0)) for key in keys)
    return tensor, stages, copies * _context(plan)


def _context(plan: Plan) -> int:
    """Return the ranks that share each sequence: copies of the weights, not of the
    batch.
    """
    return int(plan.launch.get("context_degree", 1))


def _launch_problems(plan: Plan) -> list[str]:
    """Return the differences between the launch and the Plan."""
    launch: Mapping[str, Any] = plan.launch
    count = len(plan.shards)
    problems = []
    if launch.get("nproc") != count:
        problems.append("launches another number of processes than it has ranks")
    if launch.get("gpu_uuids") != list(plan.gpu_uuids):
        problems.append("launches other GPUs than it shows")
    grid = [uuid for row in launch.get("rank_grid", ()) for uuid in row]
    if grid != list(plan.gpu_uuids):
        problems.append("the grid of ranks is not that of the ranks")
    tensor, stages, copies = degrees = _degrees(plan)
    if min(degrees) < 1 or math.prod(degrees) != count:
        problems.append(
            f"tensor {tensor} x pipeline {stages} x data {copies} are not {count} ranks"
        )
    known = STRATEGIES[plan.strategy]
    wanted = {
        Axis.NONE: (1, 1, 1),
        Axis.TENSOR: (count, 1, 1),
        Axis.REPLICA: (1, 1, count),
        Axis.STAGE: (1, count, 1),
    }
    if degrees != wanted.get(known.axis, degrees):
        problems.append(f"these are not the degrees of {plan.strategy}")
    experts = int(launch.get("expert_degree", 1))
    context = int(launch.get("context_degree", 1))
    several = sum(n > 1 for n in (tensor, stages, copies // context, context, experts))
    if experts < 1 or copies % experts:
        problems.append(f"{experts} groups of experts do not divide {copies} copies")
    if known.axis is Axis.SEVERAL and several < 2:
        problems.append("a hybrid needs two degrees above 1")
    zero = launch.get("zero_stage")
    if known.zero_stage is not None and zero != known.zero_stage:
        problems.append(f"ZeRO stage {zero} is not that of {plan.strategy}")
    if known.zero_stage is None and zero not in ((0, 1) if stages > 1 else range(4)):
        problems.append("ZeRO 2 and 3 do not go with a pipeline")
    nodes = list(dict.fromkeys(shard.node for shard in plan.shards))
    if nodes != list(plan.nodes) or plan.node not in nodes:
        problems.append("its nodes are not those of its GPUs")
    return problems


def _seat_problems(plan: Plan) -> list[str]:
    """Check that each (stage, replica, tensor rank) exists once, tensor ranks counting
    first.
    """
    tensor, stages, copies = _degrees(plan)
    seats = [(s.stage, s.replica, s.tensor_rank) for s in plan.shards]
    wanted = [
        (stage, replica, part)
        for stage in range(stages)
        for replica in range(copies)
        for part in range(tensor)
    ]
    return [] if seats == wanted else ["ranks do not sit stage by stage, copy by copy"]


def _pieces(shard: Shard) -> tuple[tuple[int, int], ...]:
    return shard.chunks if shard.chunks else ((shard.first_layer, shard.last_layer),)


def _layer_problems(plan: Plan) -> list[str]:
    """Check that each copy of the model has every layer once, with the declared
    cuts.
    """
    times: dict[tuple[int, int], list[int]] = {}
    for shard in plan.shards:
        mine = times.setdefault(
            (shard.replica, shard.tensor_rank), [0] * plan.layer_count
        )
        for first, last in _pieces(shard):
            if not 0 <= first < last <= plan.layer_count:
                return [f"rank {shard.rank} has layers that do not exist, or none"]
            for layer in range(first, last):
                mine[layer] += 1
    problems = []
    for counts in times.values():
        wrong = [layer for layer, count in enumerate(counts) if count != 1]
        if wrong:
            problems.append(f"layers {wrong[:5]} are not on exactly 1 rank of a copy")
    kinds = {(s.stage, _pieces(s)) for s in plan.shards}
    if len(kinds) != len({stage for stage, _ in kinds}):
        problems.append("ranks of one stage have different layers")
    if not STRATEGIES[plan.strategy].has_stages:
        return problems
    return problems + _bound_problems(plan)


def _bound_problems(plan: Plan) -> list[str]:
    """Check that pieces rotate through the stages as they are launched."""
    by_stage = {shard.stage: _pieces(shard) for shard in plan.shards}
    rows = [by_stage[stage] for stage in sorted(by_stage)]
    virtual = plan.launch.get("virtual_stages", 1)
    if any(len(row) != virtual for row in rows):
        return [f"a stage has not {virtual} pieces of the model"]
    order = [row[piece] for piece in range(virtual) for row in rows]
    problems = []
    if any(a[1] != b[0] for a, b in pairwise(order)):
        problems.append("stages are not in the order of the ranks")
    bounds = [*(first for first, _ in order), order[-1][1]]
    if plan.launch.get("bounds") != bounds:
        problems.append("launches other stages than it shows")
    schedule = plan.launch.get("schedule")
    wanted = STRATEGIES[plan.strategy].schedule
    if wanted is not None and schedule != wanted:
        problems.append(f"{schedule} is not the schedule of {plan.strategy}")
    microbatches = plan.launch.get("microbatches", 0)
    if wanted == "interleaved" and microbatches % len(rows):
        problems.append(
            f"{microbatches} microbatches do not go round {len(rows)} stages evenly"
        )
    return problems


def _share_problems(plan: Plan) -> list[str]:
    """Check, for ZeRO-1, that the shares of the optimizer state add up to one."""
    if not STRATEGIES[plan.strategy].uneven_shares:
        return []
    shares = [shard.share_ratio for shard in plan.shards]
    if any(share is None or share < 0 for share in shares):
        return ["a rank has no share of the optimizer state"]
    problems = []
    if plan.launch.get("shares") != shares:
        problems.append("launches other shares than it shows")
    total = sum(share for share in shares if share is not None)
    if abs(total - 1) > SHARE_TOLERANCE:
        problems.append(
            f"the shares of the optimizer state add up to {total:.6f}, not 1"
        )
    return problems


def _link_problems(plan: Plan, by_uuid: Mapping[str, GpuOffer]) -> list[str]:
    """Check that fast links join ranks that cut one layer, directly or indirectly.

    Inference sends little, so there the ranks must only be on one node.
    """
    if not plan.workload.trains and len(plan.nodes) == 1:
        return []
    teams: dict[tuple[int, int], list[GpuOffer]] = {}
    for shard in plan.shards:
        offer = by_uuid.get(shard.gpu_uuid)
        if offer is not None:
            teams.setdefault((shard.stage, shard.replica), []).append(offer)
    problems = []
    everybody = list(by_uuid.values())
    for team in teams.values():
        reached = _reached(team[0], everybody)
        apart = [offer.label for offer in team if offer.uuid not in reached]
        if apart:
            problems.append(f"no fast link joins {apart[0]} to {team[0].label}")
    return problems


def _reached(start: GpuOffer, everybody: Sequence[GpuOffer]) -> set[str]:
    """Return the Gpus of a node that fast links reach from one."""
    near: dict[str, set[str]] = {}
    for a, b in combinations([one for one in everybody if one.node == start.node], 2):
        grouped = bool(a.link_group) and a.link_group == b.link_group
        if grouped or (b.uuid, "nvlink") in a.links or (a.uuid, "nvlink") in b.links:
            near.setdefault(a.uuid, set()).add(b.uuid)
            near.setdefault(b.uuid, set()).add(a.uuid)
    found, todo = {start.uuid}, [start.uuid]
    while todo:
        for uuid in near.get(todo.pop(), ()):
            if uuid not in found:
                found.add(uuid)
                todo.append(uuid)
    return found


def _batch_problems(plan: Plan) -> list[str]:
    """Check that the microbatches of all copies make up one batch, and none is
    empty.
    """
    if not plan.workload.trains:
        return []
    runs = max(plan.launch.get("microbatches", 1), plan.workload.accumulation)
    copies = _degrees(plan)[2] // _context(plan)
    size = plan.launch.get("microbatch", 0)
    batch = plan.workload.batch
    if size * runs * copies < batch:
        return [f"{size} x {runs} x {copies} sequences are fewer than {batch}"]
    if (size - 1) * runs * copies >= batch:
        return [f"a microbatch of {size - 1} would do for {batch} sequences"]
    return []


def _time_problems(plan: Plan, by_uuid: Mapping[str, GpuOffer]) -> list[str]:
    """Check that seconds and quota are the sums of their parts."""
    parts = (plan.compute_seconds, plan.communication_seconds, plan.bubble_seconds)
    problems = []
    if any(not math.isfinite(part) or part < -SECONDS_TOLERANCE for part in parts):
        problems.append("a part of the step's time is negative or no number")
    elif abs(sum(parts) - plan.step_seconds) > SECONDS_TOLERANCE * (1 + sum(parts)):
        problems.append("compute, communication and bubble are not the step's time")
    if plan.wait_seconds < 0:
        problems.append("it starts before the start that was asked for")
    weights = [by_uuid[s.gpu_uuid].weight for s in plan.shards if s.gpu_uuid in by_uuid]
    cost = sum(weights) * plan.step_seconds
    if len(weights) == len(plan.shards) and not math.isclose(
        cost, plan.quota_gpu_seconds, rel_tol=1e-6, abs_tol=1e-9
    ):
        problems.append("its quota is not that of its GPUs and its step")
    return problems


def _model_problems(plan: Plan, spec: ModelSpec) -> list[str]:
    """Check that it is a Plan for this model, and that its layers can be cut so."""
    problems = []
    if plan.layer_count != len(spec.layers):
        problems.append("the plan has another number of layers than the model")
    if plan.parameter_count != spec.parameter_count:
        problems.append("the plan has another number of parameters than the model")
    tensor = _degrees(plan)[0]
    shape = spec.shape
    if tensor > 1 and shape is None:
        problems.append("layers of a model whose arithmetic is unknown are cut")
    elif (
        tensor > 1
        and shape is not None
        and (shape.heads % tensor or shape.kv_heads % tensor)
    ):
        problems.append(
            f"{tensor} does not divide {shape.heads} heads and {shape.kv_heads} "
            "key/value heads"
        )
    return problems
