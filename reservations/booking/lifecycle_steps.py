"""Steps that move one Reservation: begin it, refund lost GPUs, end it.

Each step locks one row and moves it by compare-and-set, in the caller's transaction.
"""

from datetime import datetime, timedelta

from django.db.models import Q

from reservations.booking import overstay, unclean_start
from reservations.booking.refunds import publish, refund
from reservations.models import Allocation, Reservation
from reservations.notifications import holder_notices
from reservations.rules.charges import settlement_of
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.rules.window import Window
from reservations.store import ledger, locks
from reservations.store.ledger import rate_of
from telemetry.protocol.sentences import sentence

MOST_ROWS = 500
"""Rows per step. The next tick handles the next ones."""


# --- begin ---


def due_to_start(now: datetime) -> list[int]:
    """Return the confirmed Reservations whose start has passed."""
    rows = Reservation.objects.due_to_start(now).order_by("start", "pk")
    return list(rows.values_list("pk", flat=True)[:MOST_ROWS])


def start(pk: int, now: datetime, policy: Policy) -> bool:
    """Make it active. False: it is no longer due."""
    row = locks.load_reservation(pk, lock=True)
    if row.state != State.CONFIRMED or not row.start <= now < row.end:
        return False
    Reservation.objects.move(pk, old=State.CONFIRMED, new=State.ACTIVE)
    ledger.audit("started", row, actor=None, now=now)
    holder_notices.started(row, now=now, policy=policy)
    publish(row, policy)
    return True


# --- lost Gpus ---


def with_lost_gpus(now: datetime) -> list[int]:
    """Return running Reservations that have, or had until now, a lost Gpu."""
    running = Reservation.objects.active().filter(end__gt=now)
    gone = Q(allocations__gpu__lost=True) | Q(allocations__gpu__present=False)
    found = running.filter(gone | Q(lost_since__isnull=False))
    return sorted(set(found.order_by().values_list("pk", flat=True)))[:MOST_ROWS]


def watch_lost(pk: int, now: datetime, policy: Policy) -> bool:
    """Record since when a Gpu is lost. Refund if it stays lost."""
    row = locks.load_reservation(pk, lock=True)
    if row.state != State.ACTIVE or row.end <= now:
        return False
    gpus = [a.gpu for a in row.allocations.select_related("gpu")]
    lost = any(gpu.lost or not gpu.present for gpu in gpus)
    if not lost:
        row.lost_since = None
        row.save(update_fields=["lost_since"])
        return False
    if row.lost_since is None:
        row.lost_since = now
        row.save(update_fields=["lost_since"])
    if now - row.lost_since < timedelta(seconds=policy.lost_seconds):
        return False
    if row.end > row.booked_end and row.lost_since >= row.booked_end:
        # Its booked time is over: an overstay ends when the Gpu is lost.
        overstay.set_end(row, row.lost_since, now=now, why=sentence("a GPU was lost"))
        return True
    refund(row, now=now, reason=sentence("a GPU was lost"), policy=policy)
    return True


# --- end ---


def due_to_end(now: datetime) -> list[int]:
    """Return the live Reservations whose end has passed."""
    rows = Reservation.objects.due_to_end(now).order_by("end", "pk")
    return list(rows.values_list("pk", flat=True)[:MOST_ROWS])


def end(pk: int, now: datetime, policy: Policy) -> bool:
    """End it with RELEASE and CHARGE. Refund it if it was never started."""
    row = locks.load_reservation(pk, lock=True)
    if row.state not in State.live() or row.end > now:
        return False
    if row.state == State.CONFIRMED:
        # It was never started, because the portal was down. Nobody pays for that.
        refund(row, now=now, reason=sentence("the portal was down"), policy=policy)
        return True
    used = Window(row.start, row.end) if row.end > row.start else None
    lost = None
    if row.lost_since is not None and row.lost_since < row.end:
        lost = Window(max(row.lost_since, row.start), row.end)
    settlement = settlement_of(
        ledger.held_gpu_seconds(row), used=used, rate=rate_of(row), lost=lost
    )
    Reservation.objects.move(pk, old=State.ACTIVE, new=State.ENDED, ended_at=row.end)
    Allocation.objects.filter(reservation=row).update(live=False)
    ledger.settle(row, settlement, at=row.end, reason=sentence("ended"))
    ledger.ask_summary(row, now=now)
    ledger.audit("ended", row, actor=None, now=now)
    publish(row, policy)
    return True


# --- GPUs in use by others at the start ---


def mend_unclean(pk: int, now: datetime, policy: Policy) -> bool:
    """Give equal GPUs, or a full refund, if a GPU was in use at the start."""
    if not unclean_start.reassign_or_refund(pk, now, policy, refund=refund):
        return False
    row = locks.load_reservation(pk)
    publish(row, policy, gone=row.state == State.REFUNDED)
    return True
