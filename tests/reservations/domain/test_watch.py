"""Readings joined with the calendar: who is blamed, who never is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from reservations.domain.watch import GpuFacts, Watcher, WatchPolicy
from reservations.domain.whose import HoldingInfo, Owners, holder_present
from telemetry.domain import rules
from telemetry.domain.sample import GpuReading, Health, ProcessReading, Throttle
from telemetry.domain.state import GpuState

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
ALICE = HoldingInfo(
    1, 10, "alice", "alice1", "vision", NOW - timedelta(hours=1),
    NOW + timedelta(hours=1),
)  # fmt: skip
OWNERS = Owners(jobs={77: 10, 78: 20}, logins={"alice1": 10, "bob": 20})


def process(user="alice1", uid=1001, job=None) -> ProcessReading:
    return ProcessReading(pid=5, uid=uid, user=user, job=job)


def reading(*processes: ProcessReading, util=80, memory=2**33, **more) -> GpuReading:
    return GpuReading(
        "GPU-1", util_pct=util, memory_used_bytes=memory, processes=processes, **more
    )


IDLE_ROOM = reading(util=0, memory=0)


def run(
    seen: GpuReading | None,
    *,
    holding=ALICE,
    before=None,
    seconds=12,
    age=0.2,
    facts=None,
    now=NOW,
    policy=None,
):
    """Judge the same reading once a second; the last verdict."""  # fmt: skip
    watcher = Watcher(policy or WatchPolicy())
    verdict = None
    for second in range(seconds):
        verdict = watcher.judge(
            7, seen, age_seconds=age, now=now + timedelta(seconds=second),
            facts=facts or GpuFacts(), owners=OWNERS, holding=holding, before=before,
        )  # fmt: skip
    return verdict


@pytest.mark.parametrize(
    ("seen", "holding", "state"),
    [
        (None, ALICE, GpuState.UNKNOWN),
        (IDLE_ROOM, None, GpuState.FREE),
        (IDLE_ROOM, ALICE, GpuState.RESERVED),
        (reading(process()), ALICE, GpuState.BUSY),
        (reading(process("alice", 1001)), ALICE, GpuState.BUSY),
        (reading(process("worker", 0, job=77)), ALICE, GpuState.BUSY),
        (reading(process("bob", 1002)), ALICE, GpuState.INTRUDER),
        (reading(process("stranger", 1009)), ALICE, GpuState.INTRUDER),
        (reading(process("worker", 0, job=78)), ALICE, GpuState.INTRUDER),
        (reading(process("bob", 1002), process()), ALICE, GpuState.INTRUDER),
        (reading(process("root", 0)), ALICE, GpuState.BUSY),
        (reading(process(None, None)), ALICE, GpuState.BUSY),
        (reading(process("bob", 1002)), None, GpuState.SQUATTER),
        (reading(process("root", 0)), None, GpuState.BUSY),
        (reading(process("root", 0), util=0), None, GpuState.FREE),
        (replace(IDLE_ROOM, state=Health.LOST), ALICE, GpuState.LOST),
        (replace(IDLE_ROOM, state=Health.HUNG), None, GpuState.LOST),
        (
            reading(process(), throttle=(Throttle.HW_THERMAL,)),
            ALICE,
            GpuState.THROTTLED,
        ),
        (reading(process(), throttle=(Throttle.SW_POWER_CAP,)), ALICE, GpuState.BUSY),
        (replace(reading(util=0), processes=None), None, GpuState.UNKNOWN),
    ],
)
def test_the_word_for_what_is_seen(seen, holding, state) -> None:
    assert run(seen, holding=holding).state is state


def test_old_readings_are_stale_and_an_operator_goes_before_everything() -> None:
    assert run(reading(process("bob", 1002)), age=4).state is GpuState.STALE
    facts = GpuFacts(maintenance=True)
    assert run(None, facts=facts).state is GpuState.MAINTENANCE
    assert run(IDLE_ROOM, facts=GpuFacts(mig=True)).state is GpuState.MIG
    foreign = GpuFacts(foreign=True)
    assert run(reading(process("bob", 1002)), facts=foreign).state is GpuState.FOREIGN


def test_one_sample_accuses_nobody() -> None:
    seen = reading(process("bob", 1002))
    assert run(seen, seconds=1).state is GpuState.BUSY
    assert run(seen, holding=None, seconds=2).state is GpuState.BUSY


def test_time_in_which_the_portal_was_blind_does_not_count() -> None:
    watcher = Watcher(WatchPolicy())

    def look(second: float, age: float) -> GpuState:
        return watcher.judge(
            7, reading(process("bob", 1002)), age_seconds=age,
            now=NOW + timedelta(seconds=second), facts=GpuFacts(), owners=OWNERS,
            holding=ALICE,
        ).state  # fmt: skip

    assert look(0, 0.1) is GpuState.BUSY
    assert look(5, 9.0) is GpuState.STALE
    assert look(600, 0.1) is GpuState.BUSY


def test_idle_is_said_after_a_minute_and_never_of_an_unknown_utilization() -> None:
    quiet = reading(process(), util=1)
    assert run(quiet, seconds=50).state is GpuState.BUSY
    assert run(quiet, seconds=70).state is GpuState.IDLE
    unknown = reading(process(), util=None)
    assert run(unknown, seconds=120).state is GpuState.BUSY
    came = replace(ALICE, checked_in=True)
    assert run(IDLE_ROOM, holding=came, seconds=70).state is GpuState.IDLE


def test_who_does_not_come_is_found_after_the_sites_time() -> None:
    policy = WatchPolicy(no_show_seconds=30)
    found = run(IDLE_ROOM, seconds=40, policy=policy)
    assert [finding.rule for finding in found.findings] == [rules.NO_SHOW]
    assert not run(IDLE_ROOM, seconds=20, policy=policy).findings
    came = replace(ALICE, checked_in=True)
    assert not run(IDLE_ROOM, holding=came, seconds=40, policy=policy).findings


def test_the_holder_has_a_grace_to_stop_and_then_overruns() -> None:
    ended = replace(ALICE, end=NOW - timedelta(seconds=10))
    seen = reading(process())
    assert run(seen, holding=None, before=ended, seconds=5).state is GpuState.BUSY
    late = run(seen, holding=None, before=ended, seconds=60)
    assert late.state is GpuState.SQUATTER
    assert late.findings[0].rule == rules.OVERRUN
    assert late.findings[0].reservation_id == ALICE.reservation_pk


def test_memory_without_a_process_is_a_finding_of_its_own() -> None:
    found = run(reading(util=0, memory=2**33), holding=None)
    assert [finding.rule for finding in found.findings] == [rules.ZOMBIE_MEMORY]


def test_a_new_holder_starts_with_a_clean_slate() -> None:
    watcher = Watcher(WatchPolicy(no_show_seconds=5))
    bob = replace(ALICE, reservation_pk=2, user_pk=20, username="bob", unix_user="bob")
    for second in range(20):
        found = watcher.judge(
            7, IDLE_ROOM, age_seconds=0, now=NOW + timedelta(seconds=second),
            facts=GpuFacts(), owners=OWNERS, holding=ALICE if second < 18 else bob,
        )  # fmt: skip
    assert not found.findings


def test_only_the_holders_process_is_presence() -> None:
    assert holder_present(reading(process()), ALICE, OWNERS)
    assert holder_present(reading(process("worker", 0, job=77)), ALICE, OWNERS)
    assert not holder_present(reading(process("bob", 1002)), ALICE, OWNERS)
    assert not holder_present(reading(process("root", 0)), ALICE, OWNERS)
    assert not holder_present(None, ALICE, OWNERS)
    assert not holder_present(reading(process()), None, OWNERS)
