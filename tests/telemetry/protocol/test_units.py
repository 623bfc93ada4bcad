"""Numbers for people: GiB, GPU-hours, spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reservations.rules.figures import hours_text
from telemetry.protocol import units
from telemetry.protocol.units import UNKNOWN, format_bytes, format_duration

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (143_771 * 2**20, "140 GiB"),
        (3 * 2**40, "3 TiB"),
        (-(2**30), "-1 GiB"),
        (None, UNKNOWN),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_that_fits(size_bytes, shown) -> None:
    assert format_bytes(size_bytes) == shown


def test_an_unknown_value_is_never_shown_as_zero() -> None:
    for shown in (
        units.format_gib(None),
        units.format_gpu_hours(None),
        format_duration(None),
    ):
        assert shown == UNKNOWN
        assert "0" not in shown


@pytest.mark.parametrize(
    ("gpu_seconds", "shown", "in_a_sentence"),
    [
        (0, "0", "0"),
        (1, "0.0003", "0.0003"),
        (60, "0.02", "0.02"),
        (-60, "-0.02", "-0.02"),
        (341, "0.09", "0.09"),
        (343, "0.1", "0.1"),
        (5400, "1.5", "1.5"),
        (720_000, "200", "200"),
    ],
)
def test_a_minute_of_a_gpu_is_not_shown_as_none(
    gpu_seconds, shown, in_a_sentence
) -> None:
    assert units.format_gpu_hours(gpu_seconds) == f"{shown} GPU-h"
    assert hours_text(gpu_seconds) == in_a_sentence


@pytest.mark.parametrize(
    ("span_seconds", "shown"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_span_is_shown_in_its_two_largest_units(span_seconds, shown) -> None:
    assert format_duration(span_seconds) == shown


@given(st.integers(0, 2**50))
def test_a_size_never_shows_more_than_four_digits(size_bytes: int) -> None:
    number = format_bytes(size_bytes).split()[0]
    assert len(number.replace(".", "")) <= 4
