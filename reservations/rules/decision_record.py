"""The stored inputs of a decision, and its recomputation.

See docs/design/fair-booking.md#rule-8, docs/design/fair-booking.md#i14. Every decision,
a refusal too, is stored with its inputs (the version of the policy, the request, the
User's holdings, the sums in each quota within the 7 days around it, the flex in the
way, and the deciding part of the Fair Tree). So ``recompute`` gives the same decision
years later and without the database. The sums are those of the append-only ledger and
of the calendar at that time.

Only the paths of the Memberships involved are stored. At each Level all others are
merged into one Membership with the rest of the shares and of the usage, so that every
level_fs on the paths is unchanged. Usage is a text of digits, because its integers are
large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any

from reservations.rules.booking_rights import Right
from reservations.rules.calendar import (
    BusySpan,
    Calendar,
    CalendarGpu,
    ClosureInfo,
    FlexInfo,
    PlannedStart,
)
from reservations.rules.decision import Decision, decide
from reservations.rules.errors import Refusal
from reservations.rules.fairness.early_returns import EarlyReturns
from reservations.rules.fairness.fair_tree import AccountShares, MemberShares
from reservations.rules.fairness.no_shows import Strike
from reservations.rules.fairness.preemption import FairTree, Key, ranks_above
from reservations.rules.fairness.quota import QuotaInfo, Spend
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.rules.prices import read_peak
from reservations.rules.request import Holding, Request, Snapshot
from reservations.rules.window import WEEK_SECONDS, Window, instant, unix

FORM = 1
"""Version of the stored form. Later versions must still read it."""
_PLACES = ("place_before", "place_after")


def inputs_of(request: Request, snapshot: Snapshot) -> dict[str, object]:
    """Return the inputs of a decision as JSON values."""
    window = request.window
    spans = [
        (gpu.pk, span)
        for gpu in request.gpus
        for span in snapshot.calendar.clashes(gpu.pk, window)
    ]
    flex = {s.flex.reservation_pk: s.flex for _, s in spans if s.flex is not None}
    kept: dict[str, object] = {
        "form": FORM,
        "policy": snapshot.policy.version,
        "now": unix(request.now),
        "window": [unix(window.start), unix(window.end)],
        "gpus": [
            [gpu.pk, gpu.weight, gpu.pool_pk]
            + ([gpu.peak.to_text()] if gpu.peak is not None else [])
            for gpu in request.gpus
        ],
        "member": snapshot.membership_pk,
        "quotas": [_quota(info, window) for info in snapshot.quotas],
    }
    more: dict[str, object] = {
        "freed": snapshot.freed_gpu_seconds,
        "earliest": unix(request.earliest) if request.earliest else 0,
        "token": request.voucher,
        "flex_only": int(request.flex_only),
        "own": [
            [
                h.reservation_pk,
                unix(h.window.start),
                unix(h.window.end),
                h.kind.value,
                sorted(h.gpu_pks),
                *([1] if h.shared else []),
            ]
            for h in snapshot.own
        ],
        "busy": [
            [
                pk,
                s.start,
                s.end,
                s.flex.reservation_pk if s.flex else 0,
                *([unix(s.paused_until)] if s.paused_until else []),
            ]
            for pk, s in spans
        ],
        "flex": [_flex(one) for one in flex.values()],
        "strike": _strike_json(snapshot.strike),
        "returns": _returns(snapshot.returns),
        "right": _right_json(snapshot.right),
    }
    if flex and snapshot.tree is not None:
        owners = {one.membership_pk for one in flex.values()}
        more["tree"] = _tree(reduced(snapshot.tree, owners | {snapshot.membership_pk}))
    return kept | {name: value for name, value in more.items() if value}


def refused_inputs(request: Request, snapshot: Snapshot) -> dict[str, object]:
    """Return the inputs of a refusal: those of a decision, and those that only refuse.

    The latter are closed time, planned starts of waiting requests, Pools reserved for
    other groups, and the names of the Gpus. Holders are not stored.
    """
    window = request.window
    closed = [
        [at, c.kind, c.reason, c.account, unix(c.start), unix(c.end)]
        for at, c in enumerate(
            span.closed
            for gpu in request.gpus
            for span in snapshot.calendar.clashes(gpu.pk, window)
        )
        if c is not None
    ]
    asked = {gpu.pk for gpu in request.gpus}
    more: dict[str, object] = {
        "closed": closed,
        "plans": [
            [unix(p.window.start), unix(p.window.end), sorted(p.gpu_pks & asked)]
            for p in snapshot.calendar.plans
            if p.gpu_pks & asked and p.window.meets(window)
        ],
        "barred": [[pk, list(names)] for pk, names in snapshot.barred.items()],
    }
    named = [[g.node, g.index, g.gpu_class, g.bookable, g.out] for g in request.gpus]
    kept = inputs_of(request, snapshot) | {"named": named}
    return kept | {name: value for name, value in more.items() if value}


def recompute_refusal(inputs: Mapping[str, Any], policy: Policy) -> Refusal | None:
    """Return the refusal that results. None: it would not be refused.

    Args:
        policy: the rules of the version that the inputs name.

    Raises:
        ValueError: another version, or an unknown form.
    """
    return _decision_again(inputs, policy).refusal


def recompute(inputs: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    """Return the decision that results, in the form of ``Decision.to_json``.

    It has no ranks among all members, which would need everybody's inputs.

    Args:
        policy: the rules of the version that the inputs name.

    Raises:
        ValueError: another version, or an unknown form.
    """
    return without_places(_decision_again(inputs, policy).to_json())


def _decision_again(inputs: Mapping[str, Any], policy: Policy) -> Decision:
    if inputs["form"] != FORM:
        raise ValueError(f"inputs of the form {inputs['form']} are not known")
    if inputs["policy"] != policy.version:
        raise ValueError(
            f"version {inputs['policy']} of the policy decided, not {policy.version}"
        )
    request = _request(inputs)
    return decide(request, _snapshot(inputs, request, policy))


def without_places(decision: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decision for its reader, without inputs and ranks in the site."""
    told = {name: value for name, value in decision.items() if name != "inputs"}
    if "displaced" in told:
        told["displaced"] = [
            {name: value for name, value in one.items() if name not in _PLACES}
            for one in told["displaced"]
        ]
    return told


# --- write ----------------------------------------------------------------------------


def _quota(info: QuotaInfo, window: Window) -> list[object]:
    """Return a quota with the use within 7 days of the request, as steps."""
    low, high = unix(window.start) - WEEK_SECONDS, unix(window.end) + WEEK_SECONDS
    bends: dict[int, int] = {}
    for spend in info.spends:
        start, end = max(spend.start, low), min(spend.end, high)
        if start < end:
            bends[start] = bends.get(start, 0) + spend.rate_permille
            bends[end] = bends.get(end, 0) - spend.rate_permille
    steps = [[at, bends[at]] for at in sorted(bends)]
    kind = "person" if info.person else "own" if info.own else "group"
    return [info.account, info.quota_gpu_seconds, kind, info.pool_pk, info.pool, steps]


def _flex(one: FlexInfo) -> list[object]:
    return [
        one.reservation_pk,
        one.membership_pk,
        unix(one.start),
        unix(one.end),
        one.cost_gpu_seconds,
        unix(one.booked_at),
        int(one.planned),
    ]


def _returns(returns: EarlyReturns | None) -> list[int] | None:
    return None if returns is None else list(astuple(returns))


def _read_returns(kept: Sequence[int] | None) -> EarlyReturns | None:
    return None if kept is None else EarlyReturns(*kept)


def _strike_json(strike: Strike | None) -> list[int] | None:
    if strike is None:
        return None
    times = [unix(at) for at in strike.no_shows]
    return [strike.horizon_seconds, unix(strike.until), *times]


def _right_json(right: Right | None) -> list[object] | None:
    return None if right is None else [right.account, unix(right.until)]


def reduced(tree: FairTree, member_pks: Iterable[int]) -> FairTree:
    """Return the part of a tree that decides about these Memberships.

    Every Level on their paths has the same level_fs as in the whole tree.
    """
    members = {m.pk: m for m in tree.members}
    accounts = {a.pk: a for a in tree.accounts}
    kept = {pk: members[pk] for pk in sorted(set(member_pks)) if pk in members}
    paths: set[int] = {a.pk for a in tree.accounts if a.parent_pk is None}
    for member in kept.values():
        at: int | None = member.account_pk
        while at is not None:
            paths.add(at)
            at = accounts[at].parent_pk
    parents = {pk: account.parent_pk for pk, account in accounts.items()}
    shares, usage = dict.fromkeys(paths, 0), dict.fromkeys(paths, 0)
    for account in tree.accounts:
        if account.pk not in paths and account.parent_pk in paths:
            shares[account.parent_pk] += account.shares or 0
    for member in tree.members:
        if member.pk in kept:
            continue
        if member.account_pk in paths:
            shares[member.account_pk] += member.shares or 0
        place: int | None = member.account_pk
        while place is not None and place not in paths:
            place = parents[place]
        if place is not None:
            usage[place] += member.usage
    rest = [
        MemberShares(-pk - 1, pk, shares[pk], usage[pk])
        for pk in sorted(paths)
        if shares[pk] or usage[pk]
    ]
    return FairTree(
        tuple(accounts[pk] for pk in sorted(paths)), (*kept.values(), *rest), tree.unit
    )


def _tree(tree: FairTree) -> dict[str, object]:
    return {
        "unit": str(tree.unit),
        "accounts": [[a.pk, a.parent_pk, a.shares] for a in tree.accounts],
        "members": [[m.pk, m.account_pk, m.shares, str(m.usage)] for m in tree.members],
    }


# --- read -----------------------------------------------------------------------------


def _window(start: int, end: int) -> Window:
    return Window(instant(start), instant(end))


def _request(inputs: Mapping[str, Any]) -> Request:
    earliest = inputs.get("earliest")
    # A granted decision needs no names.
    names = inputs.get("named") or [("", pk, "", True, "") for pk, *_ in inputs["gpus"]]
    gpus = []
    for row, (node, index, gpu_class, bookable, out) in zip(
        inputs["gpus"], names, strict=True
    ):
        pk, weight, pool, *peak = row
        gpus.append(
            CalendarGpu(
                pk,
                node,
                index,
                gpu_class,
                0,
                weight,
                bookable=bookable,
                pool_pk=pool,
                out=out,
                peak=read_peak(*peak) if peak else None,
            )
        )
    return Request(
        gpus=tuple(gpus),
        window=_window(*inputs["window"]),
        now=instant(inputs["now"]),
        earliest=instant(earliest) if earliest else None,
        voucher=inputs.get("token"),
        flex_only=bool(inputs.get("flex_only")),
    )


def _snapshot(inputs: Mapping[str, Any], request: Request, policy: Policy) -> Snapshot:
    flex = {
        pk: FlexInfo(
            pk,
            member,
            0,
            "",
            instant(start),
            instant(end),
            cost,
            instant(booked),
            planned=bool(planned),
        )
        for pk, member, start, end, cost, booked, planned in inputs.get("flex", ())
    }
    closed = {
        at: ClosureInfo(0, kind, reason, instant(start), instant(end), account=account)
        for at, kind, reason, account, start, end in inputs.get("closed", ())
    }
    busy = [
        BusySpan(
            gpu,
            start,
            end,
            "",
            flex.get(pk),
            closed.get(at),
            instant(paused[0]) if paused else None,
        )
        for at, (gpu, start, end, pk, *paused) in enumerate(inputs.get("busy", ()))
    ]
    plans = [
        PlannedStart(0, 0, frozenset(gpus), _window(start, end))
        for start, end, gpus in inputs.get("plans", ())
    ]
    return Snapshot(
        policy=policy,
        calendar=Calendar(request.gpus, busy, plans),
        own=tuple(
            Holding(pk, _window(start, end), frozenset(gpus), Kind(kind), bool(shared))
            for pk, start, end, kind, gpus, *shared in inputs.get("own", ())
        ),
        quotas=tuple(_info(*one) for one in inputs["quotas"]),
        membership_pk=inputs["member"],
        freed_gpu_seconds=inputs.get("freed", 0),
        tree=_read_tree(inputs.get("tree")),
        strike=_read_strike(inputs.get("strike")),
        returns=_read_returns(inputs.get("returns")),
        right=_read_right(inputs.get("right")),
        barred={pk: tuple(names) for pk, names in inputs.get("barred", ())},
    )


def _info(
    account: str, quota: int, kind: str, pool_pk: int, pool: str, steps: Sequence[Any]
) -> QuotaInfo:
    rate, spends = 0, []
    for (start, change), (end, _next) in pairwise(steps):
        rate += change
        # Also without any use, because the instants themselves are checked.
        spends.append(Spend(start, end, rate))
    info = QuotaInfo(
        account, quota, tuple(spends), own=kind == "own", pool_pk=pool_pk, pool=pool
    )
    return replace(info, person=kind == "person")


def _read_tree(kept: Mapping[str, Any] | None) -> FairTree | None:
    if kept is None:
        return None
    return FairTree(
        tuple(AccountShares(*row) for row in kept["accounts"]),
        tuple(
            MemberShares(pk, account, shares, int(usage))
            for pk, account, shares, usage in kept["members"]
        ),
        int(kept["unit"]),
    )


def _read_strike(kept: Sequence[int] | None) -> Strike | None:
    if not kept:
        return None
    horizon, until, *times = kept
    return Strike(tuple(instant(at) for at in times), instant(until), horizon)


def _read_right(kept: Sequence[Any] | None) -> Right | None:
    return Right(kept[0], instant(kept[1])) if kept else None


def decided_at(inputs: Mapping[str, Any]) -> datetime:
    """Return when the decision was made."""
    return instant(inputs["now"])


def broken_rules(stored: Mapping[str, Any]) -> list[str]:
    """Return the rules that a stored decision breaks by its own numbers.

    See docs/design/fair-booking.md#i14.

    Checked are the quotas, what the 7 days would have held, the instants of the freeze
    and the two paths down the Fair Tree. An empty list: the decision is valid.
    """
    firm = str(stored.get("rule", "")).startswith("1")
    found = []
    for quota in stored.get("quotas", ()):
        if quota["held_gpu_seconds"] > quota["quota_gpu_seconds"]:
            found.append(f"1: the quota of {quota['account']} is exceeded")
    why = stored.get("why_not_firm")
    chosen = bool(stored.get("flex_only"))
    if not (firm or chosen) and (
        why is None or why["would_hold_gpu_seconds"] <= why["quota_gpu_seconds"]
    ):
        found.append("2: it would have fitted as firm")
    for one in stored.get("displaced", ()):
        name = f"#{one['reservation']}"
        decided_at = datetime.fromisoformat(str(stored["decided_at"]))
        if decided_at >= datetime.fromisoformat(one["frozen_at"]):
            found.append(f"3: {name} was frozen")
        if not firm and not ranks_above(_keys(one["own"]), _keys(one["theirs"])):
            found.append(f"2: {name} does not stand below")
    return found


def _keys(path: Iterable[Mapping[str, Any]]) -> list[Key]:
    return [
        (step["level_fs"] is None, Fraction(step["level_fs"] or 0), "user" in step)
        for step in path
    ]
