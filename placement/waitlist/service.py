"""Jobs that wait with a request on the waitlist, and start when it is placed.

A Job submitted with the request is stored as it was entered (``WaitingLaunch``). Jobs
queued in a displaced flex Reservation wait with its new request. The tick of Jobs moves
both into the Reservation in which the request was placed, inside the freeze too. A Job
that cannot run there ends, and its owner gets the reason.
"""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone
from pydantic import ValidationError

from placement.jobs import predecessor
from placement.jobs import service as jobs
from placement.jobs.job_transitions import PORTAL, end_before_start, record_note
from placement.jobs.launch_checks import checked_form, retry_problems
from placement.jobs.nodes import checkpoint_relay
from placement.models import Job, StoredPlan, WaitingLaunch
from placement.planner.launch.recipes import BY_TORCHRUN, RECIPES, check_needs_no_plan
from placement.planner.values.errors import LaunchInvalid
from placement.plans import replanned
from reservations.models import Reservation, User, WaitingRequest
from reservations.notifications import service as notices
from reservations.store.attached_jobs import JobChoices, WaitingJobHooks
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import isolated
from telemetry.web.field_errors import field_sentences

MOST_ROWS = 200
MOST_PLANS = 30
WAITING, PLACED, *_ = WaitingRequest.State
UNKNOWN_YET = ("reservation", "node", "resume_from", "backfill", "strategy")
log = logging.getLogger(__name__)


def check(user: User, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``launch`` to store, without the Reservation.

    Raises:
        LaunchInvalid: fields that cannot be used.
        NotFound, StrategyNotRunnable: of the Plan.
    """
    # Every process registers this function, and few need ninja. Importing ninja takes
    # a third of the time of `django.setup`.
    from placement.jobs.schemas import WaitingJob

    try:
        wanted = WaitingJob.model_validate(dict(job))
    except ValidationError as error:
        raise LaunchInvalid(field_sentences(error.errors())) from error
    if given := [name for name in UNKNOWN_YET if getattr(wanted, name)]:
        why = sentence("is not known before the request is placed")
        raise LaunchInvalid(dict.fromkeys(given, why))
    checked = checked_form(
        wanted.name,
        wanted.kind,
        wanted.recipe,
        wanted.recipe_settings,
        wanted.script,
        wanted.arguments,
        wanted.restart,
        wanted.launcher,
        wanted.environment_folder,
        wanted.files,
    )
    plan = jobs._plan_of(user, wanted.plan, wanted.kind)
    if plan is None and wanted.recipe in BY_TORCHRUN:
        check_needs_no_plan(checked["recipe_settings"])
    predecessor.checked_predecessor(user, wanted.after, None, now=timezone.now())
    if wrong := retry_problems(wanted.retries, wanted.retry_failed):
        raise LaunchInvalid(wrong)
    launch = wanted.wanted()
    return {name: value for name, value in launch.items() if name != "reservation_id"}


def attach(row: WaitingRequest, launch: dict[str, Any]) -> None:
    """Store a launch with its request."""
    WaitingLaunch.objects.create(waiting=row, launch=launch, created_at=row.created_at)


def queue_jobs_again(displaced: Reservation, again: WaitingRequest) -> bool:
    """Move Jobs queued in a displaced Reservation to its new request."""
    queued = Job.objects.filter(state=Job.State.QUEUED).exclude(
        kind__in=Job.Kind.endless()
    )
    queued.filter(reservation=displaced).update(
        waits_with=again,
        reason=sentence("waits until its displaced reservation has a new time"),
    )
    return (
        queued.filter(waits_with=again).exists()
        or WaitingLaunch.objects.filter(waiting=again).exists()
    )


def choices(user: User) -> JobChoices:
    """Return the recipes, and the newest Plans that a User saved."""
    plans = StoredPlan.objects.filter(owner=user).defer("spec")[:MOST_PLANS]
    return JobChoices(
        recipes=[
            (
                recipe.name,
                recipe.title,
                "\n".join(f"{one.name} = {one.default}" for one in recipe.settings),
            )
            for recipe in RECIPES.values()
        ],
        plans=[
            (plan.pk, str(plan), len(plan.plan.get("shards", ()))) for plan in plans
        ],
    )


def starts(row: Reservation) -> bool:
    """Return whether a Job starts with a Reservation."""
    queued = Job.objects.filter(reservation=row, state=Job.State.QUEUED)
    return queued.filter(predecessor.FREE).exists()


CARRIER = WaitingJobHooks(
    check=check, attach=attach, follow=queue_jobs_again, choices=choices, starts=starts
)


# --- the tick ------------------------------------------------------------------------


def settle_waiting_jobs(now: datetime) -> int:
    """Move Jobs into the Reservations of their requests. End those that wait in
    vain.
    """
    done = 0
    for kept in _launches_to_settle():
        kept.planned_again = _plan_again(kept, now)  # type: ignore[attr-defined]
        done += _safely(_launch, kept, now)
    for job in _followers_to_settle():
        done += _safely(_bring, job, now)
    _forget_jobless()
    return done


def _launches_to_settle() -> Iterable[WaitingLaunch]:
    rows = WaitingLaunch.objects.exclude(waiting__state=WAITING)
    # As in RowSteps: the columns of all tables only if there are rows.
    if not rows.exists():
        return ()
    return rows.select_related("waiting__user", "waiting__reservation").order_by("pk")[
        :MOST_ROWS
    ]


def _followers_to_settle() -> Iterable[Job]:
    rows = Job.objects.exclude(waits_with=None).exclude(waits_with__state=WAITING)
    if not rows.exists():
        return ()
    return rows.select_related(
        "waits_with", "owner", "node", "plan", "reservation", "resume_from"
    ).order_by("created_at", "pk")[:MOST_ROWS]


def _safely(step, row, now: datetime) -> int:  # type: ignore[no-untyped-def]
    failed = "%r: %s failed"
    with isolated(log, failed, row, step.__name__), transaction.atomic(durable=True):
        step(row, now)
        return 1
    return 0


def _plan_again(kept: WaitingLaunch, now: datetime) -> StoredPlan | None:
    """Make its Plan again if its request was placed on other Gpus."""
    row, plan_id = kept.waiting, kept.launch.get("plan_id")
    if plan_id is None or row.state != PLACED or row.reservation is None:
        return None
    return replanned.plan_for(
        user=row.user,
        plan_id=plan_id,
        reservation=row.reservation,
        kind=kept.launch["kind"],
        recipe=kept.launch["recipe"],
        settings=kept.launch["recipe_settings"],
        now=now,
    )


def _launch(kept: WaitingLaunch, now: datetime) -> None:
    """Launch the stored Job, or drop it. Only the first caller does so."""
    if not WaitingLaunch.objects.filter(pk=kept.pk).delete()[0]:
        return
    row = kept.waiting
    if row.state != PLACED or row.reservation_id is None:
        return
    plan: StoredPlan | None = kept.planned_again  # type: ignore[attr-defined]
    launch = kept.launch if plan is None else kept.launch | {"plan_id": plan.pk}
    try:
        with transaction.atomic():
            jobs.launch_in(
                user=row.user, reservation_id=row.reservation_id, now=now, **launch
            )
            if plan is not None and row.reservation is not None:
                replanned.notify_new_plan(
                    row.user, str(kept), plan, row.reservation, now
                )
    except CodedError as refusal:
        _notify_refused(row.user, str(kept), row.reservation, refusal, now)


def _bring(job: Job, now: datetime) -> None:
    """Move a queued Job into the Reservation of its request, or end it."""
    waits = job.waits_with
    Job.objects.filter(pk=job.pk).update(waits_with=None)
    if waits is None or job.state != Job.State.QUEUED:
        return
    if waits.state != PLACED or waits.reservation_id is None:
        why = sentence("its waiting request ended without a booking")
        end_before_start(job, why, now=now)
        return
    try:
        with transaction.atomic():
            _place_in(job, waits.reservation_id, now)
    except CodedError as refusal:
        why = sentence(
            "it cannot run where its reservation moved: {refusal}", refusal=refusal
        )
        end_before_start(job, why, now=now)
        _notify_refused(job.owner, job.name, waits.reservation, refusal, now)


def _place_in(job: Job, reservation_id: int, now: datetime) -> None:
    reservation = jobs.locked_reservation(job.owner, reservation_id, now)
    node = jobs._node_of_job(reservation, job.plan, "")
    jobs.check_counts(reservation, node, job.gpu_count, job.retries, job.retry_failed)
    facts = {"kind": job.kind, "recipe": job.recipe}
    jobs._check_rights(job.owner, reservation, node, facts, may_move=False)
    before = job.resume_from
    stays = before is not None and before.node_ids() != [node.pk]
    if before is not None and stays and not checkpoint_relay.allowed():
        where = before.node.name
        raise LaunchInvalid(
            {"resume_from": sentence("its checkpoint lies on {where}", where=where)}
        )
    moved = Job.objects.filter(pk=job.pk, state=Job.State.QUEUED).update(
        reservation=reservation, node=node, reason=""
    )
    if moved:
        record_note(
            job,
            now=now,
            actor=PORTAL,
            reason=sentence(
                "reservation #{reservation_id} was displaced: follows to "
                "#{reservation}",
                reservation_id=job.reservation_id,
                reservation=reservation.pk,
            ),
        )


def _notify_refused(
    user: User,
    name: str,
    reservation: Reservation | None,
    refusal: Exception,
    now: datetime,
) -> None:
    text = sentence(
        "Job “{name}” could not be queued: {refusal}", name=name, refusal=refusal
    )
    detail = {"text": text, "url": "/jobs/"}
    notices.notify(
        user=user, kind="job_failed", reservation=reservation, detail=detail, now=now
    )


def _forget_jobless() -> None:
    """Mark a request without Jobs, after its last Job was stopped, as one that is
    asked.
    """
    kept = WaitingLaunch.objects.filter(waiting=OuterRef("pk"))
    queued = Job.objects.filter(waits_with=OuterRef("pk"), state=Job.State.QUEUED)
    rows = WaitingRequest.objects.waiting().filter(has_job=True)
    rows.filter(~Exists(kept), ~Exists(queued)).update(has_job=False)
