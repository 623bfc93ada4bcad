"""Which Gpus are free, which to take, and the first slots."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reservations.rules.calendar import (
    BusySpan,
    Calendar,
    CalendarGpu,
    SlotSearch,
    SlotWish,
    choices,
    first_slots,
)
from reservations.rules.lifecycle import Kind
from reservations.rules.window import Window, unix, window_from

GIB = 2**30
NOW = datetime(2026, 3, 2, 9, 20, tzinfo=UTC)


def at(hour: int, day: int = 2) -> datetime:
    return datetime(2026, 3, day, hour, tzinfo=UTC)


def gpu(pk: int, node: str = "a", gpu_class: str = "big", gib: int = 80) -> CalendarGpu:
    return CalendarGpu(pk, node, pk, gpu_class, gib * GIB, gib // 8)


def busy(pk: int, start: datetime, end: datetime) -> BusySpan:
    return BusySpan(pk, unix(start), unix(end))


def search(**fields) -> SlotSearch:
    return SlotSearch(
        **{
            "earliest": NOW,
            "latest": at(9, day=16),
            "grid_seconds": 3600,
            "longest_seconds": 86_400,
        }
        | fields
    )


def firm(window: Window, gpus: tuple[CalendarGpu, ...]) -> Kind:
    return Kind.FIRM


def test_an_idle_cluster_gives_a_slot_now_that_ends_on_the_grid() -> None:
    calendar = Calendar([gpu(1), gpu(2)], [])
    slot = first_slots(calendar, SlotWish(2, 7200), search(), allowed=firm)[0]
    assert (slot.gpu_ids, slot.start, slot.end) == ((1, 2), NOW, at(12))


def test_the_slot_begins_when_the_last_of_the_gpus_becomes_free() -> None:
    calendar = Calendar(
        [gpu(1), gpu(2)], [busy(1, at(8), at(11)), busy(2, at(10), at(14))]
    )
    slots = first_slots(calendar, SlotWish(2, 3600), search(), allowed=firm)
    assert slots[0].start == at(14)
    slots = first_slots(calendar, SlotWish(1, 3600), search(), allowed=firm)
    assert (slots[0].start, slots[0].gpu_ids) == (at(11), (1,))


def test_a_short_gap_does_not_take_a_long_wish() -> None:
    calendar = Calendar([gpu(1)], [busy(1, at(8), at(11)), busy(1, at(13), at(20))])
    slots = first_slots(calendar, SlotWish(1, 3 * 3600), search(), allowed=firm)
    assert slots[0].start == at(20)


def test_a_small_wish_leaves_the_large_cards_alone() -> None:
    gpus = [gpu(1), gpu(2, "b", "small", 24), gpu(3, "b", "small", 24)]
    assert [g.pk for g in choices(gpus, 1)[0]] == [2]
    fitting = [g for g in gpus if SlotWish(1, 60, min_memory_bytes=40 * GIB).fits(g)]
    assert [g.pk for g in choices(fitting, 1)[0]] == [1]


def test_one_node_goes_before_a_mix_and_the_fullest_node_first() -> None:
    gpus = [gpu(1, "a"), gpu(2, "a"), gpu(3, "a"), gpu(4, "b"), gpu(5, "b")]
    assert [g.pk for g in choices(gpus, 2)[0]] == [4, 5]
    assert [g.pk for g in choices(gpus, 3)[0]] == [1, 2, 3]
    assert {g.node for g in choices(gpus, 4)[0]} == {"a", "b"}
    assert choices(gpus, 6) == []
    with pytest.raises(ValueError):
        choices(gpus, 0)


def test_a_gpu_out_of_service_is_never_offered() -> None:
    out = CalendarGpu(1, "a", 0, "big", 80 * GIB, 10, bookable=False)
    assert not first_slots(Calendar([out], []), SlotWish(1, 60), search(), allowed=firm)


def test_further_slots_are_on_other_gpus_or_after_the_first() -> None:
    calendar = Calendar([gpu(1), gpu(2, "b", "small", 24)], [])
    slots = first_slots(calendar, SlotWish(1, 3600), search(), allowed=firm, limit=3)
    assert [slot.gpu_ids for slot in slots] == [(2,), (1,), (2,)]
    assert slots[2].start >= slots[0].end


def test_what_the_rules_do_not_allow_is_passed_over() -> None:
    def late(window: Window, gpus: tuple[CalendarGpu, ...]) -> Kind | None:
        return Kind.FLEX if window.start >= at(15) else None

    slots = first_slots(
        Calendar([gpu(1)], []), SlotWish(1, 3600), search(), allowed=late
    )
    assert (slots[0].start, slots[0].kind) == (at(15), Kind.FLEX)


def test_a_search_that_finds_nothing_gives_up() -> None:
    calendar = Calendar([gpu(1)], [])
    asked = []

    def never(window: Window, gpus: tuple[CalendarGpu, ...]) -> None:
        asked.append(window)

    found = first_slots(
        calendar,
        SlotWish(1, 3600),
        search(grid_seconds=60, most_asked=50),
        allowed=never,
    )
    assert not found and len(asked) == 50


def test_now_for_the_longest_time_is_cut_to_what_is_allowed() -> None:
    window = window_from(
        NOW, duration_seconds=86_400, grid_seconds=3600, longest_seconds=86_400
    )
    assert (window.start, window.end) == (NOW, at(9, day=3))


def test_free_from_steps_over_what_is_booked_back_to_back() -> None:
    calendar = Calendar([gpu(1)], [busy(1, at(9), at(11)), busy(1, at(11), at(12))])
    assert calendar.free_from(1, NOW) == at(12)
    assert calendar.free_from(1, at(13)) == at(13)


hours = st.integers(0, 60)


@given(st.sets(st.tuples(st.integers(1, 3), hours), max_size=40), hours, hours)
def test_free_agrees_with_looking_at_every_span(taken, start, length) -> None:
    gpus = [gpu(1), gpu(2), gpu(3)]
    origin = at(0)
    spans = [
        busy(pk, origin + timedelta(hours=h), origin + timedelta(hours=h + 1))
        for pk, h in taken
    ]
    window = Window.of(origin + timedelta(hours=start), seconds=3600 * (length + 1))
    free = {g.pk for g in Calendar(gpus, spans).free(window, SlotWish(1, 60))}
    for pk in (1, 2, 3):
        clash = any(
            s.gpu_pk == pk and s.start < unix(window.end) and s.end > unix(window.start)
            for s in spans
        )
        assert (pk in free) != clash


def test_a_thousand_gpus_are_searched_fast() -> None:
    gpus = [gpu(pk, f"n{pk // 8}") for pk in range(1000)]
    spans = [
        busy(pk, at(0) + timedelta(hours=2 * n), at(0) + timedelta(hours=2 * n + 1))
        for pk in range(1000)
        for n in range(0, 80)
    ]
    calendar = Calendar(gpus, spans)
    begun = time.process_time()
    found = first_slots(calendar, SlotWish(4, 2 * 3600), search(), allowed=firm)
    assert found[0].start > at(0, day=8)
    assert time.process_time() - begun < 2
