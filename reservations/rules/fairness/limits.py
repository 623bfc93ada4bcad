"""The limits of every request: Window, Gpus, person and quota. Pure.

See docs/design/fair-booking.md#terms. Each check raises the Refusal of its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import cast

from reservations.rules.booking_rights import check_right
from reservations.rules.calendar import Calendar, CalendarGpu
from reservations.rules.closed_time import (
    Barred,
    PoolQuotaExceeded,
    check_pools,
    refusal_of,
)
from reservations.rules.errors import (
    BeyondHorizon,
    GpuNotBookable,
    GroupQuotaExceeded,
    InThePast,
    NoGpus,
    OffGrid,
    QuotaExceeded,
    TooLong,
    TooManyGpus,
    TooManyReservations,
)
from reservations.rules.fairness.quota import (
    Peak,
    QuotaInfo,
    fitting_gpu_seconds,
    peak_with,
)
from reservations.rules.policy import Policy
from reservations.rules.request import Holding, Request, Snapshot
from reservations.rules.window import Window, chain, grid_floor, on_grid
from telemetry.protocol.sentences import sentence


@dataclass(eq=False)
class PersonQuotaExceeded(QuotaExceeded):
    """The person would hold more than the quota over all memberships together."""

    code = "person-quota-exceeded"
    title = sentence("Quota of one person")

    def _template(self) -> str:
        return sentence(
            "Firm is not possible: from {start} to {end} your firm bookings in all "
            "groups together would cost {hours}. The quota of one person is {quota}. "
            "{fits}"
        )


def check_window(
    window: Window,
    *,
    now: datetime,
    policy: Policy,
    earliest: datetime | None = None,
    voucher: int | None = None,
) -> None:
    """Refuse a Window that no reservation may have.

    Args:
        earliest: the only start off the grid besides ``now``.
        voucher: whether a Voucher lifts the horizon.

    Raises:
        InThePast, OffGrid, TooLong, BeyondHorizon.
    """
    if window.end <= now:
        raise InThePast(end=window.end, now=now)
    edges = [("end", window.end)]
    if window.start > now and window.start != earliest:
        edges.insert(0, ("start", window.start))
    for edge, at in edges:
        if not on_grid(at, policy.grid_seconds):
            half = timedelta(seconds=policy.grid_seconds / 2)
            nearest = grid_floor(at + half, policy.grid_seconds)
            raise OffGrid(
                edge=edge, at=at, grid_seconds=policy.grid_seconds, nearest=nearest
            )
    if window.seconds > policy.longest_seconds:
        raise TooLong(
            asked_seconds=window.seconds,
            longest_seconds=policy.longest_seconds,
            joined=False,
        )
    latest = now + timedelta(seconds=policy.firm_horizon_seconds)
    if window.start > latest and voucher is None:
        raise BeyondHorizon(
            start=window.start,
            latest=latest,
            horizon_seconds=policy.firm_horizon_seconds,
        )


def check_gpus(gpus: Sequence[CalendarGpu], barred: Barred | None = None) -> None:
    """Refuse an empty list, and Gpus that are out of service or reserved for others."""
    if not gpus:
        raise NoGpus
    for gpu in gpus:
        if not gpu.bookable:
            raise GpuNotBookable(
                gpu=gpu.label, why=gpu.out or sentence("it is out of service")
            )
    if barred:
        check_pools(gpus, barred)


def check_limits(request: Request, snapshot: Snapshot) -> None:
    """Refuse more than one person may hold at once, independent of quotas.

    Raises:
        RightEnds, TooManyGpus, TooManyReservations.
        TooLong: together with adjacent reservations.
    """
    policy, window = snapshot.policy, request.window
    if snapshot.right is not None:
        check_right(window, snapshot.right)
    check_gpus_at_once(len(request.gpus), window, snapshot.own, policy=policy)
    own_only = [h for h in snapshot.own if not h.shared]
    live = _count_apart(request, own_only)
    if live >= policy.live_reservations:
        raise TooManyReservations(live=live, most=policy.live_reservations)
    for gpu in request.gpus:
        own = [h.window for h in own_only if gpu.pk in h.gpu_pks]
        joined = chain(window, own)
        if joined.seconds > policy.longest_seconds:
            raise TooLong(
                asked_seconds=joined.seconds,
                longest_seconds=policy.longest_seconds,
                joined=True,
            )


def check_gpus_at_once(
    asked: int, window: Window, own: Sequence[Holding], *, policy: Policy
) -> None:
    """Refuse more Gpus at one instant than one person may use, shared ones too.

    Raises:
        TooManyGpus: with those already held then.
    """
    held = most_at_once(window, own)
    if held + asked <= policy.gpus_at_once:
        return
    shared = held - most_at_once(window, [h for h in own if not h.shared])
    raise TooManyGpus(
        asked=asked, held=held, most=policy.gpus_at_once, shared=max(shared, 0)
    )


def most_at_once(window: Window, own: Sequence[Holding]) -> int:
    """Return the most Gpus already held at one instant of the Window."""
    inside = [h for h in own if h.window.meets(window)]
    instants = {max(h.window.start, window.start) for h in inside}
    return max(
        (sum(len(h.gpu_pks) for h in inside if h.window.holds(at)) for at in instants),
        default=0,
    )


def _count_apart(request: Request, own: Sequence[Holding]) -> int:
    """Return how many reservations count besides a request.

    Adjacent ones on the same Gpus count as one with it.
    """
    mine = frozenset(gpu.pk for gpu in request.gpus)
    same = [h.window for h in own if h.gpu_pks == mine]
    joined = chain(request.window, same)
    apart = [
        h
        for h in own
        if not (h.gpu_pks == mine and joined.start <= h.window.start < joined.end)
    ]
    starts = {(h.gpu_pks, h.window.start) for h in apart}
    return sum((h.gpu_pks, h.window.end) not in starts for h in apart)


def check_free(request: Request, calendar: Calendar) -> None:
    """Refuse Gpus that are held or closed in the Window.

    Raises:
        GpuTaken, ClosedThen: with the first Gpu and the conflicting span.
    """
    for gpu in request.gpus:
        span = calendar.first_overlap(gpu.pk, request.window)
        if span is not None:
            raise refusal_of(gpu, span)


Peaks = tuple[tuple[QuotaInfo, Peak], ...]


def check_quotas(request: Request, snapshot: Snapshot) -> Peaks:
    """Return the fullest 7 days of every quota with the request in it.

    Raises:
        QuotaExceeded: or one of its kind, of the first quota without room.
    """
    key = (request.window, tuple(sorted(request.rates.items())))
    kept = snapshot.quotas_asked
    if key not in kept:
        try:
            kept[key] = _peaks(request, snapshot)
        except QuotaExceeded as refusal:
            kept[key] = refusal
    found = kept[key]
    if isinstance(found, QuotaExceeded):
        raise found.with_traceback(None)
    return cast(Peaks, found)


def _peaks(request: Request, snapshot: Snapshot) -> Peaks:
    policy, window, rates = snapshot.policy, request.window, request.rates
    bind = [info for info in snapshot.quotas if info.pool_pk in rates]
    peaks = tuple(
        (info, peak_with(info, window, rate=rates[info.pool_pk])) for info in bind
    )
    for info, peak in peaks:
        if peak.held_gpu_seconds <= info.quota_gpu_seconds:
            continue
        raise exceeded(info)(
            account=info.account,
            window_start=peak.start,
            window_end=peak.end,
            would_hold_gpu_seconds=peak.held_gpu_seconds,
            quota_gpu_seconds=info.quota_gpu_seconds,
            asked_gpu_seconds=request.cost_gpu_seconds,
            fits_gpu_seconds=0
            if snapshot.brief
            else fitting_gpu_seconds(
                bind,
                window,
                rate=request.rate,
                rates=rates,
                grid_seconds=policy.grid_seconds,
            ),
            flex_from=window.start - timedelta(seconds=policy.flex_horizon_seconds),
        )
    return peaks


def exceeded(info: QuotaInfo) -> Callable[..., QuotaExceeded]:
    """Return the refusal of a quota of a member, a group, a Pool or a person."""
    if info.person:
        return PersonQuotaExceeded
    if info.pool_pk:
        return partial(PoolQuotaExceeded, pool=info.pool, own=info.own)
    return QuotaExceeded if info.own else GroupQuotaExceeded
