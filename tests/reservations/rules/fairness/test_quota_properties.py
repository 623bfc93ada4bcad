"""The rolling quota is never exceeded, wherever the seven days begin."""

from datetime import timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.rules.fairness.quota import (
    PERMILLE,
    QuotaInfo,
    Spend,
    SpendTotals,
    fits,
    fitting_gpu_seconds,
    headroom_gpu_seconds,
    peak_with,
)
from reservations.rules.window import WEEK_SECONDS, Window, unix
from tests.reservations.rules.strategies import spends, windows


def held(found: list[Spend], start: int) -> int:
    """Thousandths of weighted GPU-seconds in [start, start + 7 d), summed plainly."""
    end = start + WEEK_SECONDS
    return sum(
        max(min(s.end, end) - max(s.start, start), 0) * s.rate_permille for s in found
    )


@given(st.lists(spends(), max_size=8), windows(), st.data())
def test_no_seven_days_hold_more_than_the_peak(found, window, data) -> None:
    peak = SpendTotals(found).peak(window)
    first = unix(window.start) - WEEK_SECONDS + 1
    start = data.draw(st.integers(first, unix(window.end) - 1))
    assert held(found, start) <= peak.held_gpu_seconds * PERMILLE
    assert held(found, unix(peak.start)) > (peak.held_gpu_seconds - 1) * PERMILLE
    assert first <= unix(peak.start) <= unix(window.end) - 1


@given(st.lists(st.tuples(windows(), st.integers(1, 8)), max_size=20), st.data())
def test_what_is_granted_one_by_one_never_exceeds_the_quota_anywhere(
    asked, data
) -> None:
    quota = data.draw(st.integers(0, 60 * 3600))
    granted: list[Spend] = []
    for window, rate in asked:
        info = QuotaInfo("q", quota, tuple(granted))
        if fits(info, window, rate=rate):
            granted.append(Spend.held(window, rate=rate))
    edges = {s.start for s in granted} | {s.end for s in granted}
    starts = {e + d for e in edges for d in (0, -WEEK_SECONDS, 1, -1)}
    assert all(held(granted, start) <= quota * PERMILLE for start in starts)


@given(st.lists(spends(), max_size=8), windows(most_hours=24), st.integers(1, 8))
def test_the_part_said_to_fit_does_fit_and_one_grid_step_more_does_not(
    found, window, rate
) -> None:
    grid = 300
    window = Window.of(window.start, seconds=-(-window.seconds // grid) * grid)
    info = QuotaInfo("q", 40 * 3600, tuple(found))
    cost = fitting_gpu_seconds([info], window, rate=rate, grid_seconds=grid)
    seconds = cost // rate
    assert 0 <= seconds <= window.seconds
    if seconds:
        assert fits(info, Window.of(window.start, seconds=seconds), rate=rate)
    if seconds < window.seconds:
        longer = Window.of(window.start, seconds=seconds + grid)
        assert not fits(info, longer, rate=rate)


@given(
    st.lists(st.lists(spends(), max_size=4), min_size=1, max_size=3),
    windows(most_hours=24),
    st.integers(1, 8),
)
@settings(max_examples=30)
def test_brute_force_finds_no_longer_beginning_that_fits(found, window, rate) -> None:
    grid, steps = 3600, -(-window.seconds // 3600)
    window = Window.of(window.start, seconds=steps * grid)
    infos = [QuotaInfo("q", 30 * 3600, tuple(one)) for one in found]
    longest = max(
        (
            step
            for step in range(1, steps + 1)
            for part in [Window.of(window.start, seconds=step * grid)]
            if all(fits(info, part, rate=rate) for info in infos)
        ),
        default=0,
    )
    cost = fitting_gpu_seconds(infos, window, rate=rate, grid_seconds=grid)
    assert cost == longest * grid * rate


@given(st.lists(spends(), max_size=8), windows(most_hours=24), st.integers(1, 8))
def test_a_short_request_takes_at_most_its_cost_from_the_headroom(
    found, window, rate
) -> None:
    info = QuotaInfo("q", 10**6, tuple(found))
    before = headroom_gpu_seconds(info, window)
    after = info.quota_gpu_seconds - peak_with(info, window, rate=rate).held_gpu_seconds
    assert before - window.seconds * rate <= after <= before


@given(windows(), st.integers(1, 8), st.integers(1, 5))
def test_cutting_a_request_in_pieces_holds_the_same(window, rate, pieces) -> None:
    """Cost is additive (docs/design/fair-booking.md#i8)."""
    step = window.seconds // pieces
    if not step:
        return
    cuts = [window.start + timedelta(seconds=step * n) for n in range(pieces)]
    edges = [*cuts, window.end]
    parts = tuple(Spend.held(Window(a, b), rate=rate) for a, b in pairwise(edges))
    whole = (Spend.held(window, rate=rate),)
    assert SpendTotals(parts).peak(window) == SpendTotals(whole).peak(window)
