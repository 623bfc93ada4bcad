"""Three no-shows in 30 days shorten the horizon; it follows from the rows."""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.booking.release import release
from reservations.fairshare import service as standing_service
from reservations.models import Reservation
from reservations.rules.fairness.no_shows import StruckHorizon, strike_of
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from tests.factories import make_membership, make_reservation
from tests.reservations.calling import Caller
from tests.reservations.conftest import NOW, at, make_minutes

DAY = timedelta(days=1)


def no_show(lab, user, start) -> Reservation:
    """Nobody comes, and the portal sees it."""
    made = make_reservation(
        user, lab.gpus[:1], start, start + timedelta(hours=2), state=State.ACTIVE
    )
    make_minutes(lab.gpus[0], start, 15)
    tick.tick(start + timedelta(minutes=15))
    made.refresh_from_db()
    assert made.no_show and made.state == State.RELEASED
    return made


@pytest.mark.once
def test_the_third_no_show_shortens_the_horizon_for_a_fortnight(lab, alice) -> None:
    for day in (0, 10, 20):
        no_show(lab, alice, NOW + day * DAY)
    now = NOW + 21 * DAY
    until = NOW + 34 * DAY + timedelta(minutes=15)
    far = now + 3 * DAY
    with pytest.raises(StruckHorizon) as struck:
        lab.book(alice, lab.gpus[:1], far, 2, now=now)
    assert struck.value.numbers["count"] == 3
    assert (struck.value.until, struck.value.latest) == (until, now + 2 * DAY)
    assert "at most 2 d ahead" in struck.value.text()
    # Whatever pays: one who sits in two accounts has one name.
    second = make_membership(alice, "nlp")
    with pytest.raises(StruckHorizon):
        lab.book(alice, lab.gpus[:1], far, 2, now=now, membership=second)
    first = alice.memberships.get(account__name="vision")
    assert lab.book(alice, lab.gpus[:1], now + 2 * DAY, 2, now=now, membership=first)
    assert lab.book(
        alice,
        lab.gpus[:1],
        until + 3 * DAY - timedelta(minutes=15),
        1,
        now=until,
        membership=first,
    )
    standing = standing_service.standing(user=alice, now=now)
    assert standing.strike is not None and standing.strike.until == until
    assert standing_service.standing(user=alice, now=until).strike is None
    assert len(Caller(alice)("GET", "/standing").body["no_shows"]) == 0


@pytest.mark.once
def test_time_without_samples_makes_no_strike(lab, alice) -> None:
    for day in (0, 1, 2):
        start = NOW + day * DAY
        made = make_reservation(
            alice, lab.gpus[:1], start, start + timedelta(hours=2), state=State.ACTIVE
        )
        make_minutes(lab.gpus[0], start, 14)
        tick.tick(start + timedelta(hours=1))
        tick.tick(start + timedelta(hours=2))
        made.refresh_from_db()
        assert (made.state, made.no_show) == (State.ENDED, False)
    assert standing_service.standing(user=alice, now=NOW + 3 * DAY).no_shows == ()


@pytest.mark.once
def test_idle_time_that_was_freed_is_no_no_show(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 3)
    release(reservation_id=made.pk, user=alice, now=at(10))
    made.refresh_from_db()
    assert not made.no_show


def test_only_no_shows_close_to_one_another_are_a_strike() -> None:
    policy = Policy()
    times = [NOW, NOW + 20 * DAY, NOW + 31 * DAY]
    assert strike_of(times, now=NOW + 32 * DAY, policy=policy) is None
    close = [*times, NOW + 49 * DAY]
    strike = strike_of(close, now=NOW + 50 * DAY, policy=policy)
    assert strike is not None and strike.until == NOW + 63 * DAY
    assert strike.no_shows == tuple(close[1:])
    assert strike_of(close, now=NOW + 48 * DAY, policy=policy) is None, "to come"
    assert strike_of(close, now=NOW + 63 * DAY, policy=policy) is None, "over"
