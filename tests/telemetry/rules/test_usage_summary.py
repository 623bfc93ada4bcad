"""Summaries: percentiles, shares, kilowatt-hours."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.rules.rollup import MinuteTotals
from telemetry.rules.usage_summary import GpuSpan, Usage, p95, percentile

pytestmark = pytest.mark.pure


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.integers(0, 100), st.integers(1, 50), min_size=1))
def test_the_percentile_is_the_nearest_rank_of_the_written_out_list(counts) -> None:
    written = sorted(v for value, n in counts.items() for v in [value] * n)
    rank = -(-len(written) * 95 // 100)
    assert percentile(counts, 0.95) == written[rank - 1]


def test_unknown_values_do_not_count_and_nothing_known_is_unknown() -> None:
    assert p95([(None, 60), (40.0, 60), (40.0, 60), (90.0, 1)]) == 40.0
    assert p95([(None, 60)]) is None
    assert p95([]) is None


def test_a_summary_says_kilowatt_hours_and_how_much_was_seen() -> None:
    usage = Usage(MinuteTotals(n=1800, energy_joules=7.2e6), 90.0, gpu_seconds=3600)
    assert (usage.energy_kwh, usage.seen_ratio) == (2.0, 0.5)
    nothing = Usage(MinuteTotals(), None, gpu_seconds=0)
    assert (nothing.energy_kwh, nothing.seen_ratio) == (None, None)


def test_a_span_that_ends_before_it_begins_has_no_length() -> None:
    noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    assert GpuSpan(1, noon, noon - timedelta(hours=1)).seconds == 0
    assert GpuSpan(1, noon, noon + timedelta(hours=1)).seconds == 3600
