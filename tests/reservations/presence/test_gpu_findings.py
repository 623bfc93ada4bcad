"""Readings joined with the calendar: who is blamed, who never is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from reservations.presence.attribution import HoldingInfo, OwnerLookup, holder_present
from reservations.presence.gpu_findings import GpuFacts, Watcher, WatchPolicy
from reservations.rules import booking_alerts
from telemetry.protocol.gpu_state import GpuState
from telemetry.protocol.sample import GpuAnswer, GpuReading, ProcessReading, Throttle
from telemetry.rules.thresholds import JudgePolicy

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
ALICE = HoldingInfo(
    1,
    10,
    "alice",
    "alice1",
    "vision",
    NOW - timedelta(hours=1),
    NOW + timedelta(hours=1),
)
OWNERS = OwnerLookup(jobs={77: 10, 78: 20}, logins={"alice1": 10, "bob": 20})


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
    """Judge the same reading once a second; the last verdict."""
    watcher = Watcher(policy or WatchPolicy())
    verdict = None
    for second in range(seconds):
        verdict = watcher.judge(
            7,
            seen,
            age_seconds=age,
            now=now + timedelta(seconds=second),
            facts=facts or GpuFacts(),
            owners=OWNERS,
            holding=holding,
            before=before,
        )
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
        (reading(process("root", 0), util=0), None, GpuState.BUSY),
        (structs.replace(IDLE_ROOM, state=GpuAnswer.LOST), ALICE, GpuState.LOST),
        (structs.replace(IDLE_ROOM, state=GpuAnswer.HUNG), None, GpuState.LOST),
        (
            reading(process(), throttle=(Throttle.HW_THERMAL,)),
            ALICE,
            GpuState.THROTTLED,
        ),
        (reading(process(), throttle=(Throttle.SW_POWER_CAP,)), ALICE, GpuState.BUSY),
        (structs.replace(reading(util=0), processes=None), None, GpuState.UNKNOWN),
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


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (structs.replace(reading(util=88, memory=0), processes=None), GpuState.BUSY),
        (structs.replace(reading(util=0, memory=0), processes=None), GpuState.FREE),
        (
            structs.replace(reading(util=None, memory=0), processes=None),
            GpuState.UNKNOWN,
        ),
        (
            structs.replace(reading(util=0, memory=None), processes=None),
            GpuState.UNKNOWN,
        ),
        (reading(util=0, memory=70 * 2**30), GpuState.UNKNOWN),
        # A MIG instance tells no utilization, a system account no name.
        (reading(process("root", 0), util=None, memory=0), GpuState.BUSY),
        (reading(process(None, None), util=0, memory=70 * 2**30), GpuState.BUSY),
        (reading(process("root", 0), util=0, memory=2**20), GpuState.FREE),
    ],
)
def test_free_is_said_only_where_the_card_says_so(seen, state) -> None:
    assert run(seen, holding=None).state is state


def test_one_sample_accuses_nobody() -> None:
    seen = reading(process("bob", 1002))
    assert run(seen, seconds=1).state is GpuState.BUSY
    assert run(seen, holding=None, seconds=2).state is GpuState.BUSY


def test_time_in_which_the_portal_was_blind_does_not_count() -> None:
    watcher = Watcher(WatchPolicy())

    def look(second: float, age: float) -> GpuState:
        return watcher.judge(
            7,
            reading(process("bob", 1002)),
            age_seconds=age,
            now=NOW + timedelta(seconds=second),
            facts=GpuFacts(),
            owners=OWNERS,
            holding=ALICE,
        ).state

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
    assert [finding.rule for finding in found.findings] == [booking_alerts.NO_SHOW]
    assert not run(IDLE_ROOM, seconds=20, policy=policy).findings
    came = replace(ALICE, checked_in=True)
    assert not run(IDLE_ROOM, holding=came, seconds=40, policy=policy).findings


def test_the_holder_has_a_grace_to_stop_and_then_overruns() -> None:
    ended = replace(ALICE, end=NOW - timedelta(seconds=10))
    seen = reading(process())
    assert run(seen, holding=None, before=ended, seconds=5).state is GpuState.BUSY
    late = run(seen, holding=None, before=ended, seconds=60)
    assert late.state is GpuState.SQUATTER
    assert late.findings[0].rule == booking_alerts.OVERRUN
    assert late.findings[0].reservation_id == ALICE.reservation_pk


def test_memory_without_a_process_is_a_finding_of_its_own() -> None:
    found = run(reading(util=0, memory=2**33), holding=None)
    assert [finding.rule for finding in found.findings] == [
        booking_alerts.ZOMBIE_MEMORY
    ]


def test_a_new_holder_starts_with_a_clean_slate() -> None:
    watcher = Watcher(WatchPolicy(no_show_seconds=5))
    bob = replace(ALICE, reservation_pk=2, user_pk=20, username="bob", unix_user="bob")
    for second in range(20):
        found = watcher.judge(
            7,
            IDLE_ROOM,
            age_seconds=0,
            now=NOW + timedelta(seconds=second),
            facts=GpuFacts(),
            owners=OWNERS,
            holding=ALICE if second < 18 else bob,
        )
    assert not found.findings


def test_only_the_holders_process_is_presence() -> None:
    assert holder_present(reading(process()), ALICE, OWNERS)
    assert holder_present(reading(process("worker", 0, job=77)), ALICE, OWNERS)
    assert not holder_present(reading(process("bob", 1002)), ALICE, OWNERS)
    assert not holder_present(reading(process("root", 0)), ALICE, OWNERS)
    assert not holder_present(None, ALICE, OWNERS)
    assert not holder_present(reading(process()), None, OWNERS)


def rules_of(verdict) -> list[str]:
    return [finding.rule for finding in verdict.findings]


def test_an_idle_hog_opens_when_the_sites_release_rule_would_warn() -> None:
    policy = WatchPolicy(idle_seconds=90)
    quiet = reading(process(), util=1)
    assert rules_of(run(quiet, seconds=90, policy=policy)) == []
    found = run(quiet, seconds=91, policy=policy)
    assert rules_of(found) == [booking_alerts.IDLE_HOG]
    facts = found.findings[0].trail.facts()
    assert 2 <= len(facts) <= 10
    assert {one["util_pct"] for one in facts} == {1}
    longer = WatchPolicy(idle_seconds=3600)
    assert rules_of(run(quiet, seconds=1900, policy=longer)) == []


@pytest.mark.parametrize(
    ("rule", "seen", "holding", "policy", "opens_at"),
    [
        (booking_alerts.INTRUDER, reading(process("bob", 1002)), ALICE, {}, 4),
        (
            booking_alerts.INTRUDER,
            reading(process("bob", 1002)),
            ALICE,
            {"intruder_after_seconds": 30},
            30,
        ),
        (
            booking_alerts.INTRUDER,
            reading(process("bob", 1002)),
            ALICE,
            {"intruder_after_seconds": 0, "least_samples": 7},
            6,
        ),
        (booking_alerts.SQUATTER, reading(process("bob", 1002)), None, {}, 10),
        (booking_alerts.ZOMBIE_MEMORY, reading(util=0), None, {}, 10),
    ],
)
def test_each_rule_opens_at_its_threshold_and_closes_when_its_cause_is_gone(
    rule, seen, holding, policy, opens_at
) -> None:
    judge = JudgePolicy(**policy)
    watcher = Watcher(WatchPolicy(judge=judge))
    first = None
    for second in range(60):
        verdict = watcher.judge(
            7,
            seen if second < 50 else IDLE_ROOM,
            age_seconds=0.2,
            now=NOW + timedelta(seconds=second),
            facts=GpuFacts(),
            owners=OWNERS,
            holding=holding,
        )
        if rule in rules_of(verdict) and first is None:
            first = second
    assert first == opens_at
    assert rule not in rules_of(verdict)


def test_who_held_it_until_a_moment_ago_is_no_intruder_during_the_grace() -> None:
    bob = HoldingInfo(
        3,
        20,
        "bob",
        "bob",
        "vision",
        NOW - timedelta(hours=2),
        NOW - timedelta(seconds=5),
    )
    seen = reading(process("bob", 1002))
    assert run(seen, before=bob, seconds=20).state is GpuState.BUSY
    assert run(seen, before=bob, seconds=40).state is GpuState.INTRUDER


def test_an_overrun_beside_a_squatter_is_two_findings() -> None:
    ended = replace(ALICE, end=NOW - timedelta(minutes=5))
    seen = reading(process(), process("bob", 1002))
    found = run(seen, holding=None, before=ended, seconds=15)
    assert set(rules_of(found)) == {booking_alerts.OVERRUN, booking_alerts.SQUATTER}
    people = {f.rule: f.detail["users"] for f in found.findings}
    assert people == {
        booking_alerts.OVERRUN: ["alice1"],
        booking_alerts.SQUATTER: ["bob"],
    }


def test_display_servers_and_monitors_of_the_whitelist_are_nobodys() -> None:
    xorg = ProcessReading(
        pid=5, uid=1002, user="bob", command="/usr/lib/xorg/Xorg :0", memory_bytes=2**26
    )
    assert run(reading(xorg)).state is not GpuState.INTRUDER
    assert run(reading(xorg, util=0), holding=None).state is GpuState.FREE
    big = structs.replace(xorg, memory_bytes=2**33)
    assert run(reading(big)).state is GpuState.INTRUDER
    none = OwnerLookup(logins=OWNERS.logins, whitelist=())
    assert not none.exempt(xorg)


def test_a_container_or_slice_leads_to_the_login_that_the_node_tells() -> None:
    inside = ProcessReading(pid=5, uid=0, user="alice1", memory_bytes=2**30)
    assert run(reading(inside)).state is GpuState.BUSY
    assert holder_present(reading(inside), ALICE, OWNERS)
    unknown = ProcessReading(pid=5, uid=0, user=None)
    assert run(reading(unknown)).state is GpuState.BUSY


def test_a_finding_of_before_the_restart_stands_on_for_the_same_reservation_only() -> (
    None
):
    quiet = reading(process(), util=1)

    def first_look(number: int) -> list[str]:
        watcher = Watcher(WatchPolicy())
        watcher.adopt(7, booking_alerts.IDLE_HOG, number)
        verdict = watcher.judge(
            7,
            quiet,
            age_seconds=0.2,
            now=NOW,
            facts=GpuFacts(),
            owners=OWNERS,
            holding=ALICE,
        )
        return rules_of(verdict)

    assert first_look(ALICE.reservation_pk) == [booking_alerts.IDLE_HOG]
    assert first_look(99) == []


def test_each_process_of_a_stranger_has_its_own_time() -> None:
    watcher = Watcher(WatchPolicy())
    old = ProcessReading(pid=5, uid=1002, user="bob", started_at=1.0)
    new = ProcessReading(pid=6, uid=1002, user="bob", started_at=9.0)
    for second in range(20):
        seen = reading(old, new) if second >= 15 else reading(old)
        verdict = watcher.judge(
            7,
            seen,
            age_seconds=0.2,
            now=NOW + timedelta(seconds=second),
            facts=GpuFacts(),
            owners=OWNERS,
            holding=ALICE,
        )
    told = {one.process.pid: (one.seconds, one.samples) for one in verdict.suspects}
    assert told == {5: (19.0, 20), 6: (4.0, 5)}


def test_a_co_users_process_is_no_strangers_and_no_sign_of_the_holder():
    shared = replace(ALICE, co_users=frozenset({20, "bob"}))
    bobs = reading(process("bob", 1002))
    verdict = run(bobs, holding=shared, seconds=60)
    assert (verdict.state, verdict.findings, verdict.suspects) == (
        GpuState.BUSY,
        (),
        (),
    )
    assert run(bobs, seconds=60).state is GpuState.INTRUDER
    assert not holder_present(bobs, shared, OWNERS), "only the owner checks in"
    over = replace(shared, end=NOW - timedelta(seconds=10))
    carol = replace(ALICE, user_pk=30, username="carol", unix_user="carol")
    grace = run(bobs, holding=carol, before=over, seconds=15)
    assert grace.state is not GpuState.INTRUDER, "a co-user has the grace too"
