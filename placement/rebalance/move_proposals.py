"""The life of a proposal to move a Job: stored, answered, carried out, measured.

`placement.rules.rebalance_review` decides whether there is one. Only the Job's owner or
the operator may answer it.

A move is one transaction: the Reservation's rest is booked on the new Gpus and the
others are returned (`reservations.booking.relocation.relocate_rest`), a stop is sent to
the Job, and a new Job with the same settings waits in the new Reservation until the old
one has left. As its owner chose, it starts from scratch or resumes from the old Job's
checkpoint, which is transferred even to another node (`jobs.nodes.checkpoint_relay`). A
recipe handles TERM at its next step.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from placement.jobs import job_broadcast
from placement.jobs.job_transitions import PORTAL, move
from placement.jobs.nodes import checkpoint_relay
from placement.jobs.service import launch_in
from placement.models import Job, MoveDecision, StoredPlan
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.plan import Plan
from placement.rebalance import plan_evaluation
from placement.rules.job_refusals import MoveGone, RestartNotAllowed
from placement.rules.rebalance_policy import RebalanceAction, RestartMode
from placement.rules.rebalance_review import MoveVerdict
from reservations.booking.relocation import relocate_rest
from reservations.models import User
from reservations.rules.errors import NotAllowed, NotFound
from reservations.rules.lifecycle import State as Booked
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import joined, sentence

State = MoveDecision.State
DECLINED_SECONDS = 3600
"""After a decline the same proposal is not made again for this long."""
FAILED_SECONDS = 600
"""The pause after a move that failed."""
BEGIN_SECONDS = 600
"""A Job that has not begun elsewhere by then no longer delays other moves."""
MOST_REASON = 600


# --- rows ---------------------------------------------------------------------------


def write(
    job: Job,
    weighed: plan_evaluation.RebalanceEvaluation,
    verdict: MoveVerdict,
    cause: str,
    state: str,
    now: datetime,
) -> MoveDecision:
    """Store a decision. A repeated decision to stay only increases its count."""
    fields = _numbers(weighed, verdict) | {"reason": verdict.reason[:MOST_REASON]}
    last = job.moves.first()
    if (
        state == State.STAYS
        and last is not None
        and last.state == State.STAYS
        and (last.cause, last.to_gpus) == (cause, weighed.to_gpus)
    ):
        MoveDecision.objects.filter(pk=last.pk).update(
            **fields, seen_at=now, looks=last.looks + 1
        )
        return last
    stored = None
    if state != State.STAYS and weighed.plan is not None:
        stored = _save_moved_plan(job, weighed, weighed.plan, now)
    return MoveDecision.objects.create(
        job=job,
        at=now,
        seen_at=now,
        cause=cause,
        state=state,
        from_gpus=weighed.from_gpus,
        to_gpus=weighed.to_gpus,
        plan=stored,
        automatic=state == State.ACCEPTED,
        decided_at=now if state == State.ACCEPTED else None,
        **fields,
    )


def _numbers(
    weighed: plan_evaluation.RebalanceEvaluation, verdict: MoveVerdict
) -> dict[str, Any]:
    return {
        "step_seconds_now": weighed.look.step_seconds_now,
        "step_seconds_new": weighed.look.step_seconds_new,
        "steps_left": weighed.look.steps_left,
        "gain_seconds": verdict.gain_seconds,
        "cost_seconds": verdict.cost_seconds,
        "regret_seconds": verdict.regret_seconds,
        "gpu_ids": list(weighed.gpu_ids),
    }


def _save_moved_plan(
    job: Job, weighed: plan_evaluation.RebalanceEvaluation, plan: Plan, now: datetime
) -> StoredPlan:
    """Save the Plan with its new Gpus."""
    return StoredPlan.objects.create(
        owner=job.owner,
        title=f"{weighed.spec.name}: {plan.title}"[:160],
        spec=weighed.spec.to_json(),
        workload=plan.workload.to_json(),
        plan=plan.to_json(),
        created_at=now,
    )


def same_offer(
    row: MoveDecision, weighed: plan_evaluation.RebalanceEvaluation, cause: str
) -> bool:
    """Whether the open proposal equals the result of the present review."""
    return (row.cause, row.to_gpus) == (cause, weighed.to_gpus)


def refresh(
    row: MoveDecision,
    weighed: plan_evaluation.RebalanceEvaluation,
    verdict: MoveVerdict,
    now: datetime,
) -> None:
    """Refresh an open proposal. By a changed policy it may be carried out now."""
    fields = _numbers(weighed, verdict) | {"reason": verdict.reason[:MOST_REASON]}
    if verdict.act is RebalanceAction.DO:
        fields |= {"state": State.ACCEPTED, "automatic": True, "decided_at": now}
    MoveDecision.objects.filter(pk=row.pk, state=State.PROPOSED).update(
        **fields, seen_at=now, looks=row.looks + 1
    )
    if verdict.act is RebalanceAction.DO:
        job_broadcast.publish_job(row.job_id)


def recent_refusal(
    job: Job, weighed: plan_evaluation.RebalanceEvaluation, cause: str, now: datetime
) -> str:
    """Return why the same move is not tried again so soon, in words. "": it may be."""
    lately = Q(
        state=State.DECLINED, decided_at__gt=now - timedelta(seconds=DECLINED_SECONDS)
    ) | Q(state=State.FAILED, seen_at__gt=now - timedelta(seconds=FAILED_SECONDS))
    for row in job.moves.filter(lately, cause=cause):
        if row.to_gpus == weighed.to_gpus:
            return (
                sentence("It was declined recently.")
                if row.state == State.DECLINED
                else sentence("It failed recently.")
            )
    return ""


def withdraw(row: MoveDecision, now: datetime, *, reason: str) -> bool:
    """Withdraw a decision not yet carried out. False: another process was first."""
    waiting = [State.PROPOSED, State.ACCEPTED]
    words = joined([row.reason, sentence("Withdrawn: {why}", why=reason)])[:MOST_REASON]
    taken = MoveDecision.objects.filter(pk=row.pk, state__in=waiting).update(
        state=State.WITHDRAWN, reason=words, seen_at=now
    )
    if taken:
        job_broadcast.publish_job(row.job_id)
    return taken == 1


# --- people's decisions
# ----------------------------------------------------------------


@transaction.atomic(durable=True)
def allow_moves(
    *, job_id: int, user: User, may_move: bool, restart: str, now: datetime
) -> Job:
    """Set whether a Job is reviewed, and how it may be restarted.

    Raises:
        NotFound, NotAllowed: as for stopping it.
        ValueError: no such way to restart.
        LaunchInvalid: it runs over several nodes, and cannot be moved.
    """
    job = _own_job(job_id, user, act=sentence("say how to move"))
    if may_move and job.parts.exists():
        raise LaunchInvalid(
            {"may_move": sentence("a job on several nodes cannot move")}
        )
    job.may_move, job.restart = may_move, RestartMode(restart)
    Job.objects.filter(pk=job.pk).update(may_move=may_move, restart=job.restart)
    job_broadcast.publish_job(job.pk)
    return job


@transaction.atomic(durable=True)
def decide(
    *, job_id: int, move_id: int, user: User, accept: bool, now: datetime
) -> MoveDecision:
    """Accept or decline a proposal. The next tick carries it out.

    Raises:
        MoveGone: the proposal is no longer open.
        RestartNotAllowed: the Job does not allow a restart.
        NotFound, NotAllowed.
    """
    job = _own_job(job_id, user, act=sentence("decide on a move of"))
    row = job.moves.filter(pk=move_id).first()
    if row is None:
        raise NotFound(
            what=sentence(
                "move #{move_id} of job #{job_id}", move_id=move_id, job_id=job_id
            )
        )
    if accept and job.restart == RestartMode.NOT:
        raise RestartNotAllowed(job=job.pk)
    new = State.ACCEPTED if accept else State.DECLINED
    taken = MoveDecision.objects.filter(pk=row.pk, state=State.PROPOSED).update(
        state=new, decided_by=user, decided_at=now
    )
    if not taken:
        raise MoveGone(move=row.pk, state=row.state)
    job_broadcast.publish_job(job.pk)
    row.refresh_from_db()
    return row


def _own_job(job_id: int, user: User, *, act: str) -> Job:
    job: Job | None = (
        Job.objects.visible_to(user).select_related("owner").filter(pk=job_id).first()
    )
    if job is None:
        raise NotFound(what=sentence("job #{job_id}", job_id=job_id))
    if job.owner_id != user.pk and not user.is_operator:
        raise NotAllowed(
            act=sentence(
                "{act} job #{job_id} of {owner}",
                act=act,
                job_id=job_id,
                owner=job.owner,
            )
        )
    return job


# --- carrying out -----------------------------------------------------------------


def next_accepted() -> Iterable[MoveDecision]:
    """Return the oldest accepted move, if none is in flight."""
    if MoveDecision.objects.filter(state=State.MOVING).exists():
        return []
    rows = MoveDecision.objects.filter(state=State.ACCEPTED).exclude(plan=None)
    return list(rows.select_related("job").order_by("decided_at", "pk")[:1])


def carry_out(row: MoveDecision, now: datetime) -> bool:
    """Move a Job: book, give back, stop, launch, all in one transaction.

    A refusal by the rules, a faster booking or a stranger changes nothing and is
    recorded.
    """
    try:
        with transaction.atomic(durable=True):
            return _carry_out(row, now)
    except IntegrityError:
        # Another worker has one in flight.
        return False
    except CodedError as refused:
        zone = timezone.get_current_timezone()
        why = refused.text(zone) if isinstance(refused, CodedError) else str(refused)
        return _fail(row.pk, State.ACCEPTED, why, now)


def _carry_out(row: MoveDecision, now: datetime) -> bool:
    taken = MoveDecision.objects.filter(pk=row.pk, state=State.ACCEPTED).update(
        state=State.MOVING, moved_at=now
    )
    if not taken:
        return False
    jobs = Job.objects.select_related("owner", "node", "plan", "reservation")
    job = jobs.get(pk=row.job_id)
    stored = row.plan
    assert stored is not None
    plan = Plan.from_json(stored.plan)
    _check_still_free(job, plan, now)
    actor = row.decided_by
    places = ", ".join(row.to_gpus)
    made = relocate_rest(
        reservation_id=job.reservation_id,
        gpu_ids=row.gpu_ids,
        actor=actor,
        now=now,
        reason=sentence("job #{job} moves to {places}", job=job.pk, places=places),
    )
    if job.state == Job.State.RUNNING:
        move(
            job,
            Job.State.MOVING,
            now=now,
            actor=actor.username if actor else PORTAL,
            reason=sentence("moves to {places}", places=places),
            fields={"stop_at": now, "ordered_at": None},
        )
    again = launch_in(
        user=job.owner,
        reservation_id=made.pk,
        name=job.name,
        kind=job.kind,
        recipe=job.recipe,
        recipe_settings=job.recipe_settings,
        script=job.script,
        files=job.script_folder.files if job.script_folder else {},
        arguments=job.arguments,
        launcher=job.started_with,
        environment_folder=job.environment_folder,
        plan_id=stored.pk,
        node=plan.node,
        may_move=job.may_move,
        restart=job.restart,
        retries=job.retries,
        retry_failed=job.retry_failed,
        now=now,
        array=job.array,
        array_index=job.array_index,
        parameters=job.parameters,
    )
    if _resumes(job):
        Job.objects.filter(pk=again.pk).update(resume_from=job)
    MoveDecision.objects.filter(pk=row.pk).update(next_job=again)
    job_broadcast.publish_job(job.pk)
    return True


def _resumes(job: Job) -> bool:
    """Return whether the next Job resumes from the checkpoint that this one writes."""
    if job.restart != RestartMode.RESUMES or not checkpoint_relay.allowed():
        return False
    return not Job.objects.filter(resume_from=job).exists()


def _check_still_free(job: Job, plan: Plan, now: datetime) -> None:
    """Refuse if the Job has ended, or a Gpu is less free than it was.

    Raises:
        MoveGone: with the reason.
    """
    alive = job.state == Job.State.RUNNING or job.state in (
        Job.State.FAILED,
        Job.State.LOST,
    )
    if not alive or job.reservation.state != Booked.ACTIVE:
        raise MoveGone(
            move=job.pk,
            state=sentence(
                "too late, because the job is {state}", state=Job.State(job.state).label
            ),
        )
    offers = plan_evaluation.offers_for(job, now)
    for shard in plan.shards:
        offer = offers.get(shard.gpu_uuid)
        if offer is None or offer.free_bytes < shard.low_bytes:
            why = offer.reason if offer else sentence("it is gone")
            why = why or sentence("another process uses its memory now")
            raise MoveGone(move=job.pk, state=joined([shard.gpu_label, why], ": "))


def _fail(pk: int, old: str, why: str, now: datetime) -> bool:
    row = MoveDecision.objects.select_related("job").get(pk=pk)
    words = joined([row.reason, sentence("The move failed: {why}", why=why)])[
        :MOST_REASON
    ]
    failed = MoveDecision.objects.filter(pk=pk, state=old).update(
        state=State.FAILED, reason=words, seen_at=now
    )
    if failed:
        job_broadcast.publish_job(row.job_id)
    return failed == 1


# --- outcomes -------------------------------------------------------------------------


def in_flight() -> Iterable[MoveDecision]:
    """Moves whose new Job has not begun."""
    return MoveDecision.objects.filter(state=State.MOVING).select_related("next_job")


def advance_move(row: MoveDecision, now: datetime) -> bool:
    """Complete a move whose Job has begun, or give it up."""
    job = row.next_job
    if job is not None and job.started_at is not None:
        assert row.moved_at is not None
        waited = (job.started_at - row.moved_at).total_seconds()
        landed = MoveDecision.objects.filter(pk=row.pk, state=State.MOVING).update(
            state=State.MOVED, realised_cost_seconds=max(0.0, waited), seen_at=now
        )
        job_broadcast.publish_job(row.job_id)
        return landed == 1
    if job is None or job.state not in Job.State.live():
        why = (
            job.reason or Job.State(job.state).label
            if job
            else sentence("the new job is gone")
        )
        return _fail(row.pk, State.MOVING, why, now)
    late = timedelta(seconds=BEGIN_SECONDS)
    if row.moved_at is not None and now - row.moved_at > late:
        minutes = BEGIN_SECONDS // 60
        why = sentence(
            "job #{job} had not begun after {minutes} minutes; it still waits",
            job=job.pk,
            minutes=minutes,
        )
        return _fail(row.pk, State.MOVING, why, now)
    return False


def realise(job: Job, now: datetime) -> None:
    """Store the gain of a move, once the new Job's pace is known."""
    row = getattr(job, "came_by", None)
    if row is None or job.step_seconds is None:
        return
    if row.state != State.MOVED or row.realised_step_seconds is not None:
        return
    gain = None
    if row.step_seconds_now is not None and row.steps_left is not None:
        gain = (row.step_seconds_now - job.step_seconds) * row.steps_left
    MoveDecision.objects.filter(pk=row.pk, realised_step_seconds=None).update(
        realised_step_seconds=job.step_seconds,
        realised_gain_seconds=gain,
        seen_at=now,
    )
    job_broadcast.publish_job(row.job_id)
