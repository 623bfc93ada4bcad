"""Booking: firm within quota, flex beyond, and every way to be refused."""

from datetime import timedelta

import pytest

from reservations.booking.service import book, preview
from reservations.models import Allocation, AuditEntry, LedgerEntry, Reservation
from reservations.rules import errors
from reservations.rules.lifecycle import Kind, State
from tests.factories import make_account, make_membership
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at, balance


def test_alice_books_two_gpus_as_one_reservation(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:2], at(14), 3)
    assert (made.kind, made.state) == (Kind.FIRM, State.CONFIRMED)
    assert made.cost_gpu_seconds == WEIGHT * 2 * 3 * HOUR
    assert balance(made) == (made.cost_gpu_seconds, 0)
    assert made.allocations.count() == 2
    assert AuditEntry.objects.get().verb == "reservation.booked"
    assert made.decision["rule"] == "1 firm"
    assert made.decision["quotas"][0]["held_gpu_seconds"] == made.cost_gpu_seconds


def test_now_starts_at_once_off_the_grid_and_ends_on_it(lab, alice) -> None:
    now = at(9, 17) + timedelta(seconds=12, microseconds=345)
    made = book(
        user=alice,
        membership=None,
        gpu_ids=[lab.gpus[0].pk],
        start=now,
        end=at(10),
        now=now,
    )
    assert made.state == State.ACTIVE
    assert made.start == now.replace(microsecond=0)
    assert made.cost_gpu_seconds == WEIGHT * (42 * 60 + 48)


def test_a_start_that_has_passed_means_now(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(8), 3, now=at(9, 30))
    assert (made.start, made.end, made.state) == (at(9, 30), at(11), State.ACTIVE)


def test_two_people_cannot_hold_one_gpu(lab, alice, bob) -> None:
    lab.book(alice, lab.gpus[:1], at(14), 2)
    with pytest.raises(errors.GpuTaken) as refused:
        lab.book(bob, lab.gpus[:1], at(15), 2)
    assert refused.value.numbers["gpu"] == "node-a:0"
    assert "Alice" in refused.value.text()
    assert refused.value.next_slot is not None
    assert refused.value.next_slot.gpu_ids == (lab.gpus[1].pk,)
    assert refused.value.next_slot.start == at(15)
    assert Reservation.objects.count() == 1


def test_back_to_back_is_no_overlap(lab, alice, bob) -> None:
    lab.book(alice, lab.gpus[:1], at(14), 2)
    assert lab.book(bob, lab.gpus[:1], at(16), 2).kind == Kind.FIRM


def test_names_stay_out_of_a_refusal_where_they_are_hidden(lab, alice, bob) -> None:
    lab.set(names_visible=False)
    lab.book(alice, lab.gpus[:1], at(14), 2)
    with pytest.raises(errors.GpuTaken) as refused:
        lab.book(bob, lab.gpus[:1], at(15), 2)
    assert "Alice" not in refused.value.text()


def test_a_refusal_writes_nothing(lab, alice) -> None:
    with pytest.raises(errors.OffGrid):
        lab.book(alice, lab.gpus[:1], at(14, 7), 2)
    assert not Reservation.objects.exists()
    assert not LedgerEntry.objects.exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.once
@pytest.mark.parametrize(
    ("start", "hours", "refusal"),
    [
        (at(6), 2, errors.InThePast),
        (at(14), -1, errors.EndNotAfterStart),
        (at(6), 0, errors.EndNotAfterStart),
        (at(14, 20), 1, errors.OffGrid),
        (at(14), 1.5, errors.OffGrid),
        (at(14), 25, errors.TooLong),
        (at(9) + timedelta(days=14, hours=1), 1, errors.BeyondHorizon),
    ],
)
def test_windows_that_nobody_may_have(lab, alice, start, hours, refusal) -> None:
    with pytest.raises(refusal) as refused:
        lab.book(alice, lab.gpus[:1], start, hours)
    seen = preview(
        user=alice,
        membership=None,
        gpu_ids=[lab.gpus[0].pk],
        start=start,
        end=start + timedelta(hours=hours),
        now=NOW,
    )
    assert type(seen.refusal) is refusal
    assert seen.next_slot == refused.value.next_slot
    none = (errors.EndNotAfterStart, errors.BeyondHorizon)
    assert (seen.next_slot is None) == (refusal in none)
    assert refused.value.text()
    assert refused.value.numbers


@pytest.mark.once
def test_five_gpus_at_once_are_too_many(lab, alice) -> None:
    lab.set(quota_gpu_seconds=10**9, gpus_at_once=2)
    lab.book(alice, lab.gpus[:1], at(14), 4)
    with pytest.raises(errors.TooManyGpus) as refused:
        lab.book(alice, lab.gpus[1:3], at(15), 1)
    assert refused.value.numbers == {"asked": 2, "held": 1, "most": 2, "shared": 0}
    assert refused.value.next_slot is not None
    assert refused.value.next_slot.start == at(18)
    fewer = refused.value.works_instead
    assert fewer is not None
    assert (fewer.start, fewer.end) == (at(15), at(16))
    [one] = fewer.gpu_ids
    assert one in {gpu.pk for gpu in lab.gpus[1:3]}
    gpu = next(gpu for gpu in lab.gpus if gpu.pk == one)
    assert lab.book(alice, [gpu], at(15), 1).kind == Kind.FIRM


@pytest.mark.once
def test_a_part_is_offered_only_where_it_would_be_granted(lab, alice, bob) -> None:
    lab.set(quota_gpu_seconds=10**9, gpus_at_once=2)
    lab.book(bob, lab.gpus[:2], at(15), 1)
    with pytest.raises(errors.TooManyGpus) as refused:
        lab.book(alice, lab.gpus[:3], at(15), 1)
    # Of the three only one is free then, and two may be held.
    assert refused.value.works_instead is None
    lab.set(gpus_at_once=1)
    with pytest.raises(errors.TooManyGpus) as refused:
        lab.book(alice, lab.gpus[:3], at(15), 1)
    assert refused.value.works_instead is not None
    assert refused.value.works_instead.gpu_ids == (lab.gpus[2].pk,)


def test_the_limit_counts_over_all_memberships(lab, alice) -> None:
    lab.set(live_reservations=2, quota_gpu_seconds=10**9)
    second = make_membership(alice, "nlp")
    first = alice.memberships.exclude(pk=second.pk).get()
    lab.book(alice, lab.gpus[:1], at(12), 1, membership=first)
    lab.book(alice, lab.gpus[:1], at(14), 1, membership=second)
    with pytest.raises(errors.TooManyReservations):
        lab.book(alice, lab.gpus[:1], at(16), 1, membership=second)


def test_back_to_back_on_one_gpu_counts_as_one_reservation(lab, alice) -> None:
    lab.set(live_reservations=1)
    lab.book(alice, lab.gpus[:1], at(12), 1)
    assert lab.book(alice, lab.gpus[:1], at(13), 1)
    with pytest.raises(errors.TooManyReservations):
        lab.book(alice, lab.gpus[:1], at(15), 1)


def test_the_longest_cannot_be_had_in_pieces(lab, alice) -> None:
    lab.set(longest_seconds=4 * HOUR)
    lab.book(alice, lab.gpus[:1], at(12), 3)
    with pytest.raises(errors.TooLong) as refused:
        lab.book(alice, lab.gpus[:1], at(15), 2)
    assert refused.value.numbers["joined"] is True


def test_beyond_the_quota_it_is_flex_inside_the_flex_horizon(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 4 * HOUR)
    assert lab.book(alice, lab.gpus[:1], at(12), 4).kind == Kind.FIRM
    flex = lab.book(alice, lab.gpus[1:2], at(12), 4)
    assert flex.kind == Kind.FLEX
    assert flex.decision["why_not_firm"]["code"] == "quota-exceeded"


@pytest.mark.once
def test_beyond_the_quota_and_the_flex_horizon_it_is_refused(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 4 * HOUR)
    lab.book(alice, lab.gpus[:1], at(12, day=8), 3)
    with pytest.raises(errors.QuotaExceeded) as refused:
        lab.book(alice, lab.gpus[:1], at(18, day=9), 2)
    fields = refused.value.numbers
    assert fields["would_hold_gpu_seconds"] == WEIGHT * 5 * HOUR
    assert fields["fits_gpu_seconds"] == WEIGHT * HOUR
    assert (
        "your firm bookings would cost 50 credits. Your quota is 40 credits."
        in refused.value.text()
    )
    assert refused.value.next_slot is not None
    assert refused.value.next_slot.kind == Kind.FIRM


@pytest.mark.once
def test_a_group_has_a_quota_of_its_own(lab, alice, bob) -> None:
    make_account("vision").__class__.objects.filter(name="vision").update(
        quota_gpu_seconds=WEIGHT * 4 * HOUR
    )
    lab.book(alice, lab.gpus[:1], at(12, day=8), 3)
    with pytest.raises(errors.GroupQuotaExceeded) as refused:
        lab.book(bob, lab.gpus[1:2], at(12, day=9), 2)
    assert refused.value.numbers["account"] == "Vision"


def test_carol_is_not_bound_by_the_quota_of_visions_group(lab, alice, carol) -> None:
    group = alice.memberships.get().account
    group.quota_gpu_seconds = WEIGHT * HOUR
    group.save()
    assert lab.book(carol, lab.gpus[:1], at(12, day=8), 3).kind == Kind.FIRM


@pytest.mark.once
def test_a_third_flex_reservation_ahead_is_refused(lab, alice) -> None:
    lab.set(quota_gpu_seconds=0)
    lab.book(alice, lab.gpus[:1], at(0, day=4), 1)
    lab.book(alice, lab.gpus[:1], at(4, day=4), 1)
    with pytest.raises(errors.TooManyFlex):
        lab.book(alice, lab.gpus[:1], at(8, day=4), 1)
    # Inside the freeze time is anyone's.
    assert lab.book(alice, lab.gpus[:1], at(12), 1).kind == Kind.FLEX


@pytest.mark.once
@pytest.mark.parametrize("field", ["lost", "maintenance", "mig", "retired"])
def test_a_gpu_out_of_service_is_refused(lab, alice, field) -> None:
    setattr(lab.gpus[0], field, True)
    lab.gpus[0].save()
    with pytest.raises(errors.GpuNotBookable):
        lab.book(alice, lab.gpus[:1], at(14), 1)


def test_carol_cannot_book_under_visions_account(lab, alice, carol) -> None:
    with pytest.raises(errors.NotAllowed):
        lab.book(carol, lab.gpus[:1], at(14), 1, membership=alice.memberships.get())


def test_who_has_two_accounts_must_choose_and_who_has_none_cannot_book(
    lab, alice, omar
) -> None:
    make_membership(alice, "nlp")
    with pytest.raises(errors.MembershipNeeded) as refused:
        lab.book(alice, lab.gpus[:1], at(14), 1)
    assert set(refused.value.numbers["accounts"]) == {"Vision", "Nlp"}
    with pytest.raises(errors.MembershipNeeded):
        lab.book(omar, lab.gpus[:1], at(14), 1)


def test_an_unknown_gpu_is_not_found_and_none_is_refused(lab, alice) -> None:
    with pytest.raises(errors.NotFound):
        book(
            user=alice,
            membership=None,
            gpu_ids=[10**9],
            start=at(14),
            end=at(15),
            now=NOW,
        )
    with pytest.raises(errors.NoGpus):
        lab.book(alice, [], at(14), 1)


@pytest.mark.once
def test_what_only_the_database_noticed_is_still_a_refusal(
    lab, alice, bob, monkeypatch
) -> None:
    lab.book(bob, lab.gpus[:1], at(14), 2)
    monkeypatch.setattr(
        "reservations.rules.decision.flex_to_displace",
        lambda gpus, window, calendar: (),
    )
    with pytest.raises(errors.GpuTaken):
        lab.book(alice, lab.gpus[:1], at(14), 2)
    assert Allocation.objects.count() == 1


@pytest.mark.once
def test_a_preview_says_what_booking_would_do_and_writes_nothing(
    lab, alice, bob, carol
) -> None:
    asked = {
        "user": alice,
        "membership": None,
        "gpu_ids": [lab.gpus[0].pk],
        "start": at(14),
        "end": at(16),
        "now": NOW,
    }
    seen = preview(**asked)
    assert seen.kind is Kind.FIRM
    assert seen.cost_gpu_seconds == WEIGHT * 2 * HOUR
    assert seen.quota_left_gpu_seconds == lab.policy.quota_gpu_seconds - (
        seen.cost_gpu_seconds
    )
    assert (seen.rank_before, seen.rank_after, seen.of) == (1, 3, 3)
    assert not Reservation.objects.exists()
    lab.book(bob, lab.gpus[:1], at(15), 1)
    seen = preview(**asked)
    assert isinstance(seen.refusal, errors.GpuTaken)
    assert seen.next_slot is not None


@pytest.mark.once
def test_a_preview_of_a_change_ignores_what_would_change(lab, alice, bob) -> None:
    made = lab.book(alice, lab.gpus[:1], at(14), 2)
    asked = {
        "membership": None,
        "gpu_ids": [lab.gpus[0].pk],
        "start": at(15),
        "end": at(17),
        "now": NOW,
        "ignoring": made.pk,
    }
    assert preview(user=alice, **asked).kind is Kind.FIRM
    # Bob cannot cancel Alice's reservation.
    assert preview(user=bob, **asked).refusal is not None
