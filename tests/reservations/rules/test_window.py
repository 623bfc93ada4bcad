"""Half-open windows and the grid."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reservations.rules.window import (
    Window,
    chain,
    grid_ceil,
    grid_floor,
    latest_end,
    merged,
    on_grid,
    unix,
    without,
)
from tests.reservations.rules.strategies import windows


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, 2, hour, minute, tzinfo=UTC)


def test_the_latest_end_that_fits_is_found() -> None:
    step, base = timedelta(minutes=5), datetime(2026, 3, 2, 12, tzinfo=UTC)
    for steps in range(30):
        for likely in (None, 1, steps, steps + 1, 29):
            asked = []

            def fits(end, most=base + steps * step, asked=asked):
                asked.append(end)
                return end <= most

            hint = None if likely is None else base + likely * step
            found = latest_end(
                fits,
                after=base + timedelta(minutes=2),
                before=base + 30 * step,
                grid_seconds=300,
                likely=hint,
            )
            most = steps if likely is None else min(steps, likely)
            assert found == (base + most * step if most else None), (steps, likely)
            assert len(asked) <= 6 and (likely != steps or len(asked) <= 1)


def test_touching_windows_do_not_meet() -> None:
    assert not Window(at(9), at(10)).meets(Window(at(10), at(11)))
    assert Window(at(9), at(10)).meets(Window(at(9, 59), at(11)))
    assert Window(at(9), at(10)).holds(at(9))
    assert not Window(at(9), at(10)).holds(at(10))


@pytest.mark.parametrize(("start", "end"), [(at(10), at(10)), (at(11), at(10))])
def test_an_empty_or_reversed_window_is_refused(start, end) -> None:
    with pytest.raises(ValueError):
        Window(start, end)


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(ValueError):
        Window(at(9).replace(tzinfo=None), at(10).replace(tzinfo=None))
    with pytest.raises(ValueError):
        unix(at(9).replace(tzinfo=None))


def test_zones_do_not_matter_only_instants_do() -> None:
    plus = timezone(timedelta(hours=2))
    assert on_grid(datetime(2026, 3, 2, 11, tzinfo=plus), 3600)
    assert Window(at(9).astimezone(plus), at(10)).seconds == 3600


def test_the_grid_does_not_shift_with_summer_time() -> None:
    before = datetime(2026, 3, 29, 0, tzinfo=UTC)
    hours = [before + timedelta(hours=n) for n in range(4)]
    assert all(on_grid(hour, 3600) for hour in hours)


@given(st.integers(0, 10**6), st.sampled_from((60, 300, 3600, 86_400)))
def test_floor_and_ceil_enclose_every_instant(second, grid) -> None:
    instant = datetime.fromtimestamp(1_780_000_000 + second, UTC)
    low, high = grid_floor(instant, grid), grid_ceil(instant, grid)
    assert low <= instant <= high
    assert on_grid(low, grid) and on_grid(high, grid)
    assert (high - low).total_seconds() in (0, grid)


@given(windows())
def test_hours_cut_a_window_without_loss(window) -> None:
    pieces = list(window.hours())
    assert (pieces[0].start, pieces[-1].end) == (window.start, window.end)
    assert sum(piece.seconds for piece in pieces) == window.seconds
    assert all(piece.end.minute == 0 for piece in pieces[:-1])


@given(windows(), st.lists(windows(), max_size=6))
def test_what_is_left_and_what_is_taken_never_meet(window, taken) -> None:
    left = without(window, taken)
    assert all(not a.meets(b) for a in left for b in taken)
    assert all(window.start <= a.start and a.end <= window.end for a in left)
    assert merged(left) == left


@given(windows(), st.lists(windows(), max_size=6))
def test_a_chain_holds_the_window_and_touches_nothing_else(window, own) -> None:
    joined = chain(window, own)
    assert joined.start <= window.start and window.end <= joined.end
    for other in own:
        apart = other.end < joined.start or joined.end < other.start
        inside = joined.start <= other.start and other.end <= joined.end
        assert apart or inside
