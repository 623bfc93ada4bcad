"""Decide one request on one Snapshot: firm, flex or refused. Pure.

See docs/design/fair-booking.md#rule-1 to #rule-3. ``fairness.preemption`` decides about
displacing, ``fairness.limits`` about limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from reservations.rules.calendar import FlexInfo, Slot
from reservations.rules.errors import QuotaExceeded, Refusal, TooManyFlex
from reservations.rules.fairness.early_returns import check_returns
from reservations.rules.fairness.limits import (
    check_gpus,
    check_limits,
    check_quotas,
    check_window,
)
from reservations.rules.fairness.no_shows import check_strike
from reservations.rules.fairness.preemption import (
    Displaced,
    check_above,
    check_plans,
    displaced_by,
    flex_to_displace,
)
from reservations.rules.fairness.quota import Peak, QuotaInfo
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.rules.request import Request, Snapshot
from telemetry.protocol.coded_error import json_ready


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer and its reasons; ``kind`` is None if it is refused."""

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
    """Until then a member served worse may displace it. None: nobody can."""
    next_slot: Slot | None = None
    inputs: dict[str, object] | None = None
    """The inputs of the decision, as ``stored`` keeps them
    (docs/design/fair-booking.md#i14).
    """
    rank_before: int | None = None
    rank_after: int | None = None
    of: int | None = None
    flex_only: bool = False
    """Whether only flex was requested."""
    peak_gpu_seconds: int = 0
    """The part of the cost from peak hours. Shown, not stored, because the inputs have
    it.
    """

    def to_json(self) -> dict[str, object]:
        """Return the JSON that is stored with the Reservation.

        See docs/design/fair-booking.md#rule-8.
        """
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
        if self.flex_only:
            stored["flex_only"] = True
        if self.why_not_firm is not None:
            stored["why_not_firm"] = json_ready(self.why_not_firm)
        if self.decided_at is not None:
            stored["decided_at"] = self.decided_at.isoformat()
        if self.inputs is not None:
            stored["inputs"] = self.inputs
        if self.displaced:
            stored["displaced"] = [one.to_json() for one in self.displaced]
        return stored


def decide(request: Request, snapshot: Snapshot) -> Decision:
    """Judge a request. A Refusal is returned, never raised."""
    cost = request.cost_gpu_seconds
    policy = snapshot.policy
    try:
        check_gpus(request.gpus, snapshot.barred)
        check_window(
            request.window,
            now=request.now,
            policy=policy,
            earliest=request.earliest,
            voucher=request.voucher,
        )
        if request.voucher is None and snapshot.strike is not None:
            check_strike(request.window, snapshot.strike, now=request.now)
        if request.voucher is None and snapshot.returns is not None:
            check_returns(
                request.window, snapshot.returns, now=request.now, policy=policy
            )
        check_limits(request, snapshot)
        flex = flex_to_displace(request.gpus, request.window, snapshot.calendar)
        if request.flex_only:
            return _granted_flex(request, snapshot, flex, None)
        peaks = check_quotas(request, snapshot)
        displaced = _displaced_flex(request, snapshot, flex)
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


def _displaced_flex(
    request: Request, snapshot: Snapshot, flex: tuple[FlexInfo, ...]
) -> tuple[Displaced, ...]:
    """Return the flex in the way with both sides' standing; see ``displaced_by``."""
    if not flex:
        return ()
    if snapshot.tree is None:
        raise ValueError("flex is in the way, and there is no tree to judge it by")
    return displaced_by(
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
    """Grant free time within the flex horizon, or time of members served better.

    See docs/design/fair-booking.md#rule-2.
    """
    cost, policy, now = request.cost_gpu_seconds, snapshot.policy, request.now
    # A Voucher is for a firm booking, so it is not spent on flex.
    if why.flex_from > now or request.voucher is not None:
        return Decision(None, cost, refusal=why)
    ahead = flex_ahead(request, snapshot)
    if ahead >= policy.future_flex:
        refusal = TooManyFlex(live=ahead, most=policy.future_flex, why_not_firm=why)
        return Decision(None, cost, refusal=refusal, why_not_firm=why)
    return _granted_flex(request, snapshot, flex, why)


def _granted_flex(
    request: Request,
    snapshot: Snapshot,
    flex: tuple[FlexInfo, ...],
    why: QuotaExceeded | None,
) -> Decision:
    """Grant the time unless it is planned for others or theirs by rank.

    Args:
        why: the reason that it is not firm. None: only flex was requested.
    """
    cost, policy, now = request.cost_gpu_seconds, snapshot.policy, request.now
    displaced = _displaced_flex(request, snapshot, flex)
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
        flex_only=request.flex_only,
    )


def flex_ahead(request: Request, snapshot: Snapshot) -> int:
    """Return how many of the requester's flex reservations count besides this one.

    Those that have not begun count. None count if the request begins inside the freeze,
    because that time is open to all (docs/design/fair-booking.md#rule-3) and holds
    nothing back.
    """
    now, start = request.now, request.window.start
    if start <= now or is_frozen(Kind.FLEX, start, now=now, policy=snapshot.policy):
        return 0
    return sum(
        h.kind is Kind.FLEX and h.window.start > now and not h.shared
        for h in snapshot.own
    )


def is_frozen(kind: Kind, start: datetime, *, now: datetime, policy: Policy) -> bool:
    """Return whether nobody can displace a flex Reservation any more."""
    return kind is Kind.FLEX and start - now <= timedelta(seconds=policy.freeze_seconds)
