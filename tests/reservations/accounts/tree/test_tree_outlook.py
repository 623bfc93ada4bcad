"""The effect of an edit on places and on the promise, checked against plain
recursion.
"""

from dataclasses import replace
from datetime import UTC, datetime
from time import process_time

from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.accounts.tree.tree_edits import Edit, edited
from reservations.accounts.tree.tree_outlook import (
    PoolInfo,
    compare,
    fair_tree_of,
    places,
    promises_of,
)
from reservations.accounts.tree.tree_rows import AccountInfo, MemberInfo, Tree
from reservations.rules.fairness.promise import PoolCapacity

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
SITE = 40


@st.composite
def trees(draw) -> Tree:
    """Draw a small tree: any account stands below an earlier one."""
    count = draw(st.integers(1, 6))
    quotas = st.none() | st.integers(0, 200)
    accounts = {
        pk: AccountInfo(
            pk,
            f"a{pk}",
            "",
            None if pk == 1 else draw(st.integers(1, pk - 1)),
            draw(st.integers(0, 5)),
            draw(quotas),
        )
        for pk in range(1, count + 1)
    }
    members = {
        pk: MemberInfo(
            pk,
            pk,
            draw(st.integers(1, count)),
            draw(st.integers(0, 5)),
            draw(quotas),
            active=draw(st.booleans()),
        )
        for pk in range(1, draw(st.integers(0, 8)) + 1)
    }
    return Tree(accounts, members)


def most_spent(tree: Tree, pool: PoolInfo, pk: int) -> int:
    """What can be spent below an account, by recursion."""
    account = tree.accounts[pk]
    allowed, at = pool.accounts is None, account
    while not allowed:
        allowed = at.pk in (pool.accounts or ())
        if at.parent_pk is None:
            break
        at = tree.accounts[at.parent_pk]
    total = sum(
        most_spent(tree, pool, child.pk)
        for child in tree.accounts.values()
        if child.parent_pk == pk
    )
    for member in tree.members.values():
        if member.account_pk == pk and member.active and allowed:
            own = SITE if member.quota_gpu_seconds is None else member.quota_gpu_seconds
            total += min(own, pool.member_quotas.get(member.pk, own))
    bounds = [account.quota_gpu_seconds, pool.account_quotas.get(pk)]
    return min([total, *(bound for bound in bounds if bound is not None)])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(trees(), st.data())
def test_the_promise_is_the_most_that_quotas_let_anybody_spend(tree, data) -> None:
    pks = st.sampled_from(sorted(tree.accounts))
    pool = PoolInfo(
        PoolCapacity(1, "A100", 1, 1),
        data.draw(st.none() | st.frozensets(pks, min_size=1)),
        data.draw(st.dictionaries(st.integers(1, 8), st.integers(0, 50), max_size=3)),
        data.draw(st.dictionaries(pks, st.integers(0, 50), max_size=3)),
    )
    (found,) = promises_of(tree, [pool], quota_gpu_seconds=SITE)
    assert found.claims_gpu_seconds == most_spent(tree, pool, 1)
    assert found.kept


@settings(max_examples=40, deadline=None, derandomize=True)
@given(trees(), st.data())
def test_places_are_fair_trees_own_and_an_empty_edit_moves_nobody(tree, data) -> None:
    usage = {pk: data.draw(st.integers(0, 9)) for pk in tree.members}
    ranking = fair_tree_of(tree, usage).ranked()
    found = places(tree, usage)
    for member in tree.members.values():
        if member.active:
            assert found["member", member.pk].place == ranking.place(member.pk)
    rows = compare(tree, tree, usage)
    assert not any(row.changed for row in rows)
    more = edited(tree, [Edit("account", 1, 1, {"title": "x"})], {}, now=NOW)
    assert not any(row.changed for row in compare(tree, more.after, usage))


def test_who_moves_most_comes_first_and_the_archived_leave_their_level() -> None:
    accounts = {
        1: AccountInfo(1, "root", "", None, 1, None),
        2: AccountInfo(2, "a", "", 1, 1, None),
        3: AccountInfo(3, "b", "", 1, 1, None),
    }
    members = {pk: MemberInfo(pk, pk, 2 + pk % 2, 1, None) for pk in range(1, 5)}
    tree = Tree(accounts, members)
    usage = {1: 4, 2: 3, 3: 2, 4: 1}
    done = edited(tree, [Edit("account", 2, 1, {"shares": 9})], {}, now=NOW)
    rows = compare(tree, done.after, usage)
    changed = [(row.table, row.pk) for row in rows if row.changed]
    assert changed[:2] == [("account", 2), ("account", 3)]
    steps = [abs(row.steps) for row in rows if row.table == "member"]
    assert steps == sorted(steps, reverse=True)
    gone = edited(tree, [Edit("account", 3, 1, {"archived": True})], {}, now=NOW)
    after = places(gone.after, usage)
    assert ("account", 3) not in after
    assert {pk for table, pk in after if table == "member"} == {2, 4}
    assert after["account", 2].level_fs == 1


def test_ten_thousand_members_are_compared_in_a_breath() -> None:
    accounts = {1: AccountInfo(1, "root", "", None, 1, None)} | {
        pk: AccountInfo(pk, f"a{pk}", "", 1 + (pk - 2) // 25, pk % 7, None)
        for pk in range(2, 502)
    }
    members = {pk: MemberInfo(pk, pk, 2 + pk % 500, 1, None) for pk in range(10_000)}
    tree = Tree(accounts, members)
    usage = {pk: (pk * 7919 % 100_000) << 60 for pk in members}
    after = replace(tree, accounts=accounts | {9: replace(accounts[9], shares=50)})
    started = process_time()
    rows = compare(tree, after, usage)
    took_seconds = process_time() - started
    assert len(rows) == 10_501
    # Two rankings and two levels a row; far from the square of the members.
    assert took_seconds < 5
