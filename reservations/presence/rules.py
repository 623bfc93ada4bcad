"""No-shows and idle time, judged on minutes with samples only.

See docs/design/fair-booking.md#rule-6. Missing telemetry is never the student's fault:
a minute without enough samples of every Gpu is blind, stops the clock and causes no
strike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from reservations.rules.window import instant, unix

MINUTE_SECONDS = 60
SEEN_SAMPLES = 45
"""Of 60 in a minute at 1 Hz. With fewer, the holder may have come unseen."""

KERNEL_WORK_SECONDS = 8 * 3600
"""Work of a notebook's kernels alone keeps Gpus for this long. A student's program says
that they work.
"""


@dataclass(frozen=True, slots=True)
class MinuteInfo:
    """The samples of one Gpu in one minute (a frozen SampleMinute)."""

    gpu_pk: int
    minute_at: datetime
    n: int
    process_n: int
    util_n: int
    util_sum_pct: float


@dataclass(frozen=True, slots=True)
class ObservedUse:
    """The known use of a Reservation so far."""

    holder_came: bool
    """Whether the holder had a process in some sample of some Gpu."""
    absent_seconds: int
    """Watched time without a process of the holder on any Gpu."""
    blind_seconds: int
    """Whole minutes in which some Gpu had too few samples."""
    absent_at: datetime | None = None
    """When ``absent_seconds`` reached the limit. None: not yet."""


def observed_use(
    minutes: Iterable[MinuteInfo],
    gpu_pks: Collection[int],
    *,
    start: datetime,
    now: datetime,
    limit_seconds: int | None = None,
) -> ObservedUse:
    """Sum up the whole minutes from ``start`` to ``now``.

    Args:
        limit_seconds: of absence. When it was reached does not depend on ``now``.
    """
    by_minute = _by_minute(minutes, start=start, now=now)
    came = any(info.process_n for infos in by_minute.values() for info in infos)
    seen = {at: by_minute[at] for at in sorted(by_minute)}
    seen = {
        at: infos for at, infos in seen.items() if _all_gpus_sampled(infos, gpu_pks)
    }
    absent = [
        at + MINUTE_SECONDS
        for at, infos in seen.items()
        if not any(info.process_n for info in infos)
    ]
    needed = -(-(limit_seconds or 0) // MINUTE_SECONDS)
    reached = absent[needed - 1] if 0 < needed <= len(absent) else None
    first = -(-unix(start) // MINUTE_SECONDS)
    total = max(unix(now) // MINUTE_SECONDS - first, 0)
    blind = max(total - len(seen), 0)
    return ObservedUse(
        came,
        len(absent) * MINUTE_SECONDS,
        blind * MINUTE_SECONDS,
        instant(reached) if reached is not None else None,
    )


def idle_seconds(
    minutes: Iterable[MinuteInfo],
    gpu_pks: Collection[int],
    *,
    since: datetime,
    now: datetime,
    below_pct: float,
) -> int:
    """Return how long, up to now, all Gpus were watched and idle without a break.

    A blind minute neither counts nor breaks. A busy minute of any Gpu breaks, and one
    whose utilization the card cannot report.
    """
    by_minute = _by_minute(minutes, start=since, now=now)
    idle = 0
    for minute in sorted(by_minute, reverse=True):
        infos = by_minute[minute]
        if any(_busy(info, below_pct) for info in infos):
            break
        if _all_gpus_sampled(infos, gpu_pks):
            if any(info.util_n < SEEN_SAMPLES for info in infos):
                break
            idle += MINUTE_SECONDS
    return idle


def idle_clock_start(
    minutes: Iterable[MinuteInfo],
    *,
    begun: datetime,
    worked_at: datetime | None,
    now: datetime,
    below_pct: float,
) -> datetime:
    """Return the instant from which idle time counts.

    Args:
        minutes: of the Reservation's Gpus since ``begun``.
        begun: the later one of its start and of *Keep*.
        worked_at: when a notebook's kernel worked last. It counts for at most
            `KERNEL_WORK_SECONDS` after the last use of a Gpu, or after ``begun``.
    """
    if worked_at is None:
        return begun
    by_minute = _by_minute(minutes, start=begun, now=now)
    busy = [
        minute + MINUTE_SECONDS
        for minute, infos in by_minute.items()
        if any(_busy(info, below_pct) for info in infos)
    ]
    used_at = instant(max(busy)) if busy else begun
    return max(begun, min(worked_at, used_at + timedelta(seconds=KERNEL_WORK_SECONDS)))


def _busy(info: MinuteInfo, below_pct: float) -> bool:
    return info.util_n > 0 and info.util_sum_pct >= below_pct * info.util_n


def _all_gpus_sampled(infos: Collection[MinuteInfo], gpu_pks: Collection[int]) -> bool:
    enough = {info.gpu_pk for info in infos if info.n >= SEEN_SAMPLES}
    return enough.issuperset(gpu_pks)


def _by_minute(
    minutes: Iterable[MinuteInfo], *, start: datetime, now: datetime
) -> dict[int, list[MinuteInfo]]:
    found: dict[int, list[MinuteInfo]] = defaultdict(list)
    for info in minutes:
        second = unix(info.minute_at)
        if unix(start) <= second and second + MINUTE_SECONDS <= unix(now):
            found[second].append(info)
    return found
