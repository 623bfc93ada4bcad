"""Give free gaps to waiting Jobs, in fair order.

The waitlist comes first: while it has not yet seen the latest change, no gap is given.
A run is bounded in rows and gaps, and happens at most every ``LOOK_SECONDS``. Each gap
has its own transaction and is judged again under the locks of
``reservations.booking.gap_booking``.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from placement.jobs.backfill_transitions import move_gap_job
from placement.jobs.job_notices import notify_owner
from placement.jobs.nodes import checkpoint_relay
from placement.jobs.service import launch_in
from placement.models import USES_GPUS, Backfill, Job
from placement.rules.backfill_rules import (
    Gap,
    GapJobOver,
    GapRequest,
    GapRequirements,
    GapState,
    best_gap,
    in_order,
    leave_seconds,
    needed_seconds,
    remaining_seconds,
    why_waits,
)
from reservations.booking import gap_booking
from reservations.models import SitePolicy
from reservations.rules.calendar import Calendar, SlotSearch, SlotWish, first_slots
from reservations.rules.errors import NotAllowed
from reservations.rules.gaps import OpenGpu
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.store import locks
from reservations.store.booking_facts import site_policy
from reservations.store.free_gaps import HEARD_SECONDS, open_calendar, open_gpus
from reservations.store.gpu_rows import barred_pools, calendar_gpus
from reservations.store.locks import wait_for_turn
from reservations.store.usage import rank_with, usage_by_membership
from telemetry.models import Gpu
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import RowSteps

LOOK_SECONDS = 5.0
LIKELY_SECONDS = 60.0
"""How often the time of the next gap is computed."""
LIKELY_DAYS = 3
GRID_SECONDS = 60
MOST_ROWS = 200
MOST_TAKEN = 20
TOLD_AFTER = timedelta(minutes=5)
REASON_LENGTH = 400
log = logging.getLogger(__name__)
each_gap_job = RowSteps(log, "job in gaps")


@dataclass
class GapSnapshot:
    """The facts for one run, read once for all Jobs."""

    now: datetime
    policy: Policy
    grace_seconds: float
    free: list[OpenGpu]
    _ahead: Calendar | None = field(default=None)
    _uuids: dict[int, str] = field(default_factory=dict)

    def remove_gap(self, gap: Gap) -> None:
        """Record that Gpus are taken now."""
        self.free = [one for one in self.free if one.gpu.pk not in gap.gpu_ids]

    def ahead(self) -> tuple[Calendar, dict[int, str]]:
        """Return the calendar of the next days, and the Gpus' UUIDs."""
        if self._ahead is None:
            rows = Gpu.objects.bookable().order_by("pk")
            until = self.now + timedelta(days=LIKELY_DAYS)
            self._uuids = dict(rows.values_list("pk", "uuid"))
            self._ahead = open_calendar(calendar_gpus(rows), self.now, until)
        return self._ahead, self._uuids


def take_all(now: datetime) -> int:
    """Give free gaps to waiting Jobs in order. Return the number of gaps given."""
    waiting = Backfill.objects.filter(state=GapState.QUEUED)
    stale = Q(looked_at=None) | Q(looked_at__lte=now - timedelta(seconds=LOOK_SECONDS))
    if not waiting.filter(stale).exists():
        return 0
    rows = {
        row.pk: row
        for row in waiting.select_related(
            "owner", "membership__user", "membership__account__parent"
        ).order_by("created_at", "pk")[:MOST_ROWS]
    }
    Backfill.objects.filter(pk__in=rows).update(looked_at=now)
    if not gap_booking.waitlist_rests():
        _store_reason(
            rows.values(),
            sentence("waits until the waitlist has been checked"),
        )
        return 0
    policy = site_policy()
    look = GapSnapshot(
        now,
        policy,
        float(SitePolicy.current().stop_grace_seconds),
        _not_in_use(open_gpus(now, policy)),
    )
    taken = 0
    for pk in in_order(_standings(rows.values()), _ranks(now, policy)):
        if taken >= MOST_TAKEN:
            break
        taken += each_gap_job([rows[pk]], lambda row, _now: _serve(row, look), now)
    return taken


def _standings(rows: Iterable[Backfill]) -> list[GapRequest]:
    return [GapRequest(row.pk, row.membership_id, row.created_at) for row in rows]


def _ranks(now: datetime, policy: Policy) -> dict[int, int]:
    ranking = rank_with(usage_by_membership(now, policy), now, policy)
    if ranking is None:
        return {}
    return {pk: rank.rank for pk, rank in ranking.ranks.items()}


def _not_in_use(free: Sequence[OpenGpu]) -> list[OpenGpu]:
    """Leave out Gpus that a Job has not left yet."""
    rows = Job.objects.filter(USES_GPUS, state__in=Job.State.on_node())
    busy: set[int] = set()
    for job in rows.prefetch_related("reservation__allocations"):
        held = [a.gpu_id for a in job.reservation.allocations.all()]
        busy.update(job.gpu_ids or held)
    return [one for one in free if one.gpu.pk not in busy]


def _serve(row: Backfill, look: GapSnapshot) -> bool:
    """Give one row its gap, or store why it waits."""
    left = remaining_seconds(row.total_seconds, row.used_seconds)
    before = last_begun(row)
    wants = GapRequirements(
        count=row.gpu_count,
        shortest_seconds=needed_seconds(row.shortest_seconds, look.grace_seconds, left),
        min_memory_bytes=row.min_memory_bytes,
        gpu_class=row.gpu_class,
        uuids=frozenset(row.gpu_uuids),
        node=before.node.name if before is not None else "",
    )
    try:
        gap = _gap_for(row, wants, look)
        if gap is None and _may_travel(before, look.now):
            wants = replace(wants, node="")
            gap = _gap_for(row, wants, look)
        if gap is not None:
            most = None if left is None else left + leave_seconds(look.grace_seconds)
            _take(row, gap, wants.shortest_seconds, most, before, look.now)
    except NotAllowed as refusal:
        # Its Membership or its login has ended, so no later gap would do either.
        why = sentence("not allowed: {refusal}", refusal=refusal)
        move_gap_job(row, GapState.STOPPED, reason=why, ended_at=look.now)
        return False
    except CodedError as refusal:
        _store_reason([row], sentence("waits: {refusal}", refusal=refusal).rstrip("."))
        return False
    if gap is None:
        _store_reason([row], why_waits(look.free, wants, now=look.now))
        _expect(row, wants, look)
        return False
    look.remove_gap(gap)
    return True


def _gap_for(row: Backfill, wants: GapRequirements, look: GapSnapshot) -> Gap | None:
    """Return the gap to take, on Gpus that its Membership may book.

    Raises:
        Refusal, NotAllowed: it may not hold any now.
    """
    until = gap_booking.may_hold_until(
        row.membership, row.gpu_count, now=look.now, policy=look.policy
    )
    path = locks.read(row.membership, ()).path
    barred = barred_pools(
        [one.gpu for one in look.free], {account.pk for account in path}
    )
    free = [one for one in look.free if one.gpu.pool_pk not in barred]
    return best_gap(free, wants, now=look.now, until=until)


def _may_travel(before: Job | None, now: datetime) -> bool:
    """Return whether its checkpoint could be transferred to another node, if it has
    one.
    """
    if before is None or not checkpoint_relay.allowed():
        return False
    seen = before.node.last_seen_at
    return seen is not None and now - seen <= timedelta(seconds=HEARD_SECONDS)


def last_begun(row: Backfill) -> Job | None:
    """Return the last stretch that began. The next one resumes from its checkpoint."""
    rows = row.stretches.exclude(started_at=None).filter(continued_by=None)
    return rows.select_related("node").order_by("-pk").first()


def _take(
    row: Backfill,
    gap: Gap,
    shortest_seconds: int,
    most_seconds: int | None,
    before: Job | None,
    now: datetime,
) -> None:
    """Hold the gap and launch the next stretch in it, both or neither.

    Raises:
        CodedError: the gap is gone, or the rules refuse it. Nothing is written.
    """
    first = row.attempt == 0
    with wait_for_turn(), transaction.atomic(durable=True):
        held = gap_booking.book_gap(
            membership=row.membership,
            gpu_ids=gap.gpu_ids,
            shortest_seconds=shortest_seconds,
            most_seconds=most_seconds,
            purpose=row.name,
            now=now,
        )
        job = launch_in(
            user=row.owner,
            reservation_id=held.pk,
            now=now,
            backfill=row,
            **(
                row.launch
                | {
                    "node": gap.node,
                    "resume_from": before.pk if before is not None else None,
                }
            ),
        )
        moved = move_gap_job(
            row,
            GapState.RUNNING,
            reason="",
            attempt=row.attempt + 1,
            likely_at=None,
            looked_at=None,
        )
        if not moved:
            # It was stopped meanwhile, so the gap is returned with the transaction.
            raise GapJobOver(row=row.pk)
        if first and now - row.created_at > TOLD_AFTER:
            text = sentence(
                "“{name}” starts in its first gap, on {node}.",
                name=row.name,
                node=job.node.name,
            )
            key = f"backfill:{row.pk}:begun"
            notify_owner(job, "job_started", text, now=now, key=key)


def _store_reason(rows: Iterable[Backfill], reason: str) -> None:
    """Store why they wait, if that is new."""
    pks = [row.pk for row in rows]
    found = Backfill.objects.filter(pk__in=pks, state=GapState.QUEUED)
    found.exclude(reason=reason[:REASON_LENGTH]).update(reason=reason[:REASON_LENGTH])


def _expect(row: Backfill, wants: GapRequirements, look: GapSnapshot) -> None:
    """Store when the next gap comes by the present calendar, once a minute."""
    if look.now.timestamp() % LIKELY_SECONDS >= LOOK_SECONDS and row.likely_at:
        return
    calendar, uuids = look.ahead()
    good = [
        gpu for gpu in calendar.gpus if wants.is_suitable(gpu, uuids.get(gpu.pk, ""))
    ]
    latest = look.now + timedelta(days=LIKELY_DAYS)
    search = SlotSearch(
        earliest=look.now,
        latest=latest - timedelta(seconds=wants.shortest_seconds),
        grid_seconds=GRID_SECONDS,
        longest_seconds=look.policy.longest_seconds,
    )
    slots = first_slots(
        Calendar(good, calendar.busy(), calendar.plans),
        SlotWish(wants.count, wants.shortest_seconds),
        search,
        allowed=lambda _window, gpus: (
            Kind.FLEX if len({gpu.node for gpu in gpus}) == 1 else None
        ),
    )
    likely = max(slots[0].start, look.now) if slots else None
    if likely != row.likely_at:
        Backfill.objects.filter(pk=row.pk).update(likely_at=likely)


__all__ = ["each_gap_job", "last_begun", "take_all"]
