"""Carry a displacement out: rows, refund, Notices.

See docs/design/fair-booking.md#rule-1, #rule-2 and #rule-4.

Called inside the transaction and the locks of the booking. Order of locks:
``store/locking``; the flex in the way and the Reservation that is changed are
locked together, in pk order, so that two displacements cannot deadlock.
"""

from collections.abc import Sequence
from datetime import datetime

from django.db import connection
from django.db.models import F, Q

from reservations.booking.requeue import requeue_displaced
from reservations.models import Allocation, Notice, Reservation
from reservations.notifications import live
from reservations.notifications import service as notices
from reservations.notifications.text.notice_text import displaced_detail
from reservations.rules.calendar import CalendarGpu
from reservations.rules.decision import Decision
from reservations.rules.errors import GpuTaken
from reservations.rules.fairness.preemption import Displaced
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from reservations.store import ledger
from telemetry.protocol.sentences import sentence


def lock_flex(
    gpus: Sequence[CalendarGpu],
    start: datetime,
    end: datetime,
    *,
    also: int | None = None,
) -> None:
    """Lock the preemptible rows on these Gpus, and ``also``, in pk order.

    These are flex that has not begun, and overstays past their end.
    """
    if not connection.features.has_select_for_update:
        return
    rows = Allocation.objects.filter(
        gpu_id__in=[gpu.pk for gpu in gpus],
        live=True,
        start__lt=end,
        end__gt=start,
    ).filter(
        Q(reservation__kind=Kind.FLEX, reservation__state=State.CONFIRMED)
        | Q(
            reservation__state=State.ACTIVE,
            reservation__booked_end__lt=F("reservation__end"),
        )
    )
    pks = set(rows.order_by().values_list("reservation_id", flat=True))
    pks |= {also} if also is not None else set()
    if pks:
        held = Reservation.objects.filter(pk__in=pks).order_by("pk")
        list(held.select_for_update(no_key=True, of=("self",)).values_list("pk"))


def displace(
    decision: Decision, made: Reservation, *, now: datetime, policy: Policy
) -> None:
    """Take the displaced Reservations off the calendar, refund and notify them.

    Raises:
        GpuTaken: one of them has moved since it was read. The caller must roll back.
    """
    if decision.kind is None:
        raise ValueError("a refused request displaces nobody")
    for one in decision.displaced:
        _displace(one, made, kind=decision.kind, now=now, policy=policy)


def _displace(
    one: Displaced, made: Reservation, *, kind: Kind, now: datetime, policy: Policy
) -> None:
    pk = one.flex.reservation_pk
    row = Reservation.objects.select_related("user", "membership__account").get(pk=pk)
    allocations = list(
        row.allocations.select_related("gpu__node", "gpu__pool").order_by("gpu_id")
    )
    moved = Reservation.objects.move(
        pk, old=State.CONFIRMED, new=State.DISPLACED, ended_at=now, displaced_by=made
    )
    if not moved:
        first = allocations[0].gpu
        raise GpuTaken(gpu=str(first), start=row.start, end=row.end)
    Allocation.objects.filter(reservation_id=pk).update(live=False)
    ledger.release_hold(
        row, now=now, reason=sentence("displaced by #{number}", number=made.pk)
    )
    detail = displaced_detail(one, kind=kind, by=made.pk)
    ledger.audit("displaced", row, actor=None, now=now, **detail)
    notices.notify(
        user=row.user,
        kind=Notice.Kind.DISPLACED,
        reservation=row,
        detail=detail,
        now=now,
    )
    by_rank = kind is Kind.FLEX
    requeue_displaced(row, allocations, by_rank=by_rank, now=now, policy=policy)
    row.refresh_from_db(fields=["state", "version", "ended_at"])
    gpu_ids = [allocation.gpu_id for allocation in allocations]
    live.publish_reservation(row, gpu_ids=gpu_ids, policy=policy, gone=True)
