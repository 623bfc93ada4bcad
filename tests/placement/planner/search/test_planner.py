"""Plans: ranked, within memory, with reasons; refusals that help."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.model.families.config_json import parse_config
from placement.planner.model.files.tensor_inventory import (
    TensorInfo,
    spec_from_inventory,
)
from placement.planner.model.well_known import well_known_spec
from placement.planner.search import gpu_selection
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.plan_validation import plan_problems
from placement.planner.search.planner import plan
from placement.planner.values.errors import OffersInvalid, PlanInvalid
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from tests.placement.planner.made import GIB, make_offer, make_offers, tiny

pytestmark = pytest.mark.pure

NOTHING = PlanLimits(
    fused_optimizer=False,
    accumulation=False,
    checkpointing=False,
    small_optimizer=False,
    offload=False,
)


def strategies(plans):
    return [one.strategy for one in plans.plans]


def refused(plans, strategy):
    return next(one for one in plans.refusals if one.strategy == strategy)


def test_among_equal_gpus_those_come_first_that_nobody_computes_on():
    used, *clean = [
        make_offer(index, compute_processes=int(index == 0)) for index in range(3)
    ]
    assert gpu_selection.fastest([used, *clean], 2) == tuple(clean)
    assert gpu_selection.least_utilized([used, *clean], 1) == clean[0]
    assert gpu_selection.fastest([used, *clean], 3) == (used, *clean)


def test_a_model_that_fits_one_gpu_gets_the_least_utilized_one():
    offers = [
        make_offer(0, util_pct=60.0),
        make_offer(1, util_pct=3.0),
        make_offer(2, util_pct=90.0),
    ]
    best = plan(tiny(), Workload(), offers).best

    assert best.strategy == "single"
    assert [shard.gpu_label for shard in best.shards] == ["lab-a:1"]


def test_a_gpu_with_a_process_on_it_comes_after_clean_ones():
    offers = [
        make_offer(0, util_pct=2.0, compute_processes=1),
        make_offer(1, util_pct=40.0, compute_processes=1),
        make_offer(2, util_pct=60.0),
        make_offer(3, util_pct=60.0),
    ]
    found = plan(tiny(), Workload(batch=8), offers)

    assert [shard.gpu_label for shard in found.best.shards] == ["lab-a:2"]
    clean = [one.disturbance == 0 for one in found.plans]
    assert clean == sorted(clean, reverse=True)
    alone = plan(tiny(), Workload(), offers[:1]).best
    assert alone.shards[0].gpu_label == "lab-a:0"
    assert "Other processes use lab-a:0 now." in alone.why


def test_memory_that_others_use_is_never_counted():
    full = make_offer(0, total_gib=80, free_gib=1)
    small = make_offer(1, total_gib=24, free_gib=23)
    workload = Workload(batch=8, sequence_length=512)

    made = plan(well_known_spec("gpt2"), workload, [full, small])

    assert [s.gpu_label for s in made.best.shards] == ["lab-a:1"]


def test_gpus_booked_by_others_are_left_out_with_their_reason():
    booked = make_offer(0, bookable=False, reason="booked by another group")
    made = plan(tiny(), Workload(), [booked, make_offer(1)])

    assert [left.reason for left in made.left_out] == ["booked by another group"]
    assert all("GPU-lab-a-0" not in one.gpu_uuids for one in made.plans)


def test_without_a_usable_gpu_the_answer_says_so():
    made = plan(tiny(), Workload(), [make_offer(0, bookable=False, reason="lost")])

    assert made.best is None
    assert "No GPU can be used" in made.refusals[0].reason


def test_every_strategy_is_planned_or_refused():
    made = plan(
        well_known_spec("llama-3.2-1b"),
        Workload(batch=16, sequence_length=1024),
        make_offers(23, 23, 20, 12),
    )

    told = set(strategies(made)) | {one.strategy for one in made.refusals}
    assert told >= {
        "single",
        "ddp",
        "zero1",
        "zero1_uneven",
        "zero2",
        "fsdp",
        "pipeline",
        "tensor",
        "gpipe",
    }


def test_a_model_too_large_for_one_gpu_is_cut_into_stages_or_shared_out():
    made = plan(
        well_known_spec("llama-3-8b"),
        Workload(batch=16, sequence_length=1024),
        make_offers(*[23] * 8),
    )

    assert made.best.strategy in ("pipeline", "fsdp")
    alone = [one for one in made.plans if one.strategy == "single"]
    assert all(one.workload.offload == "cpu" for one in alone)


def test_a_refusal_names_the_gpu_the_missing_bytes_and_a_change_that_fits():
    made = plan(
        well_known_spec("llama-3-8b"),
        Workload(batch=1, sequence_length=512),
        make_offers(12, 10),
        limits=NOTHING,
    )
    no = refused(made, "single")

    assert no.code == "too-small"
    assert no.gpu_label == "lab-a:0"
    assert no.missing_bytes > 80 * GIB
    assert no.cheapest_change


def test_the_cheapest_change_of_a_refusal_really_fits():
    offers = make_offers(7)
    asked = Workload(batch=1, sequence_length=16384, precision="bf16", optimizer="sgd")
    spec = well_known_spec("llama-3.2-1b")
    no = refused(plan(spec, asked, offers), "single")

    assert no.cheapest_change.startswith("a sequence length of ")
    length = int(no.cheapest_change.split()[4])
    assert plan(spec, asked.replace(sequence_length=length), offers).best is not None


def test_accumulation_comes_before_recomputation():
    spec = well_known_spec("gpt2")
    asked = Workload(batch=16, sequence_length=1024, precision="fp32")
    best = plan(spec, asked, make_offers(14)).best

    assert best.workload.accumulation > 1
    assert best.workload.checkpointing == "none"
    assert "accumulation" in best.remedies[0]


def test_offload_is_the_last_remedy():
    spec, asked = well_known_spec("gpt2-medium"), Workload(batch=1, sequence_length=64)
    offers = make_offers(5)

    small = plan(spec, asked, offers).best
    offloaded = plan(spec, asked, offers, limits=PlanLimits(small_optimizer=False)).best
    neither = PlanLimits(small_optimizer=False, offload=False)

    assert small.workload.optimizer == "adam8bit"
    assert not small.launch["offload_optimizer"]
    assert offloaded.launch["offload_optimizer"]
    assert plan(spec, asked, offers, limits=neither).best is None


def test_no_remedy_is_applied_in_vain():
    spec, asked = well_known_spec("gpt2-medium"), Workload(batch=1, sequence_length=64)
    best = plan(spec, asked, make_offers(5)).best

    assert best.workload.checkpointing == "none"


def test_the_fused_optimizer_is_the_first_remedy():
    spec, asked = well_known_spec("gpt2-medium"), Workload(batch=1, sequence_length=64)
    best = plan(spec, asked, make_offers(7)).best

    assert best.launch["optimizer_loop"] == "fused"
    assert len(best.remedies) == 1


def test_unequally_full_gpus_get_unequal_shares_of_the_optimizer():
    made = plan(
        well_known_spec("gpt2-medium"),
        Workload(batch=2, sequence_length=64, precision="fp32", optimizer_loop="fused"),
        make_offers(6.6, 4.3),
        limits=replace(NOTHING, beaten_too=True),
    )
    uneven = next(one for one in made.plans if one.strategy == "zero1_uneven")

    shares = [shard.share_ratio for shard in uneven.shards]
    assert shares[0] > shares[1]
    assert sum(shares) == pytest.approx(1)
    assert uneven.launch["shares"] == shares


def test_pipeline_bounds_are_what_is_launched():
    made = plan(
        well_known_spec("llama-3-8b"),
        Workload(batch=16, sequence_length=512),
        make_offers(*[23] * 8),
        limits=PlanLimits(strategies=("pipeline",)),
    )
    staged = next(one for one in made.plans if one.strategy == "pipeline")

    assert staged.launch["bounds"] == list(staged.bounds)
    assert staged.bounds[0] == 0
    assert staged.bounds[-1] == 34


def test_tensor_parallelism_needs_fast_links():
    spec, workload = well_known_spec("llama-3-8b"), Workload(batch=4)
    slow = plan(spec, workload, make_offers(*[79] * 4, total_gib=80))
    fast = plan(
        spec, Workload(batch=16), make_offers(*[79] * 4, total_gib=80, link_group="nv")
    )

    assert "fast links" in refused(slow, "tensor").reason
    assert refused(fast, "tensor").code == "not-better"


def test_tensor_parallelism_needs_heads_that_divide():
    spec = parse_config(
        {
            "model_type": "llama",
            "hidden_size": 960,
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "num_hidden_layers": 2,
        }
    )
    made = plan(spec, Workload(batch=4), make_offers(23, 23, link_group="nv"))

    assert "15 heads" in refused(made, "tensor").reason


def test_gpipe_loses_to_1f1b_with_its_reason():
    made = plan(
        well_known_spec("llama-3-8b"),
        Workload(batch=16, sequence_length=1024),
        make_offers(*[23] * 8),
    )

    assert "keeps" in refused(made, "gpipe").reason


def test_max_gpus_is_obeyed():
    made = plan(tiny(), Workload(batch=64), make_offers(*[23] * 8), max_gpus=3)

    assert max(len(one.shards) for one in made.plans) <= 3


def test_no_plan_spans_two_nodes():
    offers = [
        make_offer(index, node=node, uuid=f"{node}{index}")
        for node in ("a", "b")
        for index in range(2)
    ]
    made = plan(well_known_spec("gpt2"), Workload(batch=8), offers)

    for one in made.plans:
        assert len({shard.gpu_label.split(":")[0] for shard in one.shards}) == 1


def test_inference_shares_no_optimizer():
    made = plan(
        well_known_spec("mistral-7b"),
        Workload(task="infer", batch=1, precision="bf16"),
        make_offers(12, 12),
    )

    assert strategies(made) == ["tensor", "single"]
    assert made.plans[1].launch["weights"] == "int8"
    assert refused(made, "pipeline").code == "not-better"
    assert "Inference" in refused(made, "fsdp").reason


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([6, 9, 12, 16, 23]), min_size=2, max_size=5),
    st.sampled_from(["llama-3.2-1b", "qwen2-0.5b", "gpt2-medium"]),
    st.sampled_from(["fp32", "bf16", "autocast_bf16", "mixed_fp16"]),
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from(["foreach", "forloop", "fused"]),
    st.integers(1, 12),
)
def test_finished_stages_need_no_more_than_the_search_allowed(
    cards, name, precision, checkpointing, loop, batch
):
    """The planner validates its Plans: a stage over its memory would raise."""
    workload = Workload(
        batch=batch,
        sequence_length=512,
        precision=precision,
        checkpointing=checkpointing,
        optimizer_loop=loop,
    )
    plan(well_known_spec(name), workload, make_offers(*cards))


def test_a_tight_plan_says_so_and_ranks_last():
    spec = well_known_spec("gpt2")
    asked = Workload(batch=1, sequence_length=64, precision="fp32")
    need = plan(spec, asked, make_offers(20), limits=NOTHING).best.shards[0]
    between = (need.low_bytes + need.likely_bytes) / 2 / GIB
    made = plan(spec, asked, make_offers(between), limits=NOTHING)

    assert made.best.fit == "tight"
    assert any("Tight" in note for note in made.best.notes)


def test_guessed_activations_are_never_hidden():
    tensors = [TensorInfo(f"h.{i}.w", (512, 512), "fp32") for i in range(4)]
    spec = spec_from_inventory(tensors, name="m", source="safetensors")
    made = plan(spec, Workload(), make_offers(20, 20))

    assert all(one.activations_are_a_guess for one in made.plans)
    assert any("guess" in note for note in made.notes)


def test_the_same_gpu_offered_twice_is_refused():
    with pytest.raises(OffersInvalid):
        plan(tiny(), Workload(), [make_offer(0), make_offer(0)])


def test_a_plan_survives_json_and_prints():
    made = plan(well_known_spec("gpt2"), Workload(batch=8), make_offers(23, 20, 12))
    for one in made.plans:
        assert Plan.from_json(json.loads(json.dumps(one.to_json()))) == one
        assert "lab-a:" in one.table()
    json.dumps(made.to_json())


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("shards"),
        lambda data: data.update(version=9),
        lambda data: data["shards"][0].pop("low_bytes"),
        lambda data: data.update(shards=3),
    ],
)
def test_a_broken_stored_plan_is_refused(change):
    made = plan(tiny(), Workload(), make_offers(20)).best
    data = json.loads(json.dumps(made.to_json()))
    change(data)

    with pytest.raises(PlanInvalid):
        Plan.from_json(data)


free_gib = st.sampled_from([0.3, 0.9, 1.5, 2, 3, 5, 8, 12, 23])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(free_gib, st.booleans()), min_size=1, max_size=5),
    st.sampled_from(["tiny-gpt", "gpt2", "bert-base", "vit-base", "qwen2-0.5b"]),
    st.builds(
        Workload,
        task=st.sampled_from(["train", "train", "infer"]),
        batch=st.integers(1, 9),
        sequence_length=st.sampled_from([64, 256]),
        precision=st.sampled_from(["fp32", "bf16", "autocast_bf16", "mixed_fp16"]),
        optimizer=st.sampled_from(["sgd", "adamw", "adafactor"]),
        optimizer_loop=st.sampled_from(["foreach", "forloop"]),
    ),
    st.sampled_from(["", "nv"]),
)
def test_all_plans_keep_their_promises(cards, name, workload, link_group):
    offers = [
        make_offer(index, free_gib=free, bookable=bookable, link_group=link_group)
        for index, (free, bookable) in enumerate(cards)
    ]
    made = plan(well_known_spec(name), workload, offers)

    for one in made.plans:
        assert plan_problems(one, offers) == []
        for shard in one.shards:
            offer = offers[int(shard.gpu_label.split(":")[1])]
            assert offer.bookable
            assert shard.low_bytes <= offer.free_bytes
    for no in made.refusals:
        assert no.reason
        if no.code == "too-small" and no.strategy != "gpipe":
            assert no.missing_bytes > 0
            assert no.gpu_label
            assert no.cheapest_change


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(4)))
def test_the_order_of_offers_does_not_matter(order):
    offers = make_offers(23, 20, 12, 6)
    spec, workload = well_known_spec("gpt2"), Workload(batch=8)
    expected = plan(spec, workload, offers).plans

    assert plan(spec, workload, [offers[i] for i in order]).plans == expected
