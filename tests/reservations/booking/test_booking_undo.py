"""Undo of a new booking: at no cost, within ten seconds, harming nobody else."""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.booking.booking_undo import undo_booking
from reservations.booking.release import undo_cancel
from reservations.booking.service import book, undo_until
from reservations.models import AuditEntry, LateReturn, Voucher
from reservations.presence.check_in import check_in
from reservations.rules import errors
from reservations.rules.lifecycle import State
from tests.reservations.conftest import NOW, at, balance

SOON = NOW + timedelta(seconds=9)


def undo(reservation, user, now=SOON):
    return undo_booking(reservation_id=reservation.pk, user=user, now=now)


def test_a_booking_that_runs_is_undone_at_no_cost(lab, alice, bob) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 3)
    assert made.state == State.ACTIVE
    gone = undo(made, alice)
    assert gone.state == State.CANCELLED
    assert balance(made) == (0, 0)
    assert not LateReturn.objects.exists()
    tick.tick(at(13))
    assert balance(made) == (0, 0)
    assert AuditEntry.objects.filter(verb__contains="booking-undone").count() == 1
    # The GPU can be booked again at once.
    assert lab.book(bob, lab.gpus[:1], NOW, 3, now=SOON)


@pytest.mark.once
def test_a_booking_for_later_today_is_undone_at_no_cost(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 3)
    assert undo(made, alice).state == State.CANCELLED
    tick.tick(at(16))
    assert balance(made) == (0, 0)
    with pytest.raises(errors.NotChangeable):
        # Nor does the undo of a cancel bring it back.
        undo_cancel(reservation_id=made.pk, user=alice, now=SOON)


@pytest.mark.once
@pytest.mark.parametrize("seconds", [14, 60, 3600])
def test_it_is_too_late_after_ten_seconds(lab, alice, seconds) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 3)
    with pytest.raises(errors.CannotUndoBooking, match="10 s"):
        undo(made, alice, NOW + timedelta(seconds=seconds))
    made.refresh_from_db()
    assert made.state == State.ACTIVE


@pytest.mark.once
def test_what_is_in_use_is_not_undone(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 3)
    check_in(reservation_id=made.pk, now=NOW, by="job")
    with pytest.raises(errors.CannotUndoBooking, match="in use"):
        undo(made, alice)


def test_only_who_booked_undoes(lab, alice, bob) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 3)
    with pytest.raises(errors.NotAllowed):
        undo(made, bob)


@pytest.mark.once
def test_what_was_cancelled_is_not_undone_again(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12), 3)
    undo(made, alice)
    with pytest.raises(errors.CannotUndoBooking, match="cancelled"):
        undo(made, alice)


@pytest.mark.once
def test_what_took_over_flex_is_not_undone(lab, alice, bob) -> None:
    lab.set(quota_gpu_seconds=0)
    flex = lab.book(bob, lab.gpus[:1], at(9, day=4), 3)
    lab.set(quota_gpu_seconds=10**9)
    made = lab.book(alice, lab.gpus[:1], at(9, day=4), 3)
    flex.refresh_from_db()
    assert flex.state == State.DISPLACED
    assert undo_until(made) is None
    with pytest.raises(errors.CannotUndoBooking, match="took over"):
        undo(made, alice)


@pytest.mark.once
def test_a_token_comes_back(lab, alice) -> None:
    membership = alice.memberships.get()
    failed = lab.book(alice, lab.gpus[3:], at(9, day=4), 1)
    token = Voucher.objects.create(
        membership=membership,
        given_for=failed,
        reason="lost GPU",
        given_at=NOW,
        expires_at=NOW + timedelta(days=90),
    )
    start = NOW + timedelta(days=20)
    made = book(
        user=alice,
        membership=membership,
        gpu_ids=[lab.gpus[0].pk],
        start=start,
        end=start + timedelta(hours=2),
        now=NOW,
        voucher_id=token.pk,
    )
    token.refresh_from_db()
    assert token.used_for_id == made.pk
    undo(made, alice)
    token.refresh_from_db()
    assert token.used_for_id is None
