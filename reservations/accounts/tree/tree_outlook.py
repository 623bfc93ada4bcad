"""The effects of an edit of the tree on all ranks, and on the promise of quotas.

Ranks are those of Fair Tree (``fairshare``), the promise is that of ``promise``:
docs/design/fair-booking.md#i4. Cost: O(n log n) of n Accounts and
Memberships, besides the promise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from reservations.accounts.tree.tree_rows import AccountInfo, Tree
from reservations.rules.fairness.fair_tree import AccountShares, MemberShares
from reservations.rules.fairness.preemption import FairTree
from reservations.rules.fairness.promise import (
    PoolCapacity,
    PoolPromise,
    QuotaClaim,
    pool_promises,
)

TOP = 0
"""A parent above several Accounts that have none."""


@dataclass(frozen=True, slots=True)
class TreePlace:
    """The rank of an Account or a Membership."""

    level_fs: Fraction | None
    """Above 1: under-served. None: infinite, because nothing was used."""
    place: int | None = None
    """Of a Membership. 1 is served first, and ties share the best rank."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The rank of one row before and after. None: it had none."""

    table: str
    pk: int
    before: TreePlace | None
    after: TreePlace | None

    @property
    def changed(self) -> bool:
        """Whether the edits change it."""
        return self.before != self.after

    @property
    def steps(self) -> int:
        """Return by how many places it falls (positive) or rises."""
        if not (self.before and self.after):
            return 0
        return (self.after.place or 0) - (self.before.place or 0)


def fair_tree_of(tree: Tree, usage: Mapping[int, int]) -> FairTree:
    """Return the shares of a Tree in the form that Fair Tree ranks.

    Args:
        usage: by Membership, weighted as ``fairshare.weight_at`` does.
    """
    roots = [a.pk for a in tree.accounts.values() if a.parent_pk is None]
    top = None if len(roots) == 1 else TOP
    accounts = [
        AccountShares(a.pk, top if a.parent_pk is None else a.parent_pk, _shares(a))
        for a in tree.accounts.values()
    ]
    if top is not None:
        accounts.append(AccountShares(TOP, None))
    members = [
        MemberShares(m.pk, m.account_pk, m.shares, usage.get(m.pk, 0))
        for m in tree.members.values()
        if m.active
    ]
    return FairTree(tuple(accounts), tuple(members), 1)


def _shares(account: AccountInfo) -> int:
    """Archived Accounts do not compete on their level."""
    return 0 if account.archived_at is not None else account.shares


def places(tree: Tree, usage: Mapping[int, int]) -> dict[tuple[str, int], TreePlace]:
    """Return the rank of every Account and every active Membership."""
    ranking = fair_tree_of(tree, usage).ranked()
    order = sorted(rank.rank for rank in ranking.ranks.values())
    found: dict[tuple[str, int], TreePlace] = {}
    for pk, rank in ranking.ranks.items():
        above = len(order) - bisect_right(order, rank.rank)
        found["member", pk] = TreePlace(ranking.member_level(pk).level_fs, 1 + above)
    for account in tree.accounts.values():
        if account.archived_at is None:
            found["account", account.pk] = TreePlace(
                ranking.account_level(account.pk).level_fs
            )
    return found


def compare(before: Tree, after: Tree, usage: Mapping[int, int]) -> list[Moved]:
    """Return everybody's rank before and after. The largest changes come first."""
    old, new = places(before, usage), places(after, usage)
    rows = [
        Moved(table, pk, old.get((table, pk)), new.get((table, pk)))
        for table, pk in old.keys() | new.keys()
    ]
    rows.sort(
        key=lambda row: (
            not row.changed,
            row.table != "account",
            -abs(row.steps),
            row.after.place or 0 if row.after else 0,
            row.pk,
        )
    )
    return rows


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """A Pool with the rules that limit the spends in it."""

    capacity: PoolCapacity
    accounts: frozenset[int] | None = None
    """The Accounts that may book it, with all below them. None: everybody may."""
    member_quotas: Mapping[int, int] = field(default_factory=dict)
    account_quotas: Mapping[int, int] = field(default_factory=dict)


def promises_of(
    tree: Tree, pools: Sequence[PoolInfo], *, quota_gpu_seconds: int
) -> tuple[PoolPromise, ...]:
    """Return the promise of each Pool under the tree's quotas.

    See docs/design/fair-booking.md#i4.

    Args:
        quota_gpu_seconds: the site's quota, for a Membership without its own.
    """
    allowed = {pool.capacity.pk: _allowed(tree, pool) for pool in pools}
    claims = [
        QuotaClaim(
            membership_pk=member.pk,
            quota_gpu_seconds=quota_gpu_seconds
            if member.quota_gpu_seconds is None
            else member.quota_gpu_seconds,
            account_pks=(member.account_pk,),
            pool_quotas={
                pool.capacity.pk: pool.member_quotas[member.pk]
                for pool in pools
                if member.pk in pool.member_quotas
            },
            pools=frozenset(
                pk
                for pk, inside in allowed.items()
                if inside is None or member.account_pk in inside
            ),
        )
        for member in tree.members.values()
        if member.active
    ]
    return pool_promises(
        [pool.capacity for pool in pools],
        claims,
        account_quotas={
            account.pk: account.quota_gpu_seconds
            for account in tree.accounts.values()
            if account.quota_gpu_seconds is not None
        },
        account_pool_quotas={
            (account, pool.capacity.pk): quota
            for pool in pools
            for account, quota in pool.account_quotas.items()
        },
        parents={account.pk: account.parent_pk for account in tree.accounts.values()},
    )


def _allowed(tree: Tree, pool: PoolInfo) -> set[int] | None:
    if pool.accounts is None:
        return None
    found: set[int] = set()
    for pk in pool.accounts:
        if pk in tree.accounts:
            found |= tree.below(pk)
    return found
