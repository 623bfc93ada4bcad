"""Fair Tree: rank the Memberships in the tree of Accounts.

Slurm, "Fair Tree Fairshare Algorithm" (fair_tree.html) and "Multifactor Priority
Plugin" (priority_multifactor.html); docs/design/fair-booking.md#fair-tree has the
formulas and the rules at the edges, recorded from Slurm 22.05.

Differences from Slurm's code, which follow its published rule: the children of tied
sibling Accounts are always merged before descending, so the order of rows never
matters. An Account without Users below it takes no part in a tie.
A User that ties with a sibling Account shares its rank with the first-served
children of that Account, as in Slurm's ``_calc_tree_fs`` (fair_tree.c).
Slurm decays usage at each scheduler pass; here every charge is weighed by its
own instant.

Levels are compared as integers: ``floor(2**bits * LF)`` with ``bits`` beyond
the product of any two denominators is different for different rationals and
equal for equal ones. Cost: O(n log n) of n Users and Accounts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property, lru_cache

FRACTION_BITS = 32
"""Weights of charges are integers in units of 2**-32
(docs/design/fair-booking.md#terms)."""
_EPOCH_UNIX = int(datetime(2020, 1, 1, tzinfo=UTC).timestamp())


@lru_cache(maxsize=65_536)
def weight_at(unix_seconds: int, half_life_seconds: int) -> int:
    """Return how heavy a charge of that instant weighs, as a scaled integer.

    ``2**((at - epoch) / half_life)``: later charges weigh more instead of
    earlier ones weighing less, which ranks the same because only ratios count.
    The weight of a charge never changes, so that equal histories tie exactly,
    sums can be kept, and time alone changes no rank.

    >>> weight_at(1_600_000_000 + 1_209_600, 1_209_600) / weight_at(
    ...     1_600_000_000, 1_209_600)
    2.0
    """
    halves, rest = divmod(unix_seconds - _EPOCH_UNIX, half_life_seconds)
    factor = round(math.ldexp(math.exp2(rest / half_life_seconds), FRACTION_BITS))
    return factor << halves if halves >= 0 else factor >> -halves


def decayed_gpu_seconds(
    usage: int, *, unix_seconds: int, half_life_seconds: int
) -> float:
    """Return weighted usage as GPU-seconds at an instant, for pages."""
    return float(Fraction(usage, weight_at(unix_seconds, half_life_seconds)))


@dataclass(frozen=True, slots=True)
class AccountShares:
    """An Account of the tree. Exactly one has no parent: the root."""

    pk: int
    parent_pk: int | None
    shares: int | None = 1
    """None: Slurm's ``parent``, with which Fair Tree skips the Account."""
    usage: int | None = None
    """Usage of the whole Account if it is known more exactly than from its members
    (``sshare`` prints rounded figures). None: the sum over the members below.
    """


@dataclass(frozen=True, slots=True)
class MemberShares:
    """A Membership (Slurm: association) with its weighted usage."""

    pk: int
    account_pk: int
    shares: int | None = 1
    """None: Slurm's ``parent``; level_fs is infinite."""
    usage: int = 0


@dataclass(frozen=True, slots=True)
class Level:
    """The standing of an Account or a Membership among its siblings."""

    norm_shares: Fraction
    """Own shares divided by those of all siblings. 0: nobody has any."""
    effective_usage: Fraction
    """Own usage divided by the parent's. 0: the parent has none."""
    level_fs: Fraction | None
    """norm_shares / effective_usage. Above 1: under-served. None: infinite."""
    usage: int


@dataclass(frozen=True, slots=True)
class PathStep:
    """One Account, or at the end the User, on the path from the root."""

    pk: int
    is_user: bool
    level: Level


@dataclass(frozen=True, slots=True)
class FairRank:
    """A Membership's rank: ``rank`` of ``of``, equal for ties."""

    rank: int
    of: int

    @property
    def fairshare(self) -> Fraction:
        """Return Slurm's factor, rank / N. 1 is served first."""
        return Fraction(self.rank, self.of)


class TreeInvalid(ValueError):
    """The Accounts do not form a tree."""


@dataclass(slots=True)
class _Child:
    """A User or an Account among its siblings."""

    pk: int
    is_user: bool
    shares: int | None
    level_sum: int
    usage: int
    parent_usage: int
    key: int = 0

    @property
    def infinite(self) -> bool:
        return self.shares is None or (self.shares > 0 and self.usage == 0)

    @property
    def ratio(self) -> tuple[int, int]:
        """LF as numerator and denominator; (0, 1) without shares.

        LF = (shares / level_sum) / (usage / usage of the parent). Own usage
        above zero implies that the parent's is.
        """
        if not self.shares:
            return 0, 1
        return self.shares * self.parent_usage, self.level_sum * self.usage


class Ranking:
    """The ranked tree. Ranks and Levels are computed on first use."""

    def __init__(self, tree: _Tree) -> None:
        self._tree = tree

    @cached_property
    def ranks(self) -> dict[int, FairRank]:
        """By Membership."""
        tree = self._tree
        ranks: dict[int, FairRank] = {}
        total = unused = shared = len(tree.members)
        levels = [_Siblings(tree.children([tree.root]))]
        while levels:
            step = levels[-1].next_tied_siblings()
            if step is None:
                levels.pop()
            elif step.is_user:
                shared = shared if step.tied else unused
                for pk in step.pks:
                    ranks[pk] = FairRank(shared, total)
                unused -= len(step.pks)
            else:
                levels.append(_Siblings(tree.children(step.pks), tied=step.tied))
        return ranks

    def with_usage(self, usage: Mapping[int, int]) -> Ranking:
        """Return a ranking with other usage of a few Memberships. This is cheap."""
        return Ranking(self._tree.with_usage(usage))

    def place(self, member_pk: int) -> int:
        """Return the place, 1 for the highest rank. Ties share the best place."""
        own = self.ranks[member_pk].rank
        return 1 + sum(rank.rank > own for rank in self.ranks.values())

    def path(self, pk: int) -> tuple[PathStep, ...]:
        """Return the Levels that decide a Membership's rank, from the top down.

        The first Level at which two of these paths differ decides who ranks higher:
        larger LF first. A User that ties there with an Account shares its rank with
        some members below it, and ranks above the others.
        """
        steps = [PathStep(pk, True, self.member_level(pk))]
        at = self._tree.real_account(self._tree.members[pk].account_pk)
        while at != self._tree.root:
            steps.append(PathStep(at, False, self.account_level(at)))
            at = self._tree.real_account(self._tree.accounts[at].parent_pk or 0)
        return tuple(reversed(steps))

    def member_level(self, pk: int) -> Level:
        """Return the Level of a Membership in its Account."""
        member = self._tree.members[pk]
        if member.shares is None:
            account = self._tree.real_account(member.account_pk)
            level = self.account_level(account)
            return Level(
                level.norm_shares,
                _part(member.usage, self._tree.usage[account]),
                None,
                member.usage,
            )
        return _level(self._tree.member_child(member))

    def account_level(self, pk: int) -> Level:
        """Return the Level of an Account among its siblings."""
        account = self._tree.accounts[pk]
        if account.parent_pk is None:
            return Level(Fraction(0), _part(1, 1), Fraction(0), self._tree.usage[pk])
        return _level(self._tree.account_child(account))


def rank_tree(
    accounts: Iterable[AccountShares], members: Iterable[MemberShares]
) -> Ranking:
    """Rank every Membership. The order of the arguments does not matter.

    Raises:
        TreeInvalid: no root, several, a cycle, or an unknown Account.
    """
    return Ranking(_Tree(accounts, members))


@dataclass(frozen=True, slots=True)
class _Step:
    """Siblings that tie: Users that share a rank, or Accounts that are merged."""

    is_user: bool
    pks: list[int]
    tied: bool
    """Whether they also tie with the User ranked just before them."""


class _Siblings:
    """One level, in order of descent: LF descending, Users before Accounts."""

    def __init__(self, children: list[_Child], *, tied: bool = False) -> None:
        """``tied``: the Account above ties with the User ranked just before it."""
        _set_keys(children)
        self._todo = sorted(children, key=lambda c: (c.key, c.is_user))
        self._tied_key = self._todo[-1].key if tied and self._todo else None

    def next_tied_siblings(self) -> _Step | None:
        """Take the next siblings that tie with one another."""
        if not self._todo:
            return None
        first = self._todo.pop()
        pks = [first.pk]
        while self._todo and (self._todo[-1].key, self._todo[-1].is_user) == (
            first.key,
            first.is_user,
        ):
            pks.append(self._todo.pop().pk)
        tied = first.key == self._tied_key
        self._tied_key = first.key
        return _Step(first.is_user, pks, tied)


def _set_keys(children: list[_Child]) -> None:
    """Give each child an integer that orders and ties exactly like its LF."""
    finite = [child for child in children if not child.infinite]
    ratios = [child.ratio for child in finite]
    bits = 2 * max((den.bit_length() for _num, den in ratios), default=1)
    for child, (numerator, denominator) in zip(finite, ratios, strict=True):
        child.key = (numerator << bits) // denominator
    beyond = max((child.key for child in finite), default=0) + 1
    for child in children:
        if child.infinite:
            child.key = beyond


class _Tree:
    """The Accounts of the tree that are not skipped, their sums and their children."""

    def __init__(
        self, accounts: Iterable[AccountShares], members: Iterable[MemberShares]
    ) -> None:
        self.accounts = {account.pk: account for account in accounts}
        self.members = {member.pk: member for member in members}
        roots = [a.pk for a in self.accounts.values() if a.parent_pk is None]
        if len(roots) != 1:
            raise TreeInvalid(f"{len(roots)} Accounts without a parent, not one")
        self.root = roots[0]
        self._member_pks: dict[int, list[int]] = defaultdict(list)
        self._account_pks: dict[int, list[int]] = defaultdict(list)
        self.usage: dict[int, int] = dict.fromkeys(self.accounts, 0)
        self._level_sums: dict[int, int] = dict.fromkeys(self.accounts, 0)
        self._peopled: set[int] = set()
        self._real: dict[int, int] = {}
        for account in self.accounts.values():
            self._add_account(account)
        for member in self.members.values():
            self._add_member(member)
        for account in self.accounts.values():
            if account.usage is not None:
                self.usage[account.pk] = account.usage

    def _path(self, pk: int) -> list[int]:
        """Return an Account and all above it, up to the root."""
        path: list[int] = []
        at: int | None = pk
        while at is not None:
            if at not in self.accounts or len(path) > len(self.accounts):
                raise TreeInvalid(f"Account {pk} does not lead to the root")
            path.append(at)
            at = self.accounts[at].parent_pk
        return path

    def real_account(self, pk: int) -> int:
        """Return the nearest Account from here up that is not skipped."""
        if pk not in self._real:
            self._real[pk] = next(
                above
                for above in self._path(pk)
                if self.accounts[above].shares is not None or above == self.root
            )
        return self._real[pk]

    def _add_account(self, account: AccountShares) -> None:
        if account.parent_pk is None or account.shares is None:
            self._path(account.pk)
            return
        parent = self.real_account(account.parent_pk)
        self._account_pks[parent].append(account.pk)
        self._level_sums[parent] += account.shares

    def _add_member(self, member: MemberShares) -> None:
        if member.usage < 0:
            raise ValueError(f"Membership {member.pk} has a usage below zero")
        parent = self.real_account(member.account_pk)
        self._member_pks[parent].append(member.pk)
        self._level_sums[parent] += member.shares or 0
        for above in self._path(member.account_pk):
            self.usage[above] += member.usage
            self._peopled.add(above)

    def with_usage(self, usage: Mapping[int, int]) -> _Tree:
        """Return a tree that shares everything except the changed usage."""
        other = copy(self)
        other.members, other.usage = dict(self.members), dict(self.usage)
        for pk, now in usage.items():
            member = self.members[pk]
            other.members[pk] = replace(member, usage=now)
            for above in self._path(member.account_pk):
                other.usage[above] += now - member.usage
        return other

    def children(self, account_pks: Sequence[int]) -> list[_Child]:
        """Return the children of Accounts that tie, merged."""
        found: list[_Child] = []
        for pk in account_pks:
            found += [self.member_child(self.members[m]) for m in self._member_pks[pk]]
            found += [
                self.account_child(self.accounts[a])
                for a in self._account_pks[pk]
                if a in self._peopled
            ]
        return found

    def member_child(self, member: MemberShares) -> _Child:
        """Return a Membership with the values that order it among its siblings."""
        parent = self.real_account(member.account_pk)
        return _Child(
            pk=member.pk,
            is_user=True,
            shares=member.shares,
            level_sum=self._level_sums[parent],
            usage=member.usage,
            parent_usage=self.usage[parent],
        )

    def account_child(self, account: AccountShares) -> _Child:
        """Return an Account with the values that order it among its siblings."""
        parent = self.real_account(account.parent_pk or self.root)
        return _Child(
            pk=account.pk,
            is_user=False,
            shares=account.shares,
            level_sum=self._level_sums[parent],
            usage=self.usage[account.pk],
            parent_usage=self.usage[parent],
        )


def _part(part: int, whole: int) -> Fraction:
    return Fraction(part, whole) if whole else Fraction(0)


def _level(child: _Child) -> Level:
    level_fs = None if child.infinite else Fraction(*child.ratio)
    return Level(
        norm_shares=_part(child.shares or 0, child.level_sum),
        effective_usage=_part(child.usage, child.parent_usage),
        level_fs=level_fs,
        usage=child.usage,
    )
