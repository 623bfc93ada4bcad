"""What edits of the tree would do, with the usage and the Pools as they are now."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum

from reservations.domain.editing import Edited
from reservations.domain.outlook import Moved, PoolInfo, Promise, compare, promise
from reservations.domain.policy import Policy
from reservations.domain.tree import Tree
from reservations.domain.window import WEEK_SECONDS
from reservations.models import PoolQuota, PoolRule
from reservations.snapshots.usage import usage_by_membership
from telemetry.models import Gpu


@dataclass(frozen=True, slots=True)
class Outlook:
    """Everybody's place before and after, and I4's condition by Pool."""

    moved: list[Moved]
    """Those that change come first."""
    promises: list[tuple[Promise, Promise]]

    @property
    def changed(self) -> int:
        """How many change place or level_fs."""
        return sum(row.changed for row in self.moved)


def outlook(done: Edited, *, now: datetime, policy: Policy) -> Outlook:
    """Work out what edits would do."""
    usage = usage_by_membership(now, policy)
    return Outlook(
        moved=compare(done.before, done.after, usage),
        promises=[
            (before, after)
            for before, after in zip(
                promises(done.before, policy), promises(done.after, policy), strict=True
            )
        ],
    )


def promises(
    tree: Tree, policy: Policy, pools: list[PoolInfo] | None = None
) -> list[Promise]:
    """Return I4's condition for every Pool that has Gpus to book."""
    pools = pool_infos() if pools is None else pools
    return [
        promise(tree, pool, quota_gpu_seconds=policy.quota_gpu_seconds)
        for pool in pools
    ]


def pool_infos() -> list[PoolInfo]:
    """Read the Pools with the rules that bound what may be spent in them."""
    rows = (
        Gpu.objects.bookable()
        .order_by()
        .values("pool_id", "pool__gpu_class")
        .annotate(weight=Sum("pool__weight"))
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
            pk=row["pool_id"],
            gpu_class=row["pool__gpu_class"],
            capacity_gpu_seconds=row["weight"] * WEEK_SECONDS,
            accounts=rules.get(row["pool_id"]) or None,
            member_quotas=members.get(row["pool_id"], {}),
            account_quotas=accounts.get(row["pool_id"], {}),
        )
        for row in sorted(rows, key=lambda row: str(row["pool__gpu_class"]))
    ]
