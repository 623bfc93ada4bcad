"""Jobs that run in gaps between Reservations: request, follow, stop.

Each stretch is a separate Job that resumes from the checkpoint of the previous one. Its
Reservation holds the gap and gives way to every booking. ``rules.backfill_rules``
defines a gap, the choice of a gap and the time to leave it. ``gap_claims`` assigns
gaps.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from placement.backfill import gap_claims
from placement.jobs import service as jobs
from placement.jobs.backfill_transitions import move_gap_job
from placement.jobs.job_notices import notify_owner
from placement.jobs.job_transitions import PORTAL, move
from placement.models import Backfill, Job, StoredPlan
from placement.planner.values.errors import LaunchInvalid
from placement.rules.backfill_rules import (
    MOST_LIVE,
    GapRequirements,
    GapState,
    TooManyBackfills,
    fits_some_node,
    must_leave,
    remaining_seconds,
)
from placement.rules.job_refusals import JobOver
from placement.waitlist import service as waitlist
from reservations.booking import gap_booking
from reservations.models import Membership, SitePolicy, User
from reservations.rules.errors import NotAllowed, NotFound
from reservations.rules.lifecycle import State
from reservations.store import locks
from reservations.store.booking_facts import site_policy
from reservations.store.gpu_rows import barred_pools, calendar_gpus
from telemetry.models import Gpu, Node
from telemetry.models.nodes import GpuQuerySet
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import GIB_BYTES, format_duration

MOST_ROWS = 200
LEAST_SECONDS = 60
"""A shorter stretch or a shorter total time is useless."""
MOST_HOURS = 24 * 366
HOLD_AGAIN_SECONDS = 60.0
LEAST_RETRIES = 3
"""A Job that moves from gap to gap also restarts after its node was lost."""
GIVEN_BACK = sentence("its time was given back")


# --- request --------------------------------------------------------------------------


@transaction.atomic(durable=True)
def queue_for_gaps(
    *,
    user: User,
    job: Mapping[str, Any],
    membership: Membership | None = None,
    min_memory_gib: float = 0,
    gpu_class: str = "",
    shortest_minutes: float = 30,
    total_hours: float | None = None,
    now: datetime,
) -> Backfill:
    """Queue a Job for the gaps. It begins in the first suitable one.

    Args:
        job: as ``schemas.WaitingJob``. ``gpus``: how many it needs, default one.
        membership: the one that pays. None if the User has exactly one.
        min_memory_gib: of each Gpu.
        gpu_class: "": any.
        shortest_minutes: the shortest useful stretch.
        total_hours: of held time. None: until it ends.

    Raises:
        LaunchInvalid: fields that cannot be used.
        TooManyBackfills, Refusal, NotAllowed, NotFound.
    """
    launch = waitlist.check(user, job)
    plan = _plan(user, launch["plan_id"])
    chosen = locks.choose_membership(user, membership)
    User.objects.select_for_update().get(pk=user.pk)
    live = Backfill.objects.live().filter(owner=user).count()
    if live >= MOST_LIVE:
        raise TooManyBackfills(live=live, most=MOST_LIVE)
    shards = plan.plan["shards"] if plan is not None else []
    made = Backfill(
        owner=user,
        membership=chosen,
        name=launch["name"].strip(),
        gpu_count=len(shards) or launch["gpu_count"] or 1,
        gpu_class=gpu_class.strip(),
        min_memory_bytes=round(min_memory_gib * GIB_BYTES),
        gpu_uuids=[shard["gpu_uuid"] for shard in shards],
        shortest_seconds=round(shortest_minutes * 60),
        total_seconds=None if total_hours is None else round(total_hours * 3600),
        retries=max(launch["retries"], LEAST_RETRIES),
        # Its gap decides the number of Gpus. This row decides the number of restarts.
        launch={**launch, "gpu_count": None, "retries": 0},
        created_at=now,
        reason=sentence("waits for a gap"),
    )
    _check(made, launch, plan)
    made.save()
    return made


def _plan(user: User, pk: int | None) -> StoredPlan | None:
    return StoredPlan.objects.filter(owner=user, pk=pk).first() if pk else None


def _check(row: Backfill, launch: Mapping[str, Any], plan: StoredPlan | None) -> None:
    """Refuse a Job for which no gap could ever be suitable.

    Raises:
        LaunchInvalid: by field.
    """
    policy = site_policy()
    wrong = {}
    if not LEAST_SECONDS <= row.shortest_seconds <= policy.longest_seconds // 2:
        most = policy.longest_seconds // 120
        wrong["shortest_minutes"] = sentence("must be 1 to {most}", most=most)
    total = row.total_seconds
    if total is not None and not row.shortest_seconds <= total <= MOST_HOURS * 3600:
        wrong["total_hours"] = sentence(
            "must be at least the shortest useful time and at most {most_hours}",
            most_hours=MOST_HOURS,
        )
    if launch["after"] is not None:
        wrong["after"] = sentence("a job in gaps cannot wait for another job")
    if launch["retry_failed"]:
        wrong["retry_failed"] = sentence("a job in gaps restarts with its node only")
    if launch["may_move"] or launch["restart"]:
        wrong["may_move"] = sentence("a job in gaps moves automatically")
    if not 0 <= row.min_memory_bytes <= 2**50:
        wrong["min_memory_gib"] = sentence("must be 0 or more")
    if not 1 <= row.gpu_count <= policy.gpus_at_once:
        wrong["gpus"] = sentence(
            "must be 1 to {gpus_at_once}, the limit of GPUs at once",
            gpus_at_once=policy.gpus_at_once,
        )
    elif plan is not None and len({s["node"] for s in plan.plan["shards"]}) > 1:
        wrong["plan"] = sentence(
            "is for several nodes, but a gap has GPUs of one node only"
        )
    elif not wrong and not _is_possible(row, Gpu.objects.bookable()):
        of_slurm = Gpu.objects.filter(node__engine=Node.Engine.SLURM, retired=False)
        words = wants_of(row).words()
        if settings.SLURM_BOOK and _is_possible(row, of_slurm):
            wrong["gpus"] = sentence(
                "only nodes of Slurm have {words}, and no job runs in gaps there. Book "
                "a time instead",
                words=words,
            )
        else:
            wrong["gpus"] = sentence(
                "no node that you may book has {words}", words=words
            )
    if wrong:
        raise LaunchInvalid(wrong)


def _is_possible(row: Backfill, rows: GpuQuerySet) -> bool:
    """Return whether a node with some of these Gpus could hold a Job in gaps."""
    gpus = calendar_gpus(rows.order_by("pk"))
    uuids = dict(Gpu.objects.values_list("pk", "uuid"))
    path = locks.read(row.membership, ()).path
    barred = barred_pools(gpus, {account.pk for account in path})
    pairs = [(gpu, uuids[gpu.pk]) for gpu in gpus]
    return fits_some_node(pairs, wants_of(row), set(barred))


def wants_of(row: Backfill) -> GapRequirements:
    """Return the requirements of a row for a gap."""
    return GapRequirements(
        count=row.gpu_count,
        shortest_seconds=1,
        min_memory_bytes=row.min_memory_bytes,
        gpu_class=row.gpu_class,
        uuids=frozenset(row.gpu_uuids),
    )


# --- stop -----------------------------------------------------------------------------


@transaction.atomic(durable=True)
def stop_in_gaps(
    *, backfill_id: int, user: User, now: datetime, reason: str = ""
) -> Backfill:
    """Stop it: it takes no more gaps, and its stretch gets TERM and its grace.

    Raises:
        NotFound: it does not exist, or this User may not see it.
        NotAllowed: a group head can see it, but not stop it.
        JobOver: it has ended.
    """
    row = Backfill.objects.visible_to(user).filter(pk=backfill_id).first()
    if row is None:
        raise NotFound(
            what=sentence("job in gaps #{backfill_id}", backfill_id=backfill_id)
        )
    if row.owner_id != user.pk and not user.is_operator:
        raise NotAllowed(
            act=sentence(
                "stop job in gaps #{backfill_id} of {owner}",
                backfill_id=backfill_id,
                owner=row.owner,
            )
        )
    mine = row.owner_id == user.pk
    words = reason.strip() or (
        sentence("stopped by its owner")
        if mine
        else sentence("stopped by the lab admin")
    )
    if row.state == GapState.QUEUED and move_gap_job(
        row, GapState.STOPPED, reason=words, ended_at=now
    ):
        return row
    row.refresh_from_db()
    stretch = last_stretch(row)
    if row.state not in GapState.live() or stretch is None:
        raise JobOver(job=row.pk, state=row.state)
    move_gap_job(row, GapState.STOPPING, reason=words, stop_asked_at=now)
    if stretch.state in Job.State.live():
        jobs.stop_in(job_id=stretch.pk, user=user, now=now, reason=words)
    return row


def last_stretch(row: Backfill) -> Job | None:
    """Return its running or last stretch."""
    rows = row.stretches.select_related("reservation", "node", "owner")
    return rows.order_by("-pk").first()


# --- the tick -------------------------------------------------------------------------


def due(now: datetime) -> Iterable[Backfill]:
    """Return the rows that hold a gap, or did until now."""
    rows = Backfill.objects.filter(state__in=[GapState.RUNNING, GapState.STOPPING])
    return rows.select_related("owner", "membership__user").order_by("pk")[:MOST_ROWS]


def advance_backfill(row: Backfill, now: datetime) -> bool:
    """Leave a gap in time. Record the result of a stretch that ended."""
    stretch = last_stretch(row)
    if stretch is None:
        with transaction.atomic(durable=True):
            return move_gap_job(row, GapState.FAILED, reason="lost", ended_at=now)
    if stretch.state not in Job.State.live():
        with transaction.atomic(durable=True):
            return _settle(row, stretch, now)
    if stretch.state in (Job.State.STARTING, Job.State.RUNNING):
        return _leave_in_time(row, stretch, now)
    return False


def _leave_in_time(row: Backfill, stretch: Job, now: datetime) -> bool:
    """Send TERM before the next Reservation begins; extend the gap without one."""
    grace = float(SitePolicy.current().stop_grace_seconds)
    end = stretch.reservation.end
    if stretch.reservation.state != State.ACTIVE:
        return False  # the tick of Jobs stops it, with the reason
    again = timedelta(seconds=HOLD_AGAIN_SECONDS)
    near = end - now <= timedelta(seconds=gap_booking.NEAR_SECONDS)
    rested = row.looked_at is None or now - row.looked_at >= again
    if near and rested:
        Backfill.objects.filter(pk=row.pk).update(looked_at=now)
        end = max(end, _extend_gap(row, stretch, grace, now))
    if not must_leave(end, now, grace):
        return False
    with transaction.atomic(durable=True):
        return move(
            stretch,
            Job.State.STOPPING,
            now=now,
            actor=PORTAL,
            reason=sentence("the gap is over; the job resumes in the next one"),
            fields={"stop_at": now, "ordered_at": None},
        )


def _extend_gap(row: Backfill, stretch: Job, grace: float, now: datetime) -> datetime:
    """Extend the gap, unless another Job waits for one."""
    end = stretch.reservation.end
    others = Backfill.objects.filter(state=GapState.QUEUED)
    if others.exists() or not gap_booking.waitlist_rests():
        return end
    held = int((now - stretch.reservation.start).total_seconds())
    left = remaining_seconds(row.total_seconds, row.used_seconds + held)
    most = None if left is None else left + int(grace)
    try:
        with transaction.atomic(durable=True):
            return gap_booking.hold_on(
                reservation_id=stretch.reservation_id, now=now, most_seconds=most
            )
    except CodedError:
        return end


def _settle(row: Backfill, stretch: Job, now: datetime) -> bool:
    """Return the gap, count its time, and set the next state."""
    returned = stretch.reservation.state == State.RELEASED
    gap_booking.return_gap(
        reservation_id=stretch.reservation_id,
        now=stretch.ended_at or now,
        reason=sentence("job #{stretch} has ended", stretch=stretch.pk),
    )
    stretch.reservation.refresh_from_db()
    held = stretch.reservation.end - stretch.reservation.start
    used = row.used_seconds + int(held.total_seconds())
    new, why = _next(row, stretch, used, returned=returned)
    if stretch.started_at is None and stretch.resume_from_id is not None:
        # It never began, so the next stretch resumes from the same checkpoint.
        Job.objects.filter(pk=stretch.pk).update(resume_from=None)
    fields: dict[str, object] = {"used_seconds": used}
    if new is not GapState.QUEUED:
        fields["ended_at"] = now
    elif stretch.state == Job.State.LOST:
        fields["retries"] = row.retries - 1
    if not move_gap_job(row, new, reason=why, looked_at=None, **fields):
        return False
    if new is GapState.STOPPED and row.stop_asked_at is None:
        text = sentence("“{name}” is not started again: {why}.", name=row.name, why=why)
        key = f"backfill:{row.pk}:over"
        notify_owner(stretch, "job_done", text, now=now, key=key)
    return True


def _next(
    row: Backfill, stretch: Job, used_seconds: int, *, returned: bool
) -> tuple[GapState, str]:
    """Return its next state, and the reason."""
    ended = Job.State(stretch.state)
    if ended is Job.State.DONE:
        return GapState.DONE, ""
    if row.state == GapState.STOPPING:
        return GapState.STOPPED, row.reason
    if ended is Job.State.FAILED:
        return GapState.FAILED, stretch.reason
    if ended is Job.State.LOST and not row.retries:
        return GapState.FAILED, sentence(
            "lost with {node}: {reason}", node=stretch.node, reason=stretch.reason
        )
    if returned:
        return GapState.STOPPED, GIVEN_BACK
    left = remaining_seconds(row.total_seconds, used_seconds)
    if left is not None and left < LEAST_SECONDS:
        whole = format_duration(row.total_seconds)
        return GapState.STOPPED, sentence(
            "its {whole} are used up; its checkpoint is kept", whole=whole
        )
    if ended is Job.State.LOST:
        return GapState.QUEUED, sentence(
            "job #{number} was lost with {node}; waits for a gap",
            number=stretch.pk,
            node=stretch.node,
        )
    return GapState.QUEUED, sentence("waits for a gap")


def step(now: datetime) -> dict[str, int]:
    """Advance the Jobs in gaps, then give free gaps to waiting Jobs."""
    return {
        "gaps_followed": gap_claims.each_gap_job(due(now), advance_backfill, now),
        "gaps_taken": gap_claims.take_all(now),
    }
