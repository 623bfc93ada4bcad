"""Launch and stop Jobs. Nothing is sent to a node here.

The tick derives from the database what should run, so nothing is lost if the broker
loses its data.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from placement.jobs.backfill_transitions import stopped_by_hand
from placement.jobs.job_transitions import move, record_queued
from placement.jobs.launch_checks import (
    check_backend,
    check_plan_of_script,
    checked_form,
    recipe_problem,
    retry_problems,
)
from placement.jobs.nodes import checkpoint_relay, job_nodes, job_worker
from placement.jobs.predecessor import checked_predecessor
from placement.models import Job, ScriptFolder, StoredPlan
from placement.planner.launch.execution import RUNNABLE_STRATEGIES, why_not
from placement.planner.launch.recipes import (
    BY_TORCHRUN,
    FINE_TUNE,
    RECIPES,
    as_planned,
    check_needs_no_plan,
    runs_by_plan,
    with_planned_sizes,
)
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.launchers import FILES, beside_bytes
from placement.rules.job_refusals import (
    JobOver,
    PlanElsewhere,
    ReservationNotUsable,
    ScriptsNotAllowed,
    SpansNodes,
    StrategyNotRunnable,
    TooManyJobs,
)
from reservations.models import Reservation, User
from reservations.rules.engine_names import UNIX_USER, hold_name
from reservations.rules.errors import NotAllowed, NotFound
from reservations.rules.lifecycle import State
from reservations.rules.overstay_terms import is_gap
from reservations.store.co_users import usable_by
from telemetry import request_id
from telemetry.models import Node
from telemetry.protocol.sentences import sentence

MOST_PLAN_CHARACTERS = 40 * 1024
"""Of a Plan that is sent to its node with the order."""
MOST_LIVE_JOBS = 100
"""Waiting and running Jobs in one Reservation, those of arrays included."""


def launch_in(
    *,
    user: User,
    reservation_id: int,
    name: str,
    kind: str,
    recipe: str = "",
    recipe_settings: Mapping[str, object] | None = None,
    script: str = "",
    files: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    launcher: str = "",
    environment_folder: str = "",
    plan_id: int | None = None,
    node: str = "",
    may_move: bool = False,
    restart: str = "",
    gpu_count: int | None = None,
    retries: int = 0,
    retry_failed: bool = False,
    resume_from: int | None = None,
    after: int | None = None,
    now: datetime,
    **marks: Any,
) -> Job:
    """Queue a Job in a Reservation, in a transaction. It starts with the Reservation.

    Args:
        node: the node, if the Reservation has Gpus on several.
        files: texts beside a script, by relative path (``launchers.beside_problem``).
        launcher, environment_folder: of a script (``protocol.launchers``).
        restart: how it may be restarted (``rebalance_policy.RestartMode``). "": not.
        gpu_count: how many Gpus it needs. None: all of the Reservation on its node.
        retry_failed: whether it restarts when it failed, too, not only when its node
            was lost.
        resume_from: an ended Job of the same User, whose checkpoint it loads.
        after: a Job that the User may see. This one begins once that one is done.
        marks: further fields of the row, set by callers that launch for a User.

    Raises:
        LaunchInvalid: fields that cannot be used.
        NotFound: no such Reservation or Plan of this User.
        JobRefusal: the rules refuse it.
    """
    words = (name, kind, recipe, recipe_settings or {}, script, arguments)
    checked = checked_form(*words, restart, launcher, environment_folder, files)
    reservation = locked_usable_reservation(
        user, reservation_id, now, for_gap="backfill" in marks
    )
    plan = _plan_of(user, plan_id, kind, launcher)
    if plan is not None and (taken := sorted({*FILES} & {*(files or {})})):
        why = sentence("{name} is a file of the plan", name=taken[0])
        raise LaunchInvalid({"files": why})
    where = _node_of_job(reservation, plan, node)
    check_counts(reservation, where, gpu_count, retries, retry_failed)
    _check_rights(user, reservation, where, checked, may_move=may_move)
    if kind == Job.Kind.RECIPE and recipe in BY_TORCHRUN:
        given = checked["recipe_settings"]
        if plan is not None:
            given = with_planned_sizes(recipe, plan.plan, recipe_settings or {})
        checked["recipe_settings"] = _planned(recipe, given, plan, where)
    before = checked_predecessor(
        user, after, reservation, resume_from=resume_from, now=now
    )
    return queue_job(
        user,
        after=before,
        reservation=reservation,
        plan=plan,
        node=where,
        may_move=may_move,
        gpu_count=None if plan is not None else gpu_count,
        retries=retries,
        retry_failed=retry_failed,
        resume_from=checkpoint_relay.lock_previous_job(
            user, resume_from, where, kind=kind, recipe=recipe
        ),
        created_at=now,
        script_folder=_script_folder(user, files),
        **marks,
        **checked,
    )


def _script_folder(user: User, files: Mapping[str, str] | None) -> ScriptFolder | None:
    """Store the files beside a script once for all Jobs of a User that have them."""
    if not files:
        return None
    digest = hashlib.sha256(beside_bytes(files)).hexdigest()
    folder, _ = ScriptFolder.objects.get_or_create(
        owner=user, sha256=digest, defaults={"files": dict(files)}
    )
    return folder


launch = transaction.atomic(durable=True)(launch_in)
"""``launch_in`` in its own transaction."""


def stop_in(*, job_id: int, user: User, now: datetime, reason: str = "") -> Job:
    """Stop a Job, in a transaction: TERM, the grace, KILL. Idempotent.

    Raises:
        NotFound: no such Job, or this User may not see it.
        NotAllowed: a group head may look, not stop.
        JobOver: it has ended.
    """
    job: Job | None = (
        Job.objects.visible_to(user)
        .select_related("node", "owner", "reservation")
        .filter(pk=job_id)
        .first()
    )
    if job is None:
        raise NotFound(what=sentence("job #{job_id}", job_id=job_id))
    if job.owner_id != user.pk and not user.is_operator:
        raise NotAllowed(
            act=sentence(
                "stop job #{job_id} of {owner}", job_id=job_id, owner=job.owner
            )
        )
    words = reason.strip() or (
        sentence("stopped by its owner")
        if job.owner_id == user.pk
        else sentence("stopped by the lab admin")
    )
    if job.state in Job.State.ending():
        stopped_by_hand(job, now=now, reason=words)
        return job
    moved = (
        move(
            job,
            Job.State.STOPPED,
            now=now,
            actor=user.username,
            reason=words,
            fields={"ended_at": now},
        )
        if job.state == Job.State.QUEUED
        else move(
            job,
            Job.State.STOPPING,
            now=now,
            actor=user.username,
            reason=words,
            fields={"stop_at": now, "ordered_at": None},
        )
    )
    if not moved:
        job.refresh_from_db()
        if job.state not in Job.State.live():
            raise JobOver(job=job.pk, state=job.state)
    stopped_by_hand(job, now=now, reason=words)
    return job


stop = transaction.atomic(durable=True)(stop_in)
"""``stop_in`` in its own transaction."""


def locked_reservation(user: User, pk: int, now: datetime) -> Reservation:
    """Return a live Reservation, own or shared, with room for a Job, locked.

    The row lock makes the count of live Jobs exact.
    """
    rows = Reservation.objects.select_for_update()
    reservation = rows.filter(usable_by(user), pk=pk).first()
    if reservation is None:
        raise NotFound(what=sentence("reservation #{pk} of yours", pk=pk))
    if reservation.state not in State.live() or reservation.end <= now:
        raise ReservationNotUsable(
            reservation=reservation.pk, state=reservation.state, end=reservation.end
        )
    count = reservation.jobs.live().count()
    if count >= MOST_LIVE_JOBS:
        raise TooManyJobs(reservation=reservation.pk, live=count, most=MOST_LIVE_JOBS)
    return reservation


def locked_usable_reservation(
    user: User, pk: int, now: datetime, *, for_gap: bool
) -> Reservation:
    """Return a locked Reservation with room. One that fills a gap is for that Job
    only.
    """
    reservation = locked_reservation(user, pk, now)
    if is_gap(reservation.start, reservation.booked_end) and not for_gap:
        raise LaunchInvalid({"reservation": sentence("holds a gap for another job")})
    return reservation


def queue_job(user: User, **row: Any) -> Job:
    """Store the row with its first event. Publish it on commit.

    Raises:
        LaunchInvalid: the engine of its node cannot run it.
    """
    _check_engine(user, row["reservation"], row["node"], row["kind"])
    job: Job = Job.objects.create(owner=user, request_id=request_id.current(), **row)
    _divide(job)
    record_queued(job, at=job.created_at, actor=user.username)
    return job


def _divide(job: Job) -> None:
    """Create the parts of a Job whose Plan is over several nodes.

    Raises:
        LaunchInvalid: it is to be moved, which only a Job on one node can be.
        ScriptsNotAllowed: own code, and one of the nodes does not isolate.
    """
    launcher, facts = job.started_with, {"kind": job.kind, "recipe": job.recipe}
    names = job_nodes.planned_nodes(job.plan, launcher=launcher, **facts)
    if not names:
        return
    if job.may_move:
        raise LaunchInvalid(
            {"may_move": sentence("a job on several nodes cannot move")}
        )
    if _runs_own_code(facts):
        for node in Node.objects.filter(name__in=names):
            check_isolation(node, job.owner)
    job_nodes.divide(job, names)


def _runs_own_code(facts: Mapping[str, Any]) -> bool:
    own = facts["kind"] == Job.Kind.SCRIPT
    return own or RECIPES[facts["recipe"]].needs_isolation


def _check_rights(
    user: User,
    reservation: Reservation,
    node: Node,
    checked: Mapping[str, Any],
    *,
    may_move: bool,
) -> None:
    """Refuse a move of another User's Job, and own code without isolation."""
    if may_move and reservation.user_id != user.pk:
        raise LaunchInvalid(
            {"may_move": sentence("only the reservation's owner may move it")}
        )
    if _runs_own_code(checked):
        check_isolation(job_worker.isolating_node(node), user)


def _check_engine(owner: User, reservation: Reservation, node: Node, kind: str) -> None:
    """Refuse a Job that the engine of its node cannot run as its owner.

    Raises:
        LaunchInvalid.
    """
    if node.engine == Node.Engine.PORTAL:
        return
    if not settings.SLURM_AGENT:
        name = hold_name(settings.SLURM_SITE, reservation.pk)
        why = sentence(
            "{node} belongs to Slurm. Start your jobs there with sbatch "
            "--reservation={name}",
            node=node.name,
            name=name,
        )
        raise LaunchInvalid({"node": why})
    if kind not in (Job.Kind.SCRIPT, Job.Kind.RECIPE):
        why = sentence("Slurm's nodes run scripts and recipes, and no endpoints")
        raise LaunchInvalid({"node": why})
    if not (UNIX_USER.fullmatch(owner.unix_user) or settings.ALLOW_UNISOLATED_SCRIPTS):
        # The agent is root, and would submit the job as root.
        why = sentence(
            "{node} belongs to Slurm, which runs each job as its owner's Unix user, "
            "and you have none. The admin enters it under Manage, People",
            node=node.name,
        )
        raise LaunchInvalid({"node": why})


def _node_of_job(reservation: Reservation, plan: StoredPlan | None, node: str) -> Node:
    """Return the node, by default the Plan's, with all Gpus that the Plan needs."""
    if plan is None:
        return node_of(reservation, node)
    _check_held(plan, reservation)
    return node_of(reservation, node or str(plan.plan.get("node", "")))


def node_of(reservation: Reservation, asked: str) -> Node:
    """Return the one node that the Job runs on."""
    held = reservation.allocations.filter(live=True).select_related("gpu__node")
    nodes = {row.gpu.node.name: row.gpu.node for row in held}
    if asked in nodes:
        return nodes[asked]
    if len(nodes) == 1 and not asked:
        return next(iter(nodes.values()))
    counts = Counter(row.gpu.node.name for row in held)
    raise SpansNodes(
        reservation=reservation.pk,
        nodes=tuple(f"{name}: {count}" for name, count in sorted(counts.items())),
        asked=asked,
    )


def check_counts(
    reservation: Reservation,
    node: Node,
    gpu_count: int | None,
    retries: int,
    retry_failed: bool,
) -> None:
    """Refuse more Gpus than are held there, and more retries than allowed."""
    held = reservation.allocations.filter(live=True, gpu__node=node).count()
    problems = retry_problems(retries, retry_failed)
    if gpu_count is not None and not 1 <= gpu_count <= held:
        some = sentence("1 to {held}", held=held) if held > 1 else held
        problems["gpu_count"] = sentence(
            "must be {some}, the GPUs held on {node}", some=some, node=node.name
        )
    if problems:
        raise LaunchInvalid(problems)


def check_isolation(node: Node, user: User) -> None:
    if settings.ALLOW_UNISOLATED_SCRIPTS:
        return
    if node.isolation == Node.Isolation.NONE:
        raise ScriptsNotAllowed(
            node=node.name, why=sentence("they cannot run under a separate Unix user")
        )
    if not user.unix_user and not settings.OWN_IDS:
        raise ScriptsNotAllowed(
            node=node.name, why=sentence("you have no Unix user in the portal")
        )


def _plan_of(
    user: User, plan_id: int | None, kind: str, launcher: str = ""
) -> StoredPlan | None:
    if plan_id is None:
        return None
    plan = StoredPlan.objects.filter(pk=plan_id, owner=user).first()
    if plan is None:
        raise NotFound(what=sentence("plan #{plan_id} of yours", plan_id=plan_id))
    if kind == Job.Kind.RECIPE:
        _check_runnable(plan)
    elif kind == Job.Kind.SCRIPT:
        check_plan_of_script(plan, launcher)
    return plan


def _check_held(plan: StoredPlan, reservation: Reservation) -> None:
    """Refuse a Plan whose Gpus the Reservation does not hold.

    Slurm chooses the GPUs of a node, so that their number counts there.
    """
    held = {
        uuid: (node, engine)
        for uuid, node, engine in reservation.allocations.filter(live=True).values_list(
            "gpu__uuid", "gpu__node__name", "gpu__node__engine"
        )
    }
    shards = plan.plan.get("shards", ())
    missing = [
        str(shard.get("gpu_label", ""))
        for shard in shards
        if shard.get("gpu_uuid") not in held
    ]
    place = (str(plan.plan.get("node", "")), str(Node.Engine.SLURM))
    if missing and len(shards) > Counter(held.values())[place]:
        raise PlanElsewhere(reservation=reservation.pk, missing=tuple(missing))


def _check_runnable(plan: StoredPlan) -> None:
    """Refuse strategies that no recipe can run."""
    why = why_not(plan.plan)
    if not why and len(json.dumps(plan.plan)) > MOST_PLAN_CHARACTERS:
        why = sentence("the command to the node would be too long")
    if why:
        raise StrategyNotRunnable(
            strategy=str(plan.plan.get("strategy", "")),
            runnable=RUNNABLE_STRATEGIES,
            why=why,
        )


def _planned(
    recipe: str, settings_given: dict[str, Any], plan: StoredPlan | None, where: Node
) -> dict[str, Any]:
    """Return the recipe's settings with the Plan's strategy, if they are compatible.

    Raises:
        LaunchInvalid: a strategy that needs a Plan, or the Plan is for another node.
        StrategyNotRunnable: the recipe's model cannot be cut as the Plan requires.
    """
    check_backend(settings_given, plan, where)
    if plan is None:
        check_needs_no_plan(settings_given)
        return settings_given
    strategy = str(plan.plan["strategy"])
    if not runs_by_plan(plan.plan):
        check_needs_no_plan({**settings_given, "strategy": strategy})
    elif plan.plan["node"] != where.name:
        raise LaunchInvalid(
            {"node": sentence("the plan is for {node}", node=plan.plan["node"])}
        )
    elif why := recipe_problem(recipe, settings_given, plan.plan, plan.spec):
        raise StrategyNotRunnable(
            strategy=strategy, runnable=RUNNABLE_STRATEGIES, why=why
        )
    elif recipe == FINE_TUNE.name:
        settings_given = as_planned(settings_given, plan.plan, plan.spec)
    return {**settings_given, "strategy": strategy}
