"""Findings open late, close late, and never flicker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.domain.rules import LOST, MISSING, Act, Finding, RuleClock, own_finding
from telemetry.domain.state import GpuState

pytestmark = pytest.mark.pure
OVERRUN = Finding("overrun", 7, {"users": ["eve"]})


def run(clock: RuleClock, seconds: dict[float, list[Finding]], gpu: int = 1) -> list:
    return [
        (at, step.act, step.finding.rule)
        for at, standing in seconds.items()
        for step in clock.see(gpu, standing, at=at)
    ]


def test_what_lasts_one_sample_is_no_finding():
    lost = Finding(LOST)
    assert run(RuleClock(), {0: [lost], 1: [], 2: [lost], 3: []}) == []


def test_a_lost_gpu_opens_after_three_seconds_and_closes_after_five():
    lost = Finding(LOST)
    seconds = {at: [lost] if at < 10 else [] for at in range(30)}
    assert run(RuleClock(), seconds) == [(3, Act.OPEN, LOST), (15, Act.CLOSE, LOST)]


def test_a_judged_finding_opens_at_once_and_is_told_again_each_minute():
    seconds = {at: [OVERRUN] for at in range(130)}
    steps = run(RuleClock(), seconds)
    acts = [(at, act) for at, act, _rule in steps]
    assert acts == [(0, Act.OPEN), (60, Act.REPEAT), (120, Act.REPEAT)]


def test_a_gap_shorter_than_its_patience_closes_nothing():
    seconds = {at: [OVERRUN] if at % 14 == 0 else [] for at in range(56)}
    assert [act for _at, act, _rule in run(RuleClock(), seconds)] == [Act.OPEN]


def test_an_adopted_finding_closes_when_it_is_not_seen():
    clock = RuleClock()
    clock.adopt(1, "overrun", at=0)
    clock.adopt(1, MISSING, at=0)
    assert run(clock, {at: [] for at in range(30)}) == [(15, Act.CLOSE, "overrun")]


def test_gpus_that_are_gone_are_forgotten():
    clock = RuleClock()
    run(clock, {0: [OVERRUN]}, gpu=1)
    run(clock, {0: [OVERRUN]}, gpu=2)
    clock.keep_only({2})
    assert set(clock._watches) == {2}


def test_only_some_states_are_findings_by_themselves():
    assert own_finding(GpuState.LOST) == Finding(LOST)
    assert own_finding(GpuState.BUSY) is None


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=200))
def test_open_and_close_take_turns_and_nothing_is_kept_when_all_is_well(seen):
    clock, is_open = RuleClock(), {"overrun": False, LOST: False}
    at = 0.0
    for intruder, lost in [*seen, *[(False, False)] * 20]:
        standing = [OVERRUN] * intruder + [Finding(LOST)] * lost
        for step in clock.see(1, standing, at=at):
            rule = step.finding.rule
            assert is_open[rule] is (step.act is not Act.OPEN)
            is_open[rule] = step.act is not Act.CLOSE
        at += 1
    assert not any(is_open.values())
    assert not clock._watches
