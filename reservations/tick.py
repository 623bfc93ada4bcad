"""The calendar's tick: small numbered steps, safe to run twice and concurrently.

1. Begin what is due: CONFIRMED -> ACTIVE. Give time past the end to holders who asked
   for it, where the Gpus are free (``booking.overstay``).
2. Note since when a Gpu is lost. Refund Reservations whose Gpu stays lost.
3. Check in holders whose processes run. Release what nobody came for
   (``presence.service``).
4. Warn about idle Reservations and release them, if the site's policy says so.
5. End what is over: RELEASE and CHARGE.
6. Where another person's process was on a Gpu at the start, assign equal Gpus or refund
   everything (``booking.unclean_start``).
7. Charge hours that were returned too late, once they have passed
   (``booking.late_charges``).
8. Clear closed Gpus of Reservations made since (``closures.due``). Take replaced Gpus
   out of service once nothing is booked on them (``gpu_replacement.due``).
9. Notify about courses and guests that end soon, and end those that are due
   (``accounts.courses``).
10. Place waiting requests in order; offer and plan for the others
    (``waitlist.scheduler``). In production this is a task of its own, because one look
    may take seconds.
11. Roll up what each Account's Gpus did, once an hour is over.
12. Notify holders whose time is over soon (``holder_notices.ending``).
13. Close Offers whose time is over. Book the days of a Series as they come into the
    horizon, after the waitlist (``offers.expire``, ``series.service``).

Every move is one compare-and-set on one locked row. A second worker in the same step
finds nothing to do, and a worker that dies leaves nothing half done. A row that fails
is logged and skipped. The order matters: a holder who came in the last minute is
checked in before the end. Rows carry the instant that they follow from, not the tick's.
A tick that is hours late therefore writes what many ticks would have written. Only what
began and ended while the portal was down is refunded.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from django.db import DatabaseError, transaction
from django.db.models import Q

from reservations.accounts import courses
from reservations.booking import late_charges, overstay, unclean_start
from reservations.booking.refunds import publish, refund
from reservations.models import Allocation, Reservation
from reservations.notifications import holder_notices
from reservations.operations import closures, gpu_replacement
from reservations.presence import service as absence
from reservations.rules.charges import settlement_of
from reservations.rules.errors import BookingError
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.rules.window import Window, whole_second
from reservations.series import service as series
from reservations.sharing import offers
from reservations.store import ledger, locks
from reservations.store.booking_snapshot import site_policy
from reservations.store.gpu_history import held_in_hour
from reservations.store.ledger import rate_of
from reservations.waitlist import scheduler
from telemetry.history.hourly_rollup import roll_account_hours
from telemetry.protocol.sentences import sentence

MOST_ROWS = 500
"""Rows a step takes at most; the next tick takes the next ones."""
log = logging.getLogger(__name__)


def tick(now: datetime, *, waitlist: bool = True) -> dict[str, int]:
    """Run every step; how many rows each one moved.

    Args:
        waitlist: step 10 too; the live portal runs it as a task of its own.
    """
    at = whole_second(now)
    policy = site_policy()
    done = {
        "started": _each(due_to_start(at), _start, at, policy),
        "stayed_on": _each(overstay.due(at), overstay.extend_past_end, at, policy),
        "lost": _each(with_lost_gpus(at), _watch_lost, at, policy),
    }
    done |= absence.check(at, policy)
    done["ended"] = _each(due_to_end(at), _end, at, policy)
    done["unclean"] = _each(unclean_start.due(at, policy), _mend, at, policy)
    done["charged_late"] = _each(late_charges.due(at), late_charges.charge, at, policy)
    done |= closures.due(at, policy)
    done |= gpu_replacement.due(at, policy)
    done |= courses.end_due(at, policy)
    if waitlist:
        done |= scheduler.place(at, policy)
    done["hours_rolled"] = _roll_hours(at)
    done |= holder_notices.ending(at, policy)
    done |= offers.expire(at, policy)
    done |= series.extend(at, policy)
    return done


def _each(
    pks: Iterable[int],
    step: Callable[[int, datetime, Policy], bool],
    now: datetime,
    policy: Policy,
) -> int:
    """Run a step for each row in a transaction of its own."""
    moved = 0
    for pk in pks:
        try:
            with transaction.atomic(durable=True):
                moved += step(pk, now, policy)
        except (BookingError, DatabaseError, ArithmeticError, LookupError, ValueError):
            log.exception("reservation %s: %s failed", pk, step.__name__)
    return moved


# --- 1. begin -------------------------------------------------------------------


def due_to_start(now: datetime) -> list[int]:
    """Return what is booked and has begun."""
    rows = Reservation.objects.due_to_start(now).order_by("start", "pk")
    return list(rows.values_list("pk", flat=True)[:MOST_ROWS])


def _start(pk: int, now: datetime, policy: Policy) -> bool:
    row = locks.load_reservation(pk, lock=True)
    if row.state != State.CONFIRMED or not row.start <= now < row.end:
        return False
    Reservation.objects.move(pk, old=State.CONFIRMED, new=State.ACTIVE)
    ledger.audit("started", row, actor=None, now=now)
    holder_notices.started(row, now=now, policy=policy)
    publish(row, policy)
    return True


# --- 2. lost Gpus ----------------------------------------------------------------


def with_lost_gpus(now: datetime) -> list[int]:
    """Return what runs on a lost Gpu, or did until now."""
    running = Reservation.objects.active().filter(end__gt=now)
    gone = Q(allocations__gpu__lost=True) | Q(allocations__gpu__present=False)
    found = running.filter(gone | Q(lost_since__isnull=False))
    return sorted(set(found.order_by().values_list("pk", flat=True)))[:MOST_ROWS]


def _watch_lost(pk: int, now: datetime, policy: Policy) -> bool:
    """Note since when a Gpu is lost; refund when it stays lost."""
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
        # Its booked time was had: staying on ends where the Gpu went.
        overstay.set_end(row, row.lost_since, now=now, why=sentence("a GPU was lost"))
        return True
    refund(row, now=now, reason=sentence("a GPU was lost"), policy=policy)
    return True


# --- 5. end ------------------------------------------------------------------------


def due_to_end(now: datetime) -> list[int]:
    """Return what is over but still live."""
    rows = Reservation.objects.due_to_end(now).order_by("end", "pk")
    return list(rows.values_list("pk", flat=True)[:MOST_ROWS])


def _end(pk: int, now: datetime, policy: Policy) -> bool:
    row = locks.load_reservation(pk, lock=True)
    if row.state not in State.live() or row.end > now:
        return False
    if row.state == State.CONFIRMED:
        # Nothing ever began it: the portal was down, which nobody pays for.
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


# --- 6. not clean at the start ------------------------------------------------------


def _mend(pk: int, now: datetime, policy: Policy) -> bool:
    if not unclean_start.reassign_or_refund(pk, now, policy, refund=refund):
        return False
    row = locks.load_reservation(pk)
    publish(row, policy, gone=row.state == State.REFUNDED)
    return True


# --- 8. the Accounts' hours -----------------------------------------------------------


def _roll_hours(now: datetime) -> int:
    try:
        return roll_account_hours(now=now, held=held_in_hour)
    except DatabaseError:
        log.exception("the Accounts' hours are not rolled up")
        return 0
