"""Move a served model: load it at the new place, switch calls, end the old one.

See docs/design/placement.md#moving-endpoints. An endpoint moves when its owner starts
the move, or, if the owner allows it, when its Gpu breaks or an intruder uses it. The
steps use only database rows, and each may run twice and concurrently:

1. ``begin``: a Job with the same models on the best other Gpu. This is a Gpu of the
   same Reservation, or one booked besides it, so that both run for a moment. If the
   calendar or the quota does not allow both, the Reservation's rest moves (the old
   place ends first).
2. ``follow``: when the new server has loaded its models, or the old one is gone, calls
   to the old address go to the new one. A new Job that fails is given up.
3. ``leave``: some seconds later, when pending calls are answered, the old Job stops. A
   Reservation made for it is returned without a charge for the unused time.
4. ``model_states``: owners of endpoints that are down and cannot move are notified.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from placement.jobs import job_broadcast
from placement.jobs.job_notices import notify_model_owners
from placement.jobs.job_transitions import PORTAL, move
from placement.jobs.queries import gpu_troubles
from placement.models import Endpoint, Job, ServedModel
from placement.rules.rebalance_review import GpuTrouble
from placement.serving import model_states
from placement.serving.endpoint_places import (
    EndpointPlace,
    book_beside,
    find_place,
    rest_of,
)
from placement.serving.endpoint_rows import check_alone, put_endpoint
from placement.serving.serving_refusals import CannotMove, FitsNowhere
from reservations.booking.release import release
from reservations.models import Reservation, User
from reservations.rules.errors import NotFound
from reservations.rules.lifecycle import State
from reservations.store.audit_log import audit_act
from telemetry.models import Gpu
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import RowSteps

LEAVE_SECONDS = 5.0
"""From the switch to the old server's end, for pending answers."""
AGAIN_SECONDS = 600.0
"""A failed move is not tried again for this long."""
REVIVE_SECONDS = 600.0
"""For this long, an endpoint that a broken Gpu ended may still be moved."""
LEAST_LEFT_SECONDS = 60.0
"""With less time left in the Reservation, nothing moves."""
MOST_ROWS = 100
_ENDED_BADLY = (Job.State.FAILED, Job.State.LOST)

logger = logging.getLogger(__name__)
_each = RowSteps(logger, "endpoint")


def tick(now: datetime) -> dict[str, int]:
    """Run every step once; how many endpoints each one moved on."""
    troubles = gpu_troubles()
    moved = {
        "serves_begun": _each(
            _troubled_endpoints(set(troubles), now),
            lambda one, at: _begin_move(one, troubles[one.gpu.uuid][-1][0], at),
            now,
        ),
        "serves_switched": _each(_arriving(), _switch_calls, now),
        "serves_left": _each(_places_to_stop(now), _stop_old_place, now),
    }
    told = _each(model_states.silent(now), model_states.notify_of_silence, now)
    return moved | {"serves_silent": told}


def _endpoints():  # type: ignore[no-untyped-def]
    return Endpoint.objects.select_related(
        "gpu__node", "job__owner", "job__node", "job__reservation__membership"
    ).order_by("pk")


# --- 1. begin ---------------------------------------------------------------------


def move_now(*, user: User, job_id: int, now: datetime) -> Job:
    """Move an endpoint of the User to the best other Gpu; return the new Job.

    Raises:
        NotFound: no such endpoint of this User.
        CannotMove: it is already moving, or it does not run.
        FitsNowhere: no other Gpu fits, with the reason of each.
        Refusal, NotAllowed: the calendar refuses the booking.
    """
    found = _endpoints().filter(job_id=job_id)
    if not user.is_operator:
        found = found.filter(job__owner=user)
    endpoint = found.first()
    if endpoint is None:
        raise NotFound(
            what=sentence("endpoint of job #{job_id} of yours", job_id=job_id)
        )
    made = _start_successor(
        endpoint,
        sentence("asked by {username}", username=user.username),
        now,
        actor=user,
        broken=False,
    )
    return made.job


def _troubled_endpoints(uuids: set[str], now: datetime) -> Iterable[Endpoint]:
    """Endpoints on Gpus with problems, which may move and do not yet."""
    lately = now - timedelta(seconds=AGAIN_SECONDS)
    revived = now - timedelta(seconds=REVIVE_SECONDS)
    ended = Q(job__state__in=_ENDED_BADLY, job__ended_at__gt=revived)
    return (
        _endpoints()
        .filter(
            Q(job__state=Job.State.RUNNING) | ended,
            gpu__uuid__in=uuids,
            job__may_move=True,
            job__reservation__state=State.ACTIVE,
        )
        .exclude(successors__job__created_at__gt=lately)
        .exclude(successors__took_over_at__isnull=False)[:MOST_ROWS]
    )


def _begin_move(endpoint: Endpoint, trouble: GpuTrouble, now: datetime) -> bool:
    try:
        _start_successor(
            endpoint, trouble.words, now, actor=None, broken=trouble.breaks
        )
    except (CannotMove, FitsNowhere, CodedError) as refused:
        why = refused.text()
        with transaction.atomic():
            return notify_model_owners(
                endpoint.job,
                _models(endpoint),
                sentence(
                    "{trouble}, where “{job}” is served, and it cannot move: {why}",
                    trouble=trouble.words,
                    job=endpoint.job.name,
                    why=why,
                ),
                key=f"serve:{endpoint.pk}:stays:{trouble.rule}:{now:%Y-%m-%d}",
                now=now,
            )
    return True


def _start_successor(
    endpoint: Endpoint, why: str, now: datetime, *, actor: User | None, broken: bool
) -> Endpoint:
    """Start the endpoint at another place. Raises as ``move_now``."""
    job = endpoint.job
    alive = job.state in (Job.State.RUNNING, *(_ENDED_BADLY if broken else ()))
    if not alive or job.reservation.state != State.ACTIVE:
        raise CannotMove(
            job=job.pk, why=sentence("it is {state}", state=Job.State(job.state).label)
        )
    if (job.reservation.end - now).total_seconds() < LEAST_LEFT_SECONDS:
        raise CannotMove(job=job.pk, why=sentence("its reservation ends at once"))
    if _has_live_successor(endpoint):
        raise CannotMove(job=job.pk, why=sentence("it is moving, or has moved"))
    place = find_place(endpoint, now)
    if place.own:
        with transaction.atomic(durable=True):
            return _create_successor(endpoint, job.reservation, place, why, now, actor)
    try:
        # A broken Gpu's Reservation is useless besides another.
        beside = None if broken else book_beside(job, place, now=now, actor=actor)
    except CodedError as refused:
        logger.info("job %s cannot be held twice: %s", job.pk, refused.text())
        beside = None
    with transaction.atomic(durable=True):
        reservation = beside or rest_of(endpoint, place, now=now, actor=actor, why=why)
        return _create_successor(endpoint, reservation, place, why, now, actor)


def _has_live_successor(endpoint: Endpoint) -> bool:
    live_ones = Q(took_over_at__isnull=False) | Q(job__state__in=list(Job.State.live()))
    return endpoint.successors.filter(live_ones).exists()


def _models(endpoint: Endpoint) -> Sequence[ServedModel]:
    rows = endpoint.models.filter(removed_at=None)
    return list(rows.select_related("added_by", "file"))


def _create_successor(
    endpoint: Endpoint,
    reservation: Reservation,
    place: EndpointPlace,
    why: str,
    now: datetime,
    actor: User | None,
) -> Endpoint:
    """Create the new Job with the same models. Another worker's is not duplicated."""
    job = endpoint.job
    with transaction.atomic():
        Reservation.objects.select_for_update().get(pk=reservation.pk)
        # The old endpoint's row is the lock, so it moves once at a time.
        Endpoint.objects.select_for_update().get(pk=endpoint.pk)
        if _has_live_successor(endpoint):
            raise CannotMove(job=job.pk, why=sentence("it is moving already"))
        gpu = Gpu.objects.select_related("node").get(pk=place.gpu_id)
        check_alone(reservation, gpu)
        made = put_endpoint(
            user=job.owner,
            reservation=reservation,
            gpu=gpu,
            offer=place.offer,
            name=job.name,
            admits=endpoint.admits,
            settings={"threads": job.recipe_settings.get("threads", 1)},
            needs_bytes=sum(row.memory_bytes for row in _models(endpoint)),
            may_move=job.may_move,
            follows=endpoint,
            now=now,
        )
        for row in _models(endpoint):
            ServedModel.objects.create(
                endpoint=made,
                file=row.file,
                name=row.name,
                added_by=row.added_by,
                memory_bytes=row.memory_bytes,
                most_batch=row.most_batch,
                deadline_ms=row.deadline_ms,
                added_at=now,
            )
        audit_act(
            verb="endpoint.moves",
            subject=f"job:{job.pk}",
            actor=actor,
            now=now,
            to=made.job_id,
            reason=why[:200],
        )
    job_broadcast.publish_job(job.pk)
    return made


# --- 2. follow --------------------------------------------------------------------


def _arriving() -> Iterable[Endpoint]:
    """New places that do not receive calls yet."""
    return _endpoints().filter(
        follows__isnull=False, took_over_at=None, job__in=Job.objects.live()
    )[:MOST_ROWS]


def _switch_calls(endpoint: Endpoint, now: datetime) -> bool:
    """Switch calls to the new place as soon as it is better than the present one."""
    before = endpoint.follows
    assert before is not None
    if endpoint.job.state != Job.State.RUNNING:
        return False
    states = {row.state for row in _models(endpoint)}
    loaded = "ready" in states and states <= {"ready", "failed"}
    if not loaded and before.job.state == Job.State.RUNNING:
        return False
    with transaction.atomic():
        taken = Endpoint.objects.filter(pk=endpoint.pk, took_over_at=None).update(
            took_over_at=now
        )
        if taken:
            notify_model_owners(
                before.job,
                _models(endpoint),
                sentence(
                    "“{job}” moved from {gpu} to {place}, as job {number}. Its "
                    "address stays as it is.",
                    job=before.job.name,
                    gpu=before.gpu,
                    place=endpoint.gpu,
                    number=endpoint.job_id,
                ),
                key=f"serve:{endpoint.pk}:moved",
                now=now,
                kind="moved",
            )
            job_broadcast.publish_job(before.job_id)
    return bool(taken)


# --- 3. leave ---------------------------------------------------------------------


def _places_to_stop(now: datetime) -> Iterable[Endpoint]:
    """Old places that still run, some seconds after calls were switched."""
    since = now - timedelta(seconds=LEAVE_SECONDS)
    return (
        _endpoints()
        .filter(successors__took_over_at__lte=since)
        .filter(job__state__in=[Job.State.STARTING, Job.State.RUNNING])
        .distinct()[:MOST_ROWS]
    )


def _stop_old_place(endpoint: Endpoint, now: datetime) -> bool:
    job = endpoint.job
    after = endpoint.successors.filter(took_over_at__isnull=False).latest(
        "took_over_at"
    )
    with transaction.atomic():
        gone = move(
            job,
            Job.State.STOPPING,
            now=now,
            actor=PORTAL,
            reason=sentence("its models moved to job #{job_id}", job_id=after.job_id),
            fields={"stop_at": now, "ordered_at": None},
        )
    others = job.reservation.jobs.live().exclude(pk=job.pk).exists()
    elsewhere = after.job.reservation_id != job.reservation_id
    if gone and elsewhere and not others and job.reservation.state == State.ACTIVE:
        release(
            reservation_id=job.reservation_id,
            user=None,
            now=now,
            reason=sentence("job #{job} moved", job=job.pk),
            permille=0,
        )
    return gone
