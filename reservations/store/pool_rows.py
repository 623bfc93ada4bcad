"""Closures, pools that are not everybody's, and quotas of pools, as values.

What no rule concerns costs little: closures are one short query, the rest none
unless a Gpu's Pool has such a rule.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet

from reservations.models import (
    Account,
    Allocation,
    Closure,
    LateReturn,
    Membership,
    PoolQuota,
    PoolRule,
)
from reservations.rules.calendar import CalendarGpu
from reservations.rules.closed_time import Barred, ClosureInfo
from reservations.rules.fairness.quota import QuotaInfo, Spend, spends_at
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS
from reservations.rules.prices import Tariff, read_peak
from reservations.rules.window import unix
from telemetry.models import Gpu


def closures_between(start: datetime, end: datetime) -> list[ClosureInfo]:
    """Return the closures that meet [start, end), in one query."""
    rows = _standing(start=start, end=end)
    gpus: dict[int, set[int]] = defaultdict(set)
    found = {}
    for row in rows:
        pk, kind, reason, begin, over, scope, gpu, node, pool, account, *names = row
        if gpu is not None:
            gpus[pk].add(gpu)
        found[pk] = (kind, reason, begin, over, scope, node, pool, account, names)
    return [
        ClosureInfo(
            pk=pk,
            kind=kind,
            reason=reason,
            start=begin,
            end=over,
            scope=scope,
            gpu_pks=frozenset(gpus[pk]),
            node=node or "",
            pool_pk=pool or 0,
            account_pk=account,
            account=next((name for name in names if name), ""),
            account_name=names[-1] or "",
        )
        for pk, (kind, reason, begin, over, scope, node, pool, account, names)
        in found.items()
    ]  # fmt: skip


def _standing(*, start: datetime, end: datetime) -> QuerySet[Closure, Any]:
    return (
        Closure.objects.standing(start, end)
        .order_by("start", "pk")
        .values_list(
            "pk", "kind", "reason", "start", "end", "scope", "gpus", "node__name",
            "pool_id", "account_id", "account__title", "account__name",
        )
    )  # fmt: skip


def closed_gpus(start: datetime, end: datetime) -> QuerySet[Gpu]:
    """Return the Gpus that some closure meets in [start, end), teaching included."""
    standing = Closure.objects.standing(start, end)
    everything = Q() if standing.filter(scope="site").exists() else Q(pk__in=[])
    return Gpu.objects.filter(
        everything
        | Q(closures__in=standing)
        | Q(node__closures__in=standing)
        | Q(pool__closures__in=standing)
    )


def barred_pools(gpus: Iterable[CalendarGpu], account_pks: Collection[int]) -> Barred:
    """Return the Pools of these Gpus that who asks may not book, and who may."""
    kept = {gpu.pool_pk for gpu in gpus if gpu.restricted}
    if not kept:
        return {}
    names: dict[int, list[str]] = {pool: [] for pool in kept}
    open_to_them = set()
    rows = PoolRule.accounts.through.objects.filter(poolrule__pool_id__in=kept)
    for pool, account, title, name in rows.order_by("account__name").values_list(
        "poolrule__pool_id", "account_id", "account__title", "account__name"
    ):
        names[pool].append(title or name)
        if account in account_pks:
            open_to_them.add(pool)
    return {pool: tuple(names[pool]) for pool in sorted(kept - open_to_them)}


def pool_quota_infos(
    membership: Membership,
    path: Sequence[Account],
    low: datetime,
    high: datetime,
    *,
    pools: Collection[int] | None,
    ignoring: int | None = None,
    ignoring_late: int | None = None,
    extra: Sequence[Spend] = (),
) -> list[QuotaInfo]:
    """Return the quotas in Pools that bind a Membership, with what counts there.

    Args:
        low, high: what ended before or begins after them counts nowhere.
        pools: those asked for; None: every one that has such a quota.
    """
    rows = PoolQuota.objects.filter(
        Q(membership=membership) | Q(account__in=[a.pk for a in path])
    ).select_related("pool", "account")
    if pools is not None:
        rows = rows.filter(pool_id__in=pools)
    quotas = list(rows)
    if not quotas:
        return []
    groups = {row.account_id for row in quotas if row.account_id is not None}
    inside = _members_inside(groups)
    members = {membership.pk}.union(*inside.values())
    spends = _pool_spends(
        {row.pool_id for row in quotas},
        members,
        low,
        high,
        ignoring=ignoring,
        ignoring_late=ignoring_late,
    )
    found = []
    for row in quotas:
        counts = {membership.pk} if row.account_id is None else inside[row.account_id]
        found.append(
            QuotaInfo(
                account=str(row.account or membership.account),
                quota_gpu_seconds=row.quota_gpu_seconds,
                spends=(
                    *(spend for spend in extra if spend.pool_pk == row.pool_id),
                    *(
                        spend
                        for owner, spend in spends
                        if owner in counts and spend.pool_pk == row.pool_id
                    ),
                ),
                own=row.account_id is None,
                pool_pk=row.pool_id,
                pool=str(row.pool),
            )
        )
    return found


def _members_inside(accounts: Collection[int]) -> dict[int, set[int]]:
    """Return, by Account, the Memberships in it and below it."""
    if not accounts:
        return {}
    parents = dict(Account.objects.order_by().values_list("pk", "parent_id"))
    found: dict[int, set[int]] = {pk: set() for pk in accounts}
    rows = Membership.objects.order_by().values_list("pk", "account_id")
    for member, account in rows:
        above: int | None = account
        while above is not None:
            if above in found:
                found[above].add(member)
            above = parents[above]
    return found


def _pool_spends(
    pools: Collection[int],
    members: Collection[int],
    low: datetime,
    high: datetime,
    *,
    ignoring: int | None,
    ignoring_late: int | None,
) -> list[tuple[int, Spend]]:
    """Return (Membership, firm cost on one Pool's Gpus) near a span."""
    longest = timedelta(seconds=LONGEST_POSSIBLE_SECONDS)
    held = (
        Allocation.objects.filter(
            start__lt=high, start__gt=low - longest, end__gt=low,
            gpu__pool_id__in=pools, reservation__membership_id__in=members,
        )
        .exclude(reservation_id=ignoring or 0)
        .order_by()
        .values_list(
            "reservation__membership_id", "gpu__pool_id", "start", "end", "weight",
            "gpu__pool__weight", "reservation__kind", "reservation__state",
            "reservation__booked_end", "peak",
        )
    )  # fmt: skip
    late = (
        LateReturn.objects.filter(
            membership_id__in=members,
            gpu__pool_id__in=pools,
            firm=True,
            start__lt=high,
            end__gt=low,
        )
        .exclude(reservation_id=ignoring_late or 0)
        .order_by()
        .values_list(
            "membership_id", "gpu__pool_id", "start", "end", "weight", "permille"
        )
    )
    holding, found = State.holding(), []
    for owner, pool, begin, over, booked, weight, kind, state, until, peak in held:
        first, last = unix(begin), unix(min(over, until))
        if last > first and kind == Kind.FIRM and state in holding:
            tariff = Tariff.of(weight if booked is None else booked, read_peak(peak))
            own = spends_at(first, last, rate=tariff, pool_pk=pool)
            found += [(owner, spend) for spend in own]
    for owner, pool, begin, over, weight, part in late:
        found.append((owner, Spend(unix(begin), unix(over), weight * part, pool)))
    return found
