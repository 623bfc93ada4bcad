"""Displacement through the services: rows, refund, Notice, and what never goes."""

from datetime import timedelta

import pytest

from reservations.booking import displacement
from reservations.booking.booking_change import change
from reservations.booking.release import cancel
from reservations.booking.service import preview
from reservations.booking.slot_search import find_slots, next_equal
from reservations.fairshare.service import standing
from reservations.models import (
    Allocation,
    AuditEntry,
    Membership,
    Notice,
    Reservation,
)
from reservations.notifications import live
from reservations.notifications.queries import notices_of
from reservations.rules import errors
from reservations.rules.decision_record import broken_rules
from reservations.rules.fairness.preemption import FlexHeld
from reservations.rules.lifecycle import Kind, State
from tests.factories import make_membership, make_reservation
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at, balance

TUESDAY = at(14, day=3)
"""29 hours ahead: flex that begins then freezes on Tuesday at 02:00."""


@pytest.fixture(autouse=True)
def tight(lab, alice, bob, carol):
    """Nobody has firm quota but Carol, so that others book flex."""
    lab.set(quota_gpu_seconds=0)
    own = Membership.objects.get(user=carol)
    own.quota_gpu_seconds = WEIGHT * 40 * HOUR
    own.save()


def spend(user, hours: int) -> None:
    """Give a User a long booking that counts as use."""
    make_reservation(
        user, start=at(9, day=5), end=at(9, day=5) + timedelta(hours=hours)
    )


def test_firm_within_quota_displaces_flex_and_tells_at_once(
    lab, bob, carol, django_capture_on_commit_callbacks, monkeypatch
) -> None:
    told = []
    monkeypatch.setattr(
        live, "_send_live", lambda message, pk: told.append((message, pk))
    )
    flex = lab.book(bob, lab.gpus[:2], TUESDAY, 2)
    assert flex.kind == Kind.FLEX
    with django_capture_on_commit_callbacks(execute=True):
        made = lab.book(carol, lab.gpus[1:2], TUESDAY, 4)
    flex.refresh_from_db()
    assert (made.kind, flex.state) == (Kind.FIRM, State.DISPLACED)
    assert balance(flex) == (0, 0), "everything back, nothing charged"
    assert not flex.late_returns.exists()
    assert not Allocation.objects.filter(reservation=flex, live=True).exists()
    notice = Notice.objects.get()
    assert (notice.user, notice.reservation) == (bob, flex)
    (message, pk), *_ = told
    assert pk == bob.pk and message["notice"]["reservation"] == flex.pk
    assert message["notice"]["text"] == (
        "Carol (Nlp) took over your flex booking Tue 3 Mar 14:00 on node-a:0, "
        "node-a:1 with a firm booking within quota. "
        "You got 40 credits back."
    )
    entry = AuditEntry.objects.get(verb="reservation.displaced")
    assert entry.detail["by"] == made.pk


@pytest.mark.once
def test_the_reason_is_stored_and_can_be_followed_again(lab, bob, carol) -> None:
    flex = lab.book(bob, lab.gpus[:1], TUESDAY, 2)
    made = lab.book(carol, lab.gpus[:1], TUESDAY, 2)
    (gone,) = made.decision["displaced"]
    assert gone["reservation"] == flex.pk
    assert gone["refund_gpu_seconds"] == WEIGHT * 2 * HOUR
    assert broken_rules(made.decision) == []
    late = made.decision | {"decided_at": gone["frozen_at"]}
    assert broken_rules(late) == [f"3: #{flex.pk} was frozen"]


@pytest.mark.once
def test_flex_goes_to_who_is_served_worse_even_then(lab, alice, bob) -> None:
    spend(bob, 20)
    flex = lab.book(bob, lab.gpus[:1], TUESDAY, 2)
    made = lab.book(alice, lab.gpus[:1], TUESDAY, 2)
    flex.refresh_from_db()
    assert (made.kind, flex.state) == (Kind.FLEX, State.DISPLACED)
    assert broken_rules(made.decision) == []
    swapped = [
        one | {"own": one["theirs"], "theirs": one["own"]}
        for one in made.decision["displaced"]
    ]
    wrong = broken_rules(made.decision | {"displaced": swapped})
    assert wrong == [f"2: #{flex.pk} does not stand below"]
    (notice,) = notices_of(bob, most=5)
    assert "You have used" in notice.text and "times your share" in notice.text


@pytest.mark.once
def test_who_does_not_stand_above_is_refused_with_both_numbers(lab, alice, bob) -> None:
    lab.book(bob, lab.gpus[:1], TUESDAY, 2)
    with pytest.raises(FlexHeld) as held:
        lab.book(alice, lab.gpus[:1], TUESDAY, 2)
    fields = held.value.numbers
    assert fields["own_level_fs"] == 0.5 and fields["their_level_fs"] is None
    assert "2.0× your share" in held.value.text()
    assert held.value.next_slot is not None
    assert held.value.next_slot.gpu_ids == (lab.gpus[1].pk,)
    assert not Notice.objects.exists()


@pytest.mark.once
def test_who_was_displaced_cannot_take_it_back(lab, alice, bob) -> None:
    spend(bob, 20)
    lab.book(bob, lab.gpus[:1], TUESDAY, 2)
    lab.book(alice, lab.gpus[:1], TUESDAY, 2)
    with pytest.raises(FlexHeld):
        lab.book(bob, lab.gpus[:1], TUESDAY, 2)


@pytest.mark.once
def test_nobody_displaces_what_is_frozen_running_or_firm(lab, bob, carol) -> None:
    lab.book(bob, lab.gpus[:1], at(20), 2)  # frozen: eleven hours ahead
    lab.book(bob, lab.gpus[1:2], NOW, 2)
    for gpus, start in ((lab.gpus[:1], at(20)), (lab.gpus[1:2], at(10))):
        with pytest.raises(errors.GpuTaken):
            lab.book(carol, gpus, start, 2)
    lab.book(carol, lab.gpus[2:3], TUESDAY, 2)
    with pytest.raises(errors.GpuTaken):
        lab.book(bob, lab.gpus[2:3], TUESDAY, 2)
    assert not Reservation.objects.filter(state=State.DISPLACED).exists()


@pytest.mark.once
def test_the_freeze_begins_twelve_hours_ahead_to_the_second(lab, bob, carol) -> None:
    lab.book(bob, lab.gpus[:1], TUESDAY, 2)
    freeze = TUESDAY - timedelta(hours=12)
    with pytest.raises(errors.GpuTaken):
        lab.book(carol, lab.gpus[:1], TUESDAY, 2, now=freeze)
    just_before = freeze - timedelta(seconds=1)
    assert lab.book(carol, lab.gpus[:1], TUESDAY, 2, now=just_before)


@pytest.mark.once
def test_nobody_displaces_another_membership_of_the_same_person(lab, carol) -> None:
    second = make_membership(carol, "vision")
    first = carol.memberships.get(account__name="nlp")
    flex = lab.book(carol, lab.gpus[:1], TUESDAY, 2, membership=second)
    assert flex.kind == Kind.FLEX
    with pytest.raises(errors.GpuTaken):
        lab.book(carol, lab.gpus[:1], TUESDAY, 2, membership=first)


@pytest.mark.once
def test_a_change_displaces_by_the_same_rules(lab, bob, carol) -> None:
    flex = lab.book(bob, lab.gpus[:1], TUESDAY, 2)
    made = lab.book(carol, lab.gpus[1:2], TUESDAY, 2)
    change(
        reservation_id=made.pk,
        user=carol,
        gpu_ids=[lab.gpus[0].pk],
        version=made.version,
        now=NOW,
    )
    flex.refresh_from_db()
    assert flex.state == State.DISPLACED
    assert Notice.objects.get().detail["by"] == made.pk


@pytest.mark.once
def test_a_change_that_only_gives_back_displaces_nobody(lab, bob, carol) -> None:
    made = lab.book(carol, lab.gpus[:1], TUESDAY, 4)
    lab.book(bob, lab.gpus[1:2], TUESDAY, 2)
    change(
        reservation_id=made.pk,
        user=carol,
        end=TUESDAY + timedelta(hours=3),
        version=made.version,
        now=NOW,
    )
    assert not Notice.objects.exists()


def test_a_victim_that_moved_meanwhile_leaves_nothing_written(
    lab, bob, carol, monkeypatch
) -> None:
    flex = lab.book(bob, lab.gpus[:1], TUESDAY, 2)
    before = displacement.displace

    def later(*args, **kwargs):
        Reservation.objects.filter(pk=flex.pk).update(state=State.CANCELLED)
        return before(*args, **kwargs)

    monkeypatch.setattr(displacement, "displace", later)
    with pytest.raises(errors.GpuTaken):
        lab.book(carol, lab.gpus[:1], TUESDAY, 2)
    assert not Reservation.objects.filter(user=carol).exists()
    assert not Notice.objects.exists()


@pytest.mark.once
def test_the_preview_says_what_would_go_and_changes_nothing(lab, bob, carol) -> None:
    flex = lab.book(bob, lab.gpus[:1], TUESDAY, 2)
    decision = preview(
        user=carol,
        membership=None,
        gpu_ids=[lab.gpus[0].pk],
        start=TUESDAY,
        end=TUESDAY + timedelta(hours=1),
        now=NOW,
    )
    (gone,) = decision.displaced
    assert (gone.flex.reservation_pk, gone.flex.user) == (flex.pk, "Bob")
    assert (decision.rank_before, decision.of) == (1, 3)
    flex.refresh_from_db()
    assert flex.state == State.CONFIRMED


@pytest.mark.once
def test_flex_says_until_when_it_can_be_taken(lab, bob) -> None:
    def ask(start):
        return preview(
            user=bob,
            membership=None,
            gpu_ids=[lab.gpus[0].pk],
            start=start,
            end=start + timedelta(hours=1),
            now=NOW,
        )

    assert ask(TUESDAY).taken_until == TUESDAY - timedelta(hours=12)
    assert ask(at(12)).taken_until is None, "frozen at once"


@pytest.mark.once
def test_the_search_takes_the_gpu_with_the_fewest_in_the_way(
    lab, alice, bob, carol
) -> None:
    # The two on the first Gpu are one after the other, so they are two.
    lab.book(bob, lab.gpus[:1], TUESDAY, 1)
    lab.book(bob, lab.gpus[1:4], TUESDAY, 2)
    lab.book(alice, lab.gpus[:1], TUESDAY + timedelta(hours=1), 1)
    (slot,) = find_slots(
        user=carol,
        membership=None,
        count=1,
        min_memory_bytes=0,
        duration_seconds=2 * HOUR,
        earliest=TUESDAY,
        latest=TUESDAY + timedelta(hours=2),
        now=NOW,
        limit=1,
    )
    assert (slot.gpu_ids, slot.displaces) == ((lab.gpus[1].pk,), 1)
    assert slot.kind == Kind.FIRM


@pytest.mark.once
def test_the_next_equal_slot_takes_from_nobody(lab, bob, carol) -> None:
    flex = lab.book(bob, lab.gpus[:1], TUESDAY, 2)
    lab.book(carol, lab.gpus[:4], TUESDAY, 3)
    flex.refresh_from_db()
    slot = next_equal(flex, [lab.gpus[0].pk], now=NOW)
    assert slot is not None
    assert (slot.start, slot.kind, slot.displaces) == (
        TUESDAY + timedelta(hours=3),
        Kind.FLEX,
        0,
    )


# --- gaming (docs/design/fair-booking.md#gaming) --------------------------------


@pytest.mark.once
def test_a_carpet_of_flex_never_blocks_firm_and_is_two_wide(lab, bob, carol) -> None:
    for number in range(2):
        start = TUESDAY + timedelta(hours=6 * number)
        lab.book(bob, lab.gpus[:4], start, 6)
    with pytest.raises(errors.TooManyFlex):
        lab.book(bob, lab.gpus[:4], TUESDAY + timedelta(hours=12), 6)
    with pytest.raises(errors.QuotaExceeded):
        lab.book(bob, lab.gpus[:4], TUESDAY + timedelta(days=3), 6)
    made = lab.book(carol, lab.gpus[:1], TUESDAY, 8)
    assert made.kind == Kind.FIRM
    assert Notice.objects.filter(user=bob).count() == 2


@pytest.mark.once
def test_hoarding_prime_time_costs_quota_place_and_late_hours(
    lab, alice, carol
) -> None:
    far = at(9, day=12)
    first = lab.book(carol, lab.gpus[:2], far, 12)
    with pytest.raises(errors.TooManyGpus):
        lab.book(carol, lab.gpus[:3], far, 12)
    with pytest.raises(errors.QuotaExceeded):
        lab.book(carol, lab.gpus[:2], far + timedelta(days=1), 12)
    places = {
        one.membership.user_id: one.place
        for user in (alice, carol)
        for one in standing(user=user, now=NOW).memberships
    }
    assert places[carol.pk] > places[alice.pk], "booking ahead is use at once"
    late = far - timedelta(hours=2)
    cancel(reservation_id=first.pk, user=carol, now=late)
    assert sum(part.weight for part in first.late_returns.all()) > 0
