"""Attempts to game the rule, and the rule that stops each of them.

See docs/design/fair-booking.md#gaming.
"""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.booking.booking_change import change
from reservations.booking.booking_undo import undo_booking
from reservations.booking.release import cancel, undo_cancel
from reservations.booking.service import book
from reservations.models import (
    Account,
    EarlyReturn,
    Membership,
    Notice,
    Reservation,
)
from reservations.notifications.text.sharing_text import CannotOffer, CannotShare
from reservations.rules import errors
from reservations.rules.closed_time import DisplacementPaused
from reservations.rules.fairness.early_returns import SLIPS_A_DAY, ReturnedTooMuch
from reservations.rules.fairness.limits import PersonQuotaExceeded
from reservations.rules.fairness.promise import PoolCapacity, QuotaClaim, pool_promises
from reservations.rules.lifecycle import Kind, State
from reservations.sharing import co_use, offers
from reservations.store.booking_facts import site_policy
from reservations.store.usage import ranking
from reservations.waitlist import service as waiting
from tests.factories import make_membership, make_user
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at, balance, make_minutes

FAR = at(10, day=10)
"""Eight days ahead: a Tuesday, all of it beyond the flex horizon."""
TUESDAY = at(14, day=3)
"""29 hours ahead: flex that begins then freezes on Tuesday at 02:00."""


def place(user) -> int:
    """Who is served before this User, and they: 1 is first."""
    found = ranking(NOW, site_policy())
    assert found is not None
    return found.place(user.memberships.first().pk)


@pytest.mark.once
def test_hoarding_prime_time_far_ahead_meets_quota_limits_and_the_late_price(
    lab, alice, bob
) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 12 * HOUR)
    lab.set(gpus_at_once=2)
    with pytest.raises(errors.TooManyGpus):
        lab.book(alice, lab.gpus[:3], FAR, 1)
    before = place(alice)
    held = lab.book(alice, lab.gpus[:2], FAR, 6)
    # Two days later the same 7 days are still touched.
    with pytest.raises(errors.QuotaExceeded):
        lab.book(alice, lab.gpus[:1], FAR + timedelta(days=2), 1)
    assert place(alice) > before, "what is booked counts as used at once"
    late = FAR - timedelta(hours=3)
    cancel(reservation_id=held.pk, user=alice, now=late)
    tick.tick(FAR + timedelta(hours=7))
    assert balance(held) == (0, held.cost_gpu_seconds // 2)


@pytest.mark.once
def test_a_week_edge_gives_no_second_quota(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 8 * HOUR)
    sunday, monday = at(16, day=8), at(0, day=9)
    lab.book(alice, lab.gpus[:1], sunday, 8)
    with pytest.raises(errors.QuotaExceeded):
        lab.book(alice, lab.gpus[1:2], monday, 1)
    # Seven days after the first hour of it, that hour is free again.
    assert lab.book(alice, lab.gpus[:1], sunday + timedelta(days=7), 8)


@pytest.mark.once
def test_splitting_a_booking_gains_nothing(lab, alice, bob) -> None:
    lab.set(live_reservations=2)
    whole = lab.book(bob, lab.gpus[:1], FAR, 6)
    parts = [
        lab.book(alice, lab.gpus[1:2], FAR + timedelta(hours=h), 1) for h in range(6)
    ]
    assert sum(part.cost_gpu_seconds for part in parts) == whole.cost_gpu_seconds
    assert place(alice) == place(bob), "and ranks the same"
    # Six back to back count as one: for the limit of bookings and the longest one.
    assert lab.book(alice, lab.gpus[2:3], FAR, 1)
    lab.set(longest_seconds=6 * HOUR)
    with pytest.raises(errors.TooLong):
        lab.book(alice, lab.gpus[1:2], FAR + timedelta(hours=6), 1)


@pytest.mark.once
def test_sock_puppets_have_the_groups_quota_and_place_together(
    lab, alice, bob, carol
) -> None:
    """k identities of one group have together what the group has.

    See docs/design/fair-booking.md#i11.
    """
    lab.set(flex_horizon_seconds=0)
    Account.objects.filter(name="vision").update(quota_gpu_seconds=WEIGHT * 6 * HOUR)
    puppets = [make_user(f"puppet{n}") for n in range(3)]
    for puppet in puppets:
        make_membership(puppet, "vision")
    booked = 0
    for number, user in enumerate([alice, bob, *puppets]):
        try:
            lab.book(user, lab.gpus[:1], FAR + timedelta(hours=2 * number), 2)
            booked += 1
        except errors.GroupQuotaExceeded:
            continue
    assert booked == 3
    # However many they are, who uses nothing in the other group stands above all.
    assert place(carol) == 1
    assert all(place(user) > 1 for user in [alice, bob, *puppets])


@pytest.mark.once
def test_one_person_in_several_groups_is_one_person(lab, alice) -> None:
    other = make_membership(alice, "nlp")
    first = alice.memberships.get(account__name="vision")
    lab.set(
        gpus_at_once=2,
        person_quota_gpu_seconds=WEIGHT * 10 * HOUR,
        quota_gpu_seconds=WEIGHT * 8 * HOUR,
    )
    lab.book(alice, lab.gpus[:1], FAR, 8, membership=first)
    with pytest.raises(PersonQuotaExceeded) as refused:
        lab.book(alice, lab.gpus[1:2], FAR + timedelta(days=1), 8, membership=other)
    assert "in all groups together" in refused.value.text()
    with pytest.raises(errors.TooManyGpus):
        lab.book(alice, lab.gpus[1:3], FAR, 1, membership=other)
    assert lab.book(alice, lab.gpus[1:2], FAR + timedelta(days=1), 2, membership=other)


@pytest.mark.once
def test_who_books_for_a_friend_pays_and_the_friend_does_not_check_in(
    lab, alice, bob
) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 3)
    # Bob's process is not the reservation's: process_n counts the owner's.
    make_minutes(lab.gpus[0], NOW, 15, process_n=0, util_pct=90)
    assert tick.tick(at(9, 15))["no_shows"] == 1
    made.refresh_from_db()
    assert (made.state, made.no_show) == (State.RELEASED, True)
    tick.tick(at(12))
    assert balance(made) == (0, WEIGHT * 3 * HOUR)
    # Nor can it be transferred outside the portal.
    other = lab.book(alice, lab.gpus[:1], FAR, 1)
    with pytest.raises(errors.NotAllowed):
        change(
            reservation_id=other.pk, user=bob, version=1, end=FAR, now=NOW, reason="us"
        )


@pytest.mark.once
def test_cancelling_at_the_last_minute_costs_what_nobody_else_took(
    lab, alice, bob
) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    cancel(reservation_id=made.pk, user=alice, now=at(11, 59))
    lab.book(bob, lab.gpus[:1], at(14), 2, now=at(12))
    for hour in (14, 16):
        tick.tick(at(hour))
    assert balance(made) == (0, WEIGHT * 2 * HOUR // 2)


@pytest.mark.once
def test_pushing_somebodys_flex_out_and_cancelling_early_is_not_free(
    lab, alice, bob, carol
) -> None:
    """Hours that displaced flex cost lambda however early they come back."""
    lab.set(quota_gpu_seconds=0)
    Membership.objects.filter(user=carol).update(quota_gpu_seconds=WEIGHT * 40 * HOUR)
    start = at(12, day=4)
    flex = lab.book(bob, lab.gpus[:1], start, 2)
    taken = lab.book(carol, lab.gpus[:1], start, 6)
    flex.refresh_from_db()
    assert (flex.state, flex.displaced_by) == (State.DISPLACED, taken)
    # Through a change in between, too: what was displaced is remembered by the rows.
    taken = change(
        reservation_id=taken.pk,
        user=carol,
        version=1,
        end=start + timedelta(hours=7),
        now=NOW,
    )
    cancel(reservation_id=taken.pk, user=carol, now=at(9, 5))
    assert balance(taken) == (0, 0), "51 hours ahead"
    late = taken.late_returns.get()
    assert (late.start, late.end, late.permille) == (start, at(14, day=4), 500)
    # Another holder of that time removes the price: here of one of the two hours.
    lab.book(bob, lab.gpus[:1], start, 1, now=at(9, 6))
    for hour in (12, 13, 23):
        tick.tick(at(hour, day=4))
    assert balance(taken) == (0, WEIGHT * HOUR // 2)
    # Giving back hours that displaced nobody still costs nothing.
    other = lab.book(carol, lab.gpus[1:2], at(12, day=7), 2, now=at(0, day=5))
    cancel(reservation_id=other.pk, user=carol, now=at(0, day=5))
    assert not other.late_returns.exists()


@pytest.mark.once
def test_a_friend_who_may_displace_hands_nothing_on_to_one_who_may_not(
    lab, alice, bob, carol
) -> None:
    lab.set(quota_gpu_seconds=0)
    Membership.objects.filter(user=carol).update(quota_gpu_seconds=WEIGHT * 40 * HOUR)
    start = at(12, day=4)
    lab.book(bob, lab.gpus[:1], start, 2)
    taken = lab.book(carol, lab.gpus[:1], start, 2)
    made = offers.offer(reservation_id=taken.pk, user=carol, to="alice", now=NOW)
    seen = offers.outlook(offer_id=made.pk, user=alice, now=NOW).taker
    assert isinstance(seen.refusal, CannotOffer)
    with pytest.raises(CannotOffer, match="took over someone's flex"):
        offers.accept(offer_id=made.pk, user=alice, now=NOW)
    # Nor by a swap: the price that she would offer changes nothing.
    own = lab.book(alice, lab.gpus[1:2], start, 2)
    with pytest.raises(CannotOffer):
        offers.offer(reservation_id=own.pk, user=alice, wanted_id=taken.pk, now=NOW)
    # A user who could have had it firm could also have displaced it.
    Membership.objects.filter(user=alice).update(quota_gpu_seconds=WEIGHT * 9 * HOUR)
    done = offers.accept(offer_id=made.pk, user=alice, now=NOW)
    assert (done.given.user, done.given.kind) == (alice, Kind.FIRM)


@pytest.mark.once
def test_fake_load_saves_nobody_from_paying_for_what_is_held(lab, alice) -> None:
    lab.set(release_idle=True)
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    make_minutes(lab.gpus[0], NOW, 120, process_n=60, util_pct=4)
    for minute in (5, 60, 119):
        tick.tick(NOW + timedelta(minutes=minute))
    tick.tick(at(11))
    assert balance(made) == (0, WEIGHT * 2 * HOUR)


def test_a_carpet_of_flex_is_short_near_and_never_blocks_firm(
    lab, alice, carol
) -> None:
    lab.set(quota_gpu_seconds=0)
    Membership.objects.filter(user=carol).update(quota_gpu_seconds=WEIGHT * 40 * HOUR)
    for number in (0, 1):
        lab.book(alice, lab.gpus[number : number + 1], TUESDAY, 2)
    with pytest.raises(errors.TooManyFlex):
        lab.book(alice, lab.gpus[2:3], TUESDAY, 2)
    with pytest.raises(errors.QuotaExceeded):
        lab.book(alice, lab.gpus[2:3], at(15, day=5), 2)
    made = lab.book(carol, lab.gpus[:2], TUESDAY, 2)
    assert made.kind == Kind.FIRM
    gone = Reservation.objects.filter(user=alice, state=State.DISPLACED)
    assert gone.count() == Notice.objects.filter(kind="displaced").count() == 2


def test_quotas_that_promise_more_than_there_is_are_told_by_pool() -> None:
    pools = [PoolCapacity(1, "A100", 2, 10), PoolCapacity(2, "T4", 8, 2)]
    week = 7 * 24 * HOUR
    claims = [QuotaClaim(n, 10 * week, account_pks=(5,)) for n in (1, 2, 3)]
    first, second = pool_promises(pools, claims)
    assert (first.kept, first.oversold_gpu_seconds) == (False, 10 * week)
    assert (second.kept, second.oversold_gpu_seconds) == (False, 14 * week)
    # A bound of the group, or of the pool, keeps the promise.
    bounded = pool_promises(pools, claims, account_quotas={5: 16 * week})
    assert [one.kept for one in bounded] == [True, True]


@pytest.mark.once
def test_time_displaced_for_a_friend_is_paid_although_the_friend_holds_it(
    lab, alice, bob, carol
) -> None:
    """Only the displaced owner, holding the time again, takes the price off."""
    lab.set(quota_gpu_seconds=0)
    Membership.objects.filter(user=carol).update(quota_gpu_seconds=WEIGHT * 40 * HOUR)
    start = at(12, day=4)
    flex = lab.book(bob, lab.gpus[:1], start, 2)
    taken = lab.book(carol, lab.gpus[:1], start, 2)
    flex.refresh_from_db()
    assert flex.displaced_by == taken
    cancel(reservation_id=taken.pk, user=carol, now=at(9, 5))
    # Alice could not have taken it from Bob herself: she books it after Carol.
    friend = lab.book(alice, lab.gpus[:1], start, 2, now=at(9, 6))
    for hour in (12, 14, 23):
        tick.tick(at(hour, day=4))
    friend.refresh_from_db()
    assert friend.state != State.DISPLACED
    assert balance(taken) == (0, WEIGHT * 2 * HOUR // 2)


@pytest.mark.once
def test_nobody_displaces_the_same_person_again_right_after_giving_the_time_back(
    lab, bob, carol
) -> None:
    lab.set(quota_gpu_seconds=0)
    Membership.objects.filter(user=carol).update(quota_gpu_seconds=WEIGHT * 40 * HOUR)
    start = at(12, day=4)
    lab.book(bob, lab.gpus[:1], start, 2)
    taken = lab.book(carol, lab.gpus[:1], start, 2)
    cancel(reservation_id=taken.pk, user=carol, now=at(9, 5))
    lab.book(bob, lab.gpus[:1], start, 2, now=at(9, 6))
    told = Notice.objects.filter(user=bob).count()
    with pytest.raises(DisplacementPaused) as refused:
        lab.book(carol, lab.gpus[:1], start, 2, now=at(9, 7))
    assert "you cannot displace them again until Tue 3 Mar 09:05" in (
        refused.value.text()
    )
    assert Notice.objects.filter(user=bob).count() == told
    # Another GPU is no way around it, another person's flex is not affected, and the
    # pause ends.
    lab.set(displacement_pause_seconds=0)
    assert lab.book(carol, lab.gpus[:1], start, 2, now=at(9, 8)).kind == Kind.FIRM


@pytest.mark.once
def test_who_gives_back_more_than_they_use_books_a_day_ahead_only(
    lab, alice, bob
) -> None:
    """A sequence of bookings that are given back a day ahead holds GPUs for nothing."""
    lab.set(quota_gpu_seconds=WEIGHT * 40 * HOUR)
    moment, given_back = NOW, 0
    with pytest.raises(ReturnedTooMuch) as refused:
        for _ in range(14):
            ahead = moment + timedelta(hours=62)
            held = lab.book(alice, lab.gpus[:2], ahead, 12, now=moment)
            moment += timedelta(hours=36)
            cancel(reservation_id=held.pk, user=alice, now=moment)
            given_back += held.cost_gpu_seconds
    # Half of the quota is free; the booking that goes beyond it is the last.
    assert given_back == WEIGHT * 24 * HOUR
    assert "returned bookings of 240 credits" in refused.value.text()
    near = lab.book(alice, lab.gpus[:2], moment + timedelta(hours=23), 2, now=moment)
    assert near.kind == Kind.FIRM
    # Others are not affected, and her returns are forgotten after 14 days.
    assert lab.book(bob, lab.gpus[:1], moment + timedelta(hours=62), 2, now=moment)
    later = moment + timedelta(days=14, hours=1)
    assert lab.book(alice, lab.gpus[2:3], later + timedelta(hours=62), 2, now=later)


def test_moving_a_booking_away_is_giving_it_back_and_a_slip_is_not(lab, alice) -> None:
    held = lab.book(alice, lab.gpus[:1], at(12, day=6), 4)
    cancel(reservation_id=held.pk, user=alice, now=at(9, 8))
    assert not EarlyReturn.objects.exists(), "within ten minutes of booking"
    held = lab.book(alice, lab.gpus[:1], at(12, day=6), 4)
    change(
        reservation_id=held.pk,
        user=alice,
        version=1,
        start=at(14, day=7),
        end=at(18, day=7),
        now=at(11),
    )
    assert EarlyReturn.objects.get().gpu_seconds == held.cost_gpu_seconds
    cancel(reservation_id=held.pk, user=alice, now=at(12))
    assert EarlyReturn.objects.count() == 2
    undo_cancel(reservation_id=held.pk, user=alice, now=at(12, 0))
    assert EarlyReturn.objects.count() == 1, "an undo takes the return back"


def test_a_head_gives_back_for_members_what_counts_for_them(lab, alice, bob) -> None:
    """A sequence of bookings that the head of the group cancels for a member."""
    lab.set(quota_gpu_seconds=WEIGHT * 40 * HOUR)
    head = make_user("head")
    account = alice.memberships.get().account
    make_membership(head, account=account, is_head=True)
    moment = NOW
    with pytest.raises(ReturnedTooMuch):
        for _ in range(14):
            ahead = moment + timedelta(hours=62)
            held = lab.book(alice, lab.gpus[:2], ahead, 12, now=moment)
            moment += timedelta(hours=36)
            cancel(reservation_id=held.pk, user=head, now=moment, reason="for a friend")
    assert set(EarlyReturn.objects.values_list("user", flat=True)) == {alice.pk}
    # Neither the head nor another member is limited by it.
    for gpu, user in zip(lab.gpus, (head, bob), strict=False):
        ahead = moment + timedelta(hours=62)
        assert lab.book(user, [gpu], ahead, 1, now=moment)


@pytest.mark.once
def test_what_an_admin_takes_is_no_return(lab, alice, omar) -> None:
    held = lab.book(alice, lab.gpus[:2], at(12, day=6), 4)
    cancel(reservation_id=held.pk, user=omar, now=at(12), reason="the hall is cooled")
    assert not EarlyReturn.objects.exists()


@pytest.mark.once
def test_shared_bookings_count_for_the_limit_of_gpus_at_once(lab, alice, bob) -> None:
    lab.set(gpus_at_once=2)
    start = at(12, day=4)
    lab.book(alice, lab.gpus[:2], start, 2)
    his = lab.book(bob, lab.gpus[2:4], start, 2)
    with pytest.raises(CannotShare, match="Alice would use 4 GPUs at once, 2 of them"):
        co_use.share(reservation_id=his.pk, user=bob, username="alice", now=NOW)
    cancel(reservation_id=his.pk, user=bob, now=NOW)
    # Nor the other way round: what is shared first counts when she books.
    later = lab.book(bob, lab.gpus[2:4], start + timedelta(hours=4), 2)
    co_use.share(reservation_id=later.pk, user=bob, username="alice", now=NOW)
    with pytest.raises(errors.TooManyGpus) as refused:
        lab.book(alice, lab.gpus[:1], start + timedelta(hours=4), 1)
    assert "2 of them are shared with you" in refused.value.text()
    # Nor by lengthening what is shared until it meets what she holds.
    with pytest.raises(CannotShare):
        change(
            reservation_id=later.pk,
            user=bob,
            version=1,
            start=start,
            now=NOW,
            end=start + timedelta(hours=6),
            gpu_ids=[g.pk for g in lab.gpus[2:4]],
        )
    # She may leave what is shared, and book then.
    co_use.unshare(reservation_id=later.pk, user=alice, co_user_id=alice.pk, now=NOW)
    assert lab.book(alice, lab.gpus[:1], start + timedelta(hours=4), 1)


@pytest.mark.once
def test_who_books_and_cancels_the_same_time_in_a_loop_gives_it_back(
    lab, alice
) -> None:
    """A mistake is free, but not every ten minutes."""
    moment, held = NOW, None
    for _ in range(SLIPS_A_DAY):
        held = lab.book(alice, lab.gpus[:2], FAR, 3, now=moment)
        moment += timedelta(minutes=9)
        cancel(reservation_id=held.pk, user=alice, now=moment)
    assert not EarlyReturn.objects.exists()
    held = lab.book(alice, lab.gpus[:2], FAR, 3, now=moment)
    moment += timedelta(minutes=9)
    cancel(reservation_id=held.pk, user=alice, now=moment)
    assert EarlyReturn.objects.get().gpu_seconds == held.cost_gpu_seconds
    # Undo is no way around it. A day later a slip is free again.
    last = lab.book(alice, lab.gpus[:2], FAR, 3, now=moment)
    with pytest.raises(errors.CannotUndoBooking, match="in the last 24 h"):
        undo_booking(reservation_id=last.pk, user=alice, now=moment)
    cancel(reservation_id=last.pk, user=alice, now=moment)
    moment += timedelta(days=1, minutes=10)
    last = lab.book(alice, lab.gpus[:2], FAR, 3, now=moment)
    undo_booking(reservation_id=last.pk, user=alice, now=moment)
    assert EarlyReturn.objects.count() == 2


@pytest.mark.once
def test_nobody_holds_a_gpu_by_booking_and_undoing_for_ever(lab, alice) -> None:
    moment, undone = NOW, 0
    with pytest.raises(errors.CannotUndoBooking, match="new bookings"):
        while undone < 100:
            made = book(
                user=alice,
                membership=None,
                gpu_ids=[lab.gpus[0].pk],
                start=moment,
                end=at(12),
                now=moment,
            )
            moment += timedelta(seconds=9)
            undo_booking(reservation_id=made.pk, user=alice, now=moment)
            undone += 1
    assert undone == SLIPS_A_DAY
    made.refresh_from_db()
    assert made.state == State.ACTIVE


def test_a_friend_does_not_undo_or_cancel_for_nothing_what_was_given_to_them(
    lab, alice, carol
) -> None:
    """Hours that cost half when given back are not free through a friend."""
    held = lab.book(alice, lab.gpus[:1], at(13), 4)
    later = at(12, 59)
    made = offers.offer(reservation_id=held.pk, user=alice, to="carol", now=later)
    given = offers.accept(offer_id=made.pk, user=carol, now=later).given
    with pytest.raises(errors.CannotUndoBooking, match="by an offer"):
        undo_booking(reservation_id=given.pk, user=carol, now=later)
    cancel(reservation_id=given.pk, user=carol, now=later)
    tick.tick(at(18))
    assert balance(given) == (0, WEIGHT * 4 * HOUR // 2)
    # Far ahead it is no slip of the hand either.
    far = lab.book(alice, lab.gpus[:1], FAR, 4, now=later)
    day = later + timedelta(days=1)
    made = offers.offer(reservation_id=far.pk, user=alice, to="carol", now=day)
    given = offers.accept(offer_id=made.pk, user=carol, now=day).given
    cancel(reservation_id=given.pk, user=carol, now=day)
    assert [one.reservation_id for one in EarlyReturn.objects.all()][-1] == given.pk


@pytest.mark.once
def test_what_the_waitlist_booked_and_was_declined_was_held_from_others(
    lab, alice
) -> None:
    """A request for free time is a booking: declining it late costs no less."""
    row = waiting.ask(
        user=alice,
        membership=None,
        count=2,
        duration_seconds=6 * HOUR,
        earliest=FAR,
        latest=FAR + timedelta(hours=6),
        now=NOW,
    )
    assert tick.tick(NOW)["placed"] == 1
    row.refresh_from_db()
    assert row.reservation.start == FAR
    waiting.decline(waiting_id=row.pk, user=alice, now=FAR - timedelta(days=2))
    returned = EarlyReturn.objects.get()
    assert (returned.user, returned.gpu_seconds) == (alice, WEIGHT * 12 * HOUR)


@pytest.mark.once
def test_offers_are_no_way_to_write_to_people_without_end(lab, alice, bob) -> None:
    held = lab.book(alice, lab.gpus[:1], FAR, 1)
    moment = NOW
    for _ in range(offers.MOST_A_DAY):
        made = offers.offer(reservation_id=held.pk, user=alice, to="bob", now=moment)
        offers.decline(offer_id=made.pk, user=alice, now=moment)
        moment += timedelta(minutes=1)
    with pytest.raises(CannotOffer, match="20 offers in 24 h"):
        offers.offer(reservation_id=held.pk, user=alice, to="bob", now=moment)
    assert Notice.objects.filter(user=bob, kind="offer_made").count() == 20
    moment += timedelta(days=1)
    assert offers.offer(reservation_id=held.pk, user=alice, to="bob", now=moment)
