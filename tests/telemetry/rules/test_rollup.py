"""Minutes out of samples; holes stay holes."""

from dataclasses import fields

import pytest

from telemetry.protocol.sample import GpuAnswer, GpuReading
from telemetry.rules.rollup import (
    EMPTY,
    MinuteTotals,
    merge_all,
    minute_start,
    of_reading,
)

pytestmark = pytest.mark.pure


def reading(util_pct: int | None, **more) -> GpuReading:
    return GpuReading(uuid="GPU-1", util_pct=util_pct, **more)


def test_a_minute_counts_sums_and_keeps_the_extremes() -> None:
    minute = merge_all(
        of_reading(
            reading(u, memory_used_bytes=m, power_watts=w, temperature_celsius=t),
            holder_present=True,
        )
        for u, m, w, t in [(0, 10, 60.0, 40), (50, 30, 200.0, 61), (100, 20, 100.0, 60)]
    )
    assert minute == MinuteTotals(
        n=3,
        util_n=3,
        util_sum_pct=150,
        util_min_pct=0,
        util_max_pct=100,
        idle_n=1,
        memory_n=3,
        memory_sum_bytes=60,
        memory_max_bytes=30,
        temperature_max_celsius=61,
        power_n=3,
        power_sum_watts=360.0,
        process_n=3,
    )
    assert minute.util_mean_pct == 50
    assert minute.memory_mean_bytes == 20
    assert minute.power_mean_watts == 120.0
    assert minute.idle_ratio == pytest.approx(1 / 3)


def test_a_reading_that_the_card_cannot_give_leaves_a_hole_in_its_field_only() -> None:
    minute = merge_all(
        [of_reading(reading(None, power_watts=90.0)), of_reading(reading(80))]
    )
    assert (minute.n, minute.util_n, minute.power_n) == (2, 1, 1)
    assert minute.util_mean_pct == 80
    assert minute.power_mean_watts == 90.0
    assert minute.memory_mean_bytes is None
    assert minute.temperature_max_celsius is None


@pytest.mark.parametrize("state", [GpuAnswer.LOST, GpuAnswer.HUNG, GpuAnswer.ERROR])
def test_a_gpu_that_does_not_answer_adds_nothing(state) -> None:
    assert of_reading(reading(50, state=state)) == EMPTY
    assert of_reading(None) == EMPTY
    assert EMPTY.util_mean_pct is None
    assert EMPTY.idle_ratio is None


def test_unknown_utilization_is_not_idle() -> None:
    assert of_reading(reading(None)).idle_n == 0
    assert of_reading(reading(2)).idle_n == 1
    assert of_reading(reading(3)).idle_n == 0


def test_the_fields_are_those_of_the_stored_row() -> None:
    from telemetry.models import SampleMinute

    stored = {field.name for field in SampleMinute._meta.get_fields()}
    assert {field.name for field in fields(MinuteTotals)} <= stored


def test_a_minute_starts_on_the_full_minute() -> None:
    assert minute_start(1_700_000_039.99) == 1_699_999_980
