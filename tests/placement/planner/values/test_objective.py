"""Each objective ranks its own Plan first. Ties follow the order of choice."""

from dataclasses import replace

import pytest

from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.errors import WorkloadInvalid
from placement.planner.values.objective import ranked
from placement.planner.values.workload import Workload
from tests.placement.planner.made import GIB, make_offer, make_offers

pytestmark = pytest.mark.pure

GPT2 = well_known_spec("gpt2")
WORK = Workload(batch=8, sequence_length=512)


def best(offers, objective, workload=WORK, **limits):
    return plan(
        GPT2, workload, offers, objective=objective, limits=PlanLimits(**limits)
    ).best


def test_the_fastest_plan_uses_more_gpus_than_the_recommended_one():
    offers = make_offers(23, 23, 23, 23, link_group="nv")

    assert len(best(offers, None, WORK.replace(sequence_length=256)).shards) == 2
    assert len(best(offers, "fastest").shards) == 4
    assert len(best(offers, "fewest").shards) == 1


def test_the_fastest_single_gpu_is_taken_for_speed_not_for_idleness():
    slow = make_offer(0, util_pct=0.0, peak_flops=35e12)
    fast = make_offer(1, util_pct=40.0, peak_flops=312e12)

    assert best([slow, fast], "fastest", max_gpus=1).shards[0].gpu_label == "lab-a:1"
    assert best([slow, fast], None, max_gpus=1).shards[0].gpu_label == "lab-a:0"


def test_the_cheapest_plan_takes_the_gpu_whose_step_costs_least():
    dear = make_offer(0, peak_flops=100e12, weight=10)
    cheap = make_offer(1, peak_flops=71e12, weight=3)
    found = best([dear, cheap], "cheapest")

    assert [shard.gpu_label for shard in found.shards] == ["lab-a:1"]
    assert found.quota_gpu_seconds == pytest.approx(3 * found.step_seconds)


def test_the_least_disturbing_plan_keeps_off_gpus_where_others_compute():
    shared = [
        make_offer(i, util_pct=5.0, compute_processes=1, link_group="nv")
        for i in range(2)
    ]
    idle = [make_offer(i, util_pct=0.0, peak_flops=20e12) for i in (2, 3)]
    found = plan(GPT2, WORK, [*shared, *idle], objective="least_disturbance").plans

    assert found[0].disturbance == 0
    assert any(one.disturbance == pytest.approx(2.1) for one in found)
    keys = [one.disturbance for one in found if one.fit == "comfortable"]
    assert keys == sorted(keys)


def test_the_soonest_plan_is_the_one_that_waits_least():
    offers = make_offers(23, 23)
    found = plan(GPT2, WORK, offers, objective="soonest")
    late = replace(found.plans[0], wait_seconds=60.0)

    assert all(one.wait_seconds == 0 for one in found.plans)
    assert found.wish == "soonest"
    from placement.planner.values.objective import rank_key

    assert rank_key(late, "soonest") > rank_key(found.plans[-1], "soonest")


def test_a_tight_plan_is_never_first_whatever_the_wish():
    need = best(make_offers(23), None, max_gpus=1).shards[0]
    between = (need.low_bytes + need.likely_bytes) / 2 / GIB
    fast_but_full = make_offer(0, free_gib=between, peak_flops=300e12)
    found = plan(
        GPT2,
        WORK,
        [fast_but_full, make_offer(1)],
        objective="fastest",
        limits=PlanLimits(
            accumulation=False, checkpointing=False, fused_optimizer=False
        ),
    )

    assert found.best.fit == "comfortable"


def test_a_gpu_in_trouble_comes_after_healthy_ones_and_the_plan_says_so():
    sick = make_offer(0, health=("row remap pending",), peak_flops=300e12)
    well = make_offer(1, util_pct=30.0)
    both = best([sick, well], None)
    alone = best([sick], None)

    assert both.shards[0].gpu_label == "lab-a:1"
    assert alone.troubled == 1
    assert any("row remap pending" in note for note in alone.notes)


def test_a_throttled_gpu_counts_with_the_clock_it_has_left():
    full = best([make_offer(0)], None)
    half = best([make_offer(0, speed_ratio=0.5)], None)

    assert half.step_seconds == pytest.approx(2 * full.step_seconds)


def test_only_the_strategies_asked_for_are_planned():
    found = plan(
        GPT2, WORK, make_offers(23, 23), limits=PlanLimits(strategies=("gpipe", "ddp"))
    )

    assert {one.strategy for one in found.plans} == {"gpipe", "ddp"}
    gpipe = next(one for one in found.plans if one.strategy == "gpipe")
    assert gpipe.launch["schedule"] == "gpipe"


def test_a_strategy_that_is_none_is_named():
    with pytest.raises(WorkloadInvalid, match="strategy"):
        plan(GPT2, WORK, make_offers(23), limits=PlanLimits(strategies=("magic",)))


def test_plans_that_hardly_differ_are_ordered_by_simplicity():
    """One fiftieth apart, wherever the products lie on a scale of tenths."""
    simple, sharded = (
        next(one for one in plans_of(name).plans if one.strategy == name)
        for name in ("single", "ddp")
    )
    for scale in (1.0, 1.02, 1.04, 1.06, 1.08):
        slower, faster = (
            replace(
                one,
                step_seconds=seconds * scale,
                quota_gpu_seconds=seconds * scale,
            )
            for one, seconds in ((simple, 1.01), (sharded, 1.0))
        )
        assert ranked([faster, slower])[0] == slower
        much_faster = replace(faster, step_seconds=0.9 * scale)
        assert ranked([slower, much_faster])[0] == much_faster


def plans_of(strategy):
    return plan(
        GPT2,
        WORK,
        make_offers(23, 23),
        limits=PlanLimits(strategies=(strategy,)),
    )
