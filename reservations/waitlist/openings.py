"""Find the Windows with room for a waiting request: a sweep over the gaps. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from reservations.rules.calendar import Calendar, PlannedStart, SlotWish
from reservations.rules.policy import Policy
from reservations.rules.window import HOUR_SECONDS, Window, instant, unix, window_from


@dataclass(frozen=True, slots=True)
class WaitingRequestInfo:
    """ "Any 8 h between Tue and Thu, 2 Gpus of at least 24 GiB"."""

    pk: int
    member_pk: int
    user_pk: int
    wish: SlotWish
    earliest: datetime
    latest: datetime
    """Last instant at which it must be over."""
    asked_at: datetime
    """The original time of the request, also after a displacement."""
    consents: bool = False
    """Accepted beforehand, or a Job waits with it: it needs no notice."""
    quiet_until: datetime | None = None
    """When its person's quiet hours end. None: it is not quiet."""
    takes: bool = True
    """Whether it may displace by rank (docs/design/fair-booking.md#rule-2)."""
    plan: PlannedStart | None = None
    """Its planned start."""


def rooms(
    calendar: Calendar,
    one: WaitingRequestInfo,
    first: datetime,
    last: datetime,
    *,
    policy: Policy,
    taking: bool,
) -> Iterator[Window]:
    """Yield the Windows with room between two starts, on the grid.

    ``first`` itself may be off the grid: it is now, or a requested time.
    """
    grid = policy.grid_seconds
    begin = unix(first)
    spans = openings(calendar, one.wish, begin, unix(last), taking=taking)
    changes = calendar.changes(grid)
    for second in _starts(spans, changes, begin, grid):
        window = window_from(
            first if second == begin else instant(second),
            duration_seconds=one.wish.duration_seconds,
            grid_seconds=grid,
            longest_seconds=policy.longest_seconds,
        )
        long_enough = window.seconds >= one.wish.duration_seconds
        if long_enough and window.end <= one.latest:
            yield window


def _starts(
    spans: Sequence[tuple[int, int]], changes: Sequence[int], first: int, grid: int
) -> Iterator[int]:
    stride = max(HOUR_SECONDS // grid, 1) * grid
    for low, high in spans:
        begin = low if low == first else _ceil_to_grid(low, grid)
        inside = set(
            changes[bisect_right(changes, begin) : bisect_right(changes, high)]
        )
        inside |= {begin, _ceil_to_grid(low, grid)}
        inside.update(range(_ceil_to_grid(begin + 1, stride), high + 1, stride))
        yield from sorted(at for at in inside if at <= high)


def _ceil_to_grid(second: int, grid: int) -> int:
    return -(-second // grid) * grid


def openings(
    calendar: Calendar, wish: SlotWish, first: int, last: int, *, taking: bool
) -> list[tuple[int, int]]:
    """Return the spans of starts (Unix seconds, both ends included) with room.

    From each of them on at least ``count`` Gpus are free for the whole duration. Swept
    over the gaps of all Gpus: O(n log n) in their number, once for equal wishes.

    Args:
        taking: treat flex that might yield as free.
    """
    like = wish.count, wish.duration_seconds, wish.min_memory_bytes, wish.gpu_class
    if taking:
        found = _sweep(calendar, wish, taking=True)
    elif like in calendar.swept:
        found = calendar.swept[like]
    else:
        found = calendar.swept[like] = _sweep(calendar, wish, taking=False)
    # Spans that end before the first start are left out, and the others are cut.
    begun = bisect_left(found, first, key=lambda span: span[1])
    cut = ((max(low, first), min(high, last)) for low, high in found[begun:])
    return [(low, high) for low, high in cut if low <= high]


def has_room(calendar: Calendar, wish: SlotWish, start: int) -> bool:
    """Return whether enough Gpus are free from a Unix second on, without displacing."""
    return bool(openings(calendar, wish, start, start, taking=False))


_FOREVER = 2**62


def _sweep(
    calendar: Calendar, wish: SlotWish, *, taking: bool
) -> list[tuple[int, int]]:
    begins: list[int] = []
    ends: list[int] = []
    for gpu in calendar.gpus:
        if not wish.fits(gpu):
            continue
        for low, high in _gaps(calendar, gpu.pk, wish.duration_seconds, taking=taking):
            begins.append(low)
            ends.append(high + 1)
    begins.sort()
    ends.sort()
    found: list[tuple[int, int]] = []
    free, opened, at = 0, 0, 0
    # At one instant, ends come before begins: what ends there is no longer free.
    for begin in [*begins, _FOREVER + 1]:
        while at < len(ends) and ends[at] <= begin:
            if free == wish.count:
                found.append((opened, ends[at] - 1))
            free, at = free - 1, at + 1
        free += 1
        if free == wish.count:
            opened = begin
    return [(low, high) for low, high in found if low <= high]


def _gaps(
    calendar: Calendar, gpu_pk: int, duration_seconds: int, *, taking: bool
) -> list[tuple[int, int]]:
    """Return the spans of starts at which one Gpu is free for the whole duration."""
    kept, key = calendar.swept_gpus[gpu_pk], (duration_seconds, taking)
    if key not in kept:
        kept[key] = list(_gaps_of(calendar, gpu_pk, duration_seconds, taking=taking))
    return kept[key]


def _gaps_of(
    calendar: Calendar, gpu_pk: int, duration_seconds: int, *, taking: bool
) -> Iterator[tuple[int, int]]:
    free_from = 0
    for span in calendar.spans(gpu_pk):
        if taking and span.flex is not None:
            continue
        high = span.start - duration_seconds
        if free_from <= high:
            yield free_from, high
        free_from = max(free_from, span.end)
    yield free_from, _FOREVER
