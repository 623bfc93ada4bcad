"""Cancel with undo, release, and what giving back late costs."""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.booking import release as giving
from reservations.booking.booking_change import change
from reservations.booking.release import release, undo_cancel
from reservations.models import AuditEntry, LateReturn, LedgerEntry, Membership
from reservations.presence.check_in import keep_idle
from reservations.rules import errors
from reservations.rules.lifecycle import State
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at, balance

SOON = timedelta(seconds=8)


def cancel(reservation, user, now=NOW, reason=""):
    return giving.cancel(
        reservation_id=reservation.pk, user=user, now=now, reason=reason
    )


@pytest.mark.once
def test_a_cancel_a_day_ahead_costs_nothing(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:2], at(12, day=4), 3)
    gone = cancel(made, alice)
    assert gone.state == State.CANCELLED
    assert balance(made) == (0, 0)
    assert not LateReturn.objects.exists()
    assert lab.book(alice, lab.gpus[:2], at(12, day=4), 3)


@pytest.mark.once
def test_a_late_cancel_costs_half_of_what_nobody_else_then_held(
    lab, alice, bob
) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    cancel(made, alice)
    assert balance(made) == (0, 0)
    taken = lab.book(bob, lab.gpus[:1], at(13), 1)
    tick.tick(at(13, 30))
    assert balance(made) == (0, 0)
    tick.tick(at(16, 1))
    assert balance(made) == (0, WEIGHT * 3 * HOUR // 2)
    assert balance(taken) == (0, WEIGHT * HOUR)
    tick.tick(at(16, 2))
    assert balance(made) == (0, WEIGHT * 3 * HOUR // 2)


@pytest.mark.once
def test_ones_own_rebooking_does_not_pay_for_a_late_cancel(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 2)
    cancel(made, alice)
    lab.book(alice, lab.gpus[:1], at(12), 2)
    tick.tick(at(14, 1))
    assert balance(made) == (0, WEIGHT * HOUR)


@pytest.mark.once
def test_an_undone_cancel_keeps_what_was_owed_before_it(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    change(
        reservation_id=made.pk, user=alice, end=at(13), version=made.version, now=NOW
    )
    cancel(made, alice)
    undo_cancel(reservation_id=made.pk, user=alice, now=NOW + SOON)
    late = LateReturn.objects.get()
    assert (late.start, late.end) == (at(13), at(16))


def test_only_the_hours_inside_a_day_cost(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(6, day=3), 6)
    cancel(made, alice)
    late = LateReturn.objects.get()
    assert (late.start, late.end) == (at(6, day=3), at(9, day=3))


@pytest.mark.once
def test_late_hours_count_in_the_quota_at_half_until_and_after_they_pass(
    lab, alice
) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 4 * HOUR, flex_horizon_seconds=0)
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    cancel(made, alice)
    with pytest.raises(errors.QuotaExceeded):
        lab.book(alice, lab.gpus[:1], at(12, day=5), 3)
    tick.tick(at(16, 1))
    with pytest.raises(errors.QuotaExceeded):
        lab.book(alice, lab.gpus[:1], at(18, day=5), 3, now=at(17))
    assert lab.book(alice, lab.gpus[:1], at(18, day=5), 2, now=at(17))


def test_a_cancel_can_be_undone_within_ten_seconds(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    cancel(made, alice)
    back = undo_cancel(reservation_id=made.pk, user=alice, now=NOW + SOON)
    assert back.state == State.CONFIRMED
    assert balance(made) == (made.cost_gpu_seconds, 0)
    assert not LateReturn.objects.exists()
    assert made.allocations.get().live


@pytest.mark.once
def test_an_undo_is_refused_when_somebody_took_the_gpu(lab, alice, bob) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    cancel(made, alice)
    lab.book(bob, lab.gpus[:1], at(13), 1)
    with pytest.raises(errors.GpuTaken):
        undo_cancel(reservation_id=made.pk, user=alice, now=NOW + SOON)
    made.refresh_from_db()
    assert made.state == State.CANCELLED
    assert balance(made) == (0, 0)


@pytest.mark.once
def test_an_undo_after_its_time_is_refused(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    cancel(made, alice)
    with pytest.raises(errors.UndoOver):
        undo_cancel(reservation_id=made.pk, user=alice, now=NOW + timedelta(seconds=30))
    with pytest.raises(errors.NotChangeable):
        other = lab.book(alice, lab.gpus[1:2], at(12), 1)
        undo_cancel(reservation_id=other.pk, user=alice, now=NOW)


@pytest.mark.once
def test_carol_and_bob_cannot_cancel_what_alice_booked(lab, alice, bob, carol) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    for stranger in (bob, carol):
        for act in (
            lambda user: cancel(made, user, reason="because"),
            lambda user: release(
                reservation_id=made.pk, user=user, now=NOW, reason="because"
            ),
            lambda user: undo_cancel(reservation_id=made.pk, user=user, now=NOW),
            lambda user: keep_idle(
                reservation_id=made.pk, user=user, now=NOW, reason="because"
            ),
            lambda user: change(
                reservation_id=made.pk,
                user=user,
                end=at(13),
                version=1,
                now=NOW,
                reason="because",
            ),
        ):
            with pytest.raises(errors.NotAllowed):
                act(stranger)
    made.refresh_from_db()
    assert (made.state, made.version) == (State.CONFIRMED, 1)


def test_the_head_of_the_group_may_cancel_with_a_reason(lab, alice, bob, carol) -> None:
    Membership.objects.filter(user__in=[bob, carol]).update(is_head=True)
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    with pytest.raises(errors.ReasonNeeded):
        cancel(made, bob)
    with pytest.raises(errors.NotAllowed):
        cancel(made, carol, reason="not her group")
    cancel(made, bob, reason="needed for the deadline")
    entry = AuditEntry.objects.get(verb="reservation.cancelled")
    assert (entry.actor, entry.reason) == (bob, "needed for the deadline")


def test_the_operator_may_cancel_everything_with_a_reason(lab, alice, omar) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    with pytest.raises(errors.ReasonNeeded):
        cancel(made, omar)
    assert cancel(made, omar, reason="maintenance").state == State.CANCELLED


@pytest.mark.once
def test_what_runs_is_released_and_charged_to_the_second(lab, alice, bob) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 4)
    with pytest.raises(errors.NotChangeable):
        cancel(made, alice)
    gone = release(reservation_id=made.pk, user=alice, now=at(10, 30), reason="")
    assert (gone.state, gone.end, gone.booked_end) == (
        State.RELEASED,
        at(10, 30),
        at(13),
    )
    assert balance(made) == (0, WEIGHT * 90 * 60)
    # The rest is free for others at once, and half of it may still be charged.
    assert lab.book(bob, lab.gpus[:1], at(10, 30), 0.5, now=at(10, 30))
    tick.tick(at(13))
    assert balance(made) == (0, WEIGHT * (90 * 60 + 60 * 60))


def test_a_release_in_the_second_of_the_start_costs_no_use(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 1)
    release(reservation_id=made.pk, user=alice, now=NOW, reason="")
    assert balance(made) == (0, 0)
    with pytest.raises(errors.NotChangeable):
        release(reservation_id=made.pk, user=alice, now=NOW, reason="")


def test_the_ledger_says_why(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    release(reservation_id=made.pk, user=alice, now=at(10), reason="done")
    reasons = list(LedgerEntry.objects.order_by("pk").values_list("kind", "reason"))
    assert reasons == [
        ("hold", "booked firm"),
        ("release", "released: done"),
        ("charge", "released: done"),
    ]


@pytest.mark.once
def test_an_undo_never_breaks_the_quota(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 4 * HOUR)
    made = lab.book(alice, lab.gpus[:1], at(12, day=4), 4)
    cancel(made, alice)
    lab.book(alice, lab.gpus[1:2], at(12, day=5), 4)
    with pytest.raises(errors.QuotaExceeded):
        undo_cancel(reservation_id=made.pk, user=alice, now=NOW + SOON)


@pytest.mark.once
def test_a_move_counts_the_hours_it_gives_back_late(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 4 * HOUR)
    made = lab.book(alice, lab.gpus[:1], at(12), 4)
    with pytest.raises(errors.QuotaExceeded):
        change(
            reservation_id=made.pk,
            user=alice,
            start=at(18),
            end=at(22),
            version=1,
            now=NOW,
        )
    assert (
        change(
            reservation_id=made.pk,
            user=alice,
            start=at(18),
            end=at(20),
            version=1,
            now=NOW,
        ).kind
        == "firm"
    )


@pytest.mark.once
def test_undoing_flex_keeps_the_limit_of_flex_ahead(lab, alice) -> None:
    lab.set(quota_gpu_seconds=0)
    first = lab.book(alice, lab.gpus[:1], at(0, day=4), 1)
    cancel(first, alice)
    for hour in (4, 8):
        lab.book(alice, lab.gpus[:1], at(hour, day=4), 1)
    with pytest.raises(errors.TooManyFlex):
        undo_cancel(reservation_id=first.pk, user=alice, now=NOW + SOON)
