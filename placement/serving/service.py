"""Serve models: deploy, add, remove. What runs follows from these rows.

A Job of kind ``serve`` has an Endpoint on one Gpu of its Reservation. Models are added
and removed there. The node asks which models it is to serve (``channel.models``).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q

from placement.jobs.service import locked_reservation
from placement.models import Admits, Endpoint, Job, ModelFile, ServedModel
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.gpu_availability import GpuOffer
from placement.plans.available_gpus import offered
from placement.protocol.serving_frames import MODEL_NAME, NAME_RULE
from placement.rules.job_refusals import JobOver
from placement.serving.endpoint_rows import check_alone, put_endpoint
from placement.serving.rules import (
    best_offer,
    likely_bytes,
)
from placement.serving.serving_refusals import (
    EndpointFull,
    FitsNowhere,
    NothingServedFor,
    ServesAlready,
    TooLargeForEndpoint,
)
from reservations.booking.service import book
from reservations.models import Membership, Reservation, User
from reservations.rules.errors import NotAllowed, NotFound
from reservations.store.audit_log import audit_act
from telemetry.models import Gpu, Node
from telemetry.protocol.sentences import sentence

MOST_MODELS = 16
MOST_BATCH = 256
MOST_DEADLINE_MS = 600_000
MOST_HOURS = 24 * 14


@dataclass(frozen=True)
class ServingSettings:
    """The settings of a served model. ``read`` checks every field."""

    name: str
    most_batch: int
    deadline_ms: int

    @classmethod
    def read(cls, said: Mapping[str, Any], *, file: ModelFile) -> "ServingSettings":
        """Read a form or a JSON body. Raises LaunchInvalid by field."""
        problems: dict[str, str] = {}
        name = str(said.get("name") or "").strip() or tidy_name(file.name)
        if not MODEL_NAME.fullmatch(name):
            problems["name"] = NAME_RULE
        batch = _number(said, "most_batch", 8, MOST_BATCH, problems)
        deadline = _number(said, "deadline_ms", 10_000, MOST_DEADLINE_MS, problems)
        if problems:
            raise LaunchInvalid(problems)
        return cls(name, batch, deadline)


def tidy_name(file_name: str) -> str:
    """Return a name for a model, from its file's name."""
    stem = file_name.rsplit(".", 1)[0]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-._")[:63] or "model"


def _number(
    said: Mapping[str, Any],
    field: str,
    default: int,
    most: int,
    problems: dict[str, str],
) -> int:
    value = said.get(field)
    if value in (None, ""):
        return default
    if isinstance(value, bool) or not str(value).isdecimal() or len(str(value)) > 9:
        problems[field] = sentence(
            "must be a whole number from 1 to {most}", most=f"{most:,}"
        )
        return default
    if not 1 <= int(str(value)) <= most:
        problems[field] = sentence("must be 1 to {most}", most=f"{most:,}")
    return int(str(value))


def deploy(
    *,
    user: User,
    file_id: int,
    said: Mapping[str, Any],
    reservation_id: int | None = None,
    hours: float | None = None,
    membership: Membership | None = None,
    now: datetime,
) -> Job:
    """Serve a model on the best Gpu of the User's Reservation, or of a new one.

    Args:
        said: name, most_batch, deadline_ms, admits, threads. A missing key has its
            default.
        reservation_id: the Reservation whose Gpus may be used.
        hours: instead, book the best Gpu from now for this many hours.
        membership: the membership that pays for it. None: the only one.

    Raises:
        LaunchInvalid: by field.
        NotFound: no such file or Reservation of this User.
        FitsNowhere, ServesAlready, NothingServedFor, ReservationNotUsable, TooManyJobs:
        see there.
        Refusal, NotAllowed: the calendar does not book it.
    """
    file = _own_file(user, file_id)
    asked = ServingSettings.read(said, file=file)
    admits = _admits(said)
    settings = _settings(said)
    if (reservation_id is None) == (hours is None):
        raise LaunchInvalid(
            {
                "reservation": sentence(
                    "choose a reservation of yours, or enter the hours to book"
                )
            }
        )
    if hours is not None and not 0 < hours <= MOST_HOURS:
        raise LaunchInvalid(
            {
                "hours": sentence(
                    "must be above 0 and at most {most_hours}", most_hours=MOST_HOURS
                )
            }
        )
    needs = likely_bytes(file.weight_bytes, asked.most_batch)
    offer = _choose(user, needs, reservation_id, hours, now)
    _check_user(user, Node.objects.get(name=offer.node))
    if reservation_id is None:
        assert hours is not None
        booked = _book(user, membership, offer, hours, asked.name, now)
        reservation_id = booked.pk
    with transaction.atomic(durable=True):
        reservation = locked_reservation(user, reservation_id, now)
        gpu = Gpu.objects.select_related("node").get(uuid=offer.uuid)
        check_alone(reservation, gpu)
        return _launch(
            user, reservation, gpu, file, asked, admits, settings, offer, now
        )


def _launch(
    user: User,
    reservation: Reservation,
    gpu: Gpu,
    file: ModelFile,
    asked: ServingSettings,
    admits: str,
    settings: dict[str, Any],
    offer: GpuOffer,
    now: datetime,
) -> Job:
    endpoint = put_endpoint(
        user=user,
        reservation=reservation,
        gpu=gpu,
        offer=offer,
        name=f"serve {asked.name}"[:120],
        admits=admits,
        settings={"threads": settings["threads"]},
        needs_bytes=likely_bytes(file.weight_bytes, asked.most_batch),
        may_move=settings["may_move"] and reservation.user_id == user.pk,
        now=now,
    )
    _add(endpoint, user, file, asked, now)
    return endpoint.job


def bring(
    *, user: User, job_id: int, file_id: int, said: Mapping[str, Any], now: datetime
) -> ServedModel:
    """Add a model to a running endpoint of the User, or to one that accepts it.

    Raises:
        LaunchInvalid: by field, for example if the name is taken.
        NotFound: no such file, or no endpoint that accepts this User's models.
        EndpointFull, TooLargeForEndpoint, JobOver: see there.
    """
    file = _own_file(user, file_id)
    asked = ServingSettings.read(said, file=file)
    with transaction.atomic(durable=True):
        endpoint = (
            Endpoint.objects.open_to(user)
            .select_for_update(of=("self",))
            .filter(job_id=job_id)
            .first()
        )
        if endpoint is None:
            raise _why_not_open(user, job_id)
        held = endpoint.models.filter(removed_at=None)
        if held.filter(name=asked.name).exists():
            raise LaunchInvalid(
                {"name": sentence("{asked} is served there already", asked=asked.name)}
            )
        if held.count() >= MOST_MODELS:
            raise EndpointFull(job=job_id, most=MOST_MODELS)
        needs = likely_bytes(file.weight_bytes, asked.most_batch)
        if needs > endpoint.memory_bytes:
            raise TooLargeForEndpoint(
                job=job_id, needs_bytes=needs, room_bytes=endpoint.memory_bytes
            )
        try:
            with transaction.atomic():
                return _add(endpoint, user, file, asked, now)
        except IntegrityError:
            raise LaunchInvalid(
                {"name": sentence("{asked} is served there already", asked=asked.name)}
            ) from None


def take_out(*, user: User, job_id: int, name: str, now: datetime) -> None:
    """Remove a model from an endpoint, as the model's or the endpoint's owner.

    Raises:
        NotFound: no such model, or this User may not see it.
        NotAllowed: another User owns it.
    """
    with transaction.atomic(durable=True):
        row = (
            ServedModel.objects.select_for_update(of=("self",))
            .select_related("endpoint__job")
            .filter(
                endpoint__in=Endpoint.objects.visible_to(user).values("pk"),
                endpoint__job_id=job_id,
                name=name,
                removed_at=None,
            )
            .first()
        )
        if row is None:
            raise NotFound(
                what=sentence("model {name} at job #{job_id}", name=name, job_id=job_id)
            )
        owner = row.endpoint.job.owner_id
        if user.pk not in (row.added_by_id, owner) and not user.is_operator:
            raise NotAllowed(
                act=sentence(
                    "remove {name} from job #{job_id}", name=name, job_id=job_id
                )
            )
        # Also at the endpoint to which it is moving.
        there = Q(endpoint__follows=row.endpoint, name=name, removed_at=None)
        ServedModel.objects.filter(Q(pk=row.pk) | there).update(removed_at=now)
        _audit("served.removed", row, user, now)


def set_admits(*, user: User, job_id: int, admits: str, now: datetime) -> None:
    """Set whose models the User's endpoint accepts. Loaded models stay.

    Raises:
        LaunchInvalid: an unknown value.
        NotFound: no such endpoint of this User.
    """
    word = _admits({"admits": admits})
    with transaction.atomic(durable=True):
        done = Endpoint.objects.filter(job_id=job_id, job__owner=user).update(
            admits=word
        )
        if not done:
            raise NotFound(
                what=sentence("endpoint of job #{job_id} of yours", job_id=job_id)
            )
        audit_act(
            verb="endpoint.admits",
            subject=f"job:{job_id}",
            actor=user,
            now=now,
            admits=word,
        )


# --- pieces -----------------------------------------------------------------------


def _own_file(user: User, file_id: int) -> ModelFile:
    row = ModelFile.objects.filter(owner=user, pk=file_id, dropped_at=None).first()
    if row is None:
        raise NotFound(what=sentence("model file #{file_id} of yours", file_id=file_id))
    return row


def _admits(said: Mapping[str, Any]) -> str:
    word = str(said.get("admits") or Admits.OWNER)
    if word not in Admits.values:
        there = ", ".join(Admits.values)
        raise LaunchInvalid({"admits": sentence("must be one of {there}", there=there)})
    return word


def _settings(said: Mapping[str, Any]) -> dict[str, Any]:
    problems: dict[str, str] = {}
    threads = _number(said, "threads", 1, 64, problems)
    if problems:
        raise LaunchInvalid(problems)
    return {"threads": threads, "may_move": said.get("may_move", True) is not False}


def _check_user(user: User, node: Node) -> None:
    """Where Jobs have users of their own, nothing is served by root. Raises
    NothingServedFor."""
    has_user = user.unix_user or settings.OWN_IDS
    if node.isolation != Node.Isolation.NONE and not has_user:
        raise NothingServedFor(node=node.name)


def _choose(
    user: User,
    needs: int,
    reservation_id: int | None,
    hours: float | None,
    now: datetime,
) -> GpuOffer:
    """Return the best Gpu. Raises FitsNowhere or ServesAlready."""
    if reservation_id is not None:
        mine = Reservation.objects.filter(pk=reservation_id, user=user)
        if not mine.exists():
            raise NotFound(
                what=sentence(
                    "reservation #{reservation_id} of yours",
                    reservation_id=reservation_id,
                )
            )
    there = offered(
        user=user, at=None, hours=hours or 1, now=now, reservation_id=reservation_id
    )
    serving = dict(
        Endpoint.objects.filter(job__in=Job.objects.live().values("pk")).values_list(
            "gpu__uuid", "job_id"
        )
    )
    taken = {
        uuid: sentence("serves already, by job #{job}", job=job)
        for uuid, job in serving.items()
    }
    if reservation_id is None:
        held = {
            u: sentence("is in your reservation #{pk}", pk=pk)
            for u, pk in there.own.items()
        }
        taken = held | taken
    choice = best_offer(there.offers, needs, without=taken)
    if choice.offer is not None:
        return choice.offer
    here = [serving[one.uuid] for one in there.offers if one.uuid in serving]
    if reservation_id is not None and here and len(here) == len(there.offers):
        raise ServesAlready(job=here[0])
    raise FitsNowhere(why=choice.reasons)


def _book(
    user: User,
    membership: Membership | None,
    offer: GpuOffer,
    hours: float,
    name: str,
    now: datetime,
) -> Reservation:
    window = offered(user=user, at=None, hours=hours, now=now)
    return book(
        user=user,
        membership=membership,
        gpu_ids=[window.ids[offer.uuid]],
        start=window.start,
        end=max(window.end, now + timedelta(minutes=1)),
        purpose=f"serve {name}"[:120],
        now=now,
    )


def _add(
    endpoint: Endpoint,
    user: User,
    file: ModelFile,
    asked: ServingSettings,
    now: datetime,
) -> ServedModel:
    row = ServedModel.objects.create(
        endpoint=endpoint,
        file=file,
        name=asked.name,
        added_by=user,
        memory_bytes=likely_bytes(file.weight_bytes, asked.most_batch),
        most_batch=asked.most_batch,
        deadline_ms=asked.deadline_ms,
        added_at=now,
    )
    _audit("served.added", row, user, now)
    return row


def _audit(verb: str, row: ServedModel, user: User, now: datetime) -> None:
    subject = f"job:{row.endpoint.job_id}"
    audit_act(verb=verb, subject=subject, actor=user, now=now, model=row.name)


def _why_not_open(user: User, job_id: int) -> Exception:
    seen = Endpoint.objects.visible_to(user).filter(job_id=job_id).first()
    if seen is None:
        return NotFound(what=sentence("endpoint of job #{job_id}", job_id=job_id))
    job = seen.job
    if job.state not in Job.State.live():
        return JobOver(job=job.pk, state=job.state)
    return NotAllowed(
        act=sentence(
            "add a model to job #{job_id} of {owner}", job_id=job_id, owner=job.owner
        )
    )
