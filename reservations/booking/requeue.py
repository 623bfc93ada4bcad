"""Put a displaced Reservation back on the waitlist.

See docs/design/fair-booking.md#rule-4.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from reservations.models import Allocation, Reservation, WaitingRequest
from reservations.rules.policy import Policy
from reservations.rules.window import WEEK_SECONDS, unix
from reservations.store import attached_jobs
from reservations.store.audit_log import audit_act

WAITING, PLACED, *_ = WaitingRequest.State
AGAIN_SECONDS = WEEK_SECONDS
"""How much later than the original start an equal time may be."""


def requeue_displaced(
    row: Reservation,
    allocations: Sequence[Allocation],
    *,
    by_rank: bool,
    now: datetime,
    policy: Policy,
) -> WaitingRequest:
    """Queue it again with the original time of request, in the caller's transaction.

    A Reservation from the waitlist waits with its original request. A booked one waits
    for the same number of equal or better Gpus, for the same length, within a week of
    its time.

    Args:
        allocations: with their Gpus.
        by_rank: it lost by rank (docs/design/fair-booking.md#rule-2). From now on it
            takes only free time, so that displacements end (``waitlist.rules``).
    """
    before = WaitingRequest.objects.filter(reservation=row, state=PLACED).first()
    if before is None:
        again = _asked_like(row, allocations, by_rank=by_rank, policy=policy)
    else:
        again = before
        again.state = WAITING
        again.reservation = None
        again.placed_at = again.expected_start = again.expected_end = None
        again.expected_gpu_ids = []
        again.planned = False
        again.may_take = again.may_take and not by_rank
        again.version += 1
    again.displaced_from = row
    again.save()
    if again.has_job != (has_job := attached_jobs.transfer_jobs(row, again)):
        again.has_job = has_job
        again.save(update_fields=["has_job"])
    audit_act(
        verb="waiting.again",
        subject=f"waiting:{again.pk}",
        actor=None,
        now=now,
        displaced=row.pk,
        by_rank=by_rank,
    )
    return again


def _asked_like(
    row: Reservation,
    allocations: Sequence[Allocation],
    *,
    by_rank: bool,
    policy: Policy,
) -> WaitingRequest:
    gpus = [allocation.gpu for allocation in allocations]
    classes = {gpu.pool.gpu_class for gpu in gpus}
    seconds = min(unix(row.end) - unix(row.start), policy.longest_seconds)
    return WaitingRequest(
        user=row.user,
        membership=row.membership,
        count=len(gpus),
        gpu_class=classes.pop() if len(classes) == 1 else "",
        min_memory_bytes=min(gpu.memory_total_bytes for gpu in gpus),
        duration_seconds=seconds,
        earliest=row.start,
        latest=row.start + timedelta(seconds=AGAIN_SECONDS + seconds),
        purpose=row.purpose,
        created_at=row.created_at,
        may_take=not by_rank,
    )
