"""Quotas of Pools as values. They are read only if a Gpu's Pool has one."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.db.models import Q

from reservations.models import (
    Account,
    Allocation,
    LateReturn,
    Membership,
    PoolQuota,
)
from reservations.rules.fairness.quota import QuotaInfo, Spend, spends_at
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS
from reservations.rules.prices import Tariff, read_peak
from reservations.rules.window import unix
from reservations.store.account_tree import members_below


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
    """Return the Pools' quotas that apply to a Membership, with their spends.

    Args:
        low, high: the span. Reservations outside it do not count.
        pools: the Pools to read. None: every Pool with such a quota.
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
    inside = members_below(groups) if groups else {}
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
            start__lt=high,
            start__gt=low - longest,
            end__gt=low,
            gpu__pool_id__in=pools,
            reservation__membership_id__in=members,
        )
        .exclude(reservation_id=ignoring or 0)
        .order_by()
        .values_list(
            "reservation__membership_id",
            "gpu__pool_id",
            "start",
            "end",
            "weight",
            "gpu__pool__weight",
            "reservation__kind",
            "reservation__state",
            "reservation__booked_end",
            "peak",
        )
    )
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
