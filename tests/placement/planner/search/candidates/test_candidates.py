"""Strategies one by one: the promises in their Plans, and the reasons of refusals."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.planner.launch.pipeline_families import why_not_adapters
from placement.planner.model.adaptation import with_lora
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.candidates.stage_blocks import with_trained_pieces
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.plan_validation import plan_problems
from placement.planner.search.planner import plan
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.plan import Plan, PlanSet
from placement.planner.values.workload import Workload
from tests.placement.planner.made import GIB, make_offers

pytestmark = pytest.mark.pure

LLAMA = well_known_spec("llama-3-8b")


def only(strategy, spec, workload, offers, **limits):
    found = plan(
        spec, workload, offers, limits=PlanLimits(strategies=(strategy,), **limits)
    )
    return found.best or found.refusals[0]


class TestHybrid:
    OFFERS = make_offers(*[79] * 8, total_gib=80, link_group="nv")

    def test_its_degrees_multiply_to_its_ranks(self):
        one = only("hybrid", LLAMA, Workload(batch=64), self.OFFERS)
        launch = one.launch
        degrees = [launch[f"{name}_degree"] for name in ("tensor", "pipeline", "data")]

        assert len(one.shards) == degrees[0] * degrees[1] * degrees[2]
        assert sum(degree > 1 for degree in degrees) >= 2
        assert one.title.startswith("Hybrid: ")
        assert plan_problems(one, self.OFFERS, LLAMA) == []

    def test_replicas_share_the_optimizer(self):
        one = only("hybrid", LLAMA, Workload(batch=64), self.OFFERS)

        assert one.launch["data_degree"] > 1
        assert one.launch["zero_stage"] == 1

    def test_without_fast_links_no_layer_is_cut(self):
        offers = make_offers(*[79] * 8, total_gib=80)
        one = only("hybrid", LLAMA, Workload(batch=64), offers)

        assert one.launch["tensor_degree"] == 1
        assert one.launch["pipeline_degree"] > 1

    def test_layers_are_cut_inside_a_pair_and_staged_across(self):
        offers = [
            replace(offer, link_group=f"nv{offer.index // 2}")
            for offer in make_offers(*[30] * 4, total_gib=32)
        ]
        spec = well_known_spec("llama-3.2-3b")
        one = only("hybrid", spec, Workload(batch=8, sequence_length=1024), offers)

        for row in one.launch["rank_grid"]:
            assert len({int(uuid[-1]) // 2 for uuid in row}) == 1

    def test_two_gpus_are_too_few(self):
        lost = only("hybrid", LLAMA, Workload(batch=8), make_offers(23, 23))

        assert lost.code == "not-applicable"

    def test_a_refusal_names_gpu_bytes_and_a_change(self):
        lost = only(
            "hybrid", LLAMA, Workload(batch=8), make_offers(4, 4, 4, 4), offload=False
        )

        assert lost.gpu_label
        assert lost.missing_bytes > 0
        assert lost.cheapest_change


class TestInterleaved:
    OFFERS = make_offers(23, 23)
    SPEC = well_known_spec("gpt2-medium")

    def plan(self):
        return only("interleaved", self.SPEC, Workload(batch=4), self.OFFERS)

    def test_each_gpu_has_several_pieces_that_go_round(self):
        one = self.plan()

        assert one.launch["schedule"] == "interleaved"
        assert one.launch["virtual_stages"] in (2, 4)
        assert all(
            len(shard.chunks) == one.launch["virtual_stages"] for shard in one.shards
        )
        assert list(one.bounds) == one.launch["bounds"]
        assert plan_problems(one, self.OFFERS, self.SPEC) == []

    def test_its_bubble_is_smaller_than_that_of_1f1b(self):
        staged = only("pipeline", self.SPEC, Workload(batch=4), self.OFFERS)

        assert self.plan().bubble_seconds < staged.bubble_seconds

    def test_it_survives_json(self):
        one = self.plan()

        assert Plan.from_json(json.loads(json.dumps(one.to_json()))) == one

    def test_a_batch_of_one_cannot_go_round(self):
        lost = only("interleaved", self.SPEC, Workload(batch=1), self.OFFERS)

        assert "multiple" in lost.reason


class TestQuantization:
    SMALL = make_offers(12)

    def test_inference_takes_fewer_bits_only_where_full_ones_do_not_fit(self):
        asked = Workload(task="infer", batch=1, precision="bf16")
        wide = plan(LLAMA, asked, make_offers(23)).best
        tight = plan(LLAMA, asked, self.SMALL, limits=PlanLimits(offload=False)).best

        assert wide.launch["weights"] == "full"
        assert tight.launch["weights"] == "int8"
        assert any("8 bits" in text for text in tight.remedies)

    def test_training_all_weights_never_quantizes_them(self):
        found = plan(LLAMA, Workload(batch=1, sequence_length=128), make_offers(20))

        assert all(one.launch["weights"] == "full" for one in found.plans)

    def test_adapters_train_beside_quantized_weights(self):
        spec = with_lora(LLAMA, rank=16)
        asked = Workload(batch=2, sequence_length=512, precision="bf16")
        one = plan(spec, asked, self.SMALL, limits=PlanLimits(offload=False)).best

        assert one.launch["weights"] in ("int8", "nf4")
        assert one.shards[0].likely_bytes <= 12 * GIB

    def test_it_can_be_forbidden(self):
        asked = Workload(task="infer", batch=1, precision="bf16")
        limits = PlanLimits(offload=False, quantization=False)
        found = plan(LLAMA, asked, self.SMALL, limits=limits)
        lost = next(one for one in found.refusals if one.strategy == "single")

        assert found.best is None
        assert lost.cheapest_change


class TestOffload:
    ASKED = Workload(batch=1, sequence_length=256)
    SPEC = well_known_spec("gpt2-xl")

    def test_the_drive_is_used_where_the_nodes_memory_is_too_small(self):
        limits = PlanLimits(small_optimizer=False, offload_memory_bytes=2**30)
        one = plan(self.SPEC, self.ASKED, make_offers(17), limits=limits).best
        roomy = replace(limits, offload_memory_bytes=2**40)
        other = plan(self.SPEC, self.ASKED, make_offers(17), limits=roomy).best

        assert one.workload.offload == "nvme"
        assert one.launch["engine"] == "deepspeed"
        assert any("drive" in text for text in one.remedies)
        assert other.workload.offload == "cpu"
        assert other.step_seconds < one.step_seconds

    def test_weights_leave_the_gpu_after_the_optimizer(self):
        limits = PlanLimits(small_optimizer=False)
        found = [
            plan(self.SPEC, self.ASKED, make_offers(free), limits=limits).best
            for free in (17, 9)
        ]

        assert [one.workload.offload_parameters for one in found] == [False, True]


def test_allowing_a_forbidden_remedy_is_the_cheapest_change():
    limits = PlanLimits(
        strategies=("single",),
        accumulation=False,
        checkpointing=False,
        small_optimizer=False,
        offload=False,
    )
    asked = Workload(batch=16, sequence_length=1024)
    found = plan(well_known_spec("gpt2"), asked, make_offers(8), limits=limits)

    assert found.refusals[0].cheapest_change == "accumulation allowed"


def test_a_plan_says_what_binds_it_and_what_each_stage_holds():
    found = plan(
        LLAMA,
        Workload(batch=16, sequence_length=1024),
        make_offers(*[23] * 8),
        limits=PlanLimits(strategies=("pipeline",)),
    )
    staged = next(one for one in found.plans if one.strategy == "pipeline")

    assert " of stage " in staged.bound_by
    assert staged.bound_by in staged.why[-1]
    assert [shard.stage for shard in staged.shards] == list(range(len(staged.shards)))
    assert all(shard.busy_seconds > 0 for shard in staged.shards)
    parts = (
        staged.compute_seconds + staged.bubble_seconds + staged.communication_seconds
    )
    assert parts == pytest.approx(staged.step_seconds)


def test_a_planset_survives_json_and_prints_all_it_tried():
    found = plan(LLAMA, Workload(batch=16), make_offers(*[23] * 4), objective="fastest")

    assert PlanSet.from_json(json.loads(json.dumps(found.to_json()))) == found
    text = found.table()
    for one in (*found.plans, *found.refusals):
        assert one.title in text


def test_a_plan_of_version_1_still_loads():
    offers = make_offers(*[23] * 4, link_group="nv")
    found = plan(
        well_known_spec("gpt2"), Workload(batch=8), offers, objective="fastest"
    )
    for one in found.plans:
        if one.strategy in ("hybrid", "interleaved"):
            continue
        old = Plan.from_json(json.loads(json.dumps(as_version_1(one))))

        assert [s.stage for s in old.shards] == [s.stage for s in one.shards]
        assert [s.replica for s in old.shards] == [s.replica for s in one.shards]
        assert old.launch["rank_grid"] == one.launch["rank_grid"]
        assert old.launch["zero_stage"] == one.launch["zero_stage"]
        assert old.bounds == one.bounds
        assert old.nodes == one.nodes
        assert old.table()


def as_version_1(one):
    """The fields that Plans had before stages and replicas were numbered."""
    data = one.to_json()
    data["version"] = 1
    for name in (
        *("nodes", "bound_by", "quota_gpu_seconds", "disturbance", "troubled"),
        "wait_seconds",
    ):
        del data[name]
    for shard in data["shards"]:
        for name in (
            *("node", "stage", "replica", "tensor_rank", "chunks", "busy_seconds"),
        ):
            del shard[name]
    for name in (
        *("nodes", "offload", "offload_parameters", "weights", "tensor_degree"),
        *("pipeline_degree", "data_degree", "sequence_parallel", "virtual_stages"),
        "rank_grid",
    ):
        del data["launch"][name]
    if one.strategy not in ("ddp", "zero1", "zero2", "fsdp", "zero1_uneven"):
        del data["launch"]["zero_stage"]
    if one.strategy != "pipeline":
        del data["launch"]["microbatches"]
        del data["launch"]["schedule"]
    for name in ("offload", "offload_parameters", "target_length"):
        data["workload"].pop(name)
    return data


@given(
    st.lists(st.integers(1, 11), min_size=1, max_size=5, unique=True),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_each_piece_gets_a_layer_that_is_trained(inner, before, after):
    bounds = (0, *sorted(inner), 12)
    trained = [before <= layer < 12 - after for layer in range(12)]
    moved = with_trained_pieces(bounds, trained)

    spans = list(pairwise(moved))
    assert (moved[0], moved[-1], len(moved)) == (0, 12, len(bounds))
    assert all(first < last for first, last in spans)
    assert all(any(trained[first:last]) for first, last in spans)
    if all(any(trained[first:last]) for first, last in pairwise(bounds)):
        assert moved == bounds
    # A request without gradients is cut as it was.
    assert with_trained_pieces(bounds, [False] * 12) == bounds


def test_a_cut_of_adapters_has_a_block_in_every_piece():
    """Before, the last Gpu got the head alone, and the launch was refused."""
    rows = [
        {"name": "NVIDIA GeForce RTX 3090", "free_bytes": int(gb * 1e9)}
        for gb in (5, 2.5, 2.5, 2.5)
    ]
    found = plan(
        with_lora(well_known_spec("llama-3.2-1b"), rank=8),
        Workload(batch=4, sequence_length=256, precision="bf16"),
        offers_from_list(rows),
        limits=PlanLimits(strategies=("pipeline", "interleaved", "hybrid")),
    )

    assert {one.strategy for one in found.plans} >= {"pipeline", "interleaved"}
    assert all(why_not_adapters(one.launch["bounds"]) == "" for one in found.plans)


class TestTensor:
    def test_the_weights_stay_whole_if_more_gpus_hold_them(self):
        """70 B in bf16 fit on four cards of 48 GB, and on two of them in 4 bits."""
        offers = make_offers(*[47] * 4, total_gib=48)
        asked = Workload(task="infer", batch=8, sequence_length=4096, precision="bf16")

        found = plan(well_known_spec("llama-3.1-70b"), asked, offers)

        assert found.best is not None
        assert len(found.best.shards) == 4
        assert found.best.launch["weights"] == "full"
