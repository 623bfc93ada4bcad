"""What the card says of itself opens and closes at the policy's thresholds."""

import pytest

from telemetry.protocol.reading import GpuAnswer, GpuReading, Throttle
from telemetry.rules.alert_rules import (
    BRAKE,
    ECC,
    LOST,
    REMAP_FAILURE,
    REMAP_PENDING,
    THERMAL,
    XID_CRITICAL,
    XID_WARNING,
)
from telemetry.rules.hardware_rules import HardwareWatcher, causes_of, xid_rule
from telemetry.rules.thresholds import JudgePolicy

pytestmark = pytest.mark.pure
WELL = GpuReading("GPU-1", util_pct=50, ecc_uncorrected=0, remap_pending=False)


def opens_at(reading: GpuReading, policy: JudgePolicy | None = None) -> dict[str, int]:
    """The second in which each rule is found, looking once a second."""
    watcher = HardwareWatcher(lambda: policy or JudgePolicy())
    first: dict[str, int] = {}
    for second in range(320):
        for finding in watcher.present_findings(1, reading, at=second, told_at=second):
            first.setdefault(finding.rule, second)
    return first


@pytest.mark.parametrize(
    ("reading", "rule", "second"),
    [
        (GpuReading("G", state=GpuAnswer.LOST), LOST, 3),
        (GpuReading("G", state=GpuAnswer.HUNG), LOST, 3),
        (GpuReading("G", throttle=(Throttle.HW_THERMAL,)), THERMAL, 300),
        (GpuReading("G", throttle=(Throttle.HW_SLOWDOWN,)), THERMAL, 300),
        (
            GpuReading("G", throttle=(Throttle.HW_SLOWDOWN, Throttle.HW_POWER_BRAKE)),
            BRAKE,
            300,
        ),
        (GpuReading("G", ecc_uncorrected=1), ECC, 15),
        (GpuReading("G", remap_failure=True), REMAP_FAILURE, 15),
        (GpuReading("G", remap_pending=True), REMAP_PENDING, 15),
        (GpuReading("G", retired_pages_pending=True), REMAP_PENDING, 15),
    ],
)
def test_each_rule_opens_at_its_threshold_and_is_the_only_one(reading, rule, second):
    assert opens_at(reading) == {rule: second}


def test_a_card_that_is_well_and_one_at_its_power_cap_have_no_finding():
    assert opens_at(WELL) == {}
    capped = GpuReading("G", throttle=(Throttle.SW_POWER_CAP, Throttle.SW_THERMAL))
    assert opens_at(capped) == {}


def test_the_operators_threshold_counts_and_never_a_single_sample():
    hot = GpuReading("G", throttle=(Throttle.HW_THERMAL,))
    quick = JudgePolicy(thermal_after_seconds=0, least_samples=2)
    assert opens_at(hot, quick) == {THERMAL: 1}


def test_a_moment_without_the_cause_begins_anew():
    watcher = HardwareWatcher()
    hot = GpuReading("G", throttle=(Throttle.HW_THERMAL,))
    for second in range(301):
        seen = WELL if second == 200 else hot
        found = list(watcher.present_findings(1, seen, at=second, told_at=second))
    assert found == []


def test_what_stood_before_the_restart_stands_on_and_blind_time_does_not_count():
    watcher = HardwareWatcher()
    watcher.adopt(1, THERMAL)
    hot = GpuReading("G", throttle=(Throttle.HW_THERMAL,))
    assert [f.rule for f in watcher.present_findings(1, hot, at=0.0, told_at=0.0)] == [
        THERMAL
    ]
    assert [rule.name for rule in causes_of(hot)] == [THERMAL]
    other = HardwareWatcher()
    for second in (0, 1, 2):
        list(other.present_findings(1, hot, at=second, told_at=second))
    other.note_gap(1)
    assert list(other.present_findings(1, hot, at=900.0, told_at=900.0)) == []


def test_xids_belong_to_the_list_that_names_them_and_never_goes_first():
    policy = JudgePolicy()
    assert {xid_rule(code, policy) for code in policy.xid_critical} == {XID_CRITICAL}
    assert xid_rule(94, policy) == XID_WARNING
    assert {xid_rule(code, policy) for code in (13, 31, 43, 63, 92, 45)} == {None}
    never = JudgePolicy(xid_never=(79,))
    assert xid_rule(79, never) is None
