"""Summaries of what has ended: asked once, counted twice, kept."""

from datetime import UTC, datetime, timedelta

import pytest

from telemetry.history.minute_store import record_minutes
from telemetry.history.stored_usage import (
    FIRST_LOOK,
    LAST_LOOK,
    ask_summary,
    count_usage,
    fill_summaries,
    stored_usage,
)
from telemetry.models import Gpu, SampleMinute, UsageSummary
from telemetry.rules.rollup import MinuteTotals
from telemetry.rules.usage_summary import GpuSpan
from tests.factories import make_gpu, make_gpus

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
END = START + timedelta(minutes=100)
SOON = END + FIRST_LOOK
LATE = END + LAST_LOOK


def store(gpu: Gpu, first: int, *utils: float) -> None:
    """Store one minute after another, from so many minutes after 09:00."""
    record_minutes(
        totals={
            (gpu.pk, int(START.timestamp()) + 60 * number): MinuteTotals(
                n=60,
                util_n=60,
                util_sum_pct=60 * util,
                idle_n=60 if util < 3 else 0,
                memory_max_bytes=int(util) * 2**30,
                energy_joules=36_000.0,
            )
            for number, util in enumerate(utils, first)
        }
    )


def ask(*spans: GpuSpan, job_id: int | None = None) -> None:
    ask_summary(reservation_id=5, spans=spans, job_id=job_id, now=END)


def test_it_is_filled_in_after_the_last_minute_and_stands_after_the_last_look():
    gpu = make_gpu()
    store(gpu, 0, *[0] * 10, *[50] * 84, *[90] * 6)
    ask(GpuSpan(gpu.pk, START, END))
    assert fill_summaries(now=END) == 0
    assert stored_usage(reservation_id=5) is None
    assert fill_summaries(now=SOON) == 1
    usage = stored_usage(reservation_id=5)
    assert usage is not None
    assert usage.totals.util_mean_pct == pytest.approx((84 * 50 + 6 * 90) / 100)
    assert (usage.util_p95_pct, usage.totals.idle_ratio) == (90.0, 0.1)
    assert usage.totals.memory_max_bytes == 90 * 2**30
    assert (usage.energy_kwh, usage.gpu_seconds) == (1.0, 6000)
    assert usage.seen_ratio == 1.0
    assert fill_summaries(now=SOON) == 0
    store(gpu, -1, 99)  # not its own
    assert fill_summaries(now=LATE) == 1
    assert stored_usage(reservation_id=5) == usage
    assert not UsageSummary.objects.exclude(next_at=None).exists()


def test_minutes_that_come_late_are_in_the_last_count():
    gpu = make_gpu()
    store(gpu, 0, 20)
    ask(GpuSpan(gpu.pk, START, END))
    fill_summaries(now=SOON)
    store(gpu, 1, 60)
    fill_summaries(now=LATE)
    usage = stored_usage(reservation_id=5)
    assert usage is not None and usage.totals.util_mean_pct == 40


def test_a_summary_outlives_its_minutes():
    gpu = make_gpu()
    store(gpu, 0, 20)
    ask(GpuSpan(gpu.pk, START, END))
    fill_summaries(now=SOON)
    SampleMinute.objects.all().delete()
    fill_summaries(now=LATE)
    usage = stored_usage(reservation_id=5)
    assert usage is not None and usage.totals.n == 60


def test_each_gpu_has_its_own_and_all_together_theirs():
    one, two, other = make_gpus(3)
    store(one, 0, 10, 10)
    store(two, 0, 80)
    store(other, 0, 99)
    ask(GpuSpan(one.pk, START, END), GpuSpan(two.pk, START, END))
    fill_summaries(now=SOON)
    rows = UsageSummary.objects.order_by("gpu_id")
    told = {row.gpu_id: (row.n, row.util_p95_pct, row.gpu_seconds) for row in rows}
    assert told == {
        one.pk: (120, 10.0, 6000),
        two.pk: (60, 80.0, 6000),
        None: (180, 80.0, 12000),
    }


def test_what_was_never_read_is_unknown_and_not_zero():
    gpu = make_gpu()
    ask(GpuSpan(gpu.pk, START, END))
    fill_summaries(now=LATE)
    usage = stored_usage(reservation_id=5)
    assert usage is not None
    assert usage.totals.util_mean_pct is None
    assert (usage.util_p95_pct, usage.energy_kwh, usage.seen_ratio) == (None, None, 0)


def test_a_minute_belongs_to_the_span_its_middle_lies_in():
    gpu = make_gpu()
    store(gpu, 0, 10, 20, 30)
    half = timedelta(seconds=40)
    usage = count_usage([GpuSpan(gpu.pk, START + half, START + 2 * half)])
    assert usage.totals.util_mean_pct is None
    whole = count_usage([GpuSpan(gpu.pk, START + half, START + 4 * half)])
    assert whole.totals.util_mean_pct == 25


def test_a_job_and_its_reservation_have_a_summary_each_and_asking_again_replaces():
    gpu = make_gpu()
    store(gpu, 0, 10, 20, 30)
    ask(GpuSpan(gpu.pk, START, END))
    ask(GpuSpan(gpu.pk, START, START + timedelta(minutes=1)), job_id=9)
    ask(GpuSpan(gpu.pk, START, START + timedelta(minutes=2)), job_id=9)
    fill_summaries(now=LATE)
    job = stored_usage(reservation_id=5, job_id=9)
    assert job is not None and job.totals.util_mean_pct == 15
    whole = stored_usage(reservation_id=5)
    assert whole is not None and whole.totals.util_mean_pct == 20
    assert UsageSummary.objects.filter(kind="job").count() == 2


def test_what_had_no_gpu_for_any_time_has_no_summary():
    gpu = make_gpu()
    ask(GpuSpan(gpu.pk, END, START))
    assert not UsageSummary.objects.exists()
    assert stored_usage(reservation_id=5) is None


def test_counting_many_gpus_is_one_query(django_assert_num_queries):
    gpus = make_gpus(8)
    for number, gpu in enumerate(gpus):
        store(gpu, 0, *range(number, 40))
    with django_assert_num_queries(1):
        usage = count_usage([GpuSpan(gpu.pk, START, END) for gpu in gpus])
    assert usage.totals.n == 60 * sum(40 - number for number in range(8))
