"""Bookings that must leave Gpus: each has one fate, and no two end up on one Gpu."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.operations.evacuation_plan import (
    BookingFate,
    EvacuatedBooking,
    GpuTimetable,
    relieve,
    vacate,
)
from reservations.rules.calendar import CalendarGpu, ClosureInfo
from reservations.rules.window import Window
from tests.factories import at

GPUS = [
    CalendarGpu(pk, f"node-{'ab'[pk // 4]}", pk % 4, "A100", 80, 10, pool_pk=pk % 2 + 1)
    for pk in range(8)
]
NOW = at(9)
HOUR = timedelta(hours=1)


@st.composite
def calendars(draw) -> list[EvacuatedBooking]:
    """Bookings that do not overlap, some of them running."""
    taken: dict[int, list[Window]] = {}
    found = []
    for pk in range(1, draw(st.integers(1, 12))):
        start = NOW + HOUR * draw(st.integers(-2, 12))
        window = Window(start, start + HOUR * draw(st.integers(1, 6)))
        if window.end <= NOW:
            continue
        wanted = draw(st.sets(st.integers(0, 7), min_size=1, max_size=3))
        if any(w.meets(window) for pk in wanted for w in taken.get(pk, ())):
            continue
        for gpu in wanted:
            taken.setdefault(gpu, []).append(window)
        found.append(
            EvacuatedBooking(
                pk,
                window,
                window.start <= NOW,
                draw(st.booleans()),
                tuple(GPUS[n] for n in sorted(wanted)),
                10 * len(wanted),
            )
        )
    return found


def room_of(
    booked: list[EvacuatedBooking], closures: tuple[ClosureInfo, ...] = ()
) -> GpuTimetable:
    held: dict[int, list[Window]] = {}
    for one in booked:
        for gpu in one.gpus:
            held.setdefault(gpu.pk, []).append(one.window)
    return GpuTimetable(GPUS, held, closures)


def after(
    booked: list[EvacuatedBooking], reliefs
) -> dict[int, list[tuple[int, Window]]]:
    """Return who holds which Gpu when, once all reliefs are carried out."""
    fates = {one.pk: one for one in reliefs}
    left: dict[int, list[tuple[int, Window]]] = {}
    for one in booked:
        relief = fates.get(one.pk)
        window: Window | None = one.window
        moves = dict(relief.moves) if relief else {}
        if relief and relief.fate is BookingFate.REFUNDED:
            continue
        if relief and relief.fate is BookingFate.ENDED:
            window = Window(one.window.start, NOW) if one.window.start < NOW else None
        if relief and relief.fate is BookingFate.CUT:
            window = Window(one.window.start, relief.until)
        if window is None:
            continue
        for gpu in one.gpus:
            left.setdefault(moves.get(gpu.pk, gpu.pk), []).append((one.pk, window))
    return left


def no_overlap(left: dict[int, list[tuple[int, Window]]]) -> None:
    for spans in left.values():
        for place, (_pk, window) in enumerate(spans):
            assert not any(window.meets(other) for _, other in spans[place + 1 :])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    calendars(),
    st.sets(st.integers(0, 7), min_size=1, max_size=5),
    st.integers(0, 8),
    st.integers(1, 8),
)
def test_a_closure_leaves_nobody_inside_it_and_no_two_on_one_gpu(
    booked, shut, begins, hours
) -> None:
    window = Window(NOW + HOUR * begins, NOW + HOUR * (begins + hours))
    closure = ClosureInfo(
        1, "maintenance", "fans", window.start, window.end, gpu_pks=frozenset(shut)
    )
    there = [
        one
        for one in booked
        if one.window.meets(window) and {g.pk for g in one.gpus} & shut
    ]
    reliefs = list(
        relieve(
            there, shut, room_of(booked, (closure,)), closed_from=window.start, now=NOW
        )
    )
    assert sorted(one.pk for one in reliefs) == [one.pk for one in there]
    by_pk = {one.pk: one for one in booked}
    for one in reliefs:
        was = by_pk[one.pk]
        assert 0 <= one.back_gpu_seconds <= was.rate * was.window.seconds
        if was.running:
            assert one.fate in (BookingFate.CUT, BookingFate.ENDED)
        pools = {gpu.pk: gpu.pool_pk for gpu in GPUS}
        assert all(pools[old] == pools[new] for old, new in one.moves)
    left = after(booked, reliefs)
    no_overlap(left)
    assert not any(span.meets(window) for gpu in shut for _, span in left.get(gpu, ()))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(calendars(), st.sets(st.integers(0, 7), min_size=1, max_size=5))
def test_draining_moves_nobody_to_another_draining_gpu(booked, shut) -> None:
    there = [one for one in booked if {g.pk for g in one.gpus} & shut]
    reliefs = list(vacate(there, shut, room_of(booked)))
    assert sorted(one.pk for one in reliefs) == [one.pk for one in there]
    assert not any(new in shut for one in reliefs for _old, new in one.moves)
    no_overlap(after(booked, reliefs))
