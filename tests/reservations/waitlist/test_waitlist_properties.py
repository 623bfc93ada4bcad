"""Invariants with people who wait; the best choice against trying everything.

See docs/design/fair-booking.md#i6, #i12 and #i13.
"""

import random
from dataclasses import replace
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.rules.decision import decide
from reservations.rules.fairness.fair_tree import AccountShares
from reservations.rules.lifecycle import Kind
from reservations.rules.request import Request
from reservations.rules.window import Window
from reservations.waitlist import rules as waitlist
from reservations.waitlist.planned_starts import beside, earliest_room
from reservations.waitlist.rules import (
    broken_order,
    choose,
    needs_answer,
    order_key,
    reason,
)
from tests.reservations.rules.small_world import HOUR, NOW, POLICY, Lobby, request

MOST_STEPS = 200


@st.composite
def lobbies(draw: st.DrawFn, *, most: int = 9) -> Lobby:
    """People with some past use, of whom some hold and the others wait."""
    count = draw(st.integers(1, 3))
    accounts = [AccountShares(1, None)] + [
        AccountShares(pk, 1, draw(st.sampled_from((1, 2))))
        for pk in range(2, count + 1)
    ]
    members = list(range(10, 10 + draw(st.integers(2, 5))))
    of = {
        pk: (draw(st.integers(1, count)), draw(st.sampled_from((1, 1, 2))))
        for pk in members
    }
    lobby = Lobby(
        accounts,
        of,
        past={pk: draw(st.sampled_from((1, 4, 30, 90))) * 3600 for pk in members},
        firm=set(draw(st.lists(st.sampled_from(members), max_size=1))),
    )
    for pk in range(1, draw(st.integers(3, most)) + 1):
        first = draw(st.sampled_from((0, 8, 13, 14, 15, 16)))
        hours = draw(st.integers(2, 8))
        one = request(
            pk,
            draw(st.sampled_from(members)),
            count=draw(st.sampled_from((1, 1, 2, 3))),
            hours=hours,
            start=first,
            end=first + hours + draw(st.sampled_from((0, 1, 4, 12, 30))),
            asked=draw(st.integers(0, 3)),
            consents=draw(st.booleans()),
        )
        lobby.waiting[pk] = one
    # Some hold flex already: where they would be placed, whoever asks first.
    for pk in draw(st.lists(st.sampled_from(sorted(lobby.waiting)), unique=True)):
        one = lobby.waiting[pk]
        found = choose(replace(one, consents=True), lobby.facts(one), now=NOW)
        if found is not None:
            lobby.book(one, found.slot.gpu_ids, found.slot.window, found.decision)
    return lobby


@given(lobbies())
@settings(max_examples=150, deadline=None)
def test_placing_ends_and_nobody_takes_back_what_went_by_rank(lobby) -> None:
    """Displacements end with the waitlist in the loop; placements follow again.

    See docs/design/fair-booking.md#i6 and #i14.
    """
    lobby.plan()
    lost: set[tuple[int, int]] = set()
    for _ in range(MOST_STEPS):
        queue, ranks = lobby.queue(), lobby.tree().ranked().ranks
        keys = [order_key(one, ranks) for one in queue]
        assert keys == sorted(keys)
        frozen = {
            pk: (h.gpus, h.window)
            for pk, h in lobby.held.items()
            if h.kind is Kind.FIRM or h.window.start <= lobby.frozen_until()
        }
        found = lobby.step()
        if found is None:
            return
        assert broken_order(reason(found, queue, ranks)) == []
        after = {pk: (h.gpus, h.window) for pk, h in lobby.held.items()}
        assert frozen.items() <= after.items(), "docs/design/fair-booking.md#i2"
        for one in found.decision.displaced:
            pair = found.waiting.pk, one.flex.reservation_pk
            if found.decision.kind is Kind.FLEX:
                assert pair[::-1] not in lost, "no pair alternates"
                lost.add(pair)
    raise AssertionError(f"still moving after {MOST_STEPS} steps")


@given(lobbies(most=5), st.sampled_from((0, 1, waitlist.MOST_TAKEN)))
@settings(max_examples=60, deadline=None)
def test_no_free_time_inside_the_freeze_fits_who_may_be_placed(lobby, taken) -> None:
    """docs/design/fair-booking.md#i13, by trying every Window and every set of Gpus.

    However few Windows are thought of for displacing: free time is looked at in all.
    """
    lobby.plan()
    with patch.object(waitlist, "MOST_TAKEN", taken):
        while lobby.step() is not None:
            pass
    lobby.plan()
    for one in lobby.waiting.values():
        if one.consents:
            assert not list(lobby.granted(one, NOW, lobby.frozen_until()))


@given(lobbies(most=4), st.booleans())
@settings(max_examples=40, deadline=None)
def test_who_is_placed_gets_the_earliest_start_that_the_rules_grant(
    lobby, consents
) -> None:
    one = request(99, 10, count=2, hours=3, start=2, end=40, consents=consents)
    lobby.waiting[99] = one
    found = choose(one, lobby.facts(one), now=NOW)
    tried = list(lobby.granted(one, NOW, one.latest))
    unasked = [
        w for w in tried if not needs_answer(one, w.start, now=NOW, policy=POLICY)
    ]
    if found is None:
        assert tried == []
    elif unasked and not found.ask:
        assert found.slot.start <= unasked[0].start, "only displacing is earlier"
        assert found.slot.displaces or found.slot.window == unasked[0]
    elif found.ask:
        assert unasked == [] and found.slot.start <= tried[0].start


@given(lobbies(most=4), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_planned_start_is_the_earliest_room_beside_bookings_and_plans(
    lobby, count
) -> None:
    lobby.plan()
    one = request(99, 10, count=count, hours=3, end=70)
    plans = [p for p in lobby.plans().values() if p.user_pk != one.user_pk]
    facts = lobby.facts(one)
    found = earliest_room(one, facts, plans, now=NOW)
    taken = beside(facts.calendar, plans)
    first = lobby.frozen_until() + HOUR
    tried = [
        w
        for w in lobby.free_windows(one, first, one.latest)
        if len(taken.free(w, one.wish)) >= count
    ]
    assert (found.window if found else None) == (tried[0] if tried else None)


@given(lobbies(), st.lists(st.tuples(*[st.integers(0, 40)] * 3), max_size=12))
@settings(max_examples=40, deadline=None)
def test_nobodys_flex_pushes_a_planned_start_back(lobby, asks) -> None:
    """Nor does a person who books by hand meanwhile. Firm within a quota may.

    See docs/design/fair-booking.md#rule-5.
    """
    lobby.plan()
    before = {pk: plan.window.start for pk, plan in lobby.plans().items()}
    members = sorted(lobby.of)
    for number, (who, start, hours) in enumerate(asks):
        member = members[who % len(members)]
        one = request(1000 + number, member, hours=1 + hours % 8)
        window = Window.of(NOW + start * HOUR, seconds=one.wish.duration_seconds)
        gpu = lobby.gpus[who % 3]
        decision = decide(Request((gpu,), window, NOW), lobby.facts(one))
        if decision.kind is Kind.FLEX:
            lobby.book(one, (gpu.pk,), window, decision)
            lobby.plan()
            now = {pk: plan.window.start for pk, plan in lobby.plans().items()}
            others = [pk for pk in before if lobby.waiting[pk].user_pk != member]
            assert all(now[pk] <= before[pk] for pk in others), "pushed"
            before = now


@given(st.randoms(use_true_random=False))
@settings(max_examples=6, deadline=None)
def test_a_wide_request_is_not_starved_by_narrow_ones(chance) -> None:
    """Others take all that they may, hour after hour, and the plan is kept.

    See docs/design/fair-booking.md#i12.
    """
    first, placed = _wait_wide(chance, planned_requests=5)
    assert placed is not None and placed <= first


def test_without_planned_starts_it_would_be_starved() -> None:
    _first, placed = _wait_wide(random.Random(1), planned_requests=0)
    assert placed is None


def _wait_wide(chance, *, planned_requests: int):
    """Return the first planned start of a request for all Gpus, and where it went."""
    policy = replace(POLICY, planned_requests=planned_requests)
    lobby = Lobby(
        [AccountShares(1, None)],
        {pk: (1, 1) for pk in range(10, 16)},
        past={10: 10**6},
        policy=policy,
    )
    ahead = policy.flex_horizon_seconds // 3600
    for pk in range(30):
        _narrow(lobby, 100 + pk, chance, ahead)
    lobby.waiting[1] = request(1, 10, count=3, hours=6, end=24 * 14)
    lobby.plan()
    plans = lobby.plans()
    first = plans[1].window.start if plans else None
    for hour in range(24 * 4):
        lobby.now = NOW + hour * HOUR
        lobby.held = {pk: h for pk, h in lobby.held.items() if h.window.end > lobby.now}
        for pk in range(3):
            _narrow(lobby, 1000 + hour * 10 + pk, chance, ahead)
        if lobby.step() is not None:
            return first, lobby.held[1].window.start
        lobby.plan()
    return first, None


def _narrow(lobby: Lobby, pk: int, chance, ahead: int) -> None:
    """Book the first hours that are free on one Gpu for another user, as far as
    allowed.
    """
    one = request(pk, chance.randrange(11, 16), hours=chance.choice((8, 12, 24)))
    facts = lobby.facts(one)
    gpu = chance.choice(lobby.gpus)
    start = lobby.now
    while start <= lobby.now + ahead * HOUR:
        window = Window.of(start, seconds=one.wish.duration_seconds)
        clash = facts.calendar.first_overlap(gpu.pk, window)
        if clash is None:
            decision = decide(Request((gpu,), window, lobby.now), facts)
            if decision.kind is not None:
                lobby.book(one, (gpu.pk,), window, decision)
                return
        start += HOUR
