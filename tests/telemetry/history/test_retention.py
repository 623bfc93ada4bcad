"""Retention per tier as the operator set it, and energy from stream to row."""

import time
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from reservations import tick
from telemetry import tasks
from telemetry.history.minute_store import record_minutes
from telemetry.history.stored_usage import ask_summary, stored_usage
from telemetry.ingest.intake import MINUTES_DONE
from telemetry.models import SampleHour, SampleMinute, TelemetryPolicy, UsageSummary
from telemetry.rules.rollup import MinuteTotals, minute_start
from telemetry.rules.usage_summary import GpuSpan
from tests.factories import make_gpu, make_node
from tests.telemetry.ingest.stepped import Stepped
from tests.telemetry.messages import reading, sample, send

pytestmark = pytest.mark.django_db


def keep(**fields: int) -> None:
    policy = TelemetryPolicy.current()
    for name, value in fields.items():
        setattr(policy, name, value)
    policy.full_clean()
    policy.save()


def test_each_tier_is_kept_as_long_as_the_operator_says(redis_client, monkeypatch):
    monkeypatch.setattr(tasks, "close_old_connections", lambda: None)
    gpu = make_gpu()
    now = timezone.now()
    days = (0, 3, 6, 12)
    record_minutes(
        totals={
            (gpu.pk, int((now - timedelta(days=n, hours=2)).timestamp()) // 60 * 60): (
                MinuteTotals(n=60)
            )
            for n in days
        }
    )
    tick.tick(now)
    keep(keep_minute_days=5, keep_hour_days=10)
    done = tasks.tick()
    assert (done["hours_rolled"], done["minutes_deleted"]) == (4, 2)
    assert done["hours_deleted"] == 1
    assert (SampleMinute.objects.count(), SampleHour.objects.count()) == (2, 3)
    long_ago = now - timedelta(days=900)
    span = GpuSpan(gpu.pk, long_ago, long_ago + timedelta(hours=1))
    ask_summary(reservation_id=1, spans=[span], now=long_ago)
    tasks.tick()
    assert UsageSummary.objects.filter(next_at=None).count() == 2
    assert stored_usage(reservation_id=1) is not None


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"keep_hour_days": 20}, "keep_hour_days"),
        ({"keep_raw_seconds": 10}, "keep_raw_seconds"),
        ({"keep_raw_seconds": 7200}, "keep_raw_seconds"),
        ({"keep_minute_days": 0}, "keep_minute_days"),
        ({"keep_hour_days": 30_000}, "keep_hour_days"),
    ],
)
def test_what_cannot_be_kept_is_refused_on_its_field(fields, wrong):
    with pytest.raises(ValidationError) as refused:
        keep(**fields)
    assert list(refused.value.message_dict) == [wrong]


@pytest.mark.once
def test_raw_samples_older_than_kept_leave_the_broker(redis_client):
    gpu = make_gpu(make_node("node-a", last_seen_at=None))
    keep(keep_raw_seconds=300)
    now = time.time()
    for age in range(2000, 0, -1):
        message = {"m": b"{}"} if age % 100 else {"m": b"[]"}
        redis_client.xadd("raw.node-a", message, id=f"{int((now - age) * 1000)}-1")
    send(redis_client, "raw.node-a", sample(reading(gpu.uuid)), at=now)
    stepped = Stepped(redis_client)
    stepped.ingest.intake.trim()
    kept = redis_client.xlen("raw.node-a")
    # The broker trims whole nodes of its tree: a hundred entries more may stay.
    assert 360 <= kept <= 362 + 100


def test_energy_is_stored_by_the_counter_and_by_power_where_there_is_none(redis_client):
    node = make_node("node-a", last_seen_at=None)
    counted, plain, silent = (make_gpu(node) for _ in range(3))
    minute = minute_start(time.time()) - 60 * 10
    redis_client.set(MINUTES_DONE, minute - 60)
    for second in range(120):
        # A reload in the second minute: the counter begins anew.
        joules = 5000.0 + 300 * second if second < 90 else 300.0 * (second - 90)
        message = sample(
            reading(counted.uuid, energy_joules=joules, power_watts=300.0),
            reading(plain.uuid, power_watts=200.0),
            reading(silent.uuid, power_watts=None),
        )
        send(redis_client, "raw.node-a", message, at=minute + second)
    Stepped(redis_client).round()
    rows = SampleMinute.objects.order_by("minute_at")

    def told(gpu) -> list[float | None]:
        return list(rows.filter(gpu=gpu).values_list("energy_joules", flat=True))

    assert told(counted) == pytest.approx([60 * 300.0, 60 * 300.0])
    assert told(plain) == pytest.approx([60 * 200.0, 60 * 200.0])
    assert told(silent) == [None, None]
