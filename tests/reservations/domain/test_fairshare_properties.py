"""POLICY.md section 4, I7: what never changes a rank, and what only lowers it."""

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from reservations.domain.fairshare import (
    AccountShares,
    MemberShares,
    rank_tree,
    weight_at,
)
from tests.reservations.domain.strategies import trees


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
    """The same recursion with Fractions and no cleverness (POLICY.md section 1)."""
    accounts, members = tree
    assert ranks(accounts, members) == plain_ranks(accounts, members)


def plain_ranks(
    accounts: list[AccountShares], members: list[MemberShares]
) -> dict[int, int]:
    by_pk = {account.pk: account for account in accounts}
    root = next(account.pk for account in accounts if account.parent_pk is None)

    def path(pk: int) -> list[int]:
        found = [pk]
        while by_pk[found[-1]].parent_pk is not None:
            found.append(by_pk[found[-1]].parent_pk)
        return found

    def real(pk: int) -> int:
        return next(a for a in path(pk) if a == root or by_pk[a].shares is not None)

    def usage(pk: int) -> int:
        return sum(m.usage for m in members if pk in path(m.account_pk))

    def children(pk: int) -> list[tuple[object, int | None, int]]:
        users = [(m, m.shares, m.usage) for m in members if real(m.account_pk) == pk]
        below = [
            (a, a.shares, usage(a.pk))
            for a in accounts
            if a.parent_pk is not None
            and a.shares is not None
            and real(a.parent_pk) == pk
            and any(a.pk in path(m.account_pk) for m in members)
        ]
        return users + below

    def all_shares(pk: int) -> int:
        peers = [m.shares or 0 for m in members if real(m.account_pk) == pk]
        peers += [
            a.shares
            for a in accounts
            if a.parent_pk is not None and a.shares and real(a.parent_pk) == pk
        ]
        return sum(peers)

    def level(pk: int) -> list[tuple[Fraction | float, bool, object]]:
        found = []
        for child, shares, used in children(pk):
            if shares is None:
                fs: Fraction | float = float("inf")
            elif shares == 0:
                fs = Fraction(0)
            elif used == 0:
                fs = float("inf")
            else:
                fs = Fraction(shares, all_shares(pk)) / Fraction(used, usage(pk))
            found.append((fs, isinstance(child, MemberShares), child))
        return found

    ranked: dict[int, int] = {}
    left = len(members)

    def descend(pks: list[int]) -> None:
        nonlocal left
        found = [entry for pk in pks for entry in level(pk)]
        for fs in sorted({entry[0] for entry in found}, reverse=True):
            users = [c for value, is_user, c in found if value == fs and is_user]
            rank = left
            for user in users:
                ranked[user.pk] = rank
                left -= 1
            below = [c.pk for value, is_user, c in found if value == fs and not is_user]
            if below:
                descend(below)

    descend([root])
    return ranked
