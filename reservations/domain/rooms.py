"""When there is room for what somebody waits for: a sweep over the gaps. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from reservations.domain.calendar import Calendar, Wish, window_from
from reservations.domain.policy import Policy
from reservations.domain.window import HOUR_SECONDS, Window, instant, unix

if TYPE_CHECKING:
    from reservations.domain.waitlist import Waiting


def rooms(
    calendar: Calendar,
    one: Waiting,
    first: datetime,
    last: datetime,
    *,
    policy: Policy,
    taking: bool,
) -> Iterator[Window]:
    """Yield the Windows between two starts in which there is room, on the grid.

    ``first`` itself may begin off it: it is now, or a time that was asked for.
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
    spans: Sequence[tuple[int, int]], changes: Collection[int], first: int, grid: int
) -> Iterator[int]:
    stride = max(HOUR_SECONDS // grid, 1) * grid
    for low, high in spans:
        begin = low if low == first else _ceil(low, grid)
        inside = {at for at in changes if begin < at <= high}
        inside |= {begin, _ceil(low, grid)}
        inside.update(range(_ceil(begin + 1, stride), high + 1, stride))
        yield from sorted(at for at in inside if at <= high)


def _ceil(second: int, grid: int) -> int:
    return -(-second // grid) * grid


def openings(
    calendar: Calendar, wish: Wish, first: int, last: int, *, taking: bool
) -> list[tuple[int, int]]:
    """Return the spans of starts (Unix seconds, both ends included) with room.

    From each of them on at least ``count`` Gpus are free for the whole duration.
    Swept over the gaps of all Gpus: O(n log n) in their number.

    Args:
        taking: flex that might yield is no obstacle.
    """
    steps: list[tuple[int, int]] = []
    for gpu in calendar.gpus:
        if not wish.fits(gpu):
            continue
        for low, high in _gaps(calendar, gpu.pk, first, last, wish, taking=taking):
            steps += [(low, 1), (high + 1, -1)]
    found: list[tuple[int, int]] = []
    free = 0
    # Ends before begins at one instant: what ends there is not free any more.
    for at, step in sorted(steps):
        before, free = free, free + step
        if before < wish.count <= free:
            found.append((at, at))
        elif free < wish.count <= before:
            found[-1] = (found[-1][0], at - 1)
    return [(low, high) for low, high in found if low <= high]


def _gaps(
    calendar: Calendar, gpu_pk: int, first: int, last: int, wish: Wish, *, taking: bool
) -> Iterator[tuple[int, int]]:
    """Yield the spans of starts at which one Gpu is free for the whole duration."""
    free_from = first
    for span in calendar.spans(gpu_pk):
        if taking and span.flex is not None:
            continue
        high = min(span.start - wish.duration_seconds, last)
        if free_from <= high:
            yield free_from, high
        free_from = max(free_from, span.end)
        if free_from > last:
            return
    if free_from <= last:
        yield free_from, last
