"""Moving a running Job: only if it pays."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.planner.search.move_or_stay import (
    decide_move,
    move_cost_seconds,
)

pytestmark = pytest.mark.pure

DATA = Path(__file__).parents[3] / "data" / "placement" / "other.json"
CASE = next(c for c in json.loads(DATA.read_text()) if c["kind"] == "move_decision")


def decide(**changes):
    fields = {
        "step_seconds_now": 1.0,
        "step_seconds_new": 0.8,
        "steps_left": 1000,
        "cost_seconds": 31.0,
        **changes,
    }
    return decide_move(**fields)


def test_the_reference_case_is_decided_alike():
    cost = move_cost_seconds(
        bytes_moved=CASE["bytes_moved"],
        bytes_per_second=CASE["bytes_per_s"],
        pause_seconds=CASE["pause_s"],
    )
    made = decide_move(
        step_seconds_now=CASE["iter_s_now"],
        step_seconds_new=CASE["iter_s_new"],
        steps_left=CASE["iters_left"],
        cost_seconds=cost,
        margin_ratio=CASE["margin"],
    )

    assert cost == pytest.approx(CASE["cost_s"])
    assert made.gain_seconds == pytest.approx(CASE["gain_s"])
    assert made.move == CASE["move"]


def test_a_gain_within_the_margin_is_not_worth_it():
    assert not decide(steps_left=190).move
    assert decide(steps_left=200).move


def test_a_plan_that_is_no_faster_is_never_moved_to():
    assert not decide(step_seconds_new=1.0).move


def test_a_job_that_just_moved_is_held():
    held = decide(seconds_since_last_move=100.0, last_move_cost_seconds=31.0)
    free = decide(seconds_since_last_move=311.0, last_move_cost_seconds=31.0)

    assert not held.move
    assert "held" in held.reason
    assert free.move


def test_with_an_unknown_end_a_job_moves_once_staying_cost_as_much():
    assert not decide(steps_left=None, regret_seconds=30.0).move
    assert decide(steps_left=None, regret_seconds=31.0).move


@given(st.floats(0.01, 10), st.integers(0, 10**6), st.floats(0, 1000))
def test_nothing_moves_when_nothing_changed(step, left, cost):
    made = decide(
        step_seconds_now=step,
        step_seconds_new=step,
        steps_left=left,
        cost_seconds=cost,
    )
    assert not made.move
