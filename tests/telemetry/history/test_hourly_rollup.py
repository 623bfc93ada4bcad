"""Hours out of minutes: equal to the raw, late minutes and two at once included."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from telemetry.history import queries as history
from telemetry.history.hourly_rollup import (
    mark_hours_due,
    prune_hours,
    roll_account_hours,
    roll_hours,
)
from telemetry.history.minute_store import record_minutes
from telemetry.models import (
    AccountHour,
    HourDue,
    SampleHour,
    SampleMinute,
    TelemetryPolicy,
)
from telemetry.protocol.sample import GpuReading
from telemetry.rules.energy import EnergyMeters
from telemetry.rules.rollup import (
    EMPTY,
    MinuteTotals,
    merge,
    merge_all,
    minute_start,
    of_reading,
)
from tests.factories import make_gpu, make_gpus, make_node

HOUR = datetime(2026, 3, 2, 9, tzinfo=UTC)
START = int(HOUR.timestamp())
NOON = HOUR + timedelta(hours=3)
ALL = tuple(MinuteTotals.__dataclass_fields__)


def minute(util: float = 50, n: int = 60, **more: object) -> MinuteTotals:
    return MinuteTotals(n=n, util_n=n, util_sum_pct=util * n, **more)  # type: ignore[arg-type]


def store(gpu, *minutes: tuple[int, MinuteTotals]) -> int:
    """Store minutes, counted from 09:00."""
    return record_minutes(
        totals={(gpu.pk, START + 60 * number): total for number, total in minutes}
    )


SAMPLES = st.lists(
    st.tuples(
        st.integers(0, 7199),
        st.none() | st.integers(0, 100),
        st.none() | st.integers(0, 500).map(float),
        st.none() | st.integers(0, 2**36),
    ),
    max_size=25,
    unique_by=lambda sample: sample[0],
)


class TestRollUpsEqualTheRaw(TestCase):
    @settings(max_examples=15, deadline=None)
    @given(SAMPLES)
    def test_what_hours_say_is_what_the_samples_say_and_holes_stay_holes(self, drawn):
        gpu = make_gpu()
        meters = EnergyMeters()
        raw: dict[int, MinuteTotals] = {}
        minutes: dict[tuple[int, int], MinuteTotals] = {}
        for second, util, watts, memory in sorted(drawn):
            reading = GpuReading(
                uuid="GPU-1", util_pct=util, power_watts=watts, memory_used_bytes=memory
            )
            joules = meters.joules_since_last(gpu.pk, START + second, reading)
            total = of_reading(reading, energy_joules=joules)
            hour = second // 3600
            raw[hour] = merge(raw.get(hour, EMPTY), total)
            key = (gpu.pk, minute_start(START + second))
            minutes[key] = merge(minutes.get(key, EMPTY), total)
        record_minutes(totals=minutes)
        roll_hours(now=NOON)
        rolled = {
            int((row["hour_at"] - HOUR).total_seconds()) // 3600: MinuteTotals(
                **{name: row[name] for name in ALL}
            )
            for row in SampleHour.objects.filter(gpu=gpu).values()
        }
        assert rolled.keys() == raw.keys()
        for hour, total in raw.items():
            told = rolled[hour]
            for name in ALL:
                assert getattr(told, name) == pytest.approx(getattr(total, name)), name
            assert told.util_mean_pct == pytest.approx(total.util_mean_pct)
            assert told.power_mean_watts == pytest.approx(total.power_mean_watts)


@pytest.mark.django_db
class TestRolling:
    def test_an_hour_is_rolled_up_when_it_is_over_and_not_before(self):
        gpu = make_gpu()
        store(gpu, (0, minute(20)), (59, minute(80)), (60, minute(99)))
        assert roll_hours(now=HOUR + timedelta(minutes=59)) == 0
        assert roll_hours(now=HOUR + timedelta(minutes=60)) == 1
        row = SampleHour.objects.get()
        assert (row.hour_at, row.n, row.util_sum_pct) == (HOUR, 120, 6000)
        assert roll_hours(now=HOUR + timedelta(minutes=60)) == 0

    def test_a_late_minute_makes_its_hour_due_again(self):
        gpu = make_gpu()
        store(gpu, (0, minute(20)))
        roll_hours(now=NOON)
        store(gpu, (1, minute(40)), (0, minute(20, n=30)))
        assert HourDue.objects.filter(tier="gpu").count() == 1
        assert roll_hours(now=NOON) == 1
        row = SampleHour.objects.get()
        assert (row.n, row.util_sum_pct) == (120, 3600)

    def test_storing_the_same_again_makes_nothing_due(self):
        gpu = make_gpu()
        store(gpu, (0, minute(20)))
        roll_hours(now=NOON)
        store(gpu, (0, minute(20)))
        assert not HourDue.objects.filter(tier="gpu").exists()

    def test_pruned_minutes_do_not_empty_their_hour(self):
        gpu = make_gpu()
        store(gpu, (0, minute(20)), (1, minute(30)))
        roll_hours(now=NOON)
        SampleMinute.objects.filter(minute_at=HOUR).delete()
        mark_hours_due([HOUR])
        roll_hours(now=NOON)
        assert SampleHour.objects.get().n == 120

    def test_an_hour_without_a_minute_has_no_row(self):
        gpu = make_gpu()
        store(gpu, (0, minute(20)), (130, minute(20)))
        roll_hours(now=NOON)
        hours = SampleHour.objects.values_list("hour_at", flat=True)
        assert list(hours) == [HOUR, HOUR + timedelta(hours=2)]

    def test_an_hour_that_cannot_be_written_does_not_hold_up_the_next(
        self, monkeypatch, caplog
    ):
        from django.db import OperationalError

        from telemetry.history import hourly_rollup

        gpu = make_gpu()
        store(gpu, (0, minute(20)), (60, minute(20)))
        roll = hourly_rollup._roll_gpus

        def fails_once(hour: datetime) -> None:
            if hour == HOUR:
                raise OperationalError("disk full")
            roll(hour)

        monkeypatch.setattr(hourly_rollup, "_roll_gpus", fails_once)
        assert roll_hours(now=NOON) == 1
        assert "is not rolled up" in caplog.text
        assert HourDue.objects.filter(tier="gpu").get().hour_at == HOUR

    @pytest.mark.once
    def test_two_hundred_gpus_are_a_handful_of_queries(
        self, django_assert_max_num_queries
    ):
        gpus = make_gpus(200)
        record_minutes(
            totals={(gpu.pk, START + 60 * m): minute() for gpu in gpus for m in (0, 1)}
        )
        with django_assert_max_num_queries(12):
            roll_hours(now=NOON)
        assert SampleHour.objects.count() == 200

    def test_hours_older_than_kept_are_deleted(self):
        gpu = make_gpu()
        store(gpu, (0, minute()))
        roll_hours(now=NOON)
        assert prune_hours(now=NOON, keep_days=2) == 0
        assert prune_hours(now=NOON + timedelta(days=3), keep_days=2) == 1
        assert not SampleHour.objects.exists()

    def test_an_account_s_hour_is_written_once_and_follows_what_was_held(self):
        gpu = make_gpu()
        store(gpu, (0, minute(20)), (1, minute(60)))
        key = (7, gpu.pool_id)
        told = {key: (minute(20), 1800)}
        assert roll_account_hours(now=NOON, held=lambda hour: told) == 1
        told[key] = (merge_all([minute(20), minute(60)]), 3600)
        mark_hours_due([HOUR])
        assert roll_account_hours(now=NOON, held=lambda hour: told) == 1
        row = AccountHour.objects.get()
        assert (row.account_id, row.n, row.held_seconds) == (7, 120, 3600)


@pytest.mark.django_db(transaction=True)
def test_two_that_roll_up_at_once_write_the_same_once():
    gpus = make_gpus(20)
    record_minutes(
        totals={
            (gpu.pk, START + 60 * number): minute(number)
            for gpu in gpus
            for number in range(0, 180, 20)
        }
    )
    start = threading.Barrier(3)
    rolled: list[int] = []

    def work() -> None:
        start.wait()
        rolled.append(roll_hours(now=NOON))
        connection.close()

    def late() -> None:
        start.wait()
        for gpu in gpus:
            store(gpu, (1, minute(100)))
        connection.close()

    threads = [threading.Thread(target=t) for t in (work, work, late)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    roll_hours(now=NOON)
    assert sum(rolled) >= 3
    assert not HourDue.objects.filter(tier="gpu").exists()
    for gpu in gpus:
        minutes = SampleMinute.objects.filter(
            gpu=gpu, minute_at__lt=HOUR + timedelta(hours=1)
        )
        first = SampleHour.objects.get(gpu=gpu, hour_at=HOUR)
        assert first.n == sum(minutes.values_list("n", flat=True)) == 240


@pytest.mark.django_db
class TestHistory:
    def read(self, subject, hours: float, points: int = 720):
        end = int(NOON.timestamp())
        asked = history.HistoryRange(int(end - hours * 3600), end, points)
        return history.read_history(subject, asked, now=NOON)

    def test_minutes_and_hours_tell_the_same(self):
        gpu = make_gpu()
        store(gpu, *((number, minute(number % 100)) for number in range(0, 170, 7)))
        roll_hours(now=NOON)
        fine = self.read(history.of_gpu(gpu), 3)
        coarse = self.read(history.of_gpu(gpu), 3, points=4)
        assert (fine["step_seconds"], coarse["step_seconds"]) == (60, 3600)
        assert sum(fine["n"]) == sum(coarse["n"]) == 60 * 25
        known = [x for x in fine["util_avg_pct"] if x is not None]
        weighed = [
            mean * n
            for mean, n in zip(coarse["util_avg_pct"], coarse["n"], strict=True)
            if mean is not None
        ]
        mean = sum(weighed) / sum(coarse["n"])
        assert mean == pytest.approx(sum(known) / len(known), abs=0.1)
        assert fine["util_avg_pct"].count(None) == 180 - 25

    def test_the_hour_that_runs_comes_from_its_minutes(self):
        gpu = make_gpu()
        store(gpu, (0, minute(10)), (150, minute(90)))
        roll_hours(now=HOUR + timedelta(minutes=155))
        at = HOUR + timedelta(minutes=155)
        asked = history.HistoryRange(START, int(at.timestamp()), 4)
        told = history.read_history(history.of_gpu(gpu), asked, now=at)
        assert told["util_avg_pct"] == [10.0, None, 90.0]

    def test_a_node_is_the_band_of_its_gpus(self):
        node = make_node("node-a")
        one, two = make_gpus(2, node)
        store(make_gpu(make_node("node-b")), (0, minute(77)))
        store(one, (0, minute(10, util_min_pct=5, util_max_pct=15)))
        store(two, (0, minute(50, util_min_pct=40, util_max_pct=60)))
        told = self.read(history.of_node(node), 3)
        assert told["at"][0] == START
        assert told["util_avg_pct"][0] == 30.0
        assert (told["util_min_pct"][0], told["util_max_pct"][0]) == (5.0, 60.0)

    @pytest.mark.once
    def test_two_years_are_a_few_queries_and_at_most_a_thousand_points(
        self, django_assert_max_num_queries
    ):
        node = make_node("node-a")
        gpus = make_gpus(4, node)
        SampleHour.objects.bulk_create(
            SampleHour(
                gpu=gpu,
                hour_at=NOON - timedelta(hours=11 * number),
                **{name: getattr(minute(40), name) for name in ALL},
            )
            for gpu in gpus
            for number in range(1, 1500)
        )
        subject = history.of_node(node)
        TelemetryPolicy.current()
        with django_assert_max_num_queries(4):
            told = self.read(subject, 2 * 365 * 24, points=1000)
        assert 600 < len(told["at"]) <= 1000
        assert told["step_seconds"] == 24 * 3600
        assert set(told["util_avg_pct"]) <= {40.0, None}
