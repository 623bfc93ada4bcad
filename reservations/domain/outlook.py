"""What does an edit of the tree do to everybody's place, and to what was promised?

Places are Fair Tree's (``fairshare``). The promise is POLICY.md section 4, I4: where
the quotas that may be spent in a Pool add up to no more than it has, whoever has
headroom finds the time. Of an Account with a quota of its own no more can be spent
than that, however many members it has.

Cost: O(n log n) of n Accounts and Memberships, plus O(n) a Pool.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from reservations.domain.displacement import FairTree
from reservations.domain.fairshare import AccountShares, MemberShares
from reservations.domain.tree import AccountInfo, MemberInfo, Tree

TOP = 0
"""Stands above several Accounts without a parent."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an Account or a Membership stands."""

    level_fs: Fraction | None
    """Above 1: under-served. None: infinite, nothing was used."""
    place: int | None = None
    """Of a Membership: 1 is served first; ties share the best place."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One row's place before and after; None: it did not take part."""

    table: str
    pk: int
    before: Place | None
    after: Place | None

    @property
    def changed(self) -> bool:
        """Whether the edit moves it."""
        return self.before != self.after

    @property
    def steps(self) -> int:
        """How many places it loses (above zero) or gains."""
        if not (self.before and self.after):
            return 0
        return (self.after.place or 0) - (self.before.place or 0)


def fair_tree_of(tree: Tree, usage: Mapping[int, int], *, unit: int = 1) -> FairTree:
    """Return the shares of a Tree as Fair Tree ranks them.

    Args:
        usage: by Membership, weighed as ``fairshare.weight_at`` does.
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
    return FairTree(tuple(accounts), tuple(members), unit)


def _shares(account: AccountInfo) -> int:
    """What is archived has no part in its level."""
    return 0 if account.archived_at is not None else account.shares


def places(tree: Tree, usage: Mapping[int, int]) -> dict[tuple[str, int], Place]:
    """Return where every Account and every active Membership stands."""
    ranking = fair_tree_of(tree, usage).ranked()
    order = sorted(rank.rank for rank in ranking.ranks.values())
    found: dict[tuple[str, int], Place] = {}
    for pk, rank in ranking.ranks.items():
        above = len(order) - bisect_right(order, rank.rank)
        found["member", pk] = Place(ranking.member_level(pk).level_fs, 1 + above)
    for account in tree.accounts.values():
        if account.archived_at is None:
            found["account", account.pk] = Place(
                ranking.account_level(account.pk).level_fs
            )
    return found


def compare(before: Tree, after: Tree, usage: Mapping[int, int]) -> list[Moved]:
    """Return everybody's place before and after: those that move most come first."""
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
    """A Pool with the rules that bound what may be spent in it."""

    pk: int
    gpu_class: str
    capacity_gpu_seconds: int
    """Weighted, of all its bookable Gpus in 7 days."""
    accounts: frozenset[int] | None = None
    """Who may book, with everything below them; None: everybody."""
    member_quotas: Mapping[int, int] = field(default_factory=dict)
    account_quotas: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Promise:
    """I4's condition for one Pool."""

    pool: PoolInfo
    promised_gpu_seconds: int
    """The most that all quotas together let anybody spend in any 7 days."""

    @property
    def holds(self) -> bool:
        """Whether everybody with headroom finds the time."""
        return self.promised_gpu_seconds <= self.pool.capacity_gpu_seconds

    @property
    def ratio(self) -> float:
        """Promised over capacity; 0 where the Pool has nothing."""
        capacity = self.pool.capacity_gpu_seconds
        return self.promised_gpu_seconds / capacity if capacity else 0.0


def promise(tree: Tree, pool: PoolInfo, *, quota_gpu_seconds: int) -> Promise:
    """Add up what may be spent in a Pool.

    Args:
        quota_gpu_seconds: the site's, of a Membership without one of its own.
    """
    members: dict[int, list[MemberInfo]] = defaultdict(list)
    for member in tree.members.values():
        if member.active:
            members[member.account_pk].append(member)
    children: dict[int | None, list[AccountInfo]] = defaultdict(list)
    for account in tree.accounts.values():
        children[account.parent_pk].append(account)
    allowed = _allowed(tree, pool)
    spent: dict[int, int] = {}
    todo = [(account, False) for account in children[None]]
    while todo:
        account, ready = todo.pop()
        if not ready:
            todo.append((account, True))
            todo += [(child, False) for child in children[account.pk]]
            continue
        total = sum(spent[child.pk] for child in children[account.pk])
        if allowed is None or account.pk in allowed:
            total += sum(
                _of_member(m, pool, quota_gpu_seconds) for m in members[account.pk]
            )
        bounds = (account.quota_gpu_seconds, pool.account_quotas.get(account.pk))
        spent[account.pk] = min([total, *(b for b in bounds if b is not None)])
    return Promise(pool, sum(spent[account.pk] for account in children[None]))


def _allowed(tree: Tree, pool: PoolInfo) -> set[int] | None:
    if pool.accounts is None:
        return None
    found: set[int] = set()
    for pk in pool.accounts:
        if pk in tree.accounts:
            found |= tree.below(pk)
    return found


def _of_member(member: MemberInfo, pool: PoolInfo, site: int) -> int:
    own = site if member.quota_gpu_seconds is None else member.quota_gpu_seconds
    return min(own, pool.member_quotas.get(member.pk, own))
