"""The validator finds every broken promise; it shares no code with the planner."""

from dataclasses import replace

import pytest

from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.plan_validation import plan_problems, validate
from placement.planner.search.planner import plan
from placement.planner.values.errors import PlanInvalid
from placement.planner.values.workload import Workload
from tests.placement.planner.made import make_offers

pytestmark = pytest.mark.pure

OFFERS = make_offers(23, 23, 23)
FAST = make_offers(*[23] * 4, link_group="nv")


@pytest.fixture(scope="module")
def plans():
    limits = PlanLimits(beaten_too=True)
    made = plan(well_known_spec("gpt2"), Workload(batch=8), OFFERS, limits=limits)
    return {one.strategy: one for one in reversed(made.plans)}


def with_shard(one, rank, **changes):
    shards = list(one.shards)
    shards[rank] = replace(shards[rank], **changes)
    return replace(one, shards=tuple(shards))


def test_good_plans_have_no_problems(plans):
    for one in plans.values():
        validate(one, OFFERS)


def test_two_ranks_on_a_gpu_are_found(plans):
    broken = with_shard(plans["ddp"], 1, gpu_uuid=plans["ddp"].shards[0].gpu_uuid)

    assert any("two ranks" in p for p in plan_problems(broken, OFFERS))


def test_a_gpu_over_its_memory_is_found(plans):
    fuller = [replace(o, free_bytes=2**28, used_bytes=0) for o in OFFERS]

    assert any("lacks" in p for p in plan_problems(plans["single"], fuller))


def test_a_gpu_that_was_booked_since_is_found(plans):
    gone = [replace(o, bookable=False, reason="booked at 9:00") for o in OFFERS]

    with pytest.raises(PlanInvalid, match="booked at 9:00"):
        validate(plans["single"], gone)


def test_a_gpu_that_is_not_offered_is_found(plans):
    assert plan_problems(plans["single"], [])


@pytest.mark.parametrize(
    "changes", [{"last_layer": 1}, {"first_layer": 1}, {"last_layer": 99}]
)
def test_a_layer_missing_or_twice_is_found(plans, changes):
    assert plan_problems(with_shard(plans["pipeline"], 0, **changes), OFFERS)


def test_components_that_do_not_add_up_are_found(plans):
    broken = with_shard(plans["single"], 0, components={"parameters": 1})

    assert any("add up" in p for p in plan_problems(broken, OFFERS))


def test_a_launch_of_other_ranks_is_found(plans):
    broken = replace(plans["ddp"], launch={**plans["ddp"].launch, "nproc": 7})

    assert any("processes" in p for p in plan_problems(broken, OFFERS))


def test_another_pipeline_than_shown_is_found(plans):
    staged = plans["pipeline"]
    broken = replace(staged, launch={**staged.launch, "bounds": [0, 1, 14]})

    assert any("other stages" in p for p in plan_problems(broken, OFFERS))


def test_shares_that_are_not_a_whole_are_found(plans):
    uneven = replace(plans["zero1"], strategy="zero1_uneven")
    halves = with_shard(with_shard(uneven, 0, share_ratio=0.9), 1, share_ratio=0.3)

    assert any("share" in p for p in plan_problems(uneven, OFFERS))
    assert any("1.2" in p for p in plan_problems(halves, OFFERS))


def test_a_plan_without_ranks_is_found(plans):
    assert plan_problems(replace(plans["ddp"], shards=()), OFFERS)


@pytest.fixture(scope="module")
def mixed():
    limits = PlanLimits(strategies=("hybrid", "interleaved", "tensor", "gpipe"))
    made = plan(well_known_spec("gpt2"), Workload(batch=8), FAST, limits=limits)
    return {one.strategy: one for one in made.plans}


def launched(one, **changes):
    return replace(one, launch={**one.launch, **changes})


def test_good_plans_of_every_kind_have_no_problems(mixed):
    assert set(mixed) == {"hybrid", "interleaved", "tensor", "gpipe"}
    for one in mixed.values():
        validate(one, FAST, well_known_spec("gpt2"))


@pytest.mark.parametrize(
    ("strategy", "changes", "words"),
    [
        ("hybrid", {"tensor_degree": 3}, "are not 4 ranks"),
        ("hybrid", {"zero_stage": 7}, "ZeRO"),
        ("hybrid", {"rank_grid": []}, "grid"),
        ("hybrid", {"gpu_uuids": []}, "other GPUs"),
        ("tensor", {"zero_stage": 1}, "ZeRO stage 1"),
        ("gpipe", {"schedule": "1f1b"}, "not the schedule of gpipe"),
        ("interleaved", {"virtual_stages": 3}, "pieces of the model"),
        ("interleaved", {"microbatches": 7}, "evenly"),
        ("gpipe", {"microbatch": 100}, "would do for 8"),
        ("gpipe", {"microbatch": 0}, "fewer than 8"),
    ],
)
def test_a_launch_that_contradicts_the_plan_is_found(mixed, strategy, changes, words):
    problems = plan_problems(launched(mixed[strategy], **changes), FAST)

    assert any(words in problem for problem in problems), problems


def test_ranks_that_swap_their_seats_are_found(mixed):
    broken = with_shard(mixed["hybrid"], 0, replica=1)

    assert any("do not sit" in p for p in plan_problems(broken, FAST))


def test_a_cut_layer_without_fast_links_is_found(mixed):
    slow = [replace(offer, link_group="") for offer in FAST]

    assert any("no fast link" in p for p in plan_problems(mixed["tensor"], slow))


def test_fast_links_told_pair_by_pair_are_links_too(mixed):
    ring = [
        replace(
            offer, link_group="", links=((FAST[(i + 1) % len(FAST)].uuid, "nvlink"),)
        )
        for i, offer in enumerate(FAST)
    ]

    assert plan_problems(mixed["tensor"], ring) == []


def test_times_that_do_not_add_up_are_found(mixed):
    broken = replace(mixed["tensor"], step_seconds=1e6)
    negative = replace(mixed["tensor"], bubble_seconds=-1.0)

    assert any("not the step's time" in p for p in plan_problems(broken, FAST))
    assert any("negative" in p for p in plan_problems(negative, FAST))


def test_a_quota_that_is_not_its_gpus_is_found(mixed):
    broken = replace(mixed["tensor"], quota_gpu_seconds=0.0)

    assert any("quota" in p for p in plan_problems(broken, FAST))


def test_a_plan_for_another_model_is_found(mixed):
    other = well_known_spec("gpt2-medium")

    assert len(plan_problems(mixed["tensor"], FAST, other)) == 2


def test_a_gpu_of_another_node_than_told_is_found(mixed):
    moved = replace(mixed["tensor"], nodes=("lab-z",))

    assert any("is not on lab-z" in p for p in plan_problems(moved, FAST))
