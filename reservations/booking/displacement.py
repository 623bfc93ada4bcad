"""Carry a displacement out: rows, refund, Notices.

See docs/design/fair-booking.md#rule-1, #rule-2 and #rule-4.

Call it inside the transaction and the locks of the booking. See ``store.locks``.
"""

from datetime import datetime

from reservations.booking.requeue import requeue_displaced
from reservations.models import Allocation, Notice, Reservation
from reservations.notifications import live
from reservations.notifications import service as notices
from reservations.notifications.text.displacement_text import displaced_detail
from reservations.rules.errors import GpuTaken
from reservations.rules.fairness.preemption import Displaced
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from reservations.store import ledger
from telemetry.protocol.sentences import sentence


def displace(
    one: Displaced, made: Reservation, *, kind: Kind, now: datetime, policy: Policy
) -> None:
    """Take a displaced Reservation off the calendar, refund and notify its holder.

    Raises:
        GpuTaken: it has moved since it was read. The caller must roll back.
    """
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
