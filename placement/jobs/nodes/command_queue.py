"""From a Job's row to a signed order in its node's queue."""

import hashlib
import json
import logging
import secrets
from datetime import datetime
from typing import Any

import kombu.exceptions
from celery import current_app

from placement.jobs.nodes import checkpoint_relay, job_nodes, job_worker
from placement.jobs.plan_files import files_for_job
from placement.jobs.service import MOST_PLAN_CHARACTERS
from placement.jobs.tick.gpu_assignment import held_gpus
from placement.models import CarriedCheckpoint, Job, JobPart, PlacementPolicy
from placement.planner.launch.recipes import KNOWN_RECIPES, claim_bytes, runs_by_plan
from placement.protocol import signing
from placement.protocol.commands import Addressed, JobLimits, Order, OrderKind
from placement.protocol.device_grants import GateOrder
from placement.protocol.events import Running
from placement.protocol.job_parts import gpus_by_node
from placement.protocol.launchers import Launcher
from placement.protocol.process_commands import ProcessOrder
from placement.protocol.user_messages import UserMessage
from placement.rules.sweep import variables
from reservations.models import SitePolicy
from reservations.store.unix_logins import unix_uid
from telemetry import request_id
from telemetry.models import Gpu, Node
from telemetry.protocol.sentences import sentence

ORDER_SECONDS = 60.0
"""An order older than this expires. By then the tick sends another one."""
STOP_SECONDS = 60.0
SCRIPT_CLAIM_BYTES = 4 * 2**30
SCRIPT_CLAIM_PCT = 60.0

logger = logging.getLogger(__name__)
OUTAGES = (kombu.exceptions.OperationalError, ConnectionError, TimeoutError)


def new_nonce() -> str:
    """Return a nonce for one order."""
    return secrets.token_hex(16)


def start_order(job: Job, *, now: datetime, part: JobPart | None = None) -> Order:
    """Return the order that starts a Job (or gives its shim a new end).

    Args:
        part: of a Job over several nodes, for whose node the order is.
    """
    reservation = job.reservation
    issued_at, deadline_at = now.timestamp(), reservation.end.timestamp()
    node = job.node if part is None else part.node
    gpus = _gpus_of(job) if part is None else _gpus_of_part(part)
    script = job.kind == Job.Kind.SCRIPT
    sha256 = hashlib.sha256(job.script.encode()).hexdigest() if script else ""
    return Order(
        kind=OrderKind.START,
        node=job_worker.worker_name(node),
        job=job.pk,
        attempt=job.attempt,
        key=job.key,
        nonce=(part or job).order_nonce,
        issued_at=issued_at,
        expires_at=min(issued_at + ORDER_SECONDS, deadline_at),
        deadline_at=deadline_at,
        grace_seconds=float(SitePolicy.current().stop_grace_seconds),
        gpu_uuids=tuple(gpu.uuid for gpu in gpus),
        gpu_indexes=tuple(gpu.index for gpu in gpus),
        user=job.owner.username,
        unix_user=job.owner.unix_user,
        unix_uid=unix_uid(job.owner),
        argv=tuple(job.arguments) if script else None,
        recipe=None if script else job.recipe,
        settings=job.recipe_settings,
        script_sha256=sha256,
        beside_sha256=job.script_folder.sha256 if job.script_folder else "",
        launcher=Launcher(job.started_with),
        environment_folder=job.environment_folder,
        files_sha256=_files_sha256(job),
        env={}
        if job.array_index is None
        else variables(job.parameters, job.array_index),
        plan={} if script else _plan_of(job),
        resume_job=job.resume_from_id or 0,
        resume_attempt=job.resume_from.attempt if job.resume_from else 0,
        resume_key=job.resume_from.key if job.resume_from else "",
        limits=JobLimits(
            disk_bytes=SitePolicy.current().job_folder_bytes,
            person_bytes=SitePolicy.current().person_folders_bytes,
        ),
        checkpoints=checkpoint_relay.start_checkpoints(job),
        meeting=None if part is None else job_nodes.rendezvous_of(job, part),
        slurm=job_worker.place_of(job),
        **_claim(job, node),
    )


def stop_order(job: Job, *, now: datetime, part: JobPart | None = None) -> Order:
    """Return the order that ends a Job, with the reason for its page."""
    issued_at = now.timestamp()
    return Order(
        kind=OrderKind.STOP,
        node=job_worker.worker_name((part or job).node),
        job=job.pk,
        attempt=job.attempt,
        key=job.key,
        nonce=new_nonce(),
        issued_at=issued_at,
        expires_at=issued_at + STOP_SECONDS,
        deadline_at=job.reservation.end.timestamp(),
        grace_seconds=_grace_seconds(job, now),
        reason=job.reason,
    )


def stranger_order(node_name: str, item: Running, *, now: datetime) -> Order:
    """Return the order that ends a Job that this portal does not know."""
    issued_at = now.timestamp()
    return Order(
        kind=OrderKind.STOP,
        node=node_name,
        job=item.job,
        attempt=item.attempt,
        key=item.key or "",
        nonce=new_nonce(),
        issued_at=issued_at,
        expires_at=issued_at + STOP_SECONDS,
        deadline_at=issued_at + STOP_SECONDS,
        grace_seconds=float(SitePolicy.current().stop_grace_seconds),
        reason=sentence(
            "the portal does not know this job: it was restored from a backup"
        ),
    )


def _grace_seconds(job: Job, now: datetime) -> float:
    """Return a Job's time from TERM to KILL. In a gap never past its end."""
    grace = float(SitePolicy.current().stop_grace_seconds)
    if job.backfill_id is None:
        return grace
    left = (job.reservation.end - now).total_seconds()
    return max(0.0, min(grace, left))


def carry_order(row: CarriedCheckpoint, *, now: datetime) -> Order:
    """Return the order to upload a node's part of an ended Job's checkpoint."""
    issued_at = now.timestamp()
    return Order(
        kind=OrderKind.CARRY,
        node=job_worker.worker_name(row.node),
        job=row.job_id,
        attempt=row.job.attempt,
        key=row.job.key,
        nonce=new_nonce(),
        issued_at=issued_at,
        expires_at=issued_at + ORDER_SECONDS,
        deadline_at=issued_at + ORDER_SECONDS,
        grace_seconds=0.0,
        carry_most_bytes=PlacementPolicy.current().checkpoint_bytes,
    )


def send(order: Order, *, request: str = "") -> bool:
    """Sign an order and put it into its node's queue. False: no broker.

    Args:
        request: the id of the request that launched the Job, for the node's log.
    """
    with request_id.set_for(request):
        return _send(order, order.payload(), about=sentence("job {job}", job=order.job))


def send_process_order(order: ProcessOrder, *, now: datetime) -> bool:
    """Sign and queue an order against an intruder's process. False: no broker."""
    return _send(order, order.payload(), about=sentence("process {pid}", pid=order.pid))


def send_gate_order(order: GateOrder) -> bool:
    """Sign and queue the state of a node's device gate. False: no broker."""
    return _send(order, order.payload(), about="the device gate")


def send_user_message(message: UserMessage) -> bool:
    """Sign and queue a text for a user's terminals. False: no broker."""
    return _send(message, message.payload(), about=f"user {message.unix_user}")


def _send(order: Addressed, payload: str, *, about: str) -> bool:
    # Without Celery's `expires`: a node whose clock is ahead would drop the order
    # silently. The node refuses an old order itself, and reports it.
    try:
        current_app.send_task(
            "node.order",
            kwargs={"payload": payload, "signature": signing.sign(payload)},
            queue=f"node.{order.node}",
            ignore_result=True,
            retry=False,
        )
    except OUTAGES as error:
        logger.warning("order for %s was not sent: %s", about, error)
        return False
    return True


def planned_uuids(job: Job) -> list[str]:
    """Return the Gpus of the Plan by which a recipe or launcher runs, in rank order.

    For an endpoint, its Gpu or Gpus. Otherwise nothing.
    """
    if job.kind == Job.Kind.SERVE:
        return [job.endpoint.gpu.uuid]
    if job.kind == Job.Kind.TEXT:
        return list(job.language_model_endpoint.gpu_uuids)
    if job.kind == Job.Kind.RECIPE and runs_by_plan(_plan_of(job)):
        return [uuid for _, own in gpus_by_node(_plan_of(job)) for uuid in own]
    if job.started_with and job.plan is not None:
        return [uuid for _, own in gpus_by_node(job.plan.plan) for uuid in own]
    return []


def _gpus_of(job: Job) -> list[Gpu]:
    """Return the Gpus that a Job got (or would get), in its own order."""
    if not job.uses_gpus:
        return []
    held = held_gpus(job)
    by_pk = {gpu.pk: gpu for gpu in held}
    by_uuid = {gpu.uuid: gpu for gpu in held}
    got = [by_pk[pk] for pk in job.gpu_ids if pk in by_pk]
    wanted = planned_uuids(job)
    planned = [by_uuid[uuid] for uuid in wanted if uuid in by_uuid]
    if len(planned) < len(wanted) and job.node.engine == Node.Engine.SLURM:
        # Slurm chose others of the same type.
        planned += [gpu for gpu in held if gpu not in planned]
        planned = planned[: len(wanted)]
    return got or planned or held


def _gpus_of_part(part: JobPart) -> list[Gpu]:
    by_pk = Gpu.objects.in_bulk(part.gpu_ids)
    return [by_pk[pk] for pk in part.gpu_ids if pk in by_pk]


def _claim(job: Job, node: Node) -> dict[str, Any]:
    """Return what the Job occupies on simulated Gpus."""
    if not node.simulated:
        return {}
    if not job.uses_gpus:
        return {"simulated": True}
    if job.recipe in KNOWN_RECIPES:
        taken = claim_bytes(job.recipe_settings)
        util_pct = float(job.recipe_settings["simulated_util_pct"])
    else:
        taken, util_pct = SCRIPT_CLAIM_BYTES, SCRIPT_CLAIM_PCT
    return {
        "simulated": True,
        "claim_bytes_per_gpu": taken,
        "claim_util_pct": util_pct,
    }


def _plan_of(job: Job) -> dict[str, Any]:
    """Return the Plan that is sent to the Job. One that is too long is not sent."""
    if job.plan is None or len(json.dumps(job.plan.plan)) > MOST_PLAN_CHARACTERS:
        return {}
    return dict(job.plan.plan)


def _files_sha256(job: Job) -> str:
    """Return the hash of the files that a script with a Plan gets in its folder."""
    if job.kind != Job.Kind.SCRIPT or job.plan is None:
        return ""
    return hashlib.sha256(files_for_job(job.plan)).hexdigest()
