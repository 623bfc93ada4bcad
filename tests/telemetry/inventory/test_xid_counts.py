"""XIDs are counted once, dated, cleared, and open and close their own Alerts."""

from datetime import UTC, datetime, timedelta

import pytest

from telemetry.inventory.xid_counts import (
    MOST_CODES,
    clear_xids,
    count_xids,
    judge_xids,
)
from telemetry.models import Alert, TelemetryPolicy, XidCount
from telemetry.protocol.reading import XidEvent
from telemetry.rules.alert_rules import XID_CRITICAL, XID_WARNING
from tests.factories import make_gpu

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


def event(code: int, seconds_ago: float = 0.0) -> XidEvent:
    return XidEvent(code, NOW.timestamp() - seconds_ago)


def count(gpu, *events: XidEvent, now: datetime = NOW) -> int:
    return count_xids(events={gpu.pk: events}, now=now)


def test_they_are_counted_and_dated_and_a_stream_read_twice_counts_once():
    gpu = make_gpu()
    told = [event(13, 30), event(79, 20), event(79, 10)]
    assert count(gpu, *told) == 3
    assert count(gpu, *told) == 0
    assert count(gpu, *told, event(79, 5)) == 1
    row = XidCount.objects.get(code=79)
    assert row.count == 3
    assert (row.first_at, row.last_at) == (
        NOW - timedelta(seconds=20),
        NOW - timedelta(seconds=5),
    )


def test_a_clock_that_is_ahead_counts_as_now():
    gpu = make_gpu()
    count(gpu, event(79, -9_999))
    assert XidCount.objects.get().last_at == NOW
    assert count(gpu, event(79, -9_999), now=NOW + timedelta(seconds=9)) == 1


def test_each_list_is_one_alert_however_many_codes_and_what_is_in_none_is_no_alert():
    gpu = make_gpu()
    count(gpu, event(79, 9), event(48, 8), event(94, 7), event(31, 6), event(45, 5))
    rules = dict(Alert.objects.open().values_list("rule", "severity"))
    assert rules == {XID_CRITICAL: "critical", XID_WARNING: "warning"}
    told = Alert.objects.get(rule=XID_CRITICAL).detail["xids"]
    assert [xid["code"] for xid in told] == [48, 79]
    assert XidCount.objects.count() == 5


def test_clearing_closes_and_a_new_one_counts_from_one():
    gpu = make_gpu()
    count(gpu, event(79, 9), event(79, 8))
    later = NOW + timedelta(minutes=1)
    assert clear_xids(gpu_id=gpu.pk, now=later) == 1
    assert clear_xids(gpu_id=gpu.pk, now=later) == 0
    assert not Alert.objects.open().exists()
    after = later + timedelta(minutes=1)
    count(gpu, XidEvent(79, after.timestamp()), now=after)
    row = XidCount.objects.get()
    assert (row.count, row.first_at, row.cleared_at) == (1, after, None)
    assert Alert.objects.open().count() == 1


def test_an_alert_is_over_some_time_after_the_last_one_and_follows_the_policy():
    gpu = make_gpu()
    count(gpu, event(79))
    assert judge_xids(now=NOW + timedelta(hours=23)) == 0
    assert Alert.objects.open().exists()
    judge_xids(now=NOW + timedelta(hours=25))
    assert not Alert.objects.open().exists()
    policy = TelemetryPolicy.current()
    policy.xid_never = "79"
    policy.save()
    judge_xids(now=NOW + timedelta(minutes=1))
    assert not Alert.objects.open().exists()


def test_a_node_that_makes_codes_up_fills_neither_table_nor_page():
    told = [event(code) for code in range(1, 400)]
    assert count(make_gpu(), *told) == MOST_CODES == XidCount.objects.count()
