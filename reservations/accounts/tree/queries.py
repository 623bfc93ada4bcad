"""The tree of Accounts as values, with which edits are validated."""

from collections.abc import Collection

from reservations.accounts.tree.tree_rows import AccountInfo, MemberInfo, Tree
from reservations.models import Account, Membership, User


def read_tree() -> Tree:
    """Read every Account and every Membership, in two queries."""
    accounts = Account.objects.order_by().values_list(
        "pk",
        "name",
        "title",
        "parent_id",
        "shares",
        "quota_gpu_seconds",
        "ends_at",
        "archived_at",
        "version",
    )
    members = Membership.objects.order_by().values_list(
        "pk",
        "user_id",
        "account_id",
        "shares",
        "quota_gpu_seconds",
        "is_head",
        "active",
        "expires_at",
        "sponsor_id",
        "version",
    )
    return Tree(
        accounts={row[0]: AccountInfo(*row) for row in accounts},
        members={row[0]: MemberInfo(*row) for row in members},
    )


def users_named(usernames: Collection[str]) -> dict[str, int]:
    """Return the users' keys by login."""
    names = sorted(set(usernames))
    found: dict[str, int] = {}
    # In batches: SQLite limits the number of values.
    for first in range(0, len(names), 500):
        rows = User.objects.filter(
            username__in=names[first : first + 500], erased_at=None
        )
        found |= dict(rows.order_by().values_list("username", "pk"))
    return found
