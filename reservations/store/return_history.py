"""What people gave back before it began, and what they used in the same time."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet, Sum

from reservations.models import EarlyReturn, LedgerEntry, Membership
from reservations.rules.fairness.early_returns import WINDOW_SECONDS, EarlyReturns
from reservations.rules.policy import Policy


def returns_of(
    memberships: Collection[Membership], *, now: datetime, policy: Policy
) -> dict[int, EarlyReturns]:
    """Return, by Membership, the returns that exceed its part of the quota.

    No entry: so little was given back that no limit can apply. Two queries, one where
    nobody gave anything back.
    """
    since = now - timedelta(seconds=WINDOW_SECONDS)
    users = {one.user_id for one in memberships}
    returned: dict[int, int] = dict(_returned(users=list(users), since=since))
    found: dict[int, EarlyReturns] = {}
    for one in memberships:
        quota = one.quota_gpu_seconds
        known = EarlyReturns(
            returned.get(one.user_id, 0),
            0,
            policy.quota_gpu_seconds if quota is None else quota,
        )
        if known.is_over(policy):
            found[one.pk] = known
    if not found:
        return {}
    over = {one.user_id for one in memberships if one.pk in found}
    used = dict(
        LedgerEntry.objects.filter(
            membership__user_id__in=over, kind=LedgerEntry.Kind.CHARGE, at__gt=since
        )
        .order_by()
        .values_list("membership__user_id")
        .annotate(total=Sum("gpu_seconds"))
    )
    return {
        one.pk: EarlyReturns(
            found[one.pk].returned_gpu_seconds,
            used.get(one.user_id, 0),
            found[one.pk].quota_gpu_seconds,
        )
        for one in memberships
        if one.pk in found
    }


def _returned(*, users: Collection[int], since: datetime) -> QuerySet[EarlyReturn, Any]:
    return (
        EarlyReturn.objects.filter(user_id__in=users, returned_at__gt=since)
        .order_by()
        .values_list("user_id")
        .annotate(total=Sum("gpu_seconds"))
    )


def returns_for(
    membership: Membership, start: datetime, *, now: datetime, policy: Policy
) -> EarlyReturns | None:
    """Return one Membership's where they could matter for a start: else None."""
    if start <= now + timedelta(seconds=policy.returned_horizon_seconds):
        return None
    return returns_of([membership], now=now, policy=policy).get(membership.pk)
