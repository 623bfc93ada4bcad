"""The quick refusal of docs/design/fair-booking.md#rule-2 against the deciding
paths.
"""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.rules.calendar import FlexInfo
from reservations.rules.fairness.preemption import (
    FairTree,
    displaced_by,
    keys,
    ranks_above,
)
from tests.reservations.rules.strategies import trees

pytestmark = pytest.mark.pure
AT = datetime(2026, 3, 28, tzinfo=UTC)


@given(trees(), st.data())
@settings(max_examples=300, deadline=None)
def test_who_surely_stands_below_never_stands_above(parts, data) -> None:
    accounts, members = parts
    if len(members) < 2:
        return
    tree = FairTree(tuple(accounts), tuple(members))
    own, *others = data.draw(st.permutations([member.pk for member in members]))
    owners = data.draw(st.lists(st.sampled_from(others), min_size=1, max_size=3))
    flex = [
        FlexInfo(pk, owner, 1, "", AT, AT, data.draw(st.integers(0, 6)), AT)
        for pk, owner in enumerate(owners)
    ]
    more = data.draw(st.integers(1, 6))
    gone = displaced_by(
        flex, member_pk=own, more_gpu_seconds=more, tree=tree, freeze_seconds=0
    )
    below = tree.scales.below(own, more, flex)
    if below:
        assert not all(ranks_above(keys(o.own), keys(o.theirs)) for o in gone)
    if all(account.shares is not None for account in accounts[1:]) and all(
        member.shares is not None for member in members
    ):
        # Where the paths part: the one Level that the quick no looks at.
        parted = [
            next((a, b) for a, b in zip(o.own, o.theirs, strict=False) if a.pk != b.pk)
            for o in gone
        ]
        assert below == any(keys([a])[0][:2] < keys([b])[0][:2] for a, b in parted)
