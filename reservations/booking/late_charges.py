"""Charge hours that were returned too late, once they have passed.

See docs/design/fair-booking.md#rule-6.

Only the part that no other person then held is charged. This is a step of the tick:
each Reservation's late hours in one transaction, under its lock.
"""

from datetime import datetime

from django.db.models import Max

from reservations.models import Allocation, LateReturn, LedgerEntry, Reservation
from reservations.rules.charges import unheld
from reservations.rules.fairness.quota import PERMILLE
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.rules.window import Window, without
from reservations.store import ledger, locks
from telemetry.protocol.sentences import sentence

MOST_ROWS = 500
"""Reservations per step. The next tick handles the next ones."""


def due(now: datetime) -> list[int]:
    """Return Reservations whose late hours have all passed."""
    rows = (
        LateReturn.objects.filter(charged_at=None)
        .order_by()
        .values("reservation_id")
        .annotate(last=Max("end"))
        .filter(last__lte=now)
    )
    return sorted(row["reservation_id"] for row in rows)[:MOST_ROWS]


def charge(pk: int, now: datetime, policy: Policy) -> bool:
    """Charge the parts that no other person then held. The rest costs nothing."""
    row = locks.load_reservation(pk, lock=True)
    owed = list(row.late_returns.filter(charged_at=None))
    if not owed or any(part.end > now for part in owed):
        return False
    # The time at which they passed, not the time of a late tick: it decides how much
    # the charge weighs in fair share.
    passed = max(part.end for part in owed)
    owes = 0
    kept: list[LateReturn] = []
    for part in owed:
        whole = Window(part.start, part.end)
        pieces = unheld(whole, taken=_held_by_others(part, row))
        owes += sum(piece.seconds for piece in pieces) * part.weight * part.permille
        kept += [ledger.late_piece(part, piece, charged_at=passed) for piece in pieces]
    row.late_returns.filter(charged_at=None).delete()
    LateReturn.objects.bulk_create(kept)
    # Rounded down once for all parts, so that cutting costs the same
    # (docs/design/fair-booking.md#i8).
    amount = owes // PERMILLE
    if amount:
        LedgerEntry.objects.create(
            membership_id=row.membership_id,
            reservation=row,
            kind=ledger.CHARGE,
            gpu_seconds=amount,
            at=passed,
            reason=sentence("given back too late for others"),
        )
    ledger.audit("late-return-charged", row, actor=None, now=now, gpu_seconds=amount)
    return True


def _held_by_others(part: LateReturn, row: Reservation) -> list[Window]:
    """Return when other Users held the Gpu in those hours.

    Time that displaced a booking counts as held only if the displaced owner holds it
    again. Otherwise a person could displace it at no cost, and a friend could book it.
    """
    displaced = [
        (Window(start, end), owner)
        for start, end, owner in Allocation.objects.filter(
            reservation__displaced_by=row, gpu_id=part.gpu_id
        ).values_list("start", "end", "reservation__user_id")
        if start < end
    ]
    rows = (
        Allocation.objects.filter(
            gpu_id=part.gpu_id, start__lt=part.end, end__gt=part.start
        )
        .exclude(reservation__user_id=row.user_id)
        .values_list("start", "end", "reservation__state", "reservation__user_id")
    )
    holding = State.holding()
    return [
        piece
        for start, end, state, user in rows
        if start < end and state in holding
        for piece in without(
            Window(start, end), [gone for gone, owner in displaced if owner != user]
        )
    ]
