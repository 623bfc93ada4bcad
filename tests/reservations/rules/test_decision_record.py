"""A stored decision follows again from what is stored with it.

See docs/design/fair-booking.md#i14.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.rules.calendar import BusySpan, Calendar, CalendarGpu, FlexInfo
from reservations.rules.decision import decide
from reservations.rules.decision_record import (
    inputs_of,
    recompute,
    reduced,
    without_places,
)
from reservations.rules.fairness.fair_tree import weight_at
from reservations.rules.fairness.no_shows import Strike
from reservations.rules.fairness.preemption import FairTree
from reservations.rules.fairness.quota import QuotaInfo
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.rules.request import Holding, Request, Snapshot
from reservations.rules.window import Window, unix
from tests.reservations.rules.strategies import spends, trees

NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)
"""The day before Europe's clocks change."""
HOUR = timedelta(hours=1)
POLICY = Policy(quota_gpu_seconds=40 * 3600, version=7)


def flexes(start: datetime, owners: list[int]) -> st.SearchStrategy[FlexInfo]:
    return st.builds(
        FlexInfo,
        st.integers(1, 3),
        st.sampled_from(owners),
        st.just(0),
        st.just(""),
        st.just(start),
        st.just(start + HOUR),
        st.sampled_from((3600, 7200)),
        st.just(NOW),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[Request, Snapshot]:
    """Requests of two Gpus at most, with all that a decision may look at."""
    accounts, members = draw(trees(parents=False).filter(lambda tree: len(tree[1]) > 1))
    unit = weight_at(unix(NOW), POLICY.half_life_seconds)
    tree = FairTree(
        tuple(accounts), tuple(replace(m, usage=m.usage * unit) for m in members), unit
    )
    pks = [m.pk for m in members]
    gpus = tuple(CalendarGpu(pk, "n", pk, "A30", 2**34, pk) for pk in (1, 2))
    start = NOW + HOUR * draw(st.integers(0, 80))
    window = Window(start, start + HOUR * draw(st.integers(1, 6)))
    member = draw(st.sampled_from(pks))
    busy = [
        BusySpan(gpu.pk, unix(start), unix(start + HOUR), "", one)
        for gpu in gpus
        if (one := draw(st.none() | flexes(start, [p for p in pks if p != member])))
    ]
    quotas = tuple(
        QuotaInfo(name, draw(st.integers(0, 80)) * 3600, tuple(found), own=name == "q")
        for name, found in (
            ("q", draw(st.lists(spends(), max_size=5))),
            ("group", draw(st.lists(spends(), max_size=5))),
        )
    )
    own = tuple(
        Holding(n, Window(at, at + HOUR), frozenset({9}), draw(st.sampled_from(Kind)))
        for n in range(draw(st.integers(0, 3)))
        for at in [NOW + HOUR * draw(st.integers(-2, 90))]
    )
    strike = Strike((NOW - HOUR,) * 3, NOW + 99 * HOUR, 48 * 3600)
    asked = draw(st.sampled_from((gpus, gpus[:1])))
    return Request(asked, window, NOW), Snapshot(
        policy=POLICY,
        calendar=Calendar(gpus, busy),
        own=own,
        quotas=quotas,
        membership_pk=member,
        freed_gpu_seconds=draw(st.sampled_from((0, 3600))),
        tree=tree,
        strike=draw(st.sampled_from((None, strike))),
    )


@given(snapshots())
@settings(max_examples=150, deadline=None)
def test_the_same_decision_follows_from_what_is_stored(drawn) -> None:
    request, snapshot = drawn
    made = decide(request, snapshot)
    stored = json.loads(json.dumps(inputs_of(request, snapshot)))
    again = recompute(stored, POLICY)
    if made.kind is not None:
        assert json.loads(json.dumps(again)) == json.loads(
            json.dumps(without_places(made.to_json()))
        )
    else:
        assert again["cost_gpu_seconds"] == made.cost_gpu_seconds


@given(trees(parents=False), st.data())
@settings(max_examples=150, deadline=None)
def test_a_reduced_tree_keeps_every_level_of_those_concerned(tree, data) -> None:
    accounts, members = tree
    if not members:
        return
    whole = FairTree(tuple(accounts), tuple(members))
    pks = [m.pk for m in members]
    kept = set(data.draw(st.lists(st.sampled_from(pks), min_size=1, max_size=3)))
    more = {pk: data.draw(st.integers(-3, 9)) for pk in kept}
    small = reduced(whole, kept)
    assert len(small.members) <= len(kept) + len(accounts)
    for extra in ({}, more):
        one, two = whole.ranked(extra), small.ranked(extra)
        for pk in kept:
            assert one.path(pk) == two.path(pk)


def test_another_version_of_the_policy_is_told_apart() -> None:
    gpu = CalendarGpu(1, "n", 1, "A30", 2**34, 1)
    request = Request((gpu,), Window(NOW, NOW + HOUR), NOW)
    snapshot = Snapshot(POLICY, Calendar((gpu,), ()))
    stored = inputs_of(request, snapshot)
    assert recompute(stored, POLICY)["rule"] == "1 firm"
    with pytest.raises(ValueError, match="version 7"):
        recompute(stored, replace(POLICY, version=8))
    with pytest.raises(ValueError, match="form"):
        recompute(stored | {"form": 99}, POLICY)
