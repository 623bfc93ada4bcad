"""Giving back: earlier never costs more, never more than keeping.

See docs/design/fair-booking.md#i8 to #i10.
"""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from reservations.rules.charges import (
    late_charge_gpu_seconds,
    late_windows,
    settlement_of,
    unheld,
)
from reservations.rules.prices import cost_gpu_seconds
from reservations.rules.window import Window, unix
from tests.reservations.rules.strategies import windows


def price(window: Window, at, *, permille: int, taken=(), displaced=()) -> int:
    """Cost of holding until ``at`` and giving the rest back then (weight 1000)."""
    used = (
        window.cut(Window(window.start - timedelta(days=99), max(at, window.start)))
        if at > window.start
        else None
    )
    held = cost_gpu_seconds(used, rate=1000) if used else 0
    if at >= window.end:
        return held
    rest = Window(max(at, window.start), window.end)
    lates = late_windows(rest, at=at, never_free=displaced)
    parts = [p for late in lates for p in unheld(late, taken=taken)]
    return held + late_charge_gpu_seconds(parts, weight=1000, permille=permille)


@given(
    windows(),
    st.integers(-72 * 60, 48 * 60),
    st.integers(0, 24 * 60),
    st.sampled_from((0, 250, 500, 1000)),
    st.lists(windows(), max_size=3),
    st.lists(windows(), max_size=2),
)
def test_giving_back_earlier_never_costs_more(
    window, minute, earlier, permille, taken, displaced
) -> None:
    """See docs/design/fair-booking.md#i9, also for hours that displaced flex."""
    late = window.start + timedelta(minutes=minute)
    early = late - timedelta(minutes=earlier)
    how = {"permille": permille, "taken": taken, "displaced": displaced}
    cost_late, cost_early = price(window, late, **how), price(window, early, **how)
    keeping = cost_gpu_seconds(window, rate=1000)
    assert 0 <= cost_early <= cost_late <= keeping


@given(windows(), st.integers(-40 * 60, -1), st.integers(1, 29 * 60))
def test_cutting_in_two_costs_the_same_to_give_back(window, minute, cut) -> None:
    at = window.start + timedelta(minutes=minute)
    middle = window.start + timedelta(minutes=cut)
    if not window.start < middle < window.end:
        return
    parts = (Window(window.start, middle), Window(middle, window.end))
    whole = sum(late.seconds for late in late_windows(window, at=at))
    pieces = sum(late.seconds for p in parts for late in late_windows(p, at=at))
    assert whole == pieces


@given(windows(), windows(), st.sampled_from((-200, -30, -3)))
def test_hours_that_displaced_flex_are_never_free(window, displaced, hours) -> None:
    at = window.start + timedelta(hours=hours)
    late = late_windows(window, at=at, never_free=[displaced])
    gone = window.cut(displaced)
    assert gone is None or any(
        one.start <= gone.start and gone.end <= one.end for one in late
    )
    plain = sum(one.seconds for one in late_windows(window, at=at))
    both = sum(one.seconds for one in late)
    assert plain <= both <= plain + (gone.seconds if gone else 0)


@given(windows(), st.lists(windows(), max_size=5))
def test_what_nobody_held_and_what_others_held_make_the_whole(window, taken) -> None:
    parts = unheld(window, taken=taken)
    covered = {
        minute
        for other in taken
        for minute in range(unix(other.start), unix(other.end), 60)
    }
    minutes = range(unix(window.start), unix(window.end), 60)
    free = sum(60 for minute in minutes if minute not in covered)
    assert sum(part.seconds for part in parts) == free
    assert all(not p.meets(other) for p in parts for other in taken)


@given(windows(), st.integers(1, 8), st.none() | windows())
def test_a_settlement_returns_the_hold_and_charges_what_was_used_once(
    window, rate, lost
) -> None:
    held = cost_gpu_seconds(window, rate=rate)
    settled = settlement_of(held, used=window, rate=rate, lost=lost)
    assert held + settled.release_gpu_seconds == 0
    assert settled.charge_gpu_seconds + settled.site_gpu_seconds == held
    assert settled.charge_gpu_seconds >= 0
    assert settlement_of(held, used=None, rate=rate).charge_gpu_seconds == 0
