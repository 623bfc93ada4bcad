"""The validator finds every broken promise; it shares no code with the planner."""

from dataclasses import replace

import pytest

from placement.domain.errors import PlanInvalid
from placement.domain.planner import plan
from placement.domain.validate import plan_problems, validate
from placement.domain.well_known import well_known_spec
from placement.domain.workload import Workload
from tests.placement.domain.made import make_offers

pytestmark = pytest.mark.pure

OFFERS = make_offers(23, 23, 23)


@pytest.fixture(scope="module")
def plans():
    made = plan(well_known_spec("gpt2"), Workload(batch=8), OFFERS)
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
