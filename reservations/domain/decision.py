"""Firm, flex or no: one request judged against one Snapshot. Pure.

POLICY.md section 3, rules 1 to 3; who yields to whom is in ``displacement``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from reservations.domain.calendar import Calendar, CalendarGpu, FlexInfo, Slot
from reservations.domain.closures import (
    Barred,
    PoolQuotaExceeded,
    check_pools,
    refusal_of,
)
from reservations.domain.displacement import (
    Displaced,
    FairTree,
    check_above,
    check_plans,
    in_the_way,
    yielding,
)
from reservations.domain.errors import (
    BeyondHorizon,
    GpuNotBookable,
    GroupQuotaExceeded,
    InThePast,
    NoGpus,
    OffGrid,
    QuotaExceeded,
    Refusal,
    TooLong,
    TooManyFlex,
    TooManyGpus,
    TooManyReservations,
)
from reservations.domain.ledger import cost_gpu_seconds
from reservations.domain.lifecycle import Kind
from reservations.domain.policy import Policy
from reservations.domain.quota import Peak, QuotaInfo, fitting_gpu_seconds, peak_with
from reservations.domain.window import Window, chain, grid_floor, on_grid


@dataclass(frozen=True, slots=True)
class Holding:
    """One live Reservation of the requester (any Membership)."""

    reservation_pk: int
    window: Window
    gpu_pks: frozenset[int]
    kind: Kind


@dataclass(frozen=True, slots=True)
class Request:
    """These Gpus over this Window, asked for at ``now``."""

    gpus: tuple[CalendarGpu, ...]
    window: Window
    now: datetime

    @property
    def rate(self) -> int:
        """Weighted Gpus: the cost of one second."""
        return sum(gpu.weight for gpu in self.gpus)

    @property
    def rates(self) -> dict[int, int]:
        """The same by Pool; 0 stands for all of them together."""
        found = {0: self.rate}
        for gpu in self.gpus:
            if gpu.pool_pk:
                found[gpu.pool_pk] = found.get(gpu.pool_pk, 0) + gpu.weight
        return found

    @property
    def cost_gpu_seconds(self) -> int:
        """Weighted GPU-seconds of the whole Window."""
        return cost_gpu_seconds(self.window, rate=self.rate)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the decision looks at: facts as they are under the locks."""

    policy: Policy
    calendar: Calendar
    own: tuple[Holding, ...] = ()
    quotas: tuple[QuotaInfo, ...] = ()
    """The Membership's, those on the path to the root that have one, then Pools'."""
    barred: Barred = field(default_factory=dict)
    """Pools that the requester may not book."""
    membership_pk: int = 0
    freed_gpu_seconds: int = 0
    """Committed now and not with the request: what a change gives up."""
    tree: FairTree | None = None
    """None: nobody's flex is in the way, or none may be taken."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer and its reasons; ``kind`` is None where it is refused."""

    kind: Kind | None
    cost_gpu_seconds: int
    quota_left_gpu_seconds: int = 0
    """In the fullest 7 days of the tightest quota, after this request."""
    refusal: Refusal | None = None
    why_not_firm: QuotaExceeded | None = None
    peaks: tuple[tuple[QuotaInfo, Peak], ...] = field(default=())
    displaced: tuple[Displaced, ...] = ()
    decided_at: datetime | None = None
    taken_until: datetime | None = None
    """Until then somebody worse served may take it; None: nobody can."""
    next_slot: Slot | None = None
    rank_before: int | None = None
    rank_after: int | None = None
    of: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return what is stored with the Reservation (rule 8)."""
        stored: dict[str, object] = {
            "rule": "1 firm" if self.kind is Kind.FIRM else "2 flex",
            "cost_gpu_seconds": self.cost_gpu_seconds,
            "quotas": [
                {
                    **({"pool": info.pool} if info.pool_pk else {}),
                    "account": info.account,
                    "quota_gpu_seconds": info.quota_gpu_seconds,
                    "held_gpu_seconds": peak.held_gpu_seconds,
                    "from": peak.start.isoformat(),
                }
                for info, peak in self.peaks
            ],
        }
        if self.why_not_firm is not None:
            stored["why_not_firm"] = {
                "code": self.why_not_firm.code,
                **self.why_not_firm.fields,
            }
        if self.decided_at is not None:
            stored["decided_at"] = self.decided_at.isoformat()
        if self.displaced:
            stored["displaced"] = [one.to_json() for one in self.displaced]
        return stored


def check_window(window: Window, *, now: datetime, policy: Policy) -> None:
    """Refuse a Window that no reservation may have, whoever asks.

    Raises:
        InThePast, OffGrid, TooLong, BeyondHorizon.
    """
    if window.end <= now:
        raise InThePast(end=window.end, now=now)
    edges = [("end", window.end)]
    if window.start > now:
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
    if window.start > latest:
        raise BeyondHorizon(
            start=window.start,
            latest=latest,
            horizon_seconds=policy.firm_horizon_seconds,
        )


def check_gpus(gpus: Sequence[CalendarGpu], barred: Barred | None = None) -> None:
    """Refuse no Gpus at all, those out of service, and those kept for others."""
    if not gpus:
        raise NoGpus
    for gpu in gpus:
        if not gpu.bookable:
            raise GpuNotBookable(gpu=gpu.label, why=gpu.out or "it is out of service")
    check_pools(gpus, barred or {})


def check_limits(request: Request, snapshot: Snapshot) -> None:
    """Refuse what one person may not have at once, whatever the quota.

    Raises:
        TooManyGpus, TooManyReservations, TooLong (with those that touch it).
    """
    policy, window = snapshot.policy, request.window
    held = _most_at_once(window, snapshot.own)
    if held + len(request.gpus) > policy.gpus_at_once:
        raise TooManyGpus(asked=len(request.gpus), held=held, most=policy.gpus_at_once)
    live = _count_apart(request, snapshot.own)
    if live >= policy.live_reservations:
        raise TooManyReservations(live=live, most=policy.live_reservations)
    for gpu in request.gpus:
        own = [h.window for h in snapshot.own if gpu.pk in h.gpu_pks]
        joined = chain(window, own)
        if joined.seconds > policy.longest_seconds:
            raise TooLong(
                asked_seconds=joined.seconds,
                longest_seconds=policy.longest_seconds,
                joined=True,
            )


def _most_at_once(window: Window, own: Sequence[Holding]) -> int:
    """Return the most Gpus already held at one instant of the Window."""
    inside = [h for h in own if h.window.meets(window)]
    instants = {max(h.window.start, window.start) for h in inside}
    return max(
        (sum(len(h.gpu_pks) for h in inside if h.window.holds(at)) for at in instants),
        default=0,
    )


def _count_apart(request: Request, own: Sequence[Holding]) -> int:
    """Return how many reservations count beside a request.

    Back-to-back ones on the very same Gpus count as one with it.
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
    """Refuse Gpus that somebody holds in the Window.

    Raises:
        GpuTaken, ClosedThen: the first Gpu and the span that is in the way.
    """
    for gpu in request.gpus:
        span = calendar.clash(gpu.pk, request.window)
        if span is not None:
            raise refusal_of(gpu, span)


def check_quotas(
    request: Request, snapshot: Snapshot
) -> tuple[tuple[QuotaInfo, Peak], ...]:
    """Return the fullest 7 days of every quota with the request in it.

    Raises:
        QuotaExceeded, GroupQuotaExceeded, PoolQuotaExceeded.
    """
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
            fits_gpu_seconds=fitting_gpu_seconds(
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
    """Return the refusal of a quota: one's own, a group's, a Pool's."""
    if info.pool_pk:
        return partial(PoolQuotaExceeded, pool=info.pool, own=info.own)
    return QuotaExceeded if info.own else GroupQuotaExceeded


def decide(request: Request, snapshot: Snapshot) -> Decision:
    """Judge a request; never raises a Refusal, always returns one instead."""
    cost = request.cost_gpu_seconds
    policy = snapshot.policy
    try:
        check_gpus(request.gpus, snapshot.barred)
        check_window(request.window, now=request.now, policy=policy)
        check_limits(request, snapshot)
        flex = in_the_way(request.gpus, request.window, snapshot.calendar)
        peaks = check_quotas(request, snapshot)
        displaced = _yielding(request, snapshot, flex)
    except QuotaExceeded as refusal:
        return _flex(request, snapshot, flex, refusal)
    except Refusal as refusal:
        return Decision(None, cost, refusal=refusal)
    left = min(
        (info.quota_gpu_seconds - peak.held_gpu_seconds for info, peak in peaks),
        default=0,
    )
    return Decision(
        Kind.FIRM,
        cost,
        quota_left_gpu_seconds=left,
        peaks=peaks,
        displaced=displaced,
        decided_at=request.now,
    )


def _yielding(
    request: Request, snapshot: Snapshot, flex: tuple[FlexInfo, ...]
) -> tuple[Displaced, ...]:
    """Return the flex in the way with both sides' standing; see ``yielding``."""
    if not flex:
        return ()
    if snapshot.tree is None:
        raise ValueError("flex is in the way, and there is no tree to judge it by")
    return yielding(
        flex,
        member_pk=snapshot.membership_pk,
        more_gpu_seconds=request.cost_gpu_seconds - snapshot.freed_gpu_seconds,
        tree=snapshot.tree,
        freeze_seconds=snapshot.policy.freeze_seconds,
    )


def _flex(
    request: Request,
    snapshot: Snapshot,
    flex: tuple[FlexInfo, ...],
    why: QuotaExceeded,
) -> Decision:
    """Rule 2: free time inside the flex horizon, or that of somebody better served."""
    cost, policy, now = request.cost_gpu_seconds, snapshot.policy, request.now
    if why.flex_from > now:
        return Decision(None, cost, refusal=why)
    ahead = flex_ahead(request, snapshot)
    if ahead >= policy.future_flex:
        refusal = TooManyFlex(live=ahead, most=policy.future_flex, why_not_firm=why)
        return Decision(None, cost, refusal=refusal, why_not_firm=why)
    displaced = _yielding(request, snapshot, flex)
    on = {
        span.flex.reservation_pk: gpu.label
        for gpu in request.gpus
        for span in snapshot.calendar.clashes(gpu.pk, request.window)
        if span.flex is not None
    }
    try:
        check_plans(request.gpus, request.window, snapshot.calendar)
        check_above(displaced, on=on)
    except Refusal as held:
        return Decision(None, cost, refusal=held, why_not_firm=why)
    start = request.window.start
    frozen = is_frozen(Kind.FLEX, start, now=now, policy=policy)
    until = None if frozen else start - timedelta(seconds=policy.freeze_seconds)
    return Decision(
        Kind.FLEX,
        cost,
        why_not_firm=why,
        displaced=displaced,
        decided_at=now,
        taken_until=until,
    )


def flex_ahead(request: Request, snapshot: Snapshot) -> int:
    """Return how many of the requester's flex reservations count beside this one.

    Those that have not begun; none where the request itself begins inside the
    freeze, because that time is anyone's (rule 3) and hoards nothing.
    """
    now, start = request.now, request.window.start
    if start <= now or is_frozen(Kind.FLEX, start, now=now, policy=snapshot.policy):
        return 0
    return sum(h.kind is Kind.FLEX and h.window.start > now for h in snapshot.own)


def is_frozen(kind: Kind, start: datetime, *, now: datetime, policy: Policy) -> bool:
    """Say whether a flex Reservation can no longer be taken by anybody."""
    return kind is Kind.FLEX and start - now <= timedelta(seconds=policy.freeze_seconds)
