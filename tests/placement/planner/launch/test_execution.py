"""A Plan becomes the work of the recipe's processes, or is refused in words."""

from dataclasses import replace

import pytest

from placement.planner.launch.backends import why_not_deepspeed
from placement.planner.launch.execution import (
    NotRunnable,
    RankPlace,
    execution_of,
    execution_of_own,
    parts_by_share,
    scaled,
    why_not,
)
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan as make_plans
from placement.planner.values.errors import PlanInvalid
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload

GPT2 = {"layers": 12, "hidden": 768, "heads": 12, "seq": 512}
TINY = {"layers": 4, "hidden": 64, "heads": 4, "seq": 64}
SPEC = well_known_spec("gpt2")


def planned(strategy, gpus=2, **workload):
    rows = [{"free_bytes": 80 * 10**9, "link_group": "a"} for _ in range(gpus)]
    found = make_plans(
        SPEC,
        Workload(batch=64, **workload),
        offers_from_list([{"name": "NVIDIA A100 80GB", **row} for row in rows]),
        limits=PlanLimits(strategies=(strategy,)),
    )
    return max(found.plans, key=lambda plan: len(plan.shards))


SEQUENCES = {"interleaved": {"sequence_length": 1024}}
"""A piece of GPT-2 on each of four Gpus pays only if it takes longer than the start of
its kernels.
"""


@pytest.mark.parametrize(
    ("strategy", "gpus", "grid"),
    [
        ("single", 1, (1, 1, 1)),
        ("ddp", 2, (1, 2, 1)),
        ("zero1", 2, (1, 2, 1)),
        ("zero2", 2, (1, 2, 1)),
        ("fsdp", 2, (1, 2, 1)),
        ("pipeline", 2, (2, 1, 1)),
        ("gpipe", 2, (2, 1, 1)),
        ("tensor", 2, (1, 1, 2)),
        ("hybrid", 8, (1, 4, 2)),
        ("interleaved", 4, (4, 1, 1)),
    ],
)
def test_the_planners_own_plans_are_runnable(strategy, gpus, grid):
    made = execution_of(planned(strategy, gpus, **SEQUENCES.get(strategy, {})), GPT2)
    assert (made.stages, made.replicas, made.tensor_degree) == grid
    assert made.ranks == gpus and made.scaled_from is None
    stages, replicas, width = grid
    assert set(made.places) == {
        RankPlace(s, r, t)
        for s in range(stages)
        for r in range(replicas)
        for t in range(width)
    }


def test_every_layer_is_in_one_piece_and_every_piece_on_one_stage():
    made = execution_of(planned("interleaved", 4, **SEQUENCES["interleaved"]), GPT2)
    pieces = [piece for stage in range(4) for piece in made.pieces_of(stage)]
    assert sorted(pieces) == list(range(len(made.bounds) - 1))
    assert made.pieces_of(1) == (1, 5)
    assert made.bounds[0] == 0 and made.bounds[-1] == 14


def test_a_plan_read_back_from_json_runs_the_same():
    plan = planned("pipeline")
    again = Plan.from_json(plan.to_json())
    assert execution_of(again, TINY) == execution_of(plan, TINY)


def test_bounds_of_a_longer_model_are_scaled_and_it_says_so():
    made = execution_of(planned("pipeline"), TINY)
    assert made.scaled_from == 14
    first, cut, last = made.bounds
    assert (first, last) == (0, 6) and 1 <= cut <= 5


def test_shards_of_a_node_are_copied_across_nodes():
    row = {"name": "NVIDIA A100 80GB", "free_bytes": 80 * 10**9}
    rows = [
        row | {"node": node, "network_bytes_per_second": 2e9} for node in ("a", "b")
    ]
    plan = make_plans(
        SPEC,
        Workload(batch=16),
        offers_from_list([rows[0]] * 2 + [rows[1]] * 2),
        limits=PlanLimits(strategies=("hsdp",)),
    ).plans[0]
    made = execution_of(plan, GPT2)
    assert (made.shard_degree, made.replicas, made.zero_stage) == (2, 4, 3)
    nodes = [shard.node for shard in plan.by_process]
    teams = [place.replica // 2 for place in made.places]
    assert len(set(zip(nodes, teams, strict=True))) == 2, "a team has one node"
    assert execution_of_own(plan).shard_degree == 2
    assert "needs torch" in why_not_deepspeed(plan.to_json())
    odd = replace(plan, launch=plan.launch | {"shard_degree": 3})
    with pytest.raises(PlanInvalid, match="cannot be divided into groups of 3"):
        execution_of(odd, GPT2)


def test_no_piece_is_ever_empty():
    assert scaled([0, 1, 2, 100], 4) == (0, 1, 2, 4)
    assert scaled([0, 98, 99, 100], 4) == (0, 2, 3, 4)
    with pytest.raises(NotRunnable, match="set at least 3 blocks"):
        scaled([0, 1, 2, 3, 4, 10], 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "infer"}, "inference"),
        ({"precision": "mixed_fp16"}, "not mixed_fp16"),
        ({"optimizer": "adafactor"}, "not adafactor"),
        ({"checkpointing": "selective"}, "not selective"),
        ({"weights": "gptq"}, "quantized"),
        ({"weights": "nf4", "offload": "cpu"}, "cannot offload then"),
        ({"offload": "moon"}, "moon"),
        ({"offload": "cpu", "tensor_degree": 2}, "tensor parallelism cuts"),
        ({"offload": "cpu", "offload_parameters": True}, "for one GPU"),
    ],
)
def test_what_the_runtime_cannot_do_is_refused_in_words(changes, words):
    plan = planned("ddp")
    assert why_not(plan.to_json()) == ""
    asked = replace(plan, launch=plan.launch | changes)
    assert words in why_not(asked.to_json())
    with pytest.raises(NotRunnable, match=words):
        execution_of(asked, TINY)


def test_fsdp_runs_what_was_planned_for_deepspeed_and_offloads():
    plan = planned("zero2")
    assert plan.launch["engine"] == "deepspeed"
    asked = replace(plan, launch=plan.launch | {"offload": "cpu"})
    assert execution_of(asked, TINY).offload
    drive = {"offload": "nvme", "engine": "deepspeed"}
    for strategy in ("ddp", "zero1", "pipeline"):
        plan = planned(strategy)
        made = execution_of(replace(plan, launch=plan.launch | drive), TINY)
        assert made.on_drive and made.backend == "torch"


@pytest.mark.parametrize(
    ("strategy", "changes", "words"),
    [
        ("ddp", {}, "the strategy ddp needs torch"),
        ("interleaved", {}, "and stages with 1F1B"),
        ("zero2", {"precision": "bf16"}, "fp32 and autocast_bf16, not bf16"),
        ("pipeline", {"offload": "cpu"}, "cannot offload in a pipeline"),
        ("zero2", {"offload": "nvme"}, "with ZeRO-3 only"),
        ("zero2", {"offload": "cpu", "offload_parameters": True}, "offloads weights"),
    ],
)
def test_what_deepspeed_does_not_do_is_refused_in_words(strategy, changes, words):
    plan = planned(strategy)
    asked = replace(plan, launch=plan.launch | {"precision": "fp32"} | changes)
    assert words in why_not_deepspeed(asked.to_json())
    assert execution_of(asked, TINY).backend == "torch"
    with pytest.raises(NotRunnable, match=words):
        execution_of(asked, TINY | {"backend": "deepspeed"})


def test_deepspeed_runs_even_shares_and_stages_without_fsdp():
    for strategy in ("zero1", "zero2", "fsdp", "pipeline"):
        plan = planned(strategy)
        asked = replace(plan, launch=plan.launch | {"precision": "fp32"})
        made = execution_of(asked, TINY | {"backend": "deepspeed"})
        assert made.backend == "deepspeed" and not made.shares_out


def test_heads_and_sequences_that_cannot_be_cut_are_named():
    with pytest.raises(NotRunnable, match="divide the 3 heads"):
        execution_of(planned("tensor"), TINY | {"heads": 3})
    with pytest.raises(NotRunnable, match="divide the 63 tokens"):
        execution_of(planned("hybrid", 8), TINY | {"seq": 63})


def test_ranks_that_form_no_grid_are_refused():
    plan = planned("ddp")
    twice = replace(plan, shards=(plan.shards[0], plan.shards[0]))
    with pytest.raises(PlanInvalid, match="do not fill"):
        execution_of(twice, TINY)


def test_uneven_parts_stay_within_one_tensor_of_their_shares():
    sizes = [7, 7, 5, 4, 3, 3, 2, 1, 1, 1]
    shares = [0.6, 0.3, 0.1]
    parts = parts_by_share(sizes, shares)
    assert sorted(n for part in parts for n in part) == list(range(len(sizes)))
    for part, share in zip(parts, shares, strict=True):
        assert abs(sum(sizes[n] for n in part) - share * sum(sizes)) <= max(sizes)
