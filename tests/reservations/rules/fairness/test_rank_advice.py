"""What would raise a user's rank."""

from fractions import Fraction

import pytest

from reservations.rules.fairness.fair_tree import AccountShares, MemberShares, rank_tree
from reservations.rules.fairness.rank_advice import (
    Branch,
    diverging_nodes,
    surplus_usage,
    used_ratio,
)

HALF = Fraction(1, 2)


def test_paths_part_at_the_first_difference():
    assert diverging_nodes(["uni", "vision", "alice"], ["uni", "nlp", "carol"]) == (
        "vision",
        "nlp",
    )
    assert diverging_nodes(["uni"], ["uni"]) is None


def test_more_shares_allow_more_use():
    own = Branch("own", Fraction(2, 3), 90)
    assert surplus_usage(own, Branch("other", Fraction(1, 3), 40)) == 10


def test_nobody_passes_an_unused_branch_by_using_a_little_less():
    assert surplus_usage(Branch("own", HALF, 5), Branch("other", HALF, 0)) is None
    assert surplus_usage(Branch("own", HALF, 0), Branch("other", HALF, 0)) == 0


def test_a_branch_without_shares_is_never_ahead():
    assert surplus_usage(Branch("own", HALF, 5), Branch("other", Fraction(0), 9)) == 0


@pytest.mark.parametrize("alice_uses", [31, 60, 500])
def test_with_one_less_than_the_surplus_gone_one_is_still_behind(alice_uses):
    def place(usage: int) -> int:
        ranks = rank_tree(
            [AccountShares(1, None)],
            [MemberShares(1, 1, 1, usage), MemberShares(2, 1, 1, 30)],
        )
        return ranks.place(1)

    less = surplus_usage(Branch("alice", HALF, alice_uses), Branch("bob", HALF, 30))
    assert less is not None
    assert place(alice_uses) == 2
    assert place(alice_uses - less + 1) == 2
    assert place(alice_uses - less - 1) == 1


def test_the_ratio_is_the_inverse_of_level_fs():
    assert used_ratio(0.5) == 2
    assert used_ratio(None) == 0
    assert used_ratio(0) == float("inf")
