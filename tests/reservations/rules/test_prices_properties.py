"""Peak hours: costs add up by the second, through every change of the clocks."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.operations.peak_hours import PeakTextInvalid, hours_text, read_hours
from reservations.rules.charges import (
    late_charge_gpu_seconds,
    late_windows,
    settlement_of,
    unheld,
)
from reservations.rules.fairness.quota import (
    QuotaInfo,
    Spend,
    SpendTotals,
    fits,
    fitting_gpu_seconds,
    spends_at,
)
from reservations.rules.prices import (
    PeakHours,
    Rate,
    Tariff,
    combined_tariff,
    cost_gpu_seconds,
    read_peak,
)
from reservations.rules.window import WEEK_SECONDS, Window, instant, unix
from tests.reservations.rules.strategies import windows

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")
ODD = "Australia/Lord_Howe"
"""Its clock is set by half an hour: on 5 April 2026 back, at 2:00."""
masks = st.one_of(
    st.integers(1, (1 << 168) - 1),
    st.sampled_from([read_hours(text) for text in ("Mon-Fri 9-18", "Sun 1-4", "0-24")]),
)
peaks = st.builds(PeakHours, st.integers(2, 10), masks, st.sampled_from((*ZONES, ODD)))
tariffs = st.lists(
    st.builds(Tariff.of, st.integers(1, 20), st.one_of(st.none(), peaks)),
    min_size=1,
    max_size=3,
).map(combined_tariff)
CHANGES = (datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 4, 4, 15, tzinfo=UTC))
clock_windows = st.one_of(
    windows(),
    st.builds(
        lambda at, minutes: Window.of(at, seconds=60 * minutes),
        st.sampled_from(CHANGES),
        st.integers(1, 600),
    ),
)


def by_the_minute(window: Window, weight: int, peak: PeakHours) -> int:
    """The definition, a minute at a time."""
    zone, cost = ZoneInfo(peak.zone), 0
    for at in range(unix(window.start), unix(window.end), 60):
        local = instant(at).astimezone(zone)
        on = peak.mask >> (local.weekday() * 24 + local.hour) & 1
        cost += 60 * weight * (peak.factor if on else 1)
    return cost


@settings(max_examples=40)
@given(clock_windows, st.integers(1, 20), peaks)
def test_every_minute_counts_at_its_factor_on_the_local_clock(
    window, weight, peak
) -> None:
    tariff = Tariff.of(weight, peak)
    assert cost_gpu_seconds(window, rate=tariff) == by_the_minute(window, weight, peak)
    assert read_peak(peak.to_text()) == peak


@settings(max_examples=60)
@given(clock_windows, tariffs, tariffs, st.integers(1, 30 * 3600))
def test_cutting_in_time_or_along_the_gpus_costs_the_same(
    window, tariff, other, cut
) -> None:
    """docs/design/fair-booking.md#i8, to the second; the pieces of one rate add up too,
    and cover the Window."""
    whole = tariff.cost(window)
    middle = window.start + timedelta(seconds=cut)
    if middle < window.end:
        first, rest = Window(window.start, middle), Window(middle, window.end)
        assert tariff.cost(first) + tariff.cost(rest) == whole
    pieces = tariff.pieces(window)
    assert sum(piece.seconds * rate for piece, rate in pieces) == whole
    assert pieces[0][0].start == window.start and pieces[-1][0].end == window.end
    assert all(a[0].end == b[0].start for a, b in pairwise(pieces))
    both = tariff + other
    assert both.cost(window) == whole + other.cost(window)
    assert both - other == tariff
    spends = spends_at(unix(window.start), unix(window.end), rate=tariff)
    assert sum(s.rate_permille * (s.end - s.start) for s in spends) == whole * 1000


def test_an_hour_that_comes_twice_counts_twice_and_one_left_out_does_not() -> None:
    two = Tariff.of(10, PeakHours(3, read_hours("Sun 2-3"), "Europe/Berlin"))
    for month, day, hours in ((3, 29, 0), (10, 25, 2)):
        start = datetime(2026, month, day, tzinfo=UTC) - timedelta(hours=2)
        day_of_two = Window.of(start, seconds=25 * 3600)
        extra = two.cost(day_of_two) - 10 * day_of_two.seconds
        assert extra == hours * 3600 * 20
    # Half past one comes twice there: half an hour more.
    odd = Tariff.of(10, PeakHours(2, read_hours("Sun 1-2"), ODD))
    night = Window.of(datetime(2026, 4, 4, 12, tzinfo=UTC), seconds=6 * 3600)
    assert odd.cost(night) - 10 * night.seconds == 90 * 60 * 10


def price(window: Window, at, *, rate: Rate, permille: int, taken=()) -> int:
    """Cost of holding until ``at`` and giving the rest back then."""
    held = cost_gpu_seconds(window, rate=rate)
    end = min(at, window.end)
    used = Window(window.start, end) if end > window.start else None
    paid = settlement_of(held, used=used, rate=rate)
    assert paid.release_gpu_seconds == -held
    if at >= window.end:
        return paid.charge_gpu_seconds
    rest = Window(max(at, window.start), window.end)
    parts = [p for late in late_windows(rest, at=at) for p in unheld(late, taken=taken)]
    late = late_charge_gpu_seconds(parts, weight=rate, permille=permille)
    return paid.charge_gpu_seconds + late


@settings(max_examples=60)
@given(
    windows(),
    tariffs,
    st.integers(-72 * 60, 48 * 60),
    st.integers(0, 24 * 60),
    st.sampled_from((0, 250, 500, 1000)),
    st.lists(windows(), max_size=3),
)
def test_giving_peak_hours_back_earlier_never_costs_more(
    window, tariff, minute, earlier, permille, taken
) -> None:
    """Nor more than keeping (docs/design/fair-booking.md#i9)."""
    late = window.start + timedelta(minutes=minute)
    how = {"rate": tariff, "permille": permille, "taken": taken}
    cost_late = price(window, late, **how)
    cost_early = price(window, late - timedelta(minutes=earlier), **how)
    assert 0 <= cost_early <= cost_late <= tariff.cost(window)


@settings(max_examples=40)
@given(st.lists(st.tuples(windows(), tariffs), max_size=12), st.integers(0, 200))
def test_no_seven_days_exceed_the_quota_at_any_price(asked, hours) -> None:
    """The part that is reported to fit does, one grid step more does not.

    See docs/design/fair-booking.md#i3.
    """
    quota, granted, spends = hours * 3600, [], []
    for window, tariff in asked:
        info = QuotaInfo("q", quota, tuple(spends))
        if fits(info, window, rate=tariff):
            granted.append((window, tariff))
            spends += spends_at(unix(window.start), unix(window.end), rate=tariff)
            continue
        cost = fitting_gpu_seconds([info], window, rate=tariff, grid_seconds=300)
        steps = 0
        while cost_of(window, tariff, steps) < cost:
            steps += 1
        assert cost_of(window, tariff, steps) == cost
        if steps:
            part = Window.of(window.start, seconds=steps * 300)
            assert fits(info, part, rate=tariff)
        longer = Window.of(window.start, seconds=(steps + 1) * 300)
        assert longer.end > window.end or not fits(info, longer, rate=tariff)
    load = SpendTotals(spends)
    edges = {s.start for s in spends} | {s.end for s in spends}
    for low in edges | {edge - WEEK_SECONDS for edge in edges}:
        high = low + WEEK_SECONDS
        held = sum(
            tariff.between(max(low, unix(w.start)), min(high, unix(w.end)))
            for w, tariff in granted
        )
        assert held <= quota
        assert load.between(low, high) == held * 1000


def cost_of(window: Window, tariff: Tariff, steps: int) -> int:
    start = unix(window.start)
    return tariff.between(start, start + steps * 300)


def test_one_rate_is_one_spend_as_ever() -> None:
    assert (
        spends_at(0, 60, rate=7)
        == spends_at(0, 60, rate=Tariff(7))
        == [Spend(0, 60, 7000)]
    )


@given(masks)
def test_what_is_told_of_peak_hours_is_read_as_the_same(mask) -> None:
    assert read_hours(hours_text(mask)) == mask


@pytest.mark.parametrize(
    "text",
    [
        "Mon",
        "9-18 Mon",
        "Mon 9",
        "Mon 9.5-11",
        "Mon 24-25",
        "Mon 9-30",
        "Mon 9-9",
        "Mon-Wed-Fri 1-2",
        "Mo 1-2",
        "Mon 9-18 Tue 9-18",
        "¹-2",
        "x" * 401,
        "Mon 9:30-11",
    ],
)
def test_a_text_that_names_no_hours_is_refused_in_words(text) -> None:
    with pytest.raises(PeakTextInvalid):
        read_hours(text)


def test_days_and_hours_are_read_in_the_ways_people_write_them() -> None:
    assert hours_text(read_hours(" fri-MON 22-2\n tue 9:00–12, 13-18; ;")) == (
        "Mon 0-2, 22-24; Tue 0-2, 9-12, 13-18; Fri 22-24; Sat-Sun 0-2, 22-24"
    )
    assert hours_text(read_hours("0-24")) == "Mon-Sun 0-24"
    assert read_hours("") == 0
    for factor, mask in ((1, 1), (11, 1), (2, 0), (2, 1 << 168)):
        with pytest.raises(ValueError, match="peak"):
            PeakHours(factor, mask, "UTC")
