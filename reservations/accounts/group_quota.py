"""The quota of a group for which none is set.

The calendar reads no such quota: the quotas of the members bound the group already
(``reservations.store.booking_snapshot``). The rolling 7 days of any quota are in
``reservations.rules.fairness.quota``.
"""

from reservations.accounts.tree.queries import read_tree
from reservations.accounts.tree.tree_rows import quotas_of_members
from reservations.models import Account
from reservations.store.booking_facts import site_policy


def sum_of_members(account: Account) -> int:
    """Return what a group without its own quota may hold, in weighted GPU-seconds.

    See ``quotas_of_members``.
    """
    default = site_policy().quota_gpu_seconds
    return quotas_of_members(read_tree(), default_gpu_seconds=default)[account.pk]
