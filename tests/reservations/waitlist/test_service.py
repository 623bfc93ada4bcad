"""Waiting through the services: placed in order, offered, planned, declined."""

from datetime import time, timedelta

import pytest

from reservations import tick
from reservations.booking.booking_change import change
from reservations.booking.release import release
from reservations.models import (
    AuditEntry,
    LateReturn,
    Membership,
    Notice,
    NoticeSettings,
    Reservation,
    WaitingRequest,
)
from reservations.notifications.queries import notices_of
from reservations.notifications.text.waitlist_text import (
    NotDeclinable,
    NotWaiting,
    OfferLapsed,
    SpanTooShort,
    TooManyWaiting,
)
from reservations.rules import errors
from reservations.rules.fairness.preemption import PlannedFor
from reservations.rules.lifecycle import Kind, State
from reservations.rules.never_fits import NeverFits
from reservations.rules.window import Window
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader
from reservations.waitlist import scheduler
from reservations.waitlist import service as waiting
from reservations.waitlist.queries import past_error, queue_of
from reservations.waitlist.rules import broken_order
from tests.factories import (
    make_gpu,
    make_membership,
    make_node,
    make_pool,
    make_reservation,
    make_user,
)
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at, balance

TUESDAY = at(14, day=3)
FRIDAY = at(9, day=6)


@pytest.fixture(autouse=True)
def tight(lab) -> None:
    """Nobody has firm quota, so that what is placed is flex."""
    lab.set(quota_gpu_seconds=0)


def ask(user, *, count=1, hours=2, **fields) -> WaitingRequest:
    fields.setdefault("latest", at(9, day=8))
    fields.setdefault("now", NOW)
    return waiting.ask(
        user=user,
        membership=None,
        count=count,
        duration_seconds=hours * HOUR,
        **fields,
    )


def fill(lab, user, until) -> list[Reservation]:
    """Have somebody hold every Gpu, firm, from now on."""
    return [
        make_reservation(user, [gpu], NOW, until, state=State.ACTIVE)
        for gpu in lab.gpus
    ]


def other():
    """Return somebody else of Carol's group."""
    user = make_user("dan")
    make_membership(user, "nlp")
    return user


def texts(user) -> list[str]:
    return [notice.text for notice in notices_of(user, most=9)]


@pytest.mark.once
def test_a_request_is_planned_placed_when_time_comes_free_and_can_be_declined(
    lab, alice, bob
) -> None:
    held = fill(lab, bob, FRIDAY)
    row = ask(alice, count=2, hours=8, purpose="thesis")
    assert tick.tick(NOW)["placed"] == 0
    row.refresh_from_db()
    assert (row.state, row.planned, row.expected_start) == ("waiting", True, FRIDAY)
    assert row.first_estimate == FRIDAY
    assert texts(alice) == [
        "Your waiting request has a planned start: Fri 6 Mar 09:00. Only a firm "
        "booking can delay it."
    ]
    later = NOW + timedelta(hours=1)
    assert tick.tick(later)["placed"] == 0 and len(texts(alice)) == 1

    for one in held[1:3]:
        Reservation.objects.filter(pk=one.pk).update(end=at(6, day=4))
        one.allocations.update(end=at(6, day=4))
    later += timedelta(hours=1)
    assert tick.tick(later)["placed"] == 1
    row.refresh_from_db()
    made = row.reservation
    assert (made.start, made.kind, made.purpose) == (at(6, day=4), Kind.FLEX, "thesis")
    assert {a.gpu_id for a in made.allocations.all()} == {g.pk for g in lab.gpus[1:3]}
    assert broken_order(row.decision) == []
    assert "decline it free of charge until Tue 3 Mar 18:00" in texts(alice)[0]
    assert past_error().off_seconds == 51 * HOUR and past_error().n == 1
    assert "off by 51.0 h on average, mostly too late (1 checked)" in (
        past_error().text
    )

    waiting.decline(waiting_id=row.pk, user=alice, now=later)
    row.refresh_from_db()
    made.refresh_from_db()
    assert (row.state, made.state) == ("declined", State.CANCELLED)
    assert balance(made) == (0, 0) and not LateReturn.objects.exists()
    with pytest.raises(NotWaiting):
        waiting.withdraw(waiting_id=row.pk, user=alice, now=later)


def test_what_the_holder_made_of_a_placement_is_not_declined_at_no_cost(
    lab, alice
) -> None:
    row = ask(alice, earliest=NOW + timedelta(hours=14))
    assert tick.tick(NOW)["placed"] == 1
    row.refresh_from_db()
    made = change(
        reservation_id=row.reservation_id,
        user=alice,
        version=1,
        now=NOW,
        end=row.reservation.end + timedelta(hours=8),
    )
    waiting.decline(waiting_id=row.pk, user=alice, now=NOW)
    late = LateReturn.objects.get(reservation=made)
    assert (late.start, late.end) == (made.start, made.end)


@pytest.mark.once
def test_requests_are_served_by_rank_then_age(lab, alice, carol) -> None:
    held = fill(lab, other(), FRIDAY)
    rows = [
        ask(carol, any_notice=True),
        ask(alice, any_notice=True, now=NOW + timedelta(minutes=1)),
    ]
    tick.tick(NOW + timedelta(minutes=2))
    release(reservation_id=held[0].pk, user=held[0].user, now=at(10))
    tick.tick(at(10))
    for row in rows:
        row.refresh_from_db()
    first, second = rows[1], rows[0]
    assert first.reservation.start == at(10), "Alice's group used less"
    assert second.reservation.start == first.reservation.end
    assert [one["id"] for one in second.decision["order"]] == [second.pk]


@pytest.mark.once
def test_who_is_displaced_waits_again_from_the_original_time_of_request(
    lab, alice, bob, carol
) -> None:
    make_reservation(bob, start=FRIDAY, end=FRIDAY + timedelta(hours=20))
    flex = lab.book(bob, lab.gpus[:2], TUESDAY, 3)
    later = NOW + timedelta(minutes=10)
    made = lab.book(alice, lab.gpus[:1], TUESDAY, 3, now=later)
    row = WaitingRequest.objects.get()
    assert (row.user, row.created_at, row.count) == (bob, flex.created_at, 2)
    assert (row.displaced_from, row.may_take, row.duration_seconds) == (
        flex,
        False,
        3 * HOUR,
    )
    tick.tick(later)
    row.refresh_from_db()
    again = row.reservation
    assert (again.start, again.kind) == (TUESDAY, Kind.FLEX), "other GPUs, same time"
    assert made.pk not in [r.pk for r in Reservation.objects.filter(state="displaced")]

    Membership.objects.filter(user=carol).update(quota_gpu_seconds=WEIGHT * 40 * HOUR)
    lab.book(carol, lab.gpus[2:], TUESDAY, 3, now=later)
    row.refresh_from_db()
    assert (row.state, row.displaced_from) == ("waiting", again), "the same request"
    assert row.created_at == flex.created_at


@pytest.mark.once
def test_on_short_notice_time_is_offered_and_only_taken_when_accepted(
    lab, alice, bob
) -> None:
    held = fill(lab, bob, FRIDAY)
    soon = at(20)
    row = ask(alice, latest=soon)
    tick.tick(NOW)
    assert not WaitingRequest.objects.get().offer_until
    release(reservation_id=held[0].pk, user=bob, now=at(10))
    assert tick.tick(at(10))["offered"] == 1
    row.refresh_from_db()
    assert (row.state, row.offer_start) == ("waiting", at(10))
    assert row.offer_until == at(10, 30)
    assert "Accept it by Mon 2 Mar 10:30" in texts(alice)[0]

    made = waiting.accept(waiting_id=row.pk, user=alice, now=at(10, 20))
    assert (made.start, made.end, made.state) == (at(10, 20), at(13), State.ACTIVE)
    with pytest.raises(NotDeclinable):
        waiting.decline(waiting_id=row.pk, user=alice, now=at(10, 21))


def test_an_offer_lapses_is_gone_when_booked_and_pauses_when_declined(
    lab, alice, bob
) -> None:
    held = fill(lab, bob, FRIDAY)
    row = ask(alice, latest=at(20))
    release(reservation_id=held[0].pk, user=bob, now=at(10))
    tick.tick(at(10))
    with pytest.raises(OfferLapsed):
        waiting.accept(waiting_id=row.pk, user=alice, now=at(10, 30))
    waiting.decline(waiting_id=row.pk, user=alice, now=at(10, 5))
    assert tick.tick(at(11))["offered"] == 0, "two hours of peace"
    assert tick.tick(at(12, 5))["offered"] == 1
    lab.book(bob, lab.gpus[:1], at(13), 5, now=at(12, 6))
    with pytest.raises(OfferLapsed) as gone:
        waiting.accept(waiting_id=row.pk, user=alice, now=at(12, 10))
    assert gone.value.taken
    row.refresh_from_db()
    assert row.state == "waiting"
    tick.tick(at(19))
    row.refresh_from_db()
    assert row.state == "expired"
    assert "has expired" in texts(alice)[0]


@pytest.mark.once
def test_in_quiet_hours_one_is_asked_and_has_time_until_they_end(lab, alice) -> None:
    NoticeSettings.objects.create(user=alice, quiet_from=time(22), quiet_until=time(7))
    night = at(23)
    row = ask(alice, earliest=at(9, day=4), now=night)
    assert tick.tick(night)["placed"] == 0
    row.refresh_from_db()
    assert row.offer_start == at(9, day=4)
    assert row.offer_until == at(7, 30, day=3)
    assert tick.tick(at(7, day=3))["placed"] == 1, "awake: nobody need be asked"


@pytest.mark.once
def test_a_plan_is_kept_against_flex_and_yields_to_firm(lab, alice, bob, carol) -> None:
    fill(lab, bob, at(9, day=4))
    row = ask(alice, count=4, hours=4, earliest=FRIDAY)
    tick.tick(NOW)
    row.refresh_from_db()
    assert row.planned and row.expected_start == FRIDAY, "beyond the flex horizon"
    thursday = at(10, day=5)
    late = at(9, 30, day=3)
    with pytest.raises(PlannedFor) as held:
        lab.book(carol, lab.gpus[:1], thursday, 24, now=late)
    assert (
        "on the waitlist. Only a firm booking can take this time" in held.value.text()
    )
    assert lab.book(carol, lab.gpus[:1], thursday, 23, now=late).kind == Kind.FLEX

    Membership.objects.filter(user=carol).update(quota_gpu_seconds=WEIGHT * 40 * HOUR)
    lab.book(carol, lab.gpus[1:2], FRIDAY, 3, now=NOW + timedelta(minutes=1))
    tick.tick(NOW + timedelta(minutes=2))
    row.refresh_from_db()
    assert row.planned and row.expected_start == FRIDAY + timedelta(hours=3)
    assert "moved from Fri 6 Mar 09:00 to Fri 6 Mar 12:00" in texts(alice)[0]

    # Placed at its planned start it is flex that no flex takes.
    due = at(12, day=3)
    tick.tick(due)
    row.refresh_from_db()
    assert (row.state, row.planned) == ("placed", True)
    make_reservation(alice, start=at(9, day=9), end=at(9, day=11))
    with pytest.raises(PlannedFor):
        lab.book(bob, lab.gpus[1:2], FRIDAY + timedelta(hours=3), 2, now=due)


def test_a_waiting_request_bypasses_no_limit(lab, alice, bob) -> None:
    lab.set(gpus_at_once=2, live_reservations=1, future_flex=1)
    lab.book(alice, lab.gpus[:1], TUESDAY, 2)
    row = ask(alice)
    for now in (NOW, NOW + timedelta(hours=20)):
        assert tick.tick(now)["placed"] == 0
    row.refresh_from_db()
    assert row.state == "waiting" and row.expected_start is not None


@pytest.mark.once
def test_two_beats_place_once_and_a_withdrawn_request_not_at_all(lab, alice) -> None:
    row = ask(alice, any_notice=True)
    policy = site_policy()
    scheduler.place(NOW, policy)
    row.refresh_from_db()
    assert Reservation.objects.get() == row.reservation
    second = ask(alice, any_notice=True)
    window = row.reservation
    args = {"now": NOW, "policy": policy}
    slot = Window(at(12), at(14))
    with pytest.raises(scheduler.TurnLost):
        scheduler.book_waiting_request(second, [lab.gpus[3].pk], slot, turn=0, **args)
    waiting.withdraw(waiting_id=second.pk, user=alice, now=NOW)
    with pytest.raises(scheduler.TurnLost):
        scheduler.book_waiting_request(second, [lab.gpus[3].pk], slot, turn=1, **args)
    assert Reservation.objects.get() == window, "rolled back"


def test_a_look_is_taken_when_something_was_written_and_every_minute(
    lab, alice, bob, monkeypatch
) -> None:
    looks = []
    read = scheduler.read_waitlist
    monkeypatch.setattr(
        scheduler, "read_waitlist", lambda *a: looks.append(a) or read(*a)
    )
    policy = site_policy()
    scheduler.place(NOW, policy)
    assert looks == [], "nobody waits"
    fill(lab, bob, FRIDAY)
    ask(alice)
    said = ((0, ""), (1, ""), (30, "booked"), (61, ""), (63, "cancelled"), (66, ""))
    for (seconds, verb), expected in zip(said, (1, 1, 1, 2, 2, 3), strict=True):
        if verb:
            AuditEntry.objects.create(verb=verb, subject="site")
        scheduler.place(NOW + timedelta(seconds=seconds), policy)
        assert len(looks) == expected, f"after {seconds} s"


@pytest.mark.once
def test_who_cannot_wait_is_told_why(lab, alice) -> None:
    make_gpu(make_node("node-b"), pool=make_pool("H100"))
    with pytest.raises(NeverFits) as never:
        ask(alice, count=2, gpu_class="H100")
    assert never.value.text() == (
        "Of the GPUs you may book here 1 fits; 2 were asked for. "
        "Waiting would not help."
    )
    with pytest.raises(SpanTooShort):
        ask(alice, hours=4, latest=NOW + timedelta(hours=3))
    with pytest.raises(errors.TooLong):
        ask(alice, hours=25)
    with pytest.raises(errors.TooManyGpus):
        ask(alice, count=5)
    lab.set(waiting_requests=1)
    ask(alice)
    with pytest.raises(TooManyWaiting):
        ask(alice)


def test_one_reads_who_is_ahead_by_group_and_by_name_only_where_allowed(
    lab, alice, carol
) -> None:
    fill(lab, other(), FRIDAY)
    ask(alice)
    ask(alice, hours=3)
    own = ask(carol)
    tick.tick(NOW)
    for names, users in ((True, ("Alice", "Alice")), (False, ())):
        lab.set(names_visible=names)
        policy = site_policy()
        found = queue_of(carol, reader=Reader.of(carol, policy), policy=policy, now=NOW)
        (request,) = found.requests
        assert (request.row, request.position, found.waiting) == (own, 3, 3)
        (ahead,) = request.ahead
        assert (ahead.account, ahead.count, ahead.users) == ("Vision", 2, users)
    assert Notice.objects.filter(kind="planned").count() == 3
