"""See docs/design/fair-booking.md#i7. What never changes a rank, and what only lowers
it."""

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from reservations.rules.fairness.fair_tree import (
    AccountShares,
    MemberShares,
    rank_tree,
    weight_at,
)
from tests.reservations.rules.strategies import trees


def ranks(accounts: list[AccountShares], members: list[MemberShares]) -> dict[int, int]:
    return {pk: rank.rank for pk, rank in rank_tree(accounts, members).ranks.items()}


@given(trees(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(tree, chance) -> None:
    accounts, members = tree
    before = ranks(accounts, members)
    chance.shuffle(accounts)
    chance.shuffle(members)
    assert ranks(accounts, members) == before


@given(trees(), st.data())
def test_using_more_never_ranks_higher(tree, data) -> None:
    accounts, members = tree
    if not members:
        return
    place = data.draw(st.integers(0, len(members) - 1))
    more = data.draw(st.integers(1, 20))
    before = ranks(accounts, members)
    own = members[place]
    members[place] = replace(own, usage=own.usage + more)
    assert ranks(accounts, members)[own.pk] <= before[own.pk]


@given(trees(), st.integers(2, 10**12))
def test_scaling_all_usage_changes_no_rank(tree, factor) -> None:
    accounts, members = tree
    scaled = [replace(member, usage=member.usage * factor) for member in members]
    assert ranks(accounts, scaled) == ranks(accounts, members)


@given(trees(parents=False), st.integers(2, 1000), st.data())
def test_scaling_all_shares_of_a_level_changes_no_rank(tree, factor, data) -> None:
    accounts, members = tree
    level = data.draw(st.sampled_from([account.pk for account in accounts]))
    scaled_accounts = [
        replace(account, shares=account.shares * factor)
        if account.parent_pk == level
        else account
        for account in accounts
    ]
    scaled_members = [
        replace(member, shares=member.shares * factor)
        if member.account_pk == level
        else member
        for member in members
    ]
    assert ranks(scaled_accounts, scaled_members) == ranks(accounts, members)


@given(trees(), st.integers(1_600_000_000, 1_900_000_000), st.integers(0, 10**8))
def test_time_alone_changes_no_rank(tree, at, later) -> None:
    """Charges keep their weight; only commitments are weighed by the present."""
    accounts, members = tree
    half_life = 1_209_600
    heavy = weight_at(at, half_life)
    charged = [replace(m, usage=m.usage * heavy) for m in members]
    assert ranks(accounts, charged) == ranks(accounts, members)
    assert weight_at(at + later, half_life) >= heavy


@given(trees())
def test_every_membership_gets_a_rank_and_the_best_is_n(tree) -> None:
    accounts, members = tree
    found = rank_tree(accounts, members)
    assert set(found.ranks) == {member.pk for member in members}
    if members:
        assert max(rank.rank for rank in found.ranks.values()) == len(members)
        assert min(rank.rank for rank in found.ranks.values()) >= 1


@given(trees())
def test_it_agrees_with_the_formulas_written_down_plainly(tree) -> None:
    """The same recursion with Fractions and no cleverness.

    See docs/design/fair-booking.md#fair-tree.
    """
    accounts, members = tree
    assert ranks(accounts, members) == plain_ranks(accounts, members)


def plain_ranks(
    accounts: list[AccountShares], members: list[MemberShares]
) -> dict[int, int]:
    plain = Plain(accounts, members)
    plain.descend([plain.root], tied=False)
    return plain.ranked


class Plain:
    """Fair Tree as docs/design/fair-booking.md#fair-tree defines it."""

    def __init__(
        self, accounts: list[AccountShares], members: list[MemberShares]
    ) -> None:
        self.accounts, self.members = accounts, members
        self.by_pk = {account.pk: account for account in accounts}
        self.root = next(a.pk for a in accounts if a.parent_pk is None)
        self.ranked: dict[int, int] = {}
        self.left = self.shared = len(members)

    def path(self, pk: int) -> list[int]:
        found = [pk]
        while self.by_pk[found[-1]].parent_pk is not None:
            found.append(self.by_pk[found[-1]].parent_pk)
        return found

    def real(self, pk: int) -> int:
        return next(
            a
            for a in self.path(pk)
            if a == self.root or self.by_pk[a].shares is not None
        )

    def usage(self, pk: int) -> int:
        return sum(m.usage for m in self.members if pk in self.path(m.account_pk))

    def below(self, pk: int) -> list[AccountShares]:
        return [
            a
            for a in self.accounts
            if a.parent_pk is not None
            and a.shares is not None
            and self.real(a.parent_pk) == pk
        ]

    def users(self, pk: int) -> list[MemberShares]:
        return [m for m in self.members if self.real(m.account_pk) == pk]

    def level_fs(self, pk: int, shares: int | None, used: int) -> Fraction | float:
        if shares is None:
            return float("inf")
        if shares == 0:
            return Fraction(0)
        if used == 0:
            return float("inf")
        peers = [*self.users(pk), *self.below(pk)]
        level_sum = sum(peer.shares or 0 for peer in peers)
        return Fraction(shares, level_sum) / Fraction(used, self.usage(pk))

    def descend(self, pks: list[int], *, tied: bool) -> None:
        users = [
            (self.level_fs(pk, m.shares, m.usage), m.pk)
            for pk in pks
            for m in self.users(pk)
        ]
        peopled = {a for m in self.members for a in self.path(m.account_pk)}
        below = [
            (self.level_fs(pk, a.shares, self.usage(a.pk)), a.pk)
            for pk in pks
            for a in self.below(pk)
            if a.pk in peopled
        ]
        for fs in sorted({fs for fs, _ in users + below}, reverse=True):
            equal = [pk for value, pk in users if value == fs]
            if equal and not tied:
                self.shared = self.left
            self.ranked |= dict.fromkeys(equal, self.shared)
            self.left -= len(equal)
            merged = [pk for value, pk in below if value == fs]
            if merged:
                self.descend(merged, tied=tied or bool(equal))
            tied = False


@given(trees(parents=False), st.integers(2, 4), st.data())
def test_many_identities_have_the_groups_place_together(tree, puppets, data) -> None:
    """However a member is split, the others rank among themselves as before.

    See docs/design/fair-booking.md#i11.
    """
    accounts, members = tree
    if not members:
        return
    own = data.draw(st.sampled_from(members))
    inside = {own.account_pk}
    for account in accounts:
        # Parents come before their children in these trees.
        if account.parent_pk in inside:
            inside.add(account.pk)
    if own.account_pk == 1:
        # Directly below the root there is no group whose place could be shared.
        return
    split = [
        replace(own, pk=1000 + n, usage=own.usage // puppets) for n in range(puppets)
    ]
    split[0] = replace(split[0], usage=own.usage - own.usage // puppets * (puppets - 1))
    before = ranks(accounts, members)
    after = ranks(accounts, [m for m in members if m.pk != own.pk] + split)
    others = [m.pk for m in members if m.account_pk not in inside]
    for one in others:
        for two in others:
            assert (before[one] > before[two]) == (after[one] > after[two])
