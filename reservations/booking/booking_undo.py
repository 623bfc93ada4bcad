"""Undo a new booking at once, at no cost."""

from datetime import datetime, timedelta

from django.db import transaction

from reservations.booking.partial_release import GATES
from reservations.booking.release import UNDO_SLACK_SECONDS
from reservations.booking.service import UNDO_SECONDS
from reservations.models import Allocation, Reservation, User, Voucher
from reservations.notifications import live
from reservations.rules.errors import CannotUndoBooking, NotAllowed
from reservations.rules.fairness.early_returns import SLIPS_A_DAY
from reservations.rules.lifecycle import State
from reservations.rules.window import whole_second
from reservations.store import ledger, locks
from reservations.store.booking_facts import site_policy
from telemetry.protocol.sentences import sentence


def undo_booking(*, reservation_id: int, user: User, now: datetime) -> Reservation:
    """Cancel a booking within ten seconds, as if it had never been made.

    It may have begun. Nothing is charged, also for hours within the next day, and a
    Voucher that was spent on it comes back. It must not have been used or changed, and
    no Job may be on its Gpus. It must not have displaced a flex Reservation, whose
    owner has been notified already. A Reservation from an offer does not count as
    booked now. The number of new bookings that a User cancels or undoes in a day is
    limited
    (``rules.fairness.early_returns.SLIPS_A_DAY``).

    Raises:
        CannotUndoBooking: one of these does not hold.
        Refusal: a Job is on its Gpus.
        NotAllowed: another User made it. NotFound.
    """
    at = whole_second(now)
    with transaction.atomic(durable=True):
        row = locks.load_reservation(reservation_id, lock=True)
        if row.user_id != user.pk:
            raise NotAllowed(act=sentence("undo someone else's booking"))
        _check(row, now=at)
        allocations = list(row.allocations.order_by("gpu_id"))
        for gate in GATES:
            gate(row, frozenset(allocation.gpu_id for allocation in allocations))
        Reservation.objects.move(row.pk, old=State(row.state), new=State.CANCELLED)
        Allocation.objects.filter(reservation=row).update(live=False)
        ledger.release_hold(row, now=at, reason=sentence("booking undone"))
        # It is valid as long as before.
        if Voucher.objects.filter(used_for=row).update(used_for=None):
            ledger.audit("token-back", row, actor=None, now=at)
        ledger.audit("booking-undone", row, actor=user, now=at)
        row.refresh_from_db()
        live.publish_reservation(
            row,
            gpu_ids=[allocation.gpu_id for allocation in allocations],
            policy=site_policy(),
            gone=True,
        )
    return row


def _check(row: Reservation, *, now: datetime) -> None:
    """Refuse an undo that is too late, or at the cost of others."""
    last = row.created_at + timedelta(seconds=UNDO_SECONDS + UNDO_SLACK_SECONDS)
    why = ""
    if row.state not in State.live():
        why = sentence("it is {state} already", state=row.state)
    elif now > last:
        why = sentence("the {seconds} s for it are over", seconds=UNDO_SECONDS)
    elif row.checked_in_at is not None:
        why = sentence("it is in use")
    elif Reservation.objects.filter(displaced_by=row).exists():
        why = sentence("it took over a flex booking, whose owner has been notified")
    elif row.late_returns.exists():
        why = sentence("it was changed since")
    elif ledger.was_handed_over(row):
        why = sentence("you got it by an offer")
    elif ledger.cancelled_today(row.user, now) >= SLIPS_A_DAY:
        why = sentence(
            "you cancelled or undid {most} new bookings in the last 24 h",
            most=SLIPS_A_DAY,
        )
    if why:
        raise CannotUndoBooking(why=why)
