"""The drawings of the planning page: schedules, memory over a step, two Plans."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.memory.estimate import estimate
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from placement.plans.views import plan_comparison
from placement.plans.views.memory_timeline import HEIGHT, timeline
from placement.plans.views.schedule_chart import schedule_of, simulate

GIB = 2**30
FEW = settings(max_examples=25, deadline=None)


def plans_of(name, workload, *, free_gib, only=None) -> dict[str, Plan]:
    """The best Plan of each strategy on Gpus of one node with so much free."""
    offers = offers_from_list(
        [
            {"name": "NVIDIA A100 80GB PCIe", "free_bytes": int(size * GIB)}
            for size in free_gib
        ]
    )
    limits = PlanLimits(strategies=(only,) if only else (), beaten_too=True)
    found: dict[str, Plan] = {}
    for one in plan(well_known_spec(name), workload, offers, limits=limits).plans:
        found.setdefault(one.strategy, one)
    return found


def bubble(rows) -> float:
    width = max(cell.x + cell.width for row in rows for cell in row)
    return 1 - sum(cell.width for row in rows for cell in row) / (width * len(rows))


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    ("stages", "pieces", "rounds"), [(4, 1, 2), (2, 4, 2), (4, 2, 1)]
)
def test_the_bubble_drawn_is_the_one_of_the_formula(kind, stages, pieces, rounds):
    if kind == "gpipe" and pieces > 1:
        pieces = 1
    microbatches = stages * rounds
    rows = simulate([[1.0] * pieces] * stages, microbatches, kind=kind, backward=2.0)
    waiting = (stages - 1) / pieces
    assert bubble(rows) == pytest.approx(waiting / (microbatches + waiting))


@given(
    lengths=st.lists(st.floats(0.1, 9), min_size=1, max_size=5),
    microbatches=st.integers(1, 7),
    kind=st.sampled_from(["1f1b", "gpipe"]),
    backward=st.sampled_from([0.0, 2.0, 3.0]),
)
@FEW
def test_no_stage_does_two_things_at_once_and_nothing_before_its_input(
    lengths, microbatches, kind, backward
):
    rows = simulate([[x] for x in lengths], microbatches, kind=kind, backward=backward)
    ends = {}
    for stage, row in enumerate(rows):
        assert len(row) == microbatches * (2 if backward else 1)
        for before, after in pairwise(row):
            assert after.x >= before.x + before.width - 1e-9
        for cell in row:
            ends[cell.kind, stage, cell.number] = (cell.x, cell.x + cell.width)
    for (kind_, stage, number), (begin, _) in ends.items():
        earlier = ("f", stage - 1, number) if kind_ == "f" else ("b", stage + 1, number)
        if earlier in ends:
            assert begin >= ends[earlier][1] - 1e-9


def test_1f1b_keeps_no_more_microbatches_than_stages_behind_it():
    rows = simulate([[1.0]] * 4, 8, kind="1f1b", backward=2.0)
    for stage, row in enumerate(rows):
        alive = most = 0
        for cell in row:
            alive += 1 if cell.kind == "f" else -1
            most = max(most, alive)
        assert most == 4 - stage


def test_a_pipeline_plan_is_drawn_with_every_stage():
    made = plans_of("llama-3-8b", Workload(batch=16), free_gib=(60, 60, 60))["pipeline"]
    drawn = schedule_of(made)
    assert drawn is not None
    assert len(drawn.rows) == len(made.shards)
    assert f"{len(made.shards)} stages" in drawn.words


def test_too_many_microbatches_are_drawn_in_part_and_said_so():
    made = plans_of("gpt2", Workload(batch=2048), free_gib=(24, 24), only="pipeline")[
        "pipeline"
    ]
    drawn = schedule_of(made)
    assert drawn is not None and "the first" in drawn.words
    assert sum(len(cells) for _, cells in drawn.rows) <= 480


def test_plans_without_stages_have_no_schedule():
    assert schedule_of(plans_of("gpt2", Workload(), free_gib=(24,))["single"]) is None


@pytest.mark.parametrize(
    "asked",
    [
        Workload(),
        Workload(accumulation=4),
        Workload(checkpointing="full"),
        Workload(task="infer"),
    ],
)
def test_no_area_of_the_timeline_leaves_the_picture_or_its_phase(asked):
    one = estimate(well_known_spec("gpt2"), asked)
    drawn = timeline(one, asked)
    assert drawn is not None
    assert sum(span.is_peak for span in drawn.spans) == 1
    assert [s.key for s in drawn.spans] == list(one.phase_bytes)
    for area in drawn.areas:
        for point in area.points.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 1000 and 0 <= y <= HEIGHT
    if not asked.trains:
        assert {area.key for area in drawn.areas}.isdisjoint({"gradients", "optimizer"})


def test_two_plans_of_one_work_are_marked_and_of_two_works_are_not():
    plans = plans_of("gpt2", Workload(batch=32), free_gib=(24, 24))
    both = plan_comparison.compare(
        plans["single"], plans["ddp"], units=("tokens", "tokens")
    )
    step = next(row for row in both.rows if row.words == "One step")
    assert step.better == 2
    assert "times as fast as the first, with 1 GPU more" in both.verdict
    other = plans_of("gpt2", Workload(batch=64), free_gib=(24, 24))["ddp"]
    apart = plan_comparison.compare(plans["single"], other, units=("tokens", "tokens"))
    assert "do not do the same work" in apart.verdict
    assert {row.better for row in apart.rows if row.words != "Speed"} == {0}
