"""Half-open spans of time, [start, end), in UTC, and their grid.

The grid counts from the Unix epoch in UTC, so it neither shifts nor skips when the
site's zone changes to summer time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

HOUR_SECONDS = 3600
DAY_SECONDS = 24 * HOUR_SECONDS
WEEK_SECONDS = 7 * DAY_SECONDS


def unix(at: datetime) -> int:
    """Return the whole Unix second of an aware instant, rounded down.

    Raises:
        ValueError: the instant has no zone.
    """
    if at.tzinfo is None:
        raise ValueError(f"{at.isoformat()} has no time zone")
    return int(at.timestamp() // 1)


def instant(unix_seconds: int) -> datetime:
    """Return the aware UTC instant of a Unix second."""
    return datetime.fromtimestamp(unix_seconds, UTC)


def whole_second(at: datetime) -> datetime:
    """Return the instant without its fraction, because costs are whole GPU-seconds."""
    return at.astimezone(UTC).replace(microsecond=0)


def on_grid(at: datetime, grid_seconds: int) -> bool:
    """Return whether an instant is on the grid."""
    return at.microsecond == 0 and unix(at) % grid_seconds == 0


def grid_floor(at: datetime, grid_seconds: int) -> datetime:
    """Return the last grid instant that is not after ``at``."""
    second = unix(at)
    return instant(second - second % grid_seconds)


def grid_ceil(at: datetime, grid_seconds: int) -> datetime:
    """Return the first grid instant that is not before ``at``."""
    low = grid_floor(at, grid_seconds)
    return low if low == at else low + timedelta(seconds=grid_seconds)


def latest_end(
    fits: Callable[[datetime], bool],
    *,
    after: datetime,
    before: datetime,
    grid_seconds: int,
    likely: datetime | None = None,
) -> datetime | None:
    """Return the latest end on the grid that fits, between two instants.

    Each call of ``fits`` may read the database, so ``likely`` is tried first, and then
    the range is halved. This assumes that every end before one that fits also fits. The
    returned end fits even if that is not so.

    Args:
        fits: whether a Reservation with this end would be granted.
        after: the present end. The returned one is later.
        before: an end that does not fit. The returned one is earlier.
        likely: where another Reservation begins, for example. An end after it does not
            fit. None: unknown.

    Returns:
        None if none of them fits.
    """
    step = timedelta(seconds=grid_seconds)
    base = grid_floor(after, grid_seconds)
    top = before if likely is None else min(before, likely + timedelta(seconds=1))
    low, high = 0, -(-int((top - base).total_seconds()) // grid_seconds) - 1
    if high > 0 and likely is not None:
        if fits(base + high * step):
            return base + high * step
        high -= 1
    while low < high:
        middle = (low + high + 1) // 2
        if fits(base + middle * step):
            low = middle
        else:
            high = middle - 1
    return base + low * step if low else None


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A half-open span of time that is never empty, in UTC."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        """Refuse naive instants and empty or reversed spans."""
        if self.start.tzinfo is None or self.end.tzinfo is None:
            raise ValueError("a Window needs aware instants")
        if self.start >= self.end:
            raise ValueError(f"{self.start} is not before {self.end}")

    @classmethod
    def of(cls, start: datetime, *, seconds: int) -> Window:
        """Return the Window of a length that begins at ``start``."""
        return cls(start, start + timedelta(seconds=seconds))

    @property
    def seconds(self) -> int:
        """Length in whole seconds."""
        return unix(self.end) - unix(self.start)

    def meets(self, other: Window) -> bool:
        """Return whether the two share an instant (touching ends do not)."""
        return self.start < other.end and other.start < self.end

    def holds(self, at: datetime) -> bool:
        """Return whether an instant lies inside."""
        return self.start <= at < self.end

    def cut(self, other: Window) -> Window | None:
        """Return what both share, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Window(start, end) if start < end else None

    def hours(self) -> Iterator[Window]:
        """Cut at the full hours (UTC). The first and last piece may be shorter."""
        start = self.start
        while start < self.end:
            end = min(
                self.end,
                grid_floor(start, HOUR_SECONDS) + timedelta(seconds=HOUR_SECONDS),
            )
            yield Window(start, end)
            start = end


def merged(windows: Iterable[Window]) -> list[Window]:
    """Join Windows that meet or touch. The result is sorted and disjoint."""
    joined: list[Window] = []
    for window in sorted(windows):
        if joined and window.start <= joined[-1].end:
            last = joined[-1]
            joined[-1] = Window(last.start, max(last.end, window.end))
        else:
            joined.append(window)
    return joined


def without(window: Window, taken: Iterable[Window]) -> list[Window]:
    """Return the parts of a Window that none of ``taken`` covers, in order."""
    left: list[Window] = []
    start = window.start
    for gone in merged(taken):
        if gone.end <= start or gone.start >= window.end:
            continue
        if gone.start > start:
            left.append(Window(start, gone.start))
        start = max(start, gone.end)
    if start < window.end:
        left.append(Window(start, window.end))
    return left


def chain(window: Window, own: Iterable[Window]) -> Window:
    """Return the Window joined with those of ``own`` that are adjacent to it.

    Adjacent reservations of one person on one Gpu count as one
    (docs/design/fair-booking.md#terms). Otherwise the longest reservation could be
    exceeded in pieces.
    """
    for joined in merged([window, *own]):
        if joined.start <= window.start and window.end <= joined.end:
            return joined
    raise AssertionError("a Window is always inside its own union")


def window_from(
    start: datetime, *, duration_seconds: int, grid_seconds: int, longest_seconds: int
) -> Window:
    """Return the Window of at least a duration that ends on the grid.

    A Window that begins off the grid ("now") is lengthened to the next grid instant, or
    shortened if that would be longer than allowed.
    """
    end = grid_ceil(start + timedelta(seconds=duration_seconds), grid_seconds)
    if (end - start).total_seconds() > longest_seconds:
        end = grid_floor(start + timedelta(seconds=longest_seconds), grid_seconds)
    return Window(start, max(end, start + timedelta(seconds=1)))
