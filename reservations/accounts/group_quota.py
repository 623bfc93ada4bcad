"""What a group may hold that has no quota of its own.

The calendar reads no such quota: the quotas of the members bound the group already
(``reservations.store.booking_snapshot``). The rolling 7 days of any quota are in
``reservations.rules.fairness.quota``.
"""

from collections.abc import Iterable

from reservations.models import Account, SitePolicy


def sum_of_members(account: Account) -> int:
    """Return what a group without its own quota may hold, in GPU-seconds.

    This is the sum of the quotas of its members and of the groups below it.
    """
    default = SitePolicy.current().quota_gpu_seconds
    own = account.memberships.filter(active=True).order_by()
    quotas: Iterable[int | None] = own.values_list("quota_gpu_seconds", flat=True)
    total = sum(default if quota is None else quota for quota in quotas)
    for below in account.children.filter(archived_at=None):
        members = sum_of_members(below)
        quota = below.quota_gpu_seconds
        total += members if quota is None else min(quota, members)
    return total
