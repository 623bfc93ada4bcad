"""The review: decisions from facts, and the nearest place."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.move_or_stay import regret_after, restart_cost_seconds
from placement.planner.search.plan_validation import validate
from placement.planner.search.planner import plan
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.workload import Workload
from placement.rules.nearest_place import moved_bytes, nearest_set, renamed
from placement.rules.rebalance_policy import (
    RebalanceAction,
    RebalancePolicy,
    RestartMode,
)
from placement.rules.rebalance_review import GpuTrouble, MoveSnapshot, decide_rebalance

pytestmark = pytest.mark.pure
GIB = 2**30
DO = RebalancePolicy(when_faster=RebalanceAction.DO, when_in_trouble=RebalanceAction.DO)
LOST = GpuTrouble(rule="lost", gpu_label="red:0", breaks=True)
SILENT = GpuTrouble(rule="no sample", gpu_label="red:0", breaks=True, unheard=True)
INTRUDER = GpuTrouble(rule="intruder", gpu_label="red:0", breaks=False)


def look(**changes):
    fields = {
        "rules": DO,
        "may_move": True,
        "restart": RestartMode.RESUMES,
        "step_seconds_now": 1.0,
        "step_seconds_new": 0.5,
        "places": "red:1",
        "steps_left": 1000,
        "window_seconds": 3600.0,
        "cost_seconds": 100.0,
        **changes,
    }
    return MoveSnapshot(**fields)


some_seconds = st.floats(0.001, 1e5)
looks = st.builds(
    MoveSnapshot,
    rules=st.builds(
        RebalancePolicy,
        when_faster=st.sampled_from(RebalanceAction),
        when_in_trouble=st.sampled_from(RebalanceAction),
    ),
    may_move=st.booleans(),
    restart=st.sampled_from(RestartMode),
    trouble=st.sampled_from([None, LOST, INTRUDER, SILENT]),
    step_seconds_now=st.one_of(st.none(), some_seconds),
    step_seconds_new=st.one_of(st.none(), some_seconds),
    steps_left=st.one_of(st.none(), st.integers(0, 10**9)),
    window_seconds=st.floats(-10, 1e6),
    cost_seconds=st.floats(0, 1e6),
    regret_seconds=st.floats(0, 1e6),
    elapsed_seconds=st.floats(0, 1e4),
    seconds_since_last_move=st.one_of(st.none(), st.floats(0, 1e6)),
    last_move_cost_seconds=st.floats(0, 1e5),
    dearer=st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(looks)
def test_every_look_is_explained_and_keeps_to_what_was_allowed(seen):
    verdict = decide_rebalance(seen)
    policy = seen.rules.when_in_trouble if seen.trouble else seen.rules.when_faster
    assert verdict.reason.endswith(".") and len(verdict.reason) < 600
    if policy is RebalanceAction.NEVER or seen.step_seconds_new is None:
        assert verdict.act is RebalanceAction.NEVER
    if verdict.act is RebalanceAction.DO:
        assert policy is RebalanceAction.DO
        assert seen.restart is not RestartMode.NOT and not seen.dearer
        assert seen.trouble or seen.may_move
        assert not (seen.trouble and seen.trouble.unheard)
    if verdict.act is not RebalanceAction.NEVER:
        assert seen.window_seconds > seen.cost_seconds


@settings(max_examples=100, deadline=None)
@given(looks, some_seconds)
def test_nothing_moves_when_no_place_is_faster_and_none_is_in_trouble(seen, step):
    same = replace(seen, trouble=None, step_seconds_now=step, step_seconds_new=step)
    assert decide_rebalance(same).act is RebalanceAction.NEVER


def test_a_move_must_save_more_than_its_cost_and_a_quarter():
    assert decide_rebalance(look(steps_left=250)).act is RebalanceAction.NEVER
    assert decide_rebalance(look(steps_left=251)).act is RebalanceAction.DO


def test_the_end_of_the_window_bounds_what_can_be_saved():
    assert decide_rebalance(look(window_seconds=200.0)).act is RebalanceAction.NEVER
    assert (
        decide_rebalance(look(window_seconds=200.0, cost_seconds=50.0)).act
        is RebalanceAction.DO
    )


def test_a_broken_gpu_is_left_whatever_it_costs_and_an_intruder_if_it_pays():
    dear = {"cost_seconds": 3000.0}
    assert decide_rebalance(look(trouble=LOST, **dear)).act is RebalanceAction.DO
    assert (
        decide_rebalance(look(trouble=INTRUDER, **dear)).act is RebalanceAction.PROPOSE
    )
    assert decide_rebalance(look(trouble=INTRUDER)).act is RebalanceAction.DO
    stuck = look(trouble=INTRUDER, step_seconds_now=None, **dear)
    assert decide_rebalance(stuck).act is RebalanceAction.DO


def test_regret_grows_while_a_better_place_is_there_and_then_is_forgotten():
    grown = regret_after(
        10, elapsed_seconds=60, step_seconds_now=2.0, step_seconds_new=1.5
    )
    assert grown == 25
    assert not regret_after(
        grown, elapsed_seconds=60, step_seconds_now=2.0, step_seconds_new=2.0
    )


def test_starting_again_from_the_beginning_costs_what_was_done():
    fields = {"pause_seconds": 30, "steps_done": 400, "step_seconds_new": 0.5}
    assert restart_cost_seconds(**fields, from_start=True) == 230
    resumed = restart_cost_seconds(
        **fields, from_start=False, bytes_moved=20e9, bytes_per_second=1e9
    )
    assert resumed == 50


# --- which of equal places -----------------------------------------------------------


def offers_of(rows):
    return {
        f"GPU-{index}": GpuOffer(
            uuid=f"GPU-{index}",
            node="red",
            index=index,
            name="A100",
            gpu_class="a100" if fast else "old",
            memory_total_bytes=80 * GIB,
            used_bytes=used * GIB,
            free_bytes=(80 - used) * GIB,
            peak_flops=312e12 if fast else 70e12,
            compute_processes=busy,
            util_pct=50.0 * busy,
        )
        for index, (used, fast, busy) in enumerate(rows)
    }


cards = st.lists(
    st.tuples(st.integers(0, 30), st.booleans(), st.integers(0, 1)),
    min_size=2,
    max_size=6,
)
SPEC, WORK = well_known_spec("gpt2"), Workload(batch=16)


def fastest(offers, strategy, count):
    found = plan(
        SPEC,
        WORK,
        list(offers.values()),
        max_gpus=count,
        objective="fastest",
        limits=PlanLimits(strategies=(strategy,)),
    )
    return [one for one in found.plans if len(one.shards) == count]


@settings(max_examples=25, deadline=None)
@given(cards, st.sampled_from([("single", 1), ("ddp", 2)]), st.integers(0, 10**6))
def test_planning_again_with_nothing_changed_stays_where_it_is(rows, kind, seed):
    offers = offers_of(rows)
    first = fastest(offers, *kind)
    if not first:
        return
    again = fastest(offers, *kind)[0]
    near = nearest_set(again.gpu_uuids, first[0].gpu_uuids, offers)
    assert set(near) == set(first[0].gpu_uuids)
    assert again.step_seconds == first[0].step_seconds


@settings(max_examples=25, deadline=None)
@given(cards, st.permutations(range(6)))
def test_of_equal_gpus_those_that_are_held_are_taken(rows, order):
    offers = offers_of([(5, True, 0)] * len(rows))
    held = [f"GPU-{index}" for index in order if index < len(rows)][:2]
    best = fastest(offers, "ddp", 2)[0]
    assert set(nearest_set(best.gpu_uuids, held, offers)) == set(held)


def test_a_better_gpu_is_not_given_up_for_one_that_is_held():
    offers = offers_of([(5, False, 0), (5, True, 0), (70, True, 0), (5, True, 1)])
    for held in ("GPU-0", "GPU-2", "GPU-3"):
        assert nearest_set(["GPU-1"], [held], offers) == ("GPU-1",)


def test_stages_go_where_their_layers_are_already():
    offers = offers_of([(5, True, 0)] * 3)
    best = fastest(offers, "pipeline", 3)[0]
    held = replace(
        best,
        shards=tuple(
            replace(shard, gpu_uuid=other.gpu_uuid)
            for shard, other in zip(
                best.shards, best.shards[1:] + best.shards[:1], strict=True
            )
        ),
    )
    assert moved_bytes(best, held) > 0
    near = renamed(best, held, offers)
    assert near.gpu_uuids == held.gpu_uuids
    assert moved_bytes(near, held) == 0
    validate(near, list(offers.values()))


def test_a_job_that_shares_its_reservation_is_not_moved_over_the_others():
    assert decide_rebalance(look(companions=0)).act is RebalanceAction.DO
    stays = decide_rebalance(look(companions=2))
    assert stays.act is RebalanceAction.NEVER
    assert "2 other jobs of the same reservation would end" in stays.reason
    asked = decide_rebalance(look(companions=1, trouble=LOST))
    assert asked.act is RebalanceAction.PROPOSE
    assert "it would end 1 other job of the reservation" in asked.reason
