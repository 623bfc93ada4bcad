"""Series: shown day by day, booked by the rules, continued by the tick."""

from datetime import UTC, date, datetime, time, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.models import Notice, Occurrence, Reservation, Series
from reservations.rules.errors import NotFound
from reservations.rules.lifecycle import Kind, State
from reservations.series import series_end
from reservations.series import service as series
from reservations.series.recurrence import (
    Repeat,
    Rule,
    SeriesConflict,
    SeriesInvalid,
    rule_from,
)
from reservations.store.booking_facts import site_policy
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at

BERLIN = "Europe/Berlin"


def rule(start, hours=1, repeat="daily", **end) -> Rule:
    return rule_from(
        repeat=repeat,
        start=start,
        end=start + timedelta(hours=hours),
        zone=BERLIN,
        until=end.get("until"),
        times=end.get("times"),
    )


def wish(lab, user, wanted: Rule, gpus=1):
    return series.checked_wish(
        user=user,
        membership=None,
        gpu_ids=[g.pk for g in lab.gpus[:gpus]],
        rule=wanted,
        purpose="lecture",
        now=NOW,
    )


def test_local_time_stays_over_the_change_of_the_clock() -> None:
    # Sunday 29 March 2026, 02:00 becomes 03:00; 25 October, 03:00 becomes 02:00.
    days = Rule(Repeat.WEEKLY, date(2026, 3, 22), time(9), BERLIN, HOUR, times=2)
    assert [days.window(day).start.hour for day in days.days()] == [8, 7]
    night = Rule(Repeat.DAILY, date(2026, 3, 28), time(2, 30), BERLIN, HOUR, times=3)
    starts = [night.window(day).start for day in night.days()]
    assert starts[1] == datetime(2026, 3, 29, 1, 30, tzinfo=UTC), "03:30 there"
    autumn = Rule(Repeat.DAILY, date(2026, 10, 25), time(2, 30), BERLIN, HOUR, times=1)
    twice = autumn.window(date(2026, 10, 25))
    assert twice.start == datetime(2026, 10, 25, 0, 30, tzinfo=UTC), "the first one"
    assert twice.seconds == HOUR


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    repeat=st.sampled_from(list(Repeat)),
    first=st.dates(date(2026, 1, 1), date(2026, 12, 31)),
    hour=st.integers(0, 23),
    hours=st.integers(1, 24),
    times=st.integers(1, 40),
)
def test_days_are_in_order_apart_at_the_same_wall_clock_and_counted(
    repeat, first, hour, hours, times
) -> None:
    from zoneinfo import ZoneInfo

    made = Rule(repeat, first, time(hour), BERLIN, hours * HOUR, times=times)
    made.check()
    days = list(made.days())
    assert len(days) == times and days == sorted(set(days))
    assert repeat is not Repeat.WEEKDAYS or all(day.weekday() < 5 for day in days)
    windows = [made.window(day) for day in days]
    assert all(w.seconds == hours * HOUR for w in windows)
    lost = {(date(2026, 3, 29), 2), (date(2027, 3, 28), 2)}
    for day, window in zip(days, windows, strict=True):
        local = window.start.astimezone(ZoneInfo(BERLIN))
        assert (day, hour) in lost or (local.date(), local.hour) == (day, hour)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, "until"),
        ({"times": 0}, "times"),
        ({"times": 400}, "times"),
        ({"until": date(2026, 3, 1)}, "until"),
        ({"until": date(2027, 9, 1)}, "until"),
        ({"times": 2, "hours": 25}, "end"),
        ({"times": 2, "hours": -1}, "end"),
        ({"times": 2, "repeat": "hourly"}, "repeat"),
    ],
)
def test_a_repetition_that_cannot_be_meant_names_its_field(changes, field) -> None:
    known = {"start": at(9, day=3), "hours": 1, "repeat": "daily"}
    with pytest.raises(SeriesInvalid) as refused:
        rule(**{**known, **changes})
    assert refused.value.field == field


def test_conflicts_are_shown_before_saving_and_left_out_where_one_says_so(
    lab, alice, carol
) -> None:
    lab.book(carol, lab.gpus[:1], at(10, day=5), 3)
    wanted = wish(lab, alice, rule(at(10, day=3), 2, times=4))
    shown = series.rehearse(wanted, now=NOW)
    assert [one.state for one in shown] == ["booked", "booked", "refused", "booked"]
    assert {one.decision.kind for one in shown if one.decision} == {Kind.FIRM}
    assert shown[2].refusal.code == "gpu-taken"
    assert shown[2].refusal.next_slot is not None
    assert Reservation.objects.filter(user=alice).count() == 0, "only shown"

    with pytest.raises(SeriesConflict) as refused:
        series.create(wanted, now=NOW)
    assert refused.value.days == ("2026-03-05",)
    assert not Series.objects.exists(), "all or nothing"
    made, looked = series.create(wanted, skip_refused=True, now=NOW)
    assert [one.state for one in looked] == [one.state for one in shown]
    booked = Reservation.objects.filter(user=alice)
    assert [row.start for row in booked] == [at(10, day=d) for d in (3, 4, 6)]
    assert {row.purpose for row in booked} == {"lecture"}
    assert made.occurrences.get(state="refused").code == "gpu-taken"


@pytest.mark.once
def test_the_quota_counts_every_day_and_what_does_not_fit_waits(lab, alice) -> None:
    alice.memberships.update(quota_gpu_seconds=WEIGHT * 3 * HOUR)
    shown = series.rehearse(wish(lab, alice, rule(at(10, day=9), 1, times=5)), now=NOW)
    # Beyond the flex horizon only three hours in seven days are firm.
    assert [one.state for one in shown] == ["booked"] * 3 + ["later"] * 2
    assert {one.refusal.code for one in shown[3:]} == {"quota-exceeded"}


@pytest.mark.once
def test_the_tick_books_what_comes_into_the_horizon_tells_conflicts_and_ends(
    lab, alice, carol
) -> None:
    made, looked = series.create(
        wish(lab, alice, rule(at(10, day=3), 2, "weekly", times=4)), now=NOW
    )
    assert [one.day.day for one in looked] == [3, 10]
    policy = site_policy()
    assert series.extend(NOW, policy) == {"series_booked": 0, "series_conflicts": 0}
    then = at(10, day=3)
    lab.book(carol, lab.gpus[:1], at(10, day=17), 1, now=then)
    done = series.extend(then, policy)
    assert done == {"series_booked": 0, "series_conflicts": 1}
    told = Notice.objects.get(user=alice, kind="series_conflict")
    assert told.detail["start"].startswith("2026-03-17T10:00")
    assert series.extend(then, policy)["series_conflicts"] == 0, "once"
    assert series.extend(at(10, day=10), policy)["series_booked"] == 1
    row = made.occurrences.get(day=date(2026, 3, 24)).reservation
    assert (row.start, row.state) == (at(10, day=24), State.CONFIRMED)
    assert row.decision["rule"].startswith("1")
    series.extend(at(13, day=24), policy)
    made.refresh_from_db()
    assert made.state == Series.State.ENDED


def test_a_day_waits_for_a_place_among_live_bookings_and_is_told_a_day_before(
    lab, alice
) -> None:
    lab.set(live_reservations=2)
    made, looked = series.create(
        wish(lab, alice, rule(at(10, day=3), 2, times=4)), now=NOW
    )
    assert [one.state for one in looked] == ["booked", "booked", "later", "later"]
    Reservation.objects.filter(start=at(10, day=3)).update(state=State.ENDED)
    policy = site_policy()
    assert series.extend(at(13, day=3), policy)["series_booked"] == 1
    assert not Notice.objects.filter(kind="series_conflict").exists()
    series.extend(at(13, day=5), policy)
    assert Notice.objects.filter(kind="series_conflict").count() == 1
    series.extend(at(13, day=6), policy)
    assert made.occurrences.get(day=date(2026, 3, 6)).state == "refused"
    assert Notice.objects.filter(kind="series_conflict").count() == 1, "told once"


def test_one_day_is_left_out_all_that_follow_are_cancelled_or_none_is_added(
    lab, alice, bob
) -> None:
    made, _ = series.create(wish(lab, alice, rule(at(10, day=4), 1, times=20)), now=NOW)
    act = {"series_id": made.pk, "user": alice, "now": NOW}
    series_end.skip_day(day=date(2026, 3, 5), **act)
    states = Reservation.objects.order_by("start").values_list("state", flat=True)
    assert list(states)[:2] == ["confirmed", "cancelled"]
    with pytest.raises(NotFound):
        series_end.end(series_id=made.pk, user=bob, now=NOW)
    with pytest.raises(SeriesInvalid):
        series_end.skip_day(day=date(2026, 4, 30), **act)
    assert series_end.cancel_from(day=date(2026, 3, 8), **act) == 2
    live = Reservation.objects.live().values_list("start", flat=True)
    assert [start.day for start in live] == [4, 6, 7]
    assert series.extend(at(0, day=20), site_policy())["series_booked"] == 0
    assert not Occurrence.objects.filter(state="later").exists()


@pytest.mark.once
def test_a_series_of_somebody_whose_membership_ended_ends_with_a_word(
    lab, alice
) -> None:
    made, _ = series.create(
        wish(lab, alice, rule(at(10, day=3), 1, "weekly", times=4)), now=NOW
    )
    alice.memberships.update(active=False)
    series.extend(at(10, day=4), site_policy())
    made.refresh_from_db()
    assert made.state == Series.State.ENDED
    assert Notice.objects.get(kind="series_conflict").detail["ended"] is True
