"""Monthly sums of booked, held, used and returned time.

Times are Unix seconds, half-open. GPU-seconds are unweighted, but the cost, which is
in the ledger's weighted GPU-seconds.

- booked: from the start to the booked end, independent of the outcome;
- held: the past time that an Allocation really held;
- returned: the rest of cancelled, released or no-show bookings. Time that the site took
  (displaced, refunded) is booked and neither held nor returned;
- used: held time with a reading x its mean utilization;
- cost: the charge of a Reservation, divided among its Gpus and months by the price of
  the booked time. Cuts are at whole GPU-seconds of a running sum, so that the parts
  always add up to the charge.

Cost: O(Allocations x months they touch).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime, time, tzinfo

from reservations.rules.lifecycle import State
from reservations.rules.prices import PeakHours, Tariff
from reservations.rules.window import unix

GAVE_BACK = frozenset({State.CANCELLED, State.RELEASED})
HELD = frozenset({State.ACTIVE, State.ENDED, State.RELEASED, State.REFUNDED})


@dataclass(frozen=True, slots=True)
class ReportSums:
    """The sums of one row of a report. They can be added."""

    bookings: int = 0
    no_shows: int = 0
    gpu_bookings: int = 0
    gpu_no_shows: int = 0
    booked_gpu_seconds: int = 0
    held_gpu_seconds: int = 0
    returned_gpu_seconds: int = 0
    seen_gpu_seconds: int = 0
    used_gpu_seconds: int = 0
    energy_joules: float = 0.0
    cost_gpu_seconds: int = 0

    def __add__(self, other: ReportSums) -> ReportSums:
        """Add field by field."""
        return ReportSums(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in _FIELDS}
        )

    @property
    def used_ratio(self) -> float | None:
        """Mean utilization of the held time with readings, 0 to 1."""
        if not self.seen_gpu_seconds:
            return None
        return self.used_gpu_seconds / self.seen_gpu_seconds

    @property
    def seen_ratio(self) -> float | None:
        """Part of the held time with readings."""
        if not self.held_gpu_seconds:
            return None
        return self.seen_gpu_seconds / self.held_gpu_seconds

    @property
    def energy_kwh(self) -> float:
        """Energy in kWh."""
        return self.energy_joules / 3_600_000


_FIELDS = fields(ReportSums)


@dataclass(frozen=True, slots=True)
class ReportedGpu:
    """One Gpu of one Reservation: booked, held and measured time."""

    gpu_pk: int
    start: int
    end: int
    """When it stopped holding the Gpu, at most the booked end."""
    booked_end: int
    weight: int
    util_ratio: float | None = None
    """Mean over the held time with a reading. None: there is none."""
    seen_ratio: float = 0.0
    """Part of the held time with a reading, 0 to 1."""
    energy_joules: float = 0.0
    peak: PeakHours | None = None

    def price_until(self, until: int) -> int:
        """Return the price of the booked time up to an instant."""
        over = min(until, self.booked_end)
        return Tariff.of(self.weight, self.peak).between(self.start, over)


@dataclass(frozen=True, slots=True)
class ReportedBooking:
    """One Reservation with all its Gpus, in pk order, and its charge."""

    membership_pk: int
    state: State
    no_show: bool
    pieces: tuple[ReportedGpu, ...]
    charged_gpu_seconds: int = 0
    """Charged to the Membership."""
    site_gpu_seconds: int = 0
    """Charged to the site."""


Key = tuple[int | None, int]
"""Membership (None: the site) and Gpu."""


def month_sums(
    bookings: Iterable[ReportedBooking], *, start: int, end: int, now: int
) -> dict[Key, ReportSums]:
    """Sum up the time in [start, end), by Membership and Gpu.

    Args:
        now: time after it is booked and not yet held.
    """
    found: dict[Key, ReportSums] = defaultdict(ReportSums)
    for booking in bookings:
        own = _charges(booking.pieces, booking.charged_gpu_seconds, start, end)
        site = _charges(booking.pieces, booking.site_gpu_seconds, start, end)
        for number, piece in enumerate(booking.pieces):
            sums = _gpu_sums(
                booking, piece, first=number == 0, start=start, end=end, now=now
            )
            sums += ReportSums(cost_gpu_seconds=own[number])
            if sums != _NOTHING:
                found[booking.membership_pk, piece.gpu_pk] += sums
            if site[number]:
                found[None, piece.gpu_pk] += ReportSums(cost_gpu_seconds=site[number])
    return dict(found)


_NOTHING = ReportSums()


def _gpu_sums(
    booking: ReportedBooking,
    piece: ReportedGpu,
    *,
    first: bool,
    start: int,
    end: int,
    now: int,
) -> ReportSums:
    """Return the sums of one Gpu of one Reservation in the month, without its cost."""
    began = start <= piece.start < end
    over = min(piece.end, now) if booking.state in HELD else piece.start
    held = max(0, over - piece.start)
    here = _overlap(piece.start, over, start, end)
    part = here / held if held else 0.0
    seen = 0
    if piece.util_ratio is not None:
        seen = round(here * min(1.0, piece.seen_ratio))
    given = 0
    if booking.state in GAVE_BACK:
        since = piece.start if booking.state is State.CANCELLED else piece.end
        given = _overlap(since, piece.booked_end, start, end)
    return ReportSums(
        bookings=int(began and first),
        no_shows=int(began and first and booking.no_show),
        gpu_bookings=int(began),
        gpu_no_shows=int(began and booking.no_show),
        booked_gpu_seconds=_overlap(piece.start, piece.booked_end, start, end),
        held_gpu_seconds=here,
        returned_gpu_seconds=given,
        seen_gpu_seconds=seen,
        used_gpu_seconds=round(seen * (piece.util_ratio or 0.0)),
        energy_joules=piece.energy_joules * part,
    )


def _overlap(a: int, b: int, start: int, end: int) -> int:
    return max(0, min(b, end) - max(a, start))


def _charges(
    pieces: Sequence[ReportedGpu], total: int, start: int, end: int
) -> list[int]:
    """Return each Gpu's part, in the month, of what a Reservation was charged.

    >>> day = [ReportedGpu(pk, 0, 10, 10, weight=pk) for pk in (1, 2)]
    >>> _charges(day, 100, 0, 5), _charges(day, 100, 5, 10)
    ([16, 33], [17, 34])
    """
    whole = sum(p.price_until(p.booked_end) for p in pieces)
    if not total or whole <= 0:
        # There is no time to divide by, so all of it counts at the start.
        return [
            total if n == 0 and start <= p.start < end else 0
            for n, p in enumerate(pieces)
        ]
    parts, before = [], 0
    for p in pieces:
        low, high = before + p.price_until(start), before + p.price_until(end)
        parts.append(total * max(high, low) // whole - total * low // whole)
        before += p.price_until(p.booked_end)
    return parts


def month_of(at: datetime, zone: tzinfo) -> date:
    """Return the first day of the month of an instant."""
    return at.astimezone(zone).date().replace(day=1)


def next_month(month: date) -> date:
    """Return the first day of the next month.

    >>> next_month(date(2026, 12, 1))
    datetime.date(2027, 1, 1)
    """
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)


def months_back(month: date, count: int) -> date:
    """Return the first day of the month so many before.

    >>> months_back(date(2026, 2, 1), 3)
    datetime.date(2025, 11, 1)
    """
    number = month.year * 12 + month.month - 1 - count
    return date(number // 12, number % 12 + 1, 1)


def month_bounds(month: date, zone: tzinfo) -> tuple[int, int]:
    """Return the Unix seconds of a month's begin and end on the site's clock."""
    first, last = (
        unix(datetime.combine(day, time(0), tzinfo=zone))
        for day in (month, next_month(month))
    )
    return first, last
