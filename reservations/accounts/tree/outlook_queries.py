"""The effects of edits of the tree, with the present usage and Pools."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from reservations.accounts.tree.tree_edits import Edited
from reservations.accounts.tree.tree_outlook import (
    Moved,
    PoolInfo,
    compare,
    promises_of,
)
from reservations.models import PoolQuota, PoolRule
from reservations.rules.fairness.promise import PoolCapacity, PoolPromise
from reservations.rules.policy import Policy
from reservations.store.usage import usage_by_membership
from telemetry.models import Gpu


@dataclass(frozen=True, slots=True)
class Outlook:
    """Everybody's rank before and after, and the promise of each Pool."""

    moved: list[Moved]
    """Those that change come first."""
    promises: list[tuple[PoolPromise, PoolPromise]]

    @property
    def changed(self) -> int:
        """Return how many change rank or level_fs."""
        return sum(row.changed for row in self.moved)


def outlook(done: Edited, *, now: datetime, policy: Policy) -> Outlook:
    """Compute the effects of edits."""
    usage = usage_by_membership(now, policy)
    pools, quota = pool_infos(), policy.quota_gpu_seconds
    before, after = (
        promises_of(tree, pools, quota_gpu_seconds=quota)
        for tree in (done.before, done.after)
    )
    return Outlook(
        moved=compare(done.before, done.after, usage),
        promises=list(zip(before, after, strict=True)),
    )


def pool_infos() -> list[PoolInfo]:
    """Read the Pools with the rules that limit the spends in them."""
    rows = (
        Gpu.objects.bookable()
        .order_by()
        .values("pool_id", "pool__gpu_class", "pool__weight")
        .annotate(gpus=Count("pk"))
    )
    rules = {
        rule.pool_id: frozenset(account.pk for account in rule.accounts.all())
        for rule in PoolRule.objects.prefetch_related("accounts")
    }
    members: dict[int, dict[int, int]] = defaultdict(dict)
    accounts: dict[int, dict[int, int]] = defaultdict(dict)
    quotas: Mapping[bool, dict[int, dict[int, int]]] = {True: members, False: accounts}
    for pool, member, account, quota in PoolQuota.objects.order_by().values_list(
        "pool_id", "membership_id", "account_id", "quota_gpu_seconds"
    ):
        quotas[member is not None][pool][member or account] = quota
    return [
        PoolInfo(
            PoolCapacity(
                row["pool_id"],
                row["pool__gpu_class"],
                row["gpus"],
                row["pool__weight"],
            ),
            accounts=rules.get(row["pool_id"]) or None,
            member_quotas=members.get(row["pool_id"], {}),
            account_quotas=accounts.get(row["pool_id"], {}),
        )
        for row in sorted(rows, key=lambda row: str(row["pool__gpu_class"]))
    ]
