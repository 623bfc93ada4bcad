"""Give away and swap: judged again as the taker's, completely or not at all."""

import threading
from datetime import timedelta

import pytest
from django.db import connection

from reservations import tick
from reservations.booking.booking_change import change
from reservations.booking.release import undo_cancel
from reservations.models import (
    LateReturn,
    LedgerEntry,
    Membership,
    Notice,
    Offer,
    Reservation,
)
from reservations.notifications.text.sharing_text import (
    CannotOffer,
    OfferOver,
    OtherSideRefused,
)
from reservations.presence.check_in import check_in
from reservations.rules.errors import (
    NotAllowed,
    NotChangeable,
    NotFound,
    QuotaExceeded,
    UndoOver,
)
from reservations.rules.lifecycle import Kind, State
from reservations.sharing import offers
from reservations.store import locks
from reservations.store.booking_facts import site_policy
from tests.factories import make_membership, make_user
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at, balance, make_minutes

LATER = NOW + timedelta(minutes=5)


@pytest.mark.once
def test_what_is_given_away_begins_anew_as_the_takers_and_costs_the_giver_nothing(
    lab, alice, carol
) -> None:
    # Four hours ahead: given back it would cost half.
    row = lab.book(alice, lab.gpus[:2], at(13), 3)
    made = offers.offer(reservation_id=row.pk, user=alice, to="carol", now=NOW)
    told = Notice.objects.get(user=carol, kind="offer_made")
    assert told.reservation_id == row.pk
    seen = offers.outlook(offer_id=made.pk, user=carol, now=NOW)
    assert (seen.taker.kind, seen.maker) == (Kind.FIRM, None)
    assert Reservation.objects.count() == 1, "looking writes nothing"

    with pytest.raises(NotAllowed):
        offers.accept(offer_id=made.pk, user=alice, now=LATER)
    done = offers.accept(offer_id=made.pk, user=carol, kind="firm", now=LATER)

    row.refresh_from_db()
    assert row.state == State.CANCELLED
    assert done.given.user == carol
    assert (done.given.start, done.given.end) == (row.start, row.end)
    cost = 2 * WEIGHT * 3 * HOUR
    assert balance(row) == (0, 0)
    assert balance(done.given) == (cost, 0)
    assert not LateReturn.objects.exists()
    assert Notice.objects.get(user=alice, kind="offer_answered").detail["answer"] == (
        "accepted"
    )
    with pytest.raises((UndoOver, NotChangeable)):
        undo_cancel(reservation_id=row.pk, user=alice, now=LATER)
    with pytest.raises(OfferOver):
        offers.accept(offer_id=made.pk, user=carol, now=LATER)


@pytest.mark.once
def test_the_rest_of_a_running_one_is_given_and_the_giver_pays_what_was_used(
    lab, alice, bob
) -> None:
    row = lab.book(alice, lab.gpus[:1], NOW, 4)
    made = offers.offer(reservation_id=row.pk, user=alice, to="bob", now=NOW)
    done = offers.accept(offer_id=made.pk, user=bob, now=NOW + timedelta(hours=1))
    row.refresh_from_db()
    assert (row.state, done.given.state) == (State.RELEASED, State.ACTIVE)
    assert balance(row) == (0, WEIGHT * HOUR)
    assert done.given.start == NOW + timedelta(hours=1)
    assert done.given.checked_in_at is None, "who takes it has to come too"
    tick.tick(NOW + timedelta(hours=5))
    assert balance(done.given) == (0, WEIGHT * 3 * HOUR)


@pytest.mark.once
def test_handing_on_what_nobody_came_to_does_not_set_the_clock_back(
    lab, alice, bob
) -> None:
    row = lab.book(alice, lab.gpus[:1], NOW, 4)
    make_minutes(lab.gpus[0], NOW, 40)
    for user, other, minute in ((alice, bob, 8), (bob, alice, 14), (alice, bob, 14)):
        then = NOW + timedelta(minutes=minute)
        made = offers.offer(
            reservation_id=row.pk, user=user, to=other.username, now=then
        )
        row = offers.accept(offer_id=made.pk, user=other, now=then).given
    assert (row.user, row.watched_from) == (bob, NOW)
    tick.tick(NOW + timedelta(minutes=16))
    row.refresh_from_db()
    assert (row.state, row.no_show) == (State.RELEASED, True)
    # A check-in is passed on with a clock that begins with the new holder.
    used = lab.book(alice, lab.gpus[1:2], NOW, 4)
    check_in(reservation_id=used.pk, now=NOW, by="click")
    later = NOW + timedelta(hours=1)
    made = offers.offer(reservation_id=used.pk, user=alice, to="bob", now=later)
    given = offers.accept(offer_id=made.pk, user=bob, now=later).given
    assert given.watched_from is None and given.checked_in_at is None


def test_a_right_taken_away_while_a_booking_waits_for_its_locks_books_nothing(
    lab, alice, monkeypatch
) -> None:
    lock = locks.lock

    def late(membership, gpu_ids):
        Membership.objects.filter(pk=membership.pk).update(active=False)
        return lock(membership, gpu_ids)

    monkeypatch.setattr(locks, "lock", late)
    with pytest.raises(NotAllowed):
        lab.book(alice, lab.gpus[:1], NOW, 4)
    assert not Reservation.objects.exists()


def test_a_taker_without_quota_gets_flex_or_the_rule_with_its_numbers(
    lab, alice, carol
) -> None:
    carol.memberships.update(quota_gpu_seconds=WEIGHT * HOUR)
    row = lab.book(alice, lab.gpus[:1], at(13), 3)
    made = offers.offer(reservation_id=row.pk, user=alice, to="carol", now=NOW)
    with pytest.raises(QuotaExceeded) as refused:
        offers.accept(offer_id=made.pk, user=carol, kind="firm", now=NOW)
    assert refused.value.quota_gpu_seconds == WEIGHT * HOUR
    row.refresh_from_db()
    assert row.state == State.CONFIRMED, "a refusal leaves everything"
    done = offers.accept(offer_id=made.pk, user=carol, now=NOW)
    assert done.given.kind == Kind.FLEX

    far = lab.book(alice, lab.gpus[:1], at(13, day=10), 3)
    made = offers.offer(reservation_id=far.pk, user=alice, to="carol", now=NOW)
    with pytest.raises(QuotaExceeded):
        offers.accept(offer_id=made.pk, user=carol, now=NOW)


def test_a_swap_is_judged_for_both_and_nobody_gets_less_than_shown(
    lab, alice, carol
) -> None:
    own = lab.book(alice, lab.gpus[:1], at(13, day=5), 2)
    theirs = lab.book(carol, lab.gpus[1:3], at(9, day=6), 4)
    made = offers.offer(reservation_id=own.pk, user=alice, wanted_id=theirs.pk, now=NOW)
    assert made.kind_back == Kind.FIRM
    # Meanwhile Alice spends her quota: she would get flex for firm.
    alice.memberships.update(quota_gpu_seconds=WEIGHT * HOUR)
    with pytest.raises(OtherSideRefused):
        offers.accept(offer_id=made.pk, user=carol, now=NOW)
    assert set(Reservation.objects.values_list("state", flat=True)) == {"confirmed"}
    alice.memberships.update(quota_gpu_seconds=None)
    done = offers.accept(offer_id=made.pk, user=carol, now=NOW)
    assert (done.given.user, done.given_back.user) == (carol, alice)
    assert done.given_back.allocations.count() == 2
    held = {
        row.membership.user.username: row.gpu_seconds
        for row in LedgerEntry.objects.filter(
            reservation__in=[done.given, done.given_back]
        ).select_related("membership__user")
    }
    assert held == {"carol": WEIGHT * 2 * HOUR, "alice": 2 * WEIGHT * 4 * HOUR}
    assert balance(own) == balance(theirs) == (0, 0)


@pytest.mark.once
def test_a_swap_within_a_group_at_its_quota_is_no_request_on_top(
    lab, alice, bob
) -> None:
    own = lab.book(alice, lab.gpus[:1], at(13, day=5), 2)
    theirs = lab.book(bob, lab.gpus[1:2], at(13, day=6), 2)
    group = own.membership.account
    group.quota_gpu_seconds = WEIGHT * 4 * HOUR
    group.save()
    made = offers.offer(reservation_id=own.pk, user=alice, wanted_id=theirs.pk, now=NOW)
    done = offers.accept(offer_id=made.pk, user=bob, now=NOW)
    assert (done.given.kind, done.given_back.kind) == (Kind.FIRM, Kind.FIRM)


@pytest.mark.once
def test_offers_end_by_answer_by_time_and_when_what_they_offer_changes(
    lab, alice, bob, carol
) -> None:
    row = lab.book(alice, lab.gpus[:1], at(13), 3)
    made = offers.offer(reservation_id=row.pk, user=alice, to="bob", now=NOW)
    with pytest.raises(CannotOffer, match="already offered to someone"):
        offers.offer(reservation_id=row.pk, user=alice, to="carol", now=NOW)
    assert offers.decline(offer_id=made.pk, user=bob, now=NOW).state == "declined"
    with pytest.raises(NotFound):
        offers.decline(offer_id=made.pk, user=carol, now=NOW)

    made = offers.offer(reservation_id=row.pk, user=alice, to="bob", now=NOW)
    change(reservation_id=row.pk, user=alice, end=at(15), version=row.version, now=NOW)
    with pytest.raises(OfferOver) as void:
        offers.accept(offer_id=made.pk, user=bob, now=NOW)
    assert void.value.changed
    assert offers.decline(offer_id=made.pk, user=alice, now=NOW).state == "withdrawn"

    made = offers.offer(reservation_id=row.pk, user=alice, to="bob", now=NOW)
    with pytest.raises(OfferOver):
        offers.accept(offer_id=made.pk, user=bob, now=at(13))
    assert offers.expire(at(13), site_policy()) == {"offers_expired": 1}
    assert offers.expire(at(13), site_policy()) == {"offers_expired": 0}
    assert Offer.objects.get(pk=made.pk).state == Offer.State.EXPIRED
    with pytest.raises(NotAllowed):
        offers.offer(reservation_id=row.pk, user=bob, to="carol", now=NOW)
    with pytest.raises(NotFound):
        offers.offer(reservation_id=row.pk, user=alice, to="nobody", now=NOW)


def test_hidden_names_let_nobody_try_out_logins_of_other_groups(
    lab, alice, carol, bob
) -> None:
    lab.set(names_visible=False)
    row = lab.book(alice, lab.gpus[:1], at(13), 3)
    with pytest.raises(NotFound):
        offers.offer(reservation_id=row.pk, user=alice, to="carol", now=NOW)
    assert offers.offer(reservation_id=row.pk, user=alice, to="bob", now=NOW).pk


@pytest.mark.django_db(transaction=True)
def test_two_accepts_and_a_withdrawal_at_once_end_in_one_exchange(
    lab, alice, carol
) -> None:
    row = lab.book(alice, lab.gpus[:1], at(13), 3)
    made = offers.offer(reservation_id=row.pk, user=alice, to="carol", now=NOW)
    came: list[str] = []
    gate = threading.Barrier(3)

    def act(user, service) -> None:
        gate.wait(timeout=60)
        try:
            came.append(service(offer_id=made.pk, user=user, now=NOW).state)
        except OfferOver:
            came.append("over")
        finally:
            connection.close()

    threads = [
        threading.Thread(target=act, args=args)
        for args in (
            (carol, offers.accept),
            (carol, offers.accept),
            (alice, offers.decline),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    made.refresh_from_db()
    assert sorted(came) == sorted([made.state, "over", "over"])
    live = Reservation.objects.live()
    assert [one.user_id for one in live] == [
        carol.pk if made.state == "accepted" else alice.pk
    ]


def test_somebody_in_several_groups_is_offered_it_under_a_named_one(lab, alice) -> None:
    dora = make_user("dora")
    for name in ("nlp", "institute"):
        make_membership(dora, name)
    row = lab.book(alice, lab.gpus[:1], at(13), 3)
    with pytest.raises(CannotOffer, match="institute, nlp"):
        offers.offer(reservation_id=row.pk, user=alice, to="dora", now=NOW)
    made = offers.offer(
        reservation_id=row.pk, user=alice, to="dora", account="nlp", now=NOW
    )
    assert made.taker.account.name == "nlp"
