"""The registry of strategies, written again by hand.

Planner and validation both read the registry, so an error in it would agree with
itself. These tables repeat the literature and the launchers.
"""

import pytest

from placement.planner.launch.execution import RUNNABLE_STRATEGIES
from placement.planner.launch.recipes import WITHOUT_PLAN
from placement.planner.search.candidates.cluster_grid import GRIDS
from placement.planner.search.planner import SEARCHES
from placement.planner.values.strategies import (
    RANK_STRATEGIES,
    STRATEGIES,
    TITLES,
    Axis,
    search_order,
    strategy_of,
)

PLANNED = [one for one in STRATEGIES.values() if one.is_planned]


def keys(wanted):
    """Return the keys of the planned strategies for which a condition is true."""
    return [one.key for one in PLANNED if wanted(one)]


def test_a_plan_has_one_of_fourteen_strategies():
    assert list(TITLES) == [
        *("single", "ddp", "zero1", "zero1_uneven", "zero2", "fsdp", "hsdp"),
        *("pipeline", "gpipe", "interleaved", "tensor", "hybrid"),
        *("context_parallel", "expert_parallel"),
    ]


def test_a_rank_is_estimated_by_one_of_eleven():
    assert list(RANK_STRATEGIES) == [
        *("single", "ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"),
        *("pipeline", "gpipe", "tensor", "hybrid"),
    ]


def test_zero_stages_are_those_of_the_paper():
    stages = {one.key: one.zero_stage for one in STRATEGIES.values() if one.zero_stage}
    assert stages == {
        **{"zero1": 1, "zero1_uneven": 1, "zero2": 2},
        **{"zero3": 3, "fsdp": 3, "hsdp": 3},
    }
    assert STRATEGIES["hybrid"].zero_stage is None


def test_ranks_differ_by_stage_copy_or_part_of_a_layer():
    assert keys(lambda one: one.axis is Axis.NONE) == ["single"]
    assert keys(lambda one: one.axis is Axis.REPLICA) == [
        *("ddp", "zero1", "zero1_uneven", "zero2", "fsdp", "hsdp")
    ]
    assert keys(lambda one: one.axis is Axis.STAGE) == [
        *("pipeline", "gpipe", "interleaved")
    ]
    assert keys(lambda one: one.axis is Axis.TENSOR) == ["tensor"]
    assert keys(lambda one: one.axis is Axis.SEVERAL) == [
        *("hybrid", "context_parallel", "expert_parallel")
    ]
    schedules = {one.key: one.schedule for one in PLANNED if one.schedule}
    assert schedules == {
        "pipeline": "1f1b",
        "gpipe": "gpipe",
        "interleaved": "interleaved",
    }


@pytest.mark.parametrize(
    ("fast_links", "order"),
    [
        (
            False,
            "single ddp zero1 zero1_uneven pipeline interleaved gpipe zero2 fsdp "
            "hsdp tensor hybrid expert_parallel context_parallel",
        ),
        (
            True,
            "single ddp zero1 zero1_uneven zero2 fsdp hsdp tensor pipeline "
            "interleaved gpipe hybrid expert_parallel context_parallel",
        ),
    ],
)
def test_a_pipeline_comes_before_fsdp_where_links_are_slow(fast_links, order):
    ranked = sorted(PLANNED, key=lambda one: one.place(fast_links=fast_links))
    assert [one.key for one in ranked] == order.split()
    assert len({one.place(fast_links=fast_links) for one in PLANNED}) == len(PLANNED)


def test_every_strategy_of_a_plan_is_searched():
    assert {one.key for one in SEARCHES} == set(search_order())
    assert {one.key for one in (*SEARCHES, *GRIDS)} == set(TITLES)
    assert search_order()[-1] == "gpipe"
    assert search_order(across_nodes=True) == (
        *("ddp", "zero1", "pipeline", "hybrid", "gpipe"),
    )


def test_launchers_and_libraries_run_what_they_can():
    assert keys(lambda one: "deepspeed" in one.launchers) == [
        *("single", "ddp", "zero1", "zero2", "fsdp", "pipeline", "gpipe")
    ]
    assert keys(lambda one: "accelerate" in one.launchers) == [
        *("single", "ddp", "zero1", "zero2", "fsdp")
    ]
    assert keys(lambda one: "device_map" in one.launchers) == [
        *("single", "pipeline", "gpipe")
    ]
    assert keys(lambda one: "deepspeed" in one.backends) == [
        *("zero1", "zero2", "fsdp", "pipeline")
    ]
    unlike = {"context_parallel", "expert_parallel"}
    assert set(TITLES) - unlike == set(RUNNABLE_STRATEGIES)
    assert WITHOUT_PLAN == ("single", "ddp")


def test_only_deepspeeds_strategies_are_planned_for_its_buffers():
    made_for = [one.key for one in STRATEGIES.values() if one.engine == "deepspeed"]
    assert made_for == ["zero2", "zero3"]


def test_an_unknown_strategy_of_a_stored_plan_is_run_by_nothing():
    unknown = strategy_of("teleport")
    assert unknown.key == "teleport"
    assert not unknown.is_planned
    assert not unknown.launchers
    assert not unknown.backends
