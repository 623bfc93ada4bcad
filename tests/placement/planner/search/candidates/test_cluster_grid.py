"""Plans over many nodes: all nodes if they pay off, with the degrees' arithmetic."""

from dataclasses import replace
from math import prod

import pytest

from placement.planner.launch.execution import why_not
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.sharding import Sharding
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.candidates import cluster_grid
from placement.planner.search.candidates.cluster_grid import (
    _GridSearch,
    even_stages,
    largest_divisor,
)
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.plan_validation import plan_problems
from placement.planner.search.planner import plan
from placement.planner.values.errors import WorkloadInvalid
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.workload import Workload

pytestmark = pytest.mark.pure

H100 = ("NVIDIA H100 80GB HBM3", 80, True)
L40S = ("NVIDIA L40S", 48, False)


def cluster(nodes, *kinds, each=8, network=50e9):
    rows = []
    for number in range(nodes):
        name, giga, nvlink = kinds[number % len(kinds)]
        rows += [
            {
                "name": name,
                "free_bytes": giga * 10**9,
                "node": f"n{number:03}",
                "link_group": f"nv{number}" if nvlink else "",
                "network_bytes_per_second": network,
            }
        ] * each
    return offers_from_list(rows)


def degrees(one):
    names = ("tensor_degree", "context_degree", "pipeline_degree", "data_degree")
    return tuple(one.launch[name] for name in names)


def test_a_thousand_gpus_get_tensor_then_pipeline_then_data():
    gpus = cluster(128, H100)
    spec = well_known_spec("llama-3-70b")
    asked = Workload(batch=1024, sequence_length=4096, precision="megatron_bf16")
    best = plan(spec, asked, gpus).best

    tensor, context, pipeline, data = degrees(best)
    assert len(best.shards) == tensor * context * pipeline * data == 1024
    assert tensor == 8 and context == 1 and pipeline > 1 and data > 1
    assert best.workload.batch == 1024
    assert best.launch["microbatch"] * best.launch["microbatches"] * data == 1024
    assert plan_problems(best, gpus, spec) == []
    team = [shard.node for shard in best.shards[:tensor]]
    assert len(set(team)) == 1, "tensor ranks are on one node"
    assert any("= 1,024 GPUs of 128 nodes" in line for line in best.why)
    assert any("slots" in line for line in best.why)
    assert best.table().count("\n") < 80


def gpt(heads, hidden, layers):
    return parse_config(
        {
            "model_type": "gpt2",
            "n_embd": hidden,
            "n_head": heads,
            "n_layer": layers,
            "n_positions": 2048,
            "vocab_size": 51200,
            "activation_function": "gelu_pytorch_tanh",
        }
    )


A100 = ("NVIDIA A100-SXM4-80GB", 85, True)
"""With the 79.2 GiB that CUDA reports."""


@pytest.mark.parametrize(
    ("sizes", "gpus", "stages", "seconds"),
    [
        ((96, 12288, 96), 64, 8, 13.75),
        ((128, 20480, 105), 280, 35, 37.83),
        ((160, 25600, 128), 512, 64, 71.49),
    ],
    ids=["175B", "530B", "1T"],
)
def test_the_plans_of_megatrons_paper_are_found(sizes, gpus, stages, seconds):
    """arXiv:2205.05198, table 5: a sequence for each GPU."""
    asked = Workload(batch=gpus, sequence_length=2048, precision="megatron_bf16")
    offers = cluster(gpus // 8, A100, network=200e9)
    best = plan(gpt(*sizes), asked, offers).best

    assert degrees(best) == (8, 1, stages, 1)
    assert best.step_seconds == pytest.approx(seconds, rel=0.15)
    assert best.launch["engine"] == "megatron"
    assert "megatron_bf16" in why_not(best.to_json())
    if best.launch["virtual_stages"] > 1:
        assert best.launch["schedule"] == "interleaved"
        pieces = best.launch["virtual_stages"] * stages
        assert len(best.launch["bounds"]) == pieces + 1
        assert best.launch["microbatches"] % stages == 0


def test_attention_that_keeps_its_scores_is_recomputed_alone():
    asked = Workload(
        batch=64, sequence_length=2048, precision="megatron_bf16", attention="eager"
    )
    spec, offers = gpt(96, 12288, 96), cluster(8, A100, network=200e9)
    best = plan(spec, asked, offers).best

    assert best.workload.checkpointing == "selective"
    assert any("attention's scores" in one for one in best.remedies)
    # torch's recipes recompute whole blocks only.
    by_torch = plan(spec, replace(asked, precision="bf16"), offers)
    assert all(one.workload.checkpointing != "selective" for one in by_torch.plans)


def test_every_stage_of_a_model_with_unlike_layers_has_room():
    asked = Workload(batch=960, sequence_length=4096, precision="megatron_bf16")
    offers, spec = cluster(128, H100, network=200e9), well_known_spec("deepseek-v3")
    best = plan(spec, asked, offers).best

    assert best.fit == "comfortable"
    assert plan_problems(best, offers, spec) == []


@pytest.mark.parametrize(
    ("name", "precision"),
    [("llama-3-70b", "mixed_fp16"), ("mixtral-8x7b", "megatron_bf16")],
)
def test_what_is_left_out_of_the_search_is_never_the_best(name, precision, monkeypatch):
    asked = Workload(batch=64, sequence_length=2048, precision=precision)
    offers, spec = cluster(4, H100, L40S), well_known_spec(name)
    found = plan(spec, asked, offers)
    monkeypatch.setattr(_GridSearch, "least_seconds", lambda *_: 0.0)
    monkeypatch.setattr(_GridSearch, "_least_bytes", lambda *_: 0.0)
    monkeypatch.setattr(_GridSearch, "_may_fit", lambda *_: True)
    monkeypatch.setattr(cluster_grid, "MOST_CHECKS", 10**6)

    assert plan(spec, asked, offers) == found


def test_a_small_model_is_copied_over_all_nodes_that_the_batch_goes_round():
    best = plan(
        well_known_spec("llama-3-8b"),
        Workload(batch=64, sequence_length=4096, precision="mixed_fp16"),
        cluster(8, H100, network=200e9),
    ).best

    assert len(best.shards) == 64
    assert best.node == "n000" and len(best.nodes) == 8


@pytest.mark.parametrize("batch", [6, 7, 48, 96])
def test_the_batch_is_shared_out_evenly(batch):
    limits = PlanLimits(beaten_too=True)
    asked = Workload(batch=batch, sequence_length=2048)
    found = plan(
        well_known_spec("llama-3.2-1b"), asked, cluster(4, H100, each=5), limits=limits
    )

    wide = [one for one in found.plans if len(one.nodes) > 2]
    for one in wide:
        runs = max(one.launch["microbatches"], one.workload.accumulation)
        assert one.launch["microbatch"] * runs * one.launch["data_degree"] == batch


def test_long_sequences_are_cut_over_gpus():
    asked = Workload(batch=16, sequence_length=131_072, precision="bf16")
    gpus = cluster(8, H100)
    spec = well_known_spec("llama-3-8b")
    best = plan(spec, asked, gpus).best

    assert best.strategy == "context_parallel"
    assert best.launch["context_degree"] > 1
    assert prod(degrees(best)) == len(best.shards)
    assert plan_problems(best, gpus, spec) == []


def test_experts_are_spread_over_copies():
    asked = Workload(batch=512, sequence_length=4096, precision="mixed_fp16")
    gpus = cluster(32, H100)
    spec = well_known_spec("mixtral-8x7b")
    limits = PlanLimits(strategies=("expert_parallel",))
    best = plan(spec, asked, gpus, limits=limits).best

    assert best.launch["expert_degree"] in (2, 4, 8)
    assert best.launch["data_degree"] % best.launch["expert_degree"] == 0
    assert plan_problems(best, gpus, spec) == []


def test_hsdp_shards_inside_a_node_and_copies_across():
    asked = Workload(batch=64, sequence_length=2048, precision="mixed_fp16")
    gpus = cluster(4, H100, network=2e9)
    spec = well_known_spec("llama-3-8b")
    limits = PlanLimits(strategies=("hsdp", "fsdp"))
    found = plan(spec, asked, gpus, limits=limits)
    hybrid = next(one for one in found.plans if one.strategy == "hsdp")

    assert hybrid.launch["shard_degree"] == 8
    assert hybrid.launch["data_degree"] == len(hybrid.shards)
    same = [
        one
        for one in found.plans
        if one.strategy == "fsdp" and len(one.shards) == len(hybrid.shards)
    ]
    assert all(hybrid.step_seconds < one.step_seconds for one in same)


def test_the_faster_kind_alone_or_both_whatever_takes_less_time_and_cost():
    asked = Workload(batch=256, sequence_length=2048, precision="mixed_fp16")
    found = plan(well_known_spec("llama-3-8b"), asked, cluster(8, H100, L40S))

    names = {shard.gpu_name for shard in found.best.shards}
    assert names == {H100[0]}


def test_equal_nodes_are_searched_once_and_the_first_is_named():
    found = plan(well_known_spec("gpt2"), Workload(batch=8), cluster(16, H100, each=1))

    alone = [one for one in found.plans if len(one.shards) == 1]
    assert [one.node for one in alone] == ["n000"]


def test_stages_have_about_equal_work_and_are_never_empty():
    share, bounds = even_stages((10.0, 1.0, 1.0, 1.0, 1.0), 3)
    assert bounds == (0, 1, 3, 5)
    assert share == pytest.approx(10 / 14)
    assert largest_divisor(48, 20) == 16


def test_a_context_rank_keeps_a_part_of_the_activations_and_of_the_state():
    from placement.planner.memory.estimate import estimate

    spec = well_known_spec("llama-3.2-1b")
    asked = Workload(batch=1, sequence_length=8192, precision="bf16")
    whole = estimate(spec, asked, Sharding(strategy="hybrid", zero_stage=1))
    cut = estimate(
        spec, asked, Sharding(strategy="hybrid", zero_stage=1, context_degree=4)
    )

    assert cut.components["activations"] < 0.3 * whole.components["activations"]
    assert cut.components["optimizer"] < 0.3 * whole.components["optimizer"]
    with pytest.raises(WorkloadInvalid, match="replicate_degree"):
        Sharding(strategy="hsdp", data_degree=8, replicate_degree=3)
