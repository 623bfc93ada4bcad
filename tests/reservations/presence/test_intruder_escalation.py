"""The escalation goes up one step at a time, and never does what it must not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from reservations.presence.attribution import HoldingInfo, OwnerLookup
from reservations.presence.intruder_escalation import (
    LADDER,
    REACH,
    EscalationCase,
    EscalationExemption,
    EscalationStep,
    Suspect,
    exemption_of_case,
    next_step,
)
from telemetry.protocol.reading import ProcessReading
from telemetry.rules.thresholds import JudgePolicy

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
ALICE = HoldingInfo(1, 10, "alice", "alice1", "vision", NOW, NOW + timedelta(hours=1))
OWNERS = OwnerLookup(jobs={77: 10}, logins={"alice1": 10, "bob": 20})
POLICY = JudgePolicy()
BOB = ProcessReading(
    pid=500,
    uid=1002,
    user="bob",
    command="python train.py",
    memory_bytes=2**33,
    started_at=1_000.0,
)
CASE = EscalationCase(
    suspect=Suspect(BOB, 20, samples=400, seconds=400.0),
    holding=ALICE,
    reach="stop",
    age_seconds=0.4,
    stood_seconds=400.0,
)


def case_of(
    process=BOB, owner=20, samples=400, seconds=400.0, **changes
) -> EscalationCase:
    return replace(CASE, suspect=Suspect(process, owner, samples, seconds), **changes)


def step(case: EscalationCase) -> EscalationStep | None:
    return next_step(case, owners=OWNERS, policy=POLICY)


@pytest.mark.parametrize("reach", REACH)
def test_a_pool_goes_so_far_up_and_no_further(reach) -> None:
    taken: dict[EscalationStep, float] = {}
    while (rung := step(replace(CASE, reach=reach, done=taken))) is not None:
        taken[rung] = 1_000.0
    assert tuple(taken) == REACH[reach]


def test_each_step_waits_for_its_time() -> None:
    def at(seconds: float, **done: float) -> EscalationStep | None:
        steps = {EscalationStep(word): ago for word, ago in done.items()}
        return step(case_of(seconds=seconds, stood_seconds=seconds, done=steps))

    assert at(5) is EscalationStep.NOTIFY
    assert at(59, notify=54) is None
    assert at(60, notify=60) is EscalationStep.WARN
    assert at(299, notify=299, warn=239) is None
    assert at(300, notify=300, warn=240) is EscalationStep.STOP
    assert at(999, notify=900, warn=700, stop=699) is None


def test_after_a_late_warning_there_is_as_much_time_as_after_one_in_time() -> None:
    late = {EscalationStep.NOTIFY: 900.0, EscalationStep.WARN: 100.0}
    assert step(case_of(seconds=1000, stood_seconds=1000, done=late)) is None
    assert (
        step(
            case_of(
                seconds=1000,
                stood_seconds=1000,
                done=late | {EscalationStep.WARN: 240.0},
            )
        )
        is EscalationStep.STOP
    )


def test_a_process_that_came_late_has_its_own_time() -> None:
    new = case_of(seconds=5, stood_seconds=9_000, done={EscalationStep.NOTIFY: 4.0})
    assert step(new) is None


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (replace(CASE, age_seconds=3.6), EscalationExemption.STALE),
        (replace(CASE, age_seconds=float("nan")), EscalationExemption.STALE),
        (case_of(samples=1), EscalationExemption.FEW_SAMPLES),
        (replace(CASE, holding=None), EscalationExemption.NOT_HELD),
        (case_of(structs.replace(BOB, uid=0)), EscalationExemption.ROOT),
        (case_of(structs.replace(BOB, user="root")), EscalationExemption.ROOT),
        (case_of(owner=None), EscalationExemption.UNATTRIBUTED),
        (case_of(structs.replace(BOB, uid=None)), EscalationExemption.UNATTRIBUTED),
        (case_of(structs.replace(BOB, uid=999)), EscalationExemption.SYSTEM),
        (case_of(structs.replace(BOB, uid=65_534)), EscalationExemption.SYSTEM),
        (case_of(owner=10), EscalationExemption.HOLDER),
        (case_of(structs.replace(BOB, user="alice1")), EscalationExemption.HOLDER),
        (case_of(structs.replace(BOB, job=78)), EscalationExemption.JOB),
        (
            case_of(
                structs.replace(
                    BOB, command="/usr/lib/xorg/Xorg :0", memory_bytes=2**26
                )
            ),
            EscalationExemption.EXEMPT,
        ),
        (case_of(structs.replace(BOB, started_at=None)), EscalationExemption.NO_START),
        (replace(CASE, settled=True), EscalationExemption.SETTLED),
    ],
)
def test_what_is_never_done_and_why(case, why) -> None:
    assert exemption_of_case(case, owners=OWNERS, policy=POLICY) is why
    assert step(case) is None


def test_a_listed_name_that_holds_much_memory_is_judged_like_any_other() -> None:
    disguised = structs.replace(BOB, command="Xorg --train", memory_bytes=2**33)
    assert step(case_of(disguised)) is EscalationStep.NOTIFY
    assert (
        step(case_of(structs.replace(disguised, memory_bytes=None)))
        is EscalationStep.NOTIFY
    )


processes = st.builds(
    ProcessReading,
    pid=st.integers(2, 2**22),
    uid=st.sampled_from([None, 0, 33, 999, 1000, 1002, 65_534]),
    user=st.sampled_from([None, "root", "alice1", "alice", "bob", "eve"]),
    command=st.sampled_from(["python a.py", "Xorg", "nvidia-smi -l", "dcgmproftester"]),
    memory_bytes=st.sampled_from([None, 0, 2**26, 2**34]),
    started_at=st.sampled_from([None, 1_000.0]),
    job=st.sampled_from([None, 77, 78]),
)
cases = st.builds(
    EscalationCase,
    suspect=st.builds(
        Suspect,
        process=processes,
        owner=st.sampled_from([None, 10, 20, "eve", "alice1"]),
        samples=st.integers(0, 5),
        seconds=st.sampled_from([0.0, 100.0, 1e6]),
    ),
    holding=st.sampled_from([None, ALICE]),
    reach=st.sampled_from([*REACH, "unheard of"]),
    age_seconds=st.sampled_from([0.0, 3.4, 3.6, 1e9]),
    stood_seconds=st.sampled_from([-1.0, 0.0, 100.0, 1e6]),
    done=st.dictionaries(st.sampled_from(LADDER), st.sampled_from([0.0, 1e6])),
    settled=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(cases, st.integers(2, 4))
def test_the_nevers_hold_whatever_else_is_true(case, least) -> None:
    policy = JudgePolicy(least_samples=least)
    rung = next_step(case, owners=OWNERS, policy=policy)
    if rung is None:
        return
    process, suspect = case.suspect.process, case.suspect
    assert case.age_seconds <= 3.5
    assert suspect.samples >= least
    assert case.holding is ALICE
    assert process.uid not in (None, 0)
    assert 1000 <= process.uid != 65_534
    assert process.user not in ("root", "alice", "alice1")
    assert suspect.owner not in (None, 10, "alice1")
    assert process.job is None
    assert process.started_at is not None
    assert not case.settled
    assert rung in REACH[case.reach]
    assert set(LADDER[: LADDER.index(rung)]) <= case.done.keys()
    if not (process.memory_bytes is None or process.memory_bytes > 2**30):
        assert process.command not in ("Xorg", "nvidia-smi -l")


def test_nothing_is_ever_done_to_a_co_user() -> None:
    for sign in (20, "bob"):
        shared = replace(ALICE, co_users=frozenset({sign}))
        case = case_of(holding=shared)
        assert (
            exemption_of_case(case, owners=OWNERS, policy=POLICY)
            is EscalationExemption.HOLDER
        )
        assert step(case) is None
