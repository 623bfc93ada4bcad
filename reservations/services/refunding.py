"""Everything back: what the site did is never the holder's loss (POLICY.md rule 7).

Inside the transaction and under the lock of whoever calls.
"""

from datetime import datetime

from reservations import live
from reservations.domain.ledger import Settlement, cost_gpu_seconds
from reservations.domain.lifecycle import State
from reservations.domain.policy import Policy
from reservations.domain.window import Window
from reservations.models import Allocation, Reservation, Token
from reservations.services import books
from reservations.services.giving import rate_of


def refund(row: Reservation, *, now: datetime, reason: str, policy: Policy) -> bool:
    """Give everything back; the time that was held is the site's.

    Returns:
        False: another worker moved the row first, and nothing is written.
    """
    over = min(max(now, row.start), row.end)
    held = books.held_gpu_seconds(row)
    used = Window(row.start, over) if over > row.start else None
    site = cost_gpu_seconds(used, rate=rate_of(row)) if used else 0
    moved = Reservation.objects.move(
        row.pk,
        old=State(row.state),
        new=State.REFUNDED,
        end=over,
        ended_at=now,
        cost_gpu_seconds=site,
    )
    if not moved:
        return False
    Allocation.objects.filter(reservation=row).update(live=False, end=over)
    books.settle(row, Settlement(-held, 0, site), at=now, reason=f"refunded: {reason}")
    books.ask_summary(row, now=now)
    books.audit("refunded", row, actor=None, now=now, reason=reason)
    publish(row, policy, gone=True)
    return True


def give_token(row: Reservation, *, now: datetime, reason: str) -> bool:
    """Owe the Membership one firm booking; False: this Reservation gave one before."""
    _token, made = Token.objects.get_or_create(
        given_for=row,
        defaults={
            "membership_id": row.membership_id,
            "reason": reason[:200],
            "given_at": now,
        },
    )
    return made


def publish(row: Reservation, policy: Policy, *, gone: bool = False) -> None:
    """Read a row again and tell everybody about it once it is committed."""
    row.refresh_from_db()
    gpu_ids = list(row.allocations.values_list("gpu_id", flat=True))
    live.publish_reservation(row, gpu_ids=gpu_ids, policy=policy, gone=gone)
