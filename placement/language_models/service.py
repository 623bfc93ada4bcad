"""Serve a language model: choose its GPUs, queue its job, set its callers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from placement.jobs.service import (
    check_isolation,
    locked_usable_reservation,
    queue_job,
)
from placement.language_models.rules import (
    CACHE,
    LIMITS,
    WEIGHTS,
    best_plan,
    component_bytes,
    guessed_spec,
    serving_workload,
    why_no_plan,
)
from placement.models import Admits, Job, LanguageModelEndpoint
from placement.planner.launch.recipes import (
    GIB,
    OF_LANGUAGE_MODELS,
    SERVE_TEXT,
    checked_settings,
)
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import WELL_KNOWN
from placement.planner.search.card_support import cards_of
from placement.planner.values.errors import LaunchInvalid, SpecInvalid, WorkloadInvalid
from placement.planner.values.plan import Plan
from placement.plans.available_gpus import AvailableGpus, offered
from placement.plans.model_registry import chosen_spec
from placement.plans.service import make_plans
from placement.protocol.launchers import environment_problem
from placement.serving.serving_refusals import FitsNowhere
from reservations.booking.service import book
from reservations.models import Membership, Reservation, User
from reservations.rules.errors import NotFound
from reservations.store.audit_log import audit_act
from telemetry.models import Node
from telemetry.protocol.sentences import sentence

MOST_HOURS = 24 * 14
BUSY_PCT = 60.0
"""Utilization that a server shows on a simulated GPU."""
TRAINED = "model"
"""The folder in a fine-tune job's output that has the model."""


@dataclass(frozen=True)
class LanguageModelRequest:
    """A language model to serve, as a form or a program describes it."""

    model: str = ""
    """Folder on the node, or name in the Hugging Face cache."""
    of_job: int | None = None
    """Instead: the job whose trained model is served."""
    name: str = ""
    """In requests. "": made of the model's."""
    well_known: str = ""
    """The model whose memory is estimated. "": guessed from ``model``."""
    spec_id: int | None = None
    """Instead: a stored config.json of the User."""
    context_tokens: int = 4096
    sequences: int = 8
    precision: str = ""
    """"": bf16, or fp16 if none of the Gpus has bf16."""
    server: str = "auto"
    environment_folder: str = ""
    callers: str = Admits.OWNER
    reservation_id: int | None = None
    """The reservation whose Gpus may be used."""
    hours: float | None = None
    """Instead: book the Gpus from now for so many hours."""
    max_gpus: int | None = None


def serve_language_model(
    *,
    user: User,
    asked: LanguageModelRequest,
    membership: Membership | None = None,
    now: datetime,
) -> Job:
    """Queue a server of a language model on the fewest Gpus that hold it.

    Args:
        user: owner or co-user of the Reservation.
        asked: the model and its place.
        membership: pays for a new booking. None: the only one.
        now: the present.

    Raises:
        LaunchInvalid, SpecInvalid, WorkloadInvalid: by field.
        NotFound: no such Reservation or Job of this User.
        FitsNowhere: the plan of inference fits on no Gpus, with the reasons.
        JobRefusal, Refusal, NotAllowed: the rules refuse the Job or the booking.
    """
    model, of_job, own_spec = _model_of(user, asked, now)
    _check_place(asked)
    name = asked.name.strip() or _tidy_name(model or f"job-{asked.of_job}")
    given = {
        "model": model,
        "of_job": of_job,
        "name": name,
        "server": asked.server,
        "context_tokens": asked.context_tokens,
        "sequences": asked.sequences,
    }
    if asked.precision:
        given["precision"] = asked.precision
    _checked(given)
    spec = _spec_of(user, asked, model, own_spec)
    plan, there = _plan_of(user, asked, spec, now)
    node = Node.objects.get(name=plan.node)
    check_isolation(node, user)
    reservation_id = asked.reservation_id
    if reservation_id is None:
        reservation_id = _book(user, membership, plan, asked, name, now).pk
    per_gpu = max(shard.likely_bytes for shard in plan.shards)
    load = {
        "precision": plan.workload.precision,
        "simulated_memory_gib": max(0.5, round(per_gpu / GIB, 3)),
        "simulated_util_pct": BUSY_PCT,
    }
    with transaction.atomic(durable=True):
        reservation = locked_usable_reservation(
            user, reservation_id, now, for_gap=False
        )
        _check_held(reservation, plan, there)
        job = queue_job(
            user,
            reservation=reservation,
            name=f"serve {name}"[:120],
            kind=Job.Kind.TEXT,
            recipe=SERVE_TEXT.name,
            recipe_settings=_checked({**given, **load}),
            environment_folder=asked.environment_folder,
            gpu_count=len(plan.shards),
            node=node,
            created_at=now,
        )
        LanguageModelEndpoint.objects.create(
            job=job,
            name=name,
            gpu_uuids=list(plan.gpu_uuids),
            callers=asked.callers,
            weight_bytes=component_bytes(plan, WEIGHTS),
            cache_bytes=component_bytes(plan, CACHE),
            total_bytes=sum(shard.likely_bytes for shard in plan.shards),
            created_at=now,
        )
        audit_act(
            verb="text.served",
            subject=f"job:{job.pk}",
            actor=user,
            now=now,
            model=name,
        )
    return job


def set_callers(*, user: User, job_id: int, callers: str, now: datetime) -> None:
    """Set who may call the User's served model.

    Raises:
        LaunchInvalid: an unknown value.
        NotFound: no such model of this User.
    """
    _check_callers(callers)
    with transaction.atomic(durable=True):
        done = LanguageModelEndpoint.objects.filter(
            job_id=job_id, job__owner=user
        ).update(callers=callers)
        if not done:
            raise NotFound(
                what=sentence("language model at job #{job_id} of yours", job_id=job_id)
            )
        audit_act(
            verb="text.callers",
            subject=f"job:{job_id}",
            actor=user,
            now=now,
            callers=callers,
        )


def _check_callers(callers: str) -> None:
    if callers not in Admits.values:
        there = ", ".join(Admits.values)
        words = sentence("must be one of {there}", there=there)
        raise LaunchInvalid({"callers": words})


def _check_place(asked: LanguageModelRequest) -> None:
    """Raises LaunchInvalid by field."""
    _check_callers(asked.callers)
    problems: dict[str, str] = {}
    if (asked.reservation_id is None) == (asked.hours is None):
        problems["reservation"] = sentence(
            "choose a reservation of yours, or enter the hours to book"
        )
    if asked.hours is not None and not 0 < asked.hours <= MOST_HOURS:
        problems["hours"] = sentence(
            "must be above 0 and at most {most_hours}", most_hours=MOST_HOURS
        )
    if why := environment_problem(asked.environment_folder):
        problems["environment_folder"] = why
    if problems:
        raise LaunchInvalid(problems)


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of the recipe. Raises LaunchInvalid under the request's names."""
    try:
        return checked_settings(SERVE_TEXT.name, given)
    except LaunchInvalid as error:
        plain = {k.rpartition(".")[2]: v for k, v in error.fields.items()}
        raise LaunchInvalid(plain) from error


def _tidy_name(model: str) -> str:
    """Return a name for requests.

    >>> _tidy_name("Qwen/Qwen3-8B")
    'Qwen3-8B'
    """
    last = model.rstrip("/").rpartition("/")[2]
    plain = "".join(
        c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in last
    )
    return plain.strip("-._")[:63] or "model"


def _model_of(
    user: User, asked: LanguageModelRequest, now: datetime
) -> tuple[str, str, ModelSpec | None]:
    """Return the model, or the folder of the Job that has it, and a known ModelSpec.

    Raises:
        LaunchInvalid: neither is given, or both.
        NotFound: no such Job of this User.
    """
    model = asked.model.strip()
    if bool(model) == (asked.of_job is not None):
        words = sentence("enter a model, or choose a job that has trained one")
        raise LaunchInvalid({"model": words})
    if asked.of_job is None:
        return model, "", None
    job = (
        Job.objects.filter(owner=user, pk=asked.of_job, recipe__in=OF_LANGUAGE_MODELS)
        .select_related("plan")
        .first()
    )
    if job is None:
        words = sentence("job #{job} of yours that trained a model", job=asked.of_job)
        raise NotFound(what=words)
    if job.state != Job.State.DONE:
        words = sentence("job #{job} is not done yet", job=job.pk)
        raise LaunchInvalid({"job": words})
    spec = ModelSpec.from_json(job.plan.spec) if job.plan is not None else None
    if output := str(job.recipe_settings.get("output") or ""):
        return f"{output.rstrip('/')}/{TRAINED}", "", spec
    return "", f"{job.pk}-{job.attempt}-{job.key}", spec


def _spec_of(
    user: User, asked: LanguageModelRequest, model: str, own: ModelSpec | None
) -> ModelSpec:
    """Return the model whose memory is estimated. Raises SpecInvalid."""
    if asked.spec_id is not None or asked.well_known:
        try:
            return chosen_spec(
                user=user, well_known=asked.well_known, model_id=asked.spec_id
            )
        except SpecInvalid as error:
            field = "well_known" if asked.spec_id is None else "spec"
            why = next(iter(error.fields.values()))
            raise SpecInvalid({field: why}) from error
    if own is not None:
        return own
    source = model
    if asked.of_job is not None:
        trained = Job.objects.get(pk=asked.of_job, owner=user)
        source = str(trained.recipe_settings.get("model") or "")
    known = guessed_spec(source, WELL_KNOWN)
    if not known:
        words = sentence(
            "choose the model whose memory is estimated. For a model that is not in "
            "the list, upload its config.json on the planning page"
        )
        raise SpecInvalid({"well_known": words})
    return chosen_spec(user=user, well_known=known, model_id=None)


def _plan_of(
    user: User, asked: LanguageModelRequest, spec: ModelSpec, now: datetime
) -> tuple[Plan, AvailableGpus]:
    """Return the plan of inference, and the offered Gpus.

    Raises:
        LaunchInvalid: a value of the workload.
        FitsNowhere: no Gpus hold it.
    """
    there = offered(
        user=user,
        at=None,
        hours=asked.hours or 1,
        now=now,
        reservation_id=asked.reservation_id,
    )
    offers = there.offers
    if asked.reservation_id is None:
        # Gpus of the User's other reservations are not booked again.
        offers = tuple(one for one in offers if one.uuid not in there.own)
    try:
        workload = serving_workload(
            asked.context_tokens, asked.sequences, asked.precision, cards_of(offers)
        )
    except WorkloadInvalid as error:
        names = {"batch": "sequences", "sequence_length": "context_tokens"}
        named = {names.get(k, k): v for k, v in error.fields.items()}
        raise LaunchInvalid(named) from error
    found = make_plans(
        spec=spec,
        workload=workload,
        offers=offers,
        max_gpus=asked.max_gpus,
        limits=LIMITS,
    )
    plan = best_plan(found)
    if plan is None:
        raise FitsNowhere(why=why_no_plan(found))
    return plan, there


def _book(
    user: User,
    membership: Membership | None,
    plan: Plan,
    asked: LanguageModelRequest,
    name: str,
    now: datetime,
) -> Reservation:
    assert asked.hours is not None
    window = offered(user=user, at=None, hours=asked.hours, now=now)
    return book(
        user=user,
        membership=membership,
        gpu_ids=[window.ids[uuid] for uuid in plan.gpu_uuids],
        start=window.start,
        end=max(window.end, now + timedelta(minutes=1)),
        purpose=f"serve {name}"[:120],
        now=now,
    )


def _check_held(reservation: Reservation, plan: Plan, there: AvailableGpus) -> None:
    """Raises FitsNowhere if a Gpu of the plan left the Reservation in between."""
    held = set(
        reservation.allocations.filter(live=True).values_list("gpu__uuid", flat=True)
    )
    gone = [one.gpu_label for one in plan.shards if one.gpu_uuid not in held]
    if gone:
        names = ", ".join(gone)
        words = sentence("{gpus} left the reservation just now", gpus=names)
        raise FitsNowhere(why=(words,))
