"""Findings open once, close late, and never flicker."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.rules.alert_rules import (
    ECC,
    LOST,
    MISSING,
    Severity,
    breaking_rules,
    severity_of,
)
from telemetry.rules.finding_rules import (
    Finding,
    FindingAct,
    RuleClock,
)
from telemetry.rules.thresholds import JudgePolicy

pytestmark = pytest.mark.pure
OVERRUN = Finding("overrun", 7, {"users": ["eve"]})


def run(clock: RuleClock, seconds: dict[float, list[Finding]], gpu: int = 1) -> list:
    return [
        (at, step.act, step.finding.rule)
        for at, standing in seconds.items()
        for step in clock.due_steps(gpu, standing, at=at)
    ]


def test_a_finding_opens_at_once_and_is_told_again_each_minute():
    seconds = {at: [OVERRUN] for at in range(130)}
    steps = run(RuleClock(), seconds)
    acts = [(at, act) for at, act, _rule in steps]
    assert acts == [
        (0, FindingAct.OPEN),
        (60, FindingAct.REPEAT),
        (120, FindingAct.REPEAT),
    ]


def test_it_closes_after_the_policys_time_and_a_cards_takes_longer():
    policy = JudgePolicy(closes_after_seconds=5, hardware_closes_after_seconds=20)
    clock = RuleClock(lambda: policy)
    both = [Finding(LOST), Finding(ECC)]
    seconds = {at: both if at < 3 else [] for at in range(40)}
    closed = [step for step in run(clock, seconds) if step[1] is FindingAct.CLOSE]
    assert closed == [(8, FindingAct.CLOSE, LOST), (23, FindingAct.CLOSE, ECC)]


def test_a_gap_shorter_than_its_patience_closes_nothing():
    seconds = {at: [OVERRUN] if at % 14 == 0 else [] for at in range(56)}
    assert [act for _at, act, _rule in run(RuleClock(), seconds)] == [FindingAct.OPEN]


def test_an_adopted_finding_closes_when_it_is_not_seen():
    clock = RuleClock()
    clock.adopt(1, "overrun", at=0)
    clock.adopt(1, MISSING, at=0)
    assert run(clock, {at: [] for at in range(30)}) == [
        (15, FindingAct.CLOSE, "overrun")
    ]


def test_gpus_that_are_gone_are_forgotten():
    clock = RuleClock()
    run(clock, {0: [OVERRUN]}, gpu=1)
    run(clock, {0: [OVERRUN]}, gpu=2)
    clock.keep_only({2})
    assert set(clock._watches) == {2}


def test_what_breaks_a_gpu_is_critical_and_an_unknown_rule_is_a_warning():
    assert {severity_of(rule) for rule in breaking_rules()} == {Severity.CRITICAL}
    assert severity_of("something else") is Severity.WARNING


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=200))
def test_open_and_close_take_turns_and_nothing_is_kept_when_all_is_well(seen):
    clock, is_open = RuleClock(), {"overrun": False, LOST: False}
    at = 0.0
    for intruder, lost in [*seen, *[(False, False)] * 20]:
        standing = [OVERRUN] * intruder + [Finding(LOST)] * lost
        for step in clock.due_steps(1, standing, at=at):
            rule = step.finding.rule
            assert is_open[rule] is (step.act is not FindingAct.OPEN)
            is_open[rule] = step.act is not FindingAct.CLOSE
        at += 1
    assert not any(is_open.values())
    assert not clock._watches
