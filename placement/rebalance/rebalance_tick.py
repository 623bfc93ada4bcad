"""The tick of rebalancing: review running Jobs, and follow their moves.

1. follow the moves: the Job has begun at the new place, or it could not
2. carry out accepted moves, one at a time for the whole site
3. review each due Job: its Plan in its place, the best Plan elsewhere, the rule of
   docs/design/placement.md#moving (`rules/rebalance_review.py`), and a row with the
   reason
4. withdraw proposals of Jobs that have ended

A Job is due when it allows reviews and its interval has passed, or when an Alert on one
of its Gpus is newer than its last review. Safe to run twice and concurrently: a review
is claimed by compare-and-set before anything is decided.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from placement.jobs import job_broadcast
from placement.jobs.queries import gpu_troubles
from placement.jobs.tick.job_progress import measure
from placement.models import Job, JobQuerySet, MoveDecision, PlacementPolicy
from placement.rebalance import move_proposals, plan_evaluation
from placement.rules.rebalance_policy import RebalanceAction
from placement.rules.rebalance_review import GpuTrouble, decide_rebalance
from reservations.models import Allocation
from reservations.rules.lifecycle import State
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import RowSteps, isolated

TROUBLE_SECONDS = 60
"""Between two reviews of a Job in trouble, if the site reviews no other Jobs."""
REVIVE_SECONDS = 600
"""For this long, a Job that a broken Gpu ended may still be moved."""
MOST_LOOKS = 20
"""Per tick. The next tick handles the next ones."""
_ENDED_BADLY = (Job.State.FAILED, Job.State.LOST)

logger = logging.getLogger(__name__)
_each = RowSteps(logger, "move")


def rebalance_jobs(now: datetime) -> dict[str, int]:
    """Run every step once. Return how many rows each one changed."""
    policy = PlacementPolicy.current()
    troubles = _troubles()
    return {
        "followed": _each(move_proposals.in_flight(), move_proposals.advance_move, now),
        "carried_out": _each(
            move_proposals.next_accepted(), move_proposals.carry_out, now
        ),
        "looked": sum(
            _judge_job(job, troubles.get(job.pk), policy, now)
            for job in _jobs_to_evaluate(policy, troubles, now)
        ),
        "withdrawn": _each(_of_ended_jobs(now), _withdraw_ended, now),
    }


# --- the Jobs to review --------------------------------------------------------------


def _troubles() -> dict[int, tuple[GpuTrouble, datetime]]:
    """Return by Job the worst that is wrong with a Gpu of its Plan, and since when."""
    by_uuid = gpu_troubles()
    if not by_uuid:
        return {}
    found = {}
    held = Allocation.objects.filter(gpu__uuid__in=list(by_uuid)).values("reservation")
    for job in _if_any(
        _planned().filter(
            Q(state=Job.State.RUNNING) | Q(state__in=_ENDED_BADLY), reservation__in=held
        )
    ):
        own = [
            one
            for uuid in plan_evaluation.uuids_of(job)
            for one in by_uuid.get(uuid, ())
        ]
        if own:
            worst = min(own, key=lambda one: (not one[0].breaks, one[0].unheard))
            found[job.pk] = (worst[0], max(opened_at for _, opened_at in own))
    return found


def _planned():  # type: ignore[no-untyped-def]
    """Jobs with a Plan on one node and a running Reservation."""
    return (
        Job.objects.filter(reservation__state=State.ACTIVE, parts=None)
        .exclude(plan=None)
        .select_related("plan", "owner", "node", "reservation__membership")
        .order_by("looked_at", "pk")
    )


def _if_any(rows: JobQuerySet) -> Iterable[Job]:
    """Return the rows. As in RowSteps, ask for all columns only if there are any."""
    return rows if rows.exists() else ()


def _jobs_to_evaluate(
    policy: PlacementPolicy,
    troubles: dict[int, tuple[GpuTrouble, datetime]],
    now: datetime,
) -> list[Job]:
    seconds = policy.look_again_seconds
    turn = Q(looked_at=None) | Q(looked_at__lte=now - timedelta(seconds=seconds))
    asking = Q(pk__in=[])
    if seconds:
        asking = Q(state=Job.State.RUNNING) & turn & (Q(may_move=True) | _unmeasured())
    rows = _planned().filter(asking, reservation__end__gt=now)
    due = {job.pk: job for job in _if_any(rows[:MOST_LOOKS])}
    again = now - timedelta(seconds=seconds or TROUBLE_SECONDS)
    for job in _if_any(
        _planned().filter(pk__in=list(troubles), reservation__end__gt=now)
    ):
        new = job.looked_at is None or job.looked_at <= max(
            again, min(now, troubles[job.pk][1])
        )
        alive = job.state == Job.State.RUNNING or _may_restart(job, now)
        if new and alive:
            due[job.pk] = job
    return list(due.values())[:MOST_LOOKS]


def _unmeasured() -> Q:
    """Jobs that were moved, with a gain not known yet."""
    return Q(
        came_by__state=MoveDecision.State.MOVED, came_by__realised_gain_seconds=None
    )


def _may_restart(job: Job, now: datetime) -> bool:
    """Whether a Job that has just ended badly has not been moved already."""
    if job.ended_at is None or now - job.ended_at > timedelta(seconds=REVIVE_SECONDS):
        return False
    settled = [MoveDecision.State.MOVED, MoveDecision.State.DECLINED]
    return not job.moves.filter(state__in=settled).exists()


# --- one review ---------------------------------------------------------------------


def _judge_job(
    job: Job,
    troubled: tuple[GpuTrouble, datetime] | None,
    policy: PlacementPolicy,
    now: datetime,
) -> bool:
    """Review one Job, unless another worker is doing so."""
    before = job.looked_at
    if not Job.objects.filter(pk=job.pk, looked_at=before).update(looked_at=now):
        return False
    with isolated(logger, "job %s: looking again failed", job.pk):
        measure(job, now)
        move_proposals.realise(job, now)
        trouble = troubled[0] if troubled else None
        if trouble is None and not job.may_move:
            return True
        if _settled(job):
            return True
        weighed = plan_evaluation.weigh(
            job, trouble, policy=policy, looked_at=before, now=now
        )
        with transaction.atomic(durable=True):
            _record(job, weighed, trouble, now)
        return True
    return False


def _settled(job: Job) -> bool:
    """Whether a move of the Job is already in progress."""
    on_its_way = [MoveDecision.State.ACCEPTED, MoveDecision.State.MOVING]
    return job.moves.filter(state__in=on_its_way).exists()


def _record(
    job: Job,
    weighed: plan_evaluation.RebalanceEvaluation,
    trouble: GpuTrouble | None,
    now: datetime,
) -> None:
    """Store the result of a review. A repeated result only increases the count."""
    verdict = decide_rebalance(weighed.look)
    cause = trouble.rule if trouble else "look"
    open_row = job.moves.filter(state=MoveDecision.State.PROPOSED).first()
    if verdict.act is RebalanceAction.NEVER:
        if open_row is not None:
            move_proposals.withdraw(open_row, now, reason=verdict.reason)
        state = MoveDecision.State.STAYS
    else:
        if open_row is not None and move_proposals.same_offer(open_row, weighed, cause):
            move_proposals.refresh(open_row, weighed, verdict, now)
            return
        if open_row is not None:
            move_proposals.withdraw(
                open_row, now, reason=sentence("a better move was found")
            )
        state = MoveDecision.State.PROPOSED
        why_not = move_proposals.recent_refusal(job, weighed, cause, now)
        if why_not:
            state = MoveDecision.State.STAYS
            verdict = replace(verdict, reason=f"{verdict.reason} {why_not}")
        elif verdict.act is RebalanceAction.DO:
            state = MoveDecision.State.ACCEPTED
    row = move_proposals.write(job, weighed, verdict, cause, state, now)
    if row.state != MoveDecision.State.STAYS:
        job_broadcast.publish_job(job.pk)


# --- 4. Jobs that ended
# ------------------------------------------------------------------


def _of_ended_jobs(now: datetime) -> Iterable[MoveDecision]:
    """Proposals and acceptances that can no longer be carried out."""
    revivable = Q(
        job__state__in=_ENDED_BADLY,
        job__ended_at__gt=now - timedelta(seconds=REVIVE_SECONDS),
        job__reservation__state=State.ACTIVE,
    )
    running = Q(job__state=Job.State.RUNNING, job__reservation__state=State.ACTIVE)
    waiting = [MoveDecision.State.PROPOSED, MoveDecision.State.ACCEPTED]
    return (
        MoveDecision.objects.filter(state__in=waiting)
        .exclude(running)
        .exclude(revivable)
        .select_related("job")
    )


def _withdraw_ended(row: MoveDecision, now: datetime) -> bool:
    return move_proposals.withdraw(
        row, now, reason=sentence("the job is {state}", state=row.job.state)
    )
