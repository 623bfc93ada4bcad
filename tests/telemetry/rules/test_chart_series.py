"""Charts: which tier, how many points, and holes that stay."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.rules.chart_series import (
    DAY_SECONDS,
    MOST_MINUTE_ROWS,
    MOST_POINTS,
    series,
    tier_for,
)
from telemetry.rules.rollup import MinuteTotals

pytestmark = pytest.mark.pure

NOW = 1_780_000_000
KEPT = NOW - 30 * DAY_SECONDS


def tier(hours: float, *, gpus: int = 1, points: int = 720):
    start = int(NOW - hours * 3600)
    return tier_for(start=start, end=NOW, points=points, gpus=gpus, minutes_since=KEPT)


def test_short_charts_take_minutes_and_long_ones_hours() -> None:
    assert (tier(1).row_seconds, tier(1).step_seconds) == (60, 60)
    assert (tier(24).row_seconds, tier(24).step_seconds) == (60, 120)
    assert (tier(24 * 7).row_seconds, tier(24 * 7).step_seconds) == (60, 900)
    assert (tier(24 * 29).row_seconds, tier(24 * 29).step_seconds) == (3600, 3600)
    assert tier(24 * 730, points=1000).step_seconds == DAY_SECONDS
    assert tier(24 * 730, points=300).step_seconds == 3 * DAY_SECONDS


def test_what_minutes_do_not_reach_back_to_comes_from_hours() -> None:
    old = tier_for(start=KEPT - 3600, end=KEPT, points=720, gpus=1, minutes_since=KEPT)
    assert old.hourly


def test_a_large_node_takes_hours_before_a_small_one() -> None:
    assert not tier(24 * 7, gpus=8).hourly
    assert tier(24 * 7, gpus=64).hourly


@settings(max_examples=60, deadline=None)
@given(
    st.integers(60, 3 * 365 * DAY_SECONDS),
    st.integers(1, 1000),
    st.integers(1, 5000),
    st.integers(0, 10**6),
)
def test_no_chart_has_more_points_than_asked_nor_adds_up_too_many_minutes(
    span, gpus, points, shift
) -> None:
    end = NOW - shift
    chosen = tier_for(
        start=end - span, end=end, points=points, gpus=gpus, minutes_since=KEPT
    )
    made = series([], start=end - span, end=end, step_seconds=chosen.step_seconds)
    assert len(made["at"]) <= min(points + 1, MOST_POINTS)
    assert chosen.step_seconds % chosen.row_seconds == 0
    if not chosen.hourly:
        assert gpus * span / 60 <= MOST_MINUTE_ROWS


def test_a_bucket_without_a_sample_is_a_hole_and_a_mean_is_of_the_samples() -> None:
    rows = [
        (0, MinuteTotals(n=60, util_n=60, util_sum_pct=6000, energy_joules=10.0)),
        (60, MinuteTotals(n=20, util_n=20, util_sum_pct=0, energy_joules=None)),
    ]
    made = series(rows, start=0, end=360, step_seconds=120)
    assert made["util_avg_pct"] == [75.0, None, None]
    assert made["energy_joules"] == [10.0, None, None]
    assert made["n"] == [80, 0, 0]
