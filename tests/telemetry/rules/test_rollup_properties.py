"""Roll-ups of roll-ups are right, in whatever order they are made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.protocol.sample import GpuReading
from telemetry.rules.rollup import EMPTY, MinuteTotals, merge, merge_all, of_reading

pytestmark = pytest.mark.pure

# Whole watts: sums of floats are only associative up to rounding.
READINGS = st.builds(
    GpuReading,
    uuid=st.just("GPU-1"),
    util_pct=st.none() | st.integers(0, 100),
    memory_used_bytes=st.none() | st.integers(0, 2**37),
    temperature_celsius=st.none() | st.integers(0, 120),
    power_watts=st.none() | st.integers(0, 700).map(float),
)
LISTS = st.lists(st.none() | READINGS, max_size=12)


def totals(readings: list[GpuReading | None]) -> MinuteTotals:
    return merge_all(of_reading(x) for x in readings)


@given(LISTS, LISTS, LISTS)
def test_merging_is_associative_and_commutative_and_empty_is_neutral(a, b, c) -> None:
    x, y, z = totals(a), totals(b), totals(c)
    assert merge(merge(x, y), z) == merge(x, merge(y, z)) == totals(a + b + c)
    assert merge(x, y) == merge(y, x)
    assert merge(x, EMPTY) == x


@given(LISTS)
def test_totals_agree_with_counting_by_hand(readings) -> None:
    told = [x.util_pct for x in readings if x is not None and x.util_pct is not None]
    minute = totals(readings)
    assert minute.n == sum(x is not None for x in readings)
    assert minute.util_n == len(told)
    assert minute.util_mean_pct == (sum(told) / len(told) if told else None)
    assert minute.util_max_pct == max(told, default=None)
    assert minute.util_min_pct == min(told, default=None)
