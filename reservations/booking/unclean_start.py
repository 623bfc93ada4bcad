"""A Gpu that another person uses at the start is the site's failure.

See docs/design/fair-booking.md#rule-7.

An intruder's process was on it when the Window began, and stays. The holder gets an
equal Gpu of the same Node that is free over the whole Window, otherwise a full refund
and a Voucher. After the holder's check-in this rule no longer applies. An intruder who
overran the end of their own booking pays for that time (``overrun_charge``).
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet

from reservations.booking import overrun_charge
from reservations.booking.overstay import clear_gaps
from reservations.models import Allocation, Closure, Reservation
from reservations.notifications import holder_notices
from reservations.rules.booking_alerts import INTRUDER, OVERRUN
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.store import ledger, locks
from telemetry.models import Alert, Gpu
from telemetry.protocol.sentences import sentence

WAIT_SECONDS = 120
"""Time for a process that overran to end, before the start counts as failed."""
FOREIGN_RULES = (INTRUDER, OVERRUN)
REASON = sentence("the GPU was still in use by someone else")

Refund = Callable[..., bool]


def due(now: datetime, policy: Policy) -> list[int]:
    """Return running Reservations without check-in, with a stranger from the start."""
    begun = now - timedelta(seconds=WAIT_SECONDS)
    rows = Reservation.objects.filter(
        state=State.ACTIVE,
        checked_in_at=None,
        start__lte=begun,
        start__gt=now - timedelta(seconds=max(policy.no_show_seconds, 600)),
        end__gt=now,
        allocations__gpu__alerts__rule__in=FOREIGN_RULES,
        allocations__gpu__alerts__closed_at=None,
    )
    return sorted(set(rows.values_list("pk", flat=True)))


def reassign_or_refund(
    pk: int, now: datetime, policy: Policy, *, refund: Refund
) -> bool:
    """Give equal Gpus for those in use, or a full refund."""
    row = locks.load_reservation(pk, lock=True)
    if row.state != State.ACTIVE or row.checked_in_at is not None or row.end <= now:
        return False
    dirty = [
        allocation
        for allocation in row.allocations.select_related("gpu").order_by("gpu_id")
        if _stranger_since_start(allocation.gpu, row)
    ]
    if not dirty:
        return False
    moved: dict[str, str] = {}
    for allocation in dirty:
        old, new = allocation.gpu, _equal(allocation, row)
        if new is None or not _move_allocation(allocation, new, now):
            paid = [a for a in dirty if overrun_charge.charge(a, row, now=now)]
            refund(row, now=now, reason=REASON, policy=policy, never_had=paid)
            return True
        moved[str(old)] = str(new)
    for allocation in dirty:
        # With the previous Gpu, which was read before the move.
        overrun_charge.charge(allocation, row, now=now)
    Reservation.objects.filter(pk=pk).update(version=row.version + 1)
    ledger.audit("moved", row, actor=None, now=now, reason=REASON, gpus=moved)
    holder_notices.moved(row, moved, reason=REASON, now=now)
    return True


def _stranger_since_start(gpu: Gpu, row: Reservation) -> bool:
    limit = row.start + timedelta(seconds=WAIT_SECONDS)
    return Alert.objects.filter(
        gpu=gpu, rule__in=FOREIGN_RULES, closed_at=None, opened_at__lte=limit
    ).exists()


def _equal(allocation: Allocation, row: Reservation) -> Gpu | None:
    """Return a free and unused Gpu of the same Node and Pool. It is locked."""
    taken = Q(
        allocations__live=True,
        allocations__reservation__booked_end__gt=F("allocations__reservation__start"),
        allocations__start__lt=allocation.end,
        allocations__end__gt=allocation.start,
    )
    busy = Gpu.objects.filter(taken).values("pk")
    closed = _closed_gpus(allocation.start, allocation.end)
    rows = (
        Gpu.objects.bookable()
        .filter(node_id=allocation.gpu.node_id, pool_id=allocation.gpu.pool_id)
        .exclude(pk__in=busy)
        .exclude(pk__in=closed)
        .exclude(pk__in=Alert.objects.open().exclude(gpu=None).values("gpu_id"))
        .order_by("pk")
    )
    return rows.select_for_update(no_key=True, of=("self",)).first()


def _move_allocation(allocation: Allocation, gpu: Gpu, now: datetime) -> bool:
    """Move an Allocation to another Gpu. False: another booking was first."""
    try:
        with transaction.atomic():
            clear_gaps([gpu.pk], now, now=now)
            return (
                Allocation.objects.filter(pk=allocation.pk, live=True).update(gpu=gpu)
                == 1
            )
    except IntegrityError:
        return False


def _closed_gpus(start: datetime, end: datetime) -> QuerySet[Gpu]:
    """Return the Gpus that a closure covers in [start, end), teaching included."""
    standing = Closure.objects.standing(start, end)
    everything = Q() if standing.filter(scope="site").exists() else Q(pk__in=[])
    return Gpu.objects.filter(
        everything
        | Q(closures__in=standing)
        | Q(node__closures__in=standing)
        | Q(pool__closures__in=standing)
    )
