"""Weeks folded into one, by the clocks on the wall."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.rules.week_pattern import HourUse, WeekHour, fold, stretches

pytestmark = pytest.mark.pure

BERLIN = ZoneInfo("Europe/Berlin")


def hours(start: datetime, count: int, taken=lambda at: 1.0) -> list[HourUse]:
    """One hour after another from an instant on, of which `taken` of 1 is taken."""
    steps = [start + timedelta(hours=number) for number in range(count)]
    return [HourUse(int(at.timestamp()), taken(at), 1.0) for at in steps]


def at(week: list[WeekHour], day: int, hour: int) -> WeekHour:
    return week[day * 24 + hour]


def test_nine_on_the_wall_is_nine_in_summer_and_in_winter() -> None:
    """Clocks in Berlin went back on Sunday 25 October 2026."""

    def at_nine(when: datetime) -> float:
        return 1.0 if when.astimezone(BERLIN).hour == 9 else 0.0

    start = datetime(2026, 10, 12, tzinfo=BERLIN).astimezone(UTC)
    week = fold(hours(start, 4 * 168 + 1, at_nine), BERLIN)
    for day in range(7):
        assert at(week, day, 9).free_ratio == 0
        assert at(week, day, 8).free_ratio == at(week, day, 10).free_ratio == 1


def test_the_hour_that_comes_twice_counts_twice_and_the_one_left_out_not_at_all():
    autumn = datetime(2026, 10, 19, tzinfo=BERLIN).astimezone(UTC)
    week = fold(hours(autumn, 169), BERLIN)
    assert (at(week, 6, 2).weeks, at(week, 6, 1).weeks, at(week, 0, 2).weeks) == (
        2,
        1,
        1,
    )
    spring = datetime(2026, 3, 23, tzinfo=BERLIN).astimezone(UTC)
    week = fold(hours(spring, 167), BERLIN)
    assert at(week, 6, 2).free_ratio is None
    assert [at(week, 6, hour).weeks for hour in (1, 2, 3)] == [1, 0, 1]


def test_what_nobody_knows_is_neither_free_nor_taken() -> None:
    monday = datetime(2026, 3, 2, tzinfo=UTC)
    known = [HourUse(int(monday.timestamp()), 0.25, 1.0)]
    week = fold([*known, HourUse(int(monday.timestamp()) + 3600, 0.0, 0.0)], UTC)
    assert (week[0].free_ratio, week[1].free_ratio) == (0.75, None)
    assert stretches(week, hours=2, most=3) == []
    assert [one.words for one in stretches(week, hours=1, most=3)] == [
        "Mon 00:00 to 01:00"
    ]


def test_weeks_weigh_by_their_gpus_and_not_alike() -> None:
    first = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp())
    week = fold([HourUse(first, 9, 10), HourUse(first + 168 * 3600, 0, 30)], UTC)
    assert week[0].free_ratio == pytest.approx(1 - 9 / 40)


def test_stretches_do_not_overlap_and_may_run_over_the_end_of_the_week() -> None:
    def night(when: datetime) -> float:
        return 0.0 if (when.weekday(), when.hour) in {(6, 22), (6, 23), (0, 0)} else 1.0

    week = fold(hours(datetime(2026, 3, 2, tzinfo=UTC), 168, night), UTC)
    best, second = stretches(week, hours=3, most=2)
    assert (best.words, best.free_ratio) == ("Sun 22:00 to Mon 01:00", 1.0)
    assert second.free_ratio == 0
    late = stretches(week, hours=2, most=1)[0]
    assert late.words in ("Sun 22:00 to 00:00", "Sun 23:00 to Mon 01:00")
    busiest = stretches(week, hours=3, most=1, busiest=True)[0]
    assert busiest.free_ratio == 0


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1_700_000_000, 1_900_000_000),
    st.integers(1, 400),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"]),
)
def test_every_hour_is_counted_once_whatever_the_zone(first, count, zone) -> None:
    start = datetime.fromtimestamp(first // 3600 * 3600, UTC)
    week = fold(hours(start, count, lambda at: 0.5), ZoneInfo(zone))
    assert sum(one.weeks for one in week) == count
    assert {one.free_ratio for one in week} <= {0.5, None}
    assert [(one.day, one.hour) for one in week] == [
        (day, hour) for day in range(7) for hour in range(24)
    ]
