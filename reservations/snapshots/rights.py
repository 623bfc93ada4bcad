"""The rights of one person to book, each with its Account and the one above it."""

from collections.abc import Sequence
from typing import Any

from django.db.models import Q, QuerySet

from reservations.models import Account, Membership, User
from reservations.snapshots.compiled import compiled, instances, whole

MOST_RIGHTS = 20
"""Of one person; who has more names the one that pays."""


def rights_of(user: User, membership_pk: int | None = None) -> list[Membership]:
    """Return a User's Memberships that are in force, or the one that is named."""
    found = []
    for row in _rights(user=user.pk, membership=membership_pk):
        membership, account, above = instances(row, Membership, Account, Account)
        membership.user, membership.account = user, account
        account.parent = above
        found.append(membership)
    return found


def paid_by(own: Sequence[int]) -> Q:
    """Return which rows are of these Memberships, one User's.

    With exactly one it is named, so that an index serves the newest in their order.
    """
    return Q(membership_id=own[0]) if len(own) == 1 else Q(membership_id__in=own)


@compiled
def _rights(*, user: int, membership: int | None) -> QuerySet[Membership, Any]:
    rows = Membership.objects.filter(
        user_id=user, active=True, account__archived_at=None
    )
    if membership is not None:
        rows = rows.filter(pk=membership)
    columns = (
        *whole(Membership),
        *whole(Account, "account"),
        *whole(Account, "account__parent"),
    )
    return rows.values_list(*columns)[:MOST_RIGHTS]
