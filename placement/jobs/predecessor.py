"""The Job that another Job waits for: ``Job.after``.

A Job can only name one that was launched before it. A Job that continues another
(a restart, a move) waits for none. So no circle can form.
"""

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.db.models import Q

from placement.jobs import job_broadcast
from placement.jobs.job_transitions import PORTAL, move
from placement.models import Backfill, Job, MoveDecision
from placement.planner.values.errors import LaunchInvalid
from reservations.models import Reservation, User
from telemetry.protocol.sentences import sentence

MOST_ROWS = 200
FREE = Q(after=None) | Q(after_done=True)
"""Jobs that wait for no other Job."""


def checked_predecessor(
    user: User,
    pk: int | None,
    reservation: Reservation | None,
    *,
    resume_from: int | None = None,
    now: datetime,
) -> Job | None:
    """Return the Job to wait for. Call it in a transaction.

    Args:
        pk: its number. None: the new Job waits for none.
        reservation: of the new Job. None: it is not known yet.
        resume_from: the Job whose checkpoint the new Job loads.

    Raises:
        LaunchInvalid: the User cannot see it, it serves models, it did not finish
            well, or it cannot finish before the Reservation ends.
    """
    if pk is None:
        return None
    rows = Job.objects.visible_to(user).select_related("reservation")
    before: Job | None = rows.filter(pk=pk).first()
    why = ""
    if before is None:
        why = sentence("there is no job #{pk} that you may see", pk=pk)
    elif resume_from is not None:
        why = sentence("a job that continues from a checkpoint cannot wait")
    elif before.kind in (Job.Kind.SERVE, Job.Kind.TEXT):
        why = sentence("job #{pk} serves models until it is stopped", pk=pk)
    elif before.kind == Job.Kind.WORKSPACE:
        why = sentence(
            "job #{pk} is a workspace, which runs until it is stopped", pk=pk
        )
    elif (last := _last_run(before)).state == Job.State.DONE:
        pass
    elif not _may_finish(last, now):
        why = sentence(
            "job #{pk} ended without success ({state})",
            pk=last.pk,
            state=Job.State(last.state).label,
        )
    elif reservation is not None and last.reservation.start >= reservation.end:
        why = sentence(
            "job #{pk} begins after reservation {reservation} ends",
            pk=last.pk,
            reservation=reservation.pk,
        )
    if why:
        raise LaunchInvalid({"after": why})
    return before


def waiting() -> Iterable[Job]:
    """Return queued Jobs whose predecessor has ended."""
    rows = Job.objects.filter(state=Job.State.QUEUED).exclude(FREE)
    rows = rows.exclude(after__state__in=sorted(Job.State.live()))
    return rows.select_related("after__reservation", "owner", "node").order_by("pk")[
        :MOST_ROWS
    ]


def settle(job: Job, now: datetime) -> bool:
    """Free a Job whose predecessor is done. End it if that one cannot finish.

    False: it waits on, for another run of its predecessor.
    """
    assert job.after is not None
    last = _last_run(job.after)
    queued = Job.objects.filter(pk=job.pk, state=Job.State.QUEUED)
    if last.state == Job.State.DONE or _may_finish(last, now):
        done = last.state == Job.State.DONE
        if not done and last == job.after:
            return False
        with transaction.atomic():
            changed = queued.update(after=last, after_done=done)
            job_broadcast.publish_job(job.pk)
        return bool(changed)
    with transaction.atomic():
        return move(
            job,
            Job.State.FAILED,
            now=now,
            actor=PORTAL,
            reason=sentence(
                "never started: job {before} ended without success ({state})",
                before=last.pk,
                state=Job.State(last.state).label,
            ),
            fields={"ended_at": now},
        )


def _last_run(job: Job) -> Job:
    """Return the Job that continues another's work, or the Job itself.

    A restart and a move make a new Job. A Job in gaps has one for each stretch.
    """
    while job.state not in Job.State.live() and job.state != Job.State.DONE:
        later = Job.objects.select_related("reservation").filter(pk__gt=job.pk)
        moved = MoveDecision.objects.filter(job=job).values("next_job")
        following = Q(resume_from=job) | Q(pk__in=moved)
        if job.backfill_id is not None:
            following |= Q(backfill=job.backfill_id)
        found = later.filter(following).order_by("-pk").first()
        if found is None:
            break
        job = found
    return job


def _may_finish(last: Job, now: datetime) -> bool:
    """Return whether the last run is live or the portal will restart it."""
    if last.state in Job.State.live():
        return True
    if last.backfill_id is not None:
        return Backfill.objects.live().filter(pk=last.backfill_id).exists()
    return Job.objects.to_restart(now).filter(pk=last.pk).exists()
