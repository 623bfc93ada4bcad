"""The first Window in which enough suitable Gpus are free together."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.workload import Workload
from placement.plans.earliest_start import (
    Candidate,
    RankRequirement,
    first_start,
    match,
    needs_of,
)
from reservations.rules.calendar import BusySpan, Calendar, CalendarGpu, SlotSearch
from tests.placement.planner.made import GIB, make_offers

pytestmark = pytest.mark.pure

NOON = datetime(2030, 5, 1, 12, tzinfo=UTC)
HOUR = 3600


def candidate(pk, *, node="lab-a", gib=24, flops=71e12, group=""):
    gpu = CalendarGpu(pk, node, pk, "rtx3090", gib * GIB, 1)
    return Candidate(gpu, f"GPU-{pk}", flops, group)


def need(pk=0, *, gib=20, flops=71e12, team=-1):
    return RankRequirement(gib * GIB, flops, team, f"GPU-{pk}")


def search(**changes):
    fields = {
        "earliest": NOON,
        "latest": NOON + timedelta(days=7),
        "grid_seconds": 900,
        "longest_seconds": 14 * 86_400,
    }
    return SlotSearch(**{**fields, **changes})


def busy(pk, start_hours, end_hours):
    begin = int(NOON.timestamp())
    return BusySpan(pk, begin + start_hours * HOUR, begin + end_hours * HOUR)


def start_of(candidates, needs, spans=(), hours=4, nodes=1, **where):
    calendar = Calendar([one.gpu for one in candidates], spans)
    return first_start(
        calendar,
        candidates,
        needs,
        search(**where),
        duration_seconds=hours * HOUR,
        nodes=nodes,
    )


def test_free_gpus_start_at_once_and_are_the_plans_own():
    found = start_of([candidate(0), candidate(1)], [need(0), need(1)])

    assert found.window.start == NOON
    assert found.same


def test_the_first_start_is_when_the_last_of_them_comes_free():
    found = start_of(
        [candidate(0), candidate(1)],
        [need(0), need(1)],
        [busy(0, 0, 3), busy(1, 0, 5)],
    )

    assert found.window.start == NOON + timedelta(hours=5)
    assert found.window.end == NOON + timedelta(hours=9)


def test_a_gap_that_is_too_short_is_passed_over():
    found = start_of([candidate(0)], [need(0)], [busy(0, 2, 6)], hours=4)

    assert found.window.start == NOON + timedelta(hours=6)


def test_other_gpus_do_where_the_plans_own_are_taken():
    found = start_of([candidate(0), candidate(1)], [need(0)], [busy(0, 0, 9)])

    assert [one.uuid for one in found.gpus] == ["GPU-1"]
    assert found.window.start == NOON
    assert not found.same


@pytest.mark.parametrize(
    "other",
    [candidate(1, gib=16), candidate(1, flops=35e12)],
    ids=["too small", "too slow"],
)
def test_a_gpu_that_does_not_suit_is_not_taken(other):
    found = start_of([candidate(0), other], [need(0)], [busy(0, 0, 9)])

    assert [one.uuid for one in found.gpus] == ["GPU-0"]


def test_ranks_sit_on_one_node_unless_the_plan_spans_several():
    apart = [candidate(0, node="lab-a"), candidate(1, node="lab-b")]

    assert start_of(apart, [need(0), need(1)]) is None
    assert start_of(apart, [need(0), need(1)], nodes=2).same


def test_ranks_that_cut_one_layer_get_gpus_of_one_group_of_links():
    gpus = [
        candidate(0, group="x"),
        candidate(1, group="y"),
        candidate(2, group="y"),
    ]
    found = start_of(gpus, [need(0, team=0), need(1, team=0)])

    assert {one.uuid for one in found.gpus} == {"GPU-1", "GPU-2"}
    loose = [candidate(0), candidate(1)]
    assert start_of(loose, [need(0, team=0), need(1, team=0)]) is None


def test_a_gpu_that_another_rank_needs_more_is_left_to_it():
    large, small = candidate(0, gib=80), candidate(1, gib=24)
    found = match([large, small], [need(0, gib=20), need(1, gib=70)])

    assert [one.uuid for one in found] == ["GPU-1", "GPU-0"]


def test_beyond_the_horizon_there_is_no_start():
    found = start_of(
        [candidate(0)],
        [need(0)],
        [busy(0, 0, 400)],
        latest=NOON + timedelta(days=7),
    )

    assert found is None


def test_the_needs_of_a_plan_name_its_gpus_and_teams():
    offers = make_offers(23, 23, link_group="nv")
    limits = PlanLimits(strategies=("ddp", "tensor"))
    found = plan(well_known_spec("gpt2"), Workload(batch=4), offers, limits=limits)
    speeds = {offer.uuid: offer.peak_flops for offer in offers}
    by_name = {one.strategy: needs_of(one, speeds) for one in found.plans}

    assert [one.team for one in by_name["ddp"]] == [-1, -1]
    assert {one.team for one in by_name["tensor"]} == {0}
    assert by_name["ddp"][0].memory_bytes > GIB


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([16, 24, 48]), st.integers(0, 6), st.integers(1, 6)),
        min_size=1,
        max_size=5,
    ),
    st.lists(st.sampled_from([10, 20, 40]), min_size=1, max_size=3),
)
def test_no_earlier_start_on_the_grid_would_do(gpus, rooms):
    candidates = [candidate(pk, gib=gib) for pk, (gib, _, _) in enumerate(gpus)]
    spans = [busy(pk, at, at + for_) for pk, (_, at, for_) in enumerate(gpus)]
    needs = [need(rank, gib=gib) for rank, gib in enumerate(rooms)]
    found = start_of(candidates, needs, spans, hours=2)

    def fits_at(quarter):
        begin = quarter * HOUR // 4
        free = []
        for one, (_, at, for_) in zip(candidates, gpus, strict=True):
            if begin + 2 * HOUR <= at * HOUR or begin >= (at + for_) * HOUR:
                free.append(one.gpu.memory_total_bytes)
        wanted = sorted((one.memory_bytes for one in needs), reverse=True)
        free.sort(reverse=True)
        return len(free) >= len(wanted) and all(
            have >= want for have, want in zip(free, wanted, strict=False)
        )

    first = next((q for q in range(13 * 4) if fits_at(q)), None)
    if first is None:
        assert found is None
    else:
        assert found.window.start == NOON + timedelta(minutes=15 * first)
