"""The site's measured error, and the correction of predictions by it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.model.well_known import well_known_spec
from placement.planner.search.planner import plan
from placement.planner.values.calibration import (
    ANY,
    ENOUGH,
    HIGH_MOST,
    SHIFT_BOUNDS,
    STEP_BOUNDS,
    UNCORRECTED,
    OutcomeInfo,
    corrections_of,
    site_errors,
)
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from placement.rules.log_progress import (
    ProgressCount,
    ProgressReading,
    followed,
    read_progress,
)
from placement.rules.step_pace import MOST_MARKS, Pace, marked, pace_of

pytestmark = pytest.mark.pure
GIB = 2**30
ONE = OutcomeInfo(
    strategy="single",
    gpu_class="A100",
    prior_step_seconds=1.0,
    step_ratio=1.5,
    memory_ratio=1.1,
    high_ratio=1.02,
)


def offer(index: int = 0, free_gib: int = 79) -> GpuOffer:
    return GpuOffer(
        uuid=f"GPU-{index}",
        node="node-a",
        index=index,
        name="A100",
        gpu_class="A100",
        memory_total_bytes=80 * GIB,
        used_bytes=0,
        free_bytes=free_gib * GIB,
        peak_flops=312e12,
    )


def test_errors_are_counted_by_class_and_strategy():
    rows = [replace(ONE, step_ratio=r) for r in (0.9, 1.0, 1.02, 1.1)]
    rows += [replace(ONE, strategy="ddp", step_ratio=None, high_ratio=0.8)]
    whole, ddp, single = site_errors(rows)
    assert (whole.strategy, whole.runs) == (ANY, 5)
    assert ddp.step is None and ddp.above_high == 0
    assert single.step is not None and single.step.n == 4
    assert single.step.median_error_pct == pytest.approx(1.0)
    assert single.step.p90_error_pct == pytest.approx(10.0)
    assert single.memory is not None and single.above_high == single.memory.n


def test_too_few_runs_and_runs_that_disagree_correct_nothing():
    assert corrections_of([ONE] * (ENOUGH - 1)).by_kind == {}
    wild = [replace(ONE, step_ratio=0.2 + n) for n in range(ENOUGH)]
    assert corrections_of(wild).by_class == {}
    short = [replace(ONE, prior_step_seconds=0.001)] * ENOUGH
    assert corrections_of(short).by_class == {}


def test_a_kind_with_too_few_runs_is_corrected_by_its_class():
    learned = corrections_of([ONE] * ENOUGH)
    assert learned.memory("ddp", "A100").likely_ratio == pytest.approx(1.1)
    assert learned.memory("ddp", "H100").likely_ratio == 1.0
    assert learned.step(["A100", "H100"]).ratio == 1.5


ratios = st.floats(0.01, 50)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(ratios, ratios, ratios), min_size=ENOUGH, max_size=20),
    st.integers(1, 10**11),
    st.floats(1, 2),
    st.floats(1, 2),
)
def test_a_correction_is_bounded_and_never_below_the_counted_bytes(
    told, low, more, most
):
    rows = [
        replace(ONE, step_ratio=s, memory_ratio=m, high_ratio=h) for s, m, h in told
    ]
    learned = corrections_of(rows)
    likely, high = int(low * more), int(low * more * most)
    found = learned.memory("single", "A100").of(low, likely, high)
    assert found[0] == low <= found[1] <= found[2]
    assert found[1] <= max(low, likely * SHIFT_BOUNDS[1])
    assert found[2] <= max(found[1], high * HIGH_MOST)
    assert STEP_BOUNDS[0] <= learned.step(["A100"]).ratio <= STEP_BOUNDS[1]


def test_plans_follow_what_was_measured_and_keep_what_they_would_have_said():
    spec, workload = well_known_spec("gpt2"), Workload(batch=8, sequence_length=512)
    before = plan(spec, workload, [offer()]).best
    learned = corrections_of([ONE] * ENOUGH)
    after = plan(spec, workload, [offer()], learned=learned).best
    assert before is not None and after is not None
    assert after.step_seconds == pytest.approx(1.5 * before.step_seconds)
    assert after.prior_step_seconds == pytest.approx(before.step_seconds)
    old, new = before.shards[0], after.shards[0]
    assert new.low_bytes == old.low_bytes
    assert new.likely_bytes == int(1.1 * old.likely_bytes)
    assert (new.prior_likely_bytes, new.prior_high_bytes) == (
        old.likely_bytes,
        old.high_bytes,
    )
    assert any("as measured here" in note for note in after.notes)
    assert Plan.from_json(after.to_json()) == after


def test_a_gpu_that_is_measured_to_be_too_small_is_tight_or_helped_by_a_remedy():
    spec, workload = well_known_spec("gpt2"), Workload(batch=8, sequence_length=512)
    found = plan(spec, workload, [offer()]).best
    assert found is not None and found.fit == "comfortable" and not found.remedies
    room = found.shards[0].likely_bytes
    small = replace(offer(), free_bytes=room, memory_total_bytes=room)
    rows = [replace(ONE, memory_ratio=1.2)] * ENOUGH
    after = plan(spec, workload, [small], learned=corrections_of(rows)).best
    assert after is not None
    assert after.fit == "tight" or after.remedies
    unlearned = plan(spec, workload, [small], learned=UNCORRECTED).best
    assert unlearned is not None and unlearned.fit == "comfortable"


# --- the pace of a log ---


def test_a_pace_is_the_median_after_the_warm_up():
    rows = [
        {"step": n, "step_seconds": 5.0 if n <= 20 else 0.5, "tokens/s": 100.0 + n}
        for n in range(100)
    ]
    assert pace_of(rows) == Pace(0.5, 160.0, 79, "log")
    assert pace_of([{"step": n, "it/s": 4.0} for n in range(40)]).step_seconds == 0.25
    assert pace_of([{"step": n, "ms/step": 30.0} for n in range(9)]).step_seconds == (
        pytest.approx(0.03)
    )


def test_without_a_word_of_its_own_a_pace_is_timed_by_when_steps_came():
    marks: list[tuple[float, float]] = []
    for n in range(200):
        marks = marked(marks, (10.0 * n + (60 if n < 3 else 0), 5.0 * n))
        assert len(marks) <= MOST_MARKS
    found = pace_of([{"step": n, "loss": 1.0} for n in range(9)], marks)
    assert found.source == "clock" and found.step_seconds == pytest.approx(2.0)
    assert pace_of([], marks[:2]) == Pace()


# --- how far a program is ---


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"step": 3, "total": 12}', (3, 12)),
        ('{"step": 3, "steps": 12, "loss": 2.5}', (3, 12)),
        ("step=120 steps=1000 loss=2.3", (120, 1000)),
        ("Epoch [2/10], Step [40/600], loss: 0.3", (2, 10)),
        ("iteration 7 of 9", (7, 9)),
        (" 45%|####5     | 45/100 [00:12<00:15,  3.6it/s, loss=2.1]", (45, 100)),
        ("0%|  | 0/9 [00:00<?]\r 56%|##5 | 5/9 [00:02<00:01]", (5, 9)),
        ("step 12/10", (10, 10)),
        ("2026/11/21 loss 3", None),
        ("step 5/0", None),
        ('{"step": 3, "loss": 2}', None),
        ("x" * 10_000, None),
    ],
)
def test_progress_is_read_from_what_programs_print(line, told):
    found = read_progress(["unrelated", line, "also unrelated"])
    assert found == (None if told is None else ProgressCount(*map(float, told)))


def test_what_is_left_is_told_by_the_pace_of_the_same_count():
    seen = followed(None, ProgressCount(10, 100), at=1000.0)
    assert seen.left_seconds is None
    seen = followed(seen, ProgressCount(20, 100), at=1010.0)
    assert seen.left_seconds == pytest.approx(80.0)
    again = followed(seen, ProgressCount(0, 100), at=1011.0)
    assert again == ProgressReading(ProgressCount(0, 100), 1011.0, 0, 1011.0)


def test_hostile_lines_cost_no_more_than_their_length():
    for line in ("step " * 400, "1%|" * 600, "[(" * 900, "step=" + "9" * 1900):
        assert read_progress([line] * 200) is None
