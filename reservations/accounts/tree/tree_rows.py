"""The tree of Accounts and Memberships as values.

Nothing is read or written here. ``tree_edits`` applies edits to a Tree, and
``tree_outlook`` says how they change everybody's rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """An Account as it is stored."""

    pk: int
    name: str
    title: str
    parent_pk: int | None
    shares: int
    quota_gpu_seconds: int | None
    """Weighted, in any 7 days; None: the sum of the members'."""
    ends_at: datetime | None = None
    archived_at: datetime | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A Membership as it is stored."""

    pk: int
    user_pk: int
    account_pk: int
    shares: int
    quota_gpu_seconds: int | None
    """Weighted, in any 7 days; None: the site's."""
    is_head: bool = False
    active: bool = True
    expires_at: datetime | None = None
    sponsor_pk: int | None = None
    version: int = 1


Row = AccountInfo | MemberInfo


def nested(
    rows: Iterable[tuple[int, int | None]], under: int | None = None
) -> list[tuple[int, int]]:
    """Return (key, depth) of what lies below an Account, each above its own children.

    Siblings keep the order of ``rows``. A row whose parent is not among the rows
    (an archived one, say) counts as one of the top.

    Args:
        rows: (key, key of the parent).
        under: the Account whose tree is wanted, itself left out; None: all of them.

    >>> nested([(1, None), (2, None), (3, 1), (4, 3)])
    [(1, 0), (3, 1), (4, 2), (2, 0)]
    >>> nested([(1, None), (2, None), (3, 1), (4, 3)], under=1)
    [(3, 0), (4, 1)]
    """
    known = list(rows)
    keys = {pk for pk, _parent in known}
    children: dict[int | None, list[int]] = {}
    for pk, parent in known:
        top = None if parent not in keys and parent != under else parent
        children.setdefault(top, []).append(pk)
    found = []
    waiting = [(pk, 0) for pk in reversed(children.get(under, []))]
    while waiting:
        pk, depth = waiting.pop()
        found.append((pk, depth))
        waiting += [(child, depth + 1) for child in reversed(children.get(pk, []))]
    return found


def quotas_of_members(tree: Tree, *, default_gpu_seconds: int) -> dict[int, int]:
    """Return how much the members of each Account may hold in 7 days, in weighted
    GPU-seconds.

    This is the quota of an Account without a quota: the sum over its members and over
    the Accounts below it. An Account below counts with its quota or with the sum of its
    members, whichever is less. So a large quota of a small group does not raise the
    quota of the group above it.

    Args:
        default_gpu_seconds: of a member without its own quota.

    Cost: O(n) of n Accounts and Memberships.
    """
    sums = dict.fromkeys(tree.accounts, 0)
    for member in tree.members.values():
        if member.active and member.account_pk in sums:
            own = member.quota_gpu_seconds
            sums[member.account_pk] += default_gpu_seconds if own is None else own
    open_accounts = [a for a in tree.accounts.values() if a.archived_at is None]
    order = nested((account.pk, account.parent_pk) for account in open_accounts)
    for pk, _depth in reversed(order):
        account = tree.accounts[pk]
        quota, held = account.quota_gpu_seconds, sums[pk]
        if account.parent_pk in sums:
            sums[account.parent_pk] += held if quota is None else min(quota, held)
    return sums


@dataclass(frozen=True)
class Tree:
    """Every Account and every Membership, by key."""

    accounts: Mapping[int, AccountInfo] = field(default_factory=dict)
    members: Mapping[int, MemberInfo] = field(default_factory=dict)

    def rows(self, table: str) -> Mapping[int, Row]:
        """Return the rows of a table."""
        return self.accounts if table == "account" else self.members

    def below(self, account_pk: int) -> set[int]:
        """Return an Account and every one below it."""
        children: dict[int | None, list[int]] = {}
        for account in self.accounts.values():
            children.setdefault(account.parent_pk, []).append(account.pk)
        found: set[int] = set()
        waiting = [account_pk]
        while waiting:
            pk = waiting.pop()
            if pk not in found:
                found.add(pk)
                waiting += children.get(pk, [])
        return found
