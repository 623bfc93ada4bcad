"""Pipelines over unequal Gpus: the reference case and brute force."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.search.pipeline_partition import (
    PipelineProblem,
    iteration_seconds,
    split_pipeline,
)

pytestmark = pytest.mark.pure

DATA = Path(__file__).parents[3] / "data" / "placement" / "other.json"
CASE = next(c for c in json.loads(DATA.read_text()) if c["kind"] == "pipeline_1f1b")


def problem_of(case):
    layers, gpus = case["layers"], case["gpus"]
    return PipelineProblem(
        state_bytes=[layer["state_bytes"] for layer in layers],
        activation_bytes=[layer["act_bytes_per_microbatch"] for layer in layers],
        seconds=[layer["fwd_ms"] + layer["bwd_ms"] for layer in layers],
        free_bytes=[gpu["free_bytes"] for gpu in gpus],
        speeds=[gpu["speed"] for gpu in gpus],
        microbatches=case["microbatches"],
    )


def test_the_reference_case_reaches_its_optimum():
    split = split_pipeline(problem_of(CASE))

    assert split.iteration_seconds == pytest.approx(CASE["optimum"]["iteration_ms"])
    assert split.exact


def need(problem, first, last, in_flight):
    states = sum(problem.state_bytes[first:last])
    kept = in_flight * sum(problem.activation_bytes[first:last])
    kept += sum(problem.copy_bytes[first:last])
    moment = max(problem.moment_bytes[first:last], default=0)
    step = sum(problem.step_bytes[first:last])
    end = len(problem.state_bytes)
    tied = problem.tied_bytes if first > 0 and last == end else 0
    border, count, back = problem.border_bytes, problem.microbatches, problem.trains
    received = count * border + back * border - in_flight * problem.saved_border_bytes
    sent = back * (count + in_flight + 1) * border
    passing = (received if first > 0 else 0) + (sent if last < end else 0)
    return states + max(kept + moment, step) + tied + passing


def brute_force(problem):
    """The shortest iteration over every number of stages, order and cut."""
    count = len(problem.state_bytes)
    best = None
    for stages in range(1, min(len(problem.free_bytes), count) + 1):
        for order in itertools.permutations(range(len(problem.free_bytes)), stages):
            for cuts in itertools.combinations(range(1, count), stages - 1):
                spans = list(itertools.pairwise((0, *cuts, count)))
                if any(
                    need(problem, a, b, problem.in_flight(i, stages))
                    > problem.free_bytes[gpu]
                    for i, (gpu, (a, b)) in enumerate(zip(order, spans, strict=True))
                ):
                    continue
                times = [
                    sum(problem.seconds[a:b]) / problem.speeds[gpu]
                    for gpu, (a, b) in zip(order, spans, strict=True)
                ]
                whole = iteration_seconds(times, problem.microbatches)
                best = whole if best is None else min(best, whole)
    return best


small = st.integers(0, 9)
problems = st.integers(1, 7).flatmap(
    lambda count: st.builds(
        PipelineProblem,
        state_bytes=st.lists(st.integers(1, 20), min_size=count, max_size=count),
        activation_bytes=st.lists(small, min_size=count, max_size=count),
        seconds=st.lists(st.integers(1, 9), min_size=count, max_size=count),
        free_bytes=st.just([]),
        speeds=st.just([]),
        microbatches=st.integers(1, 5),
        gpipe=st.booleans(),
        moment_bytes=st.lists(small, min_size=count, max_size=count),
        copy_bytes=st.lists(small, min_size=count, max_size=count),
        step_bytes=st.lists(st.integers(0, 20), min_size=count, max_size=count),
        tied_bytes=st.integers(0, 5),
        border_bytes=st.sampled_from([0, 1, 4]),
        saved_border_bytes=st.integers(0, 1),
        trains=st.booleans(),
        gpipe_if_few=st.booleans(),
    )
)
gpus = st.lists(
    st.tuples(st.integers(5, 150), st.sampled_from([0.5, 1.0])), min_size=1, max_size=4
)


@settings(max_examples=200, deadline=None)
@given(problems, gpus)
def test_brute_force_agrees(problem, cards):
    problem = PipelineProblem(
        **{name: getattr(problem, name) for name in PipelineProblem.__slots__}
        | {
            "free_bytes": [free for free, _ in cards],
            "speeds": [speed for _, speed in cards],
            "saved_border_bytes": min(
                problem.saved_border_bytes,
                problem.border_bytes,
                *problem.activation_bytes,
            ),
        }
    )
    split = split_pipeline(problem)
    expected = brute_force(problem)

    if expected is None:
        assert split is None
        return
    assert split.exact
    assert split.iteration_seconds == pytest.approx(expected)
    covered = [layer for p in split.pieces for layer in range(p.first, p.last)]
    assert covered == list(range(len(problem.state_bytes)))
    for stage, piece in enumerate(split.pieces):
        in_flight = problem.in_flight(stage, len(split.pieces))
        assert (
            need(problem, piece.first, piece.last, in_flight)
            <= (problem.free_bytes[piece.gpu])
        )


def test_the_first_stage_goes_to_the_gpu_with_more_room():
    problem = PipelineProblem(
        state_bytes=[10] * 4,
        activation_bytes=[10] * 4,
        seconds=[1] * 4,
        free_bytes=[45, 65],
        speeds=[1.0, 1.0],
        microbatches=8,
    )
    split = split_pipeline(problem)

    assert [piece.gpu for piece in split.pieces] == [1, 0]


def test_gpipe_needs_more_than_1f1b():
    fields = {
        "state_bytes": [10] * 4,
        "activation_bytes": [5] * 4,
        "seconds": [1] * 4,
        "free_bytes": [45, 45],
        "speeds": [1.0, 1.0],
        "microbatches": 8,
    }
    assert split_pipeline(PipelineProblem(**fields)) is not None
    assert split_pipeline(PipelineProblem(**fields, gpipe=True)) is None
