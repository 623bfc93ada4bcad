"""Served models for pages and programs."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from django.urls import reverse

from placement.jobs.queries import iso
from placement.models import Endpoint, Job, ModelFile, ServedModel
from reservations.models import User
from telemetry.web.answer_types import UtcInstant


class TensorAnswer(TypedDict):
    """An input or an output of a model, as in the Open Inference Protocol."""

    name: str
    datatype: str
    """FP32 or INT64, for example."""
    shape: list[int]
    """-1: any size."""


class ModelFileAnswer(TypedDict):
    """A stored model file."""

    id: int
    name: str
    sha256: str
    size_bytes: int
    weight_bytes: int
    """Bytes of its weights."""
    inputs: list[TensorAnswer]
    outputs: list[TensorAnswer]
    created_at: UtcInstant | None


class ServedModelAnswer(TypedDict):
    """A model at an endpoint."""

    name: str
    file: int
    by: str
    """Login of the person who added it."""
    memory_bytes: int
    """Memory that it is expected to need."""
    most_batch: int
    """Rows in one batch."""
    deadline_ms: int
    """For requests without a deadline."""
    state: str
    note: str
    inputs: list[TensorAnswer]
    outputs: list[TensorAnswer]


class EndpointMove(TypedDict):
    """The move of an endpoint to another GPU. Empty: there is none."""

    job: NotRequired[int]
    """The job that takes over."""
    gpu: NotRequired[str]
    done: NotRequired[bool]


class EndpointAnswer(TypedDict):
    """A running server of models."""

    job: int
    name: str
    state: str
    """Of its job."""
    reason: str
    owner: str
    """Login."""
    gpu: str
    """node:index"""
    gpu_name: str
    room_bytes: int
    """Memory that its models may use together."""
    admits: str
    """Whose models it accepts: owner, account or anybody."""
    ends_at: UtcInstant | None
    address: str
    """Path of the Open Inference Protocol."""
    may_move: bool
    """Whether it moves automatically if its GPU is lost or used by a stranger."""
    moves: EndpointMove
    models: list[ServedModelAnswer]


def file_facts(file: ModelFile) -> ModelFileAnswer:
    """Return a stored file as JSON values."""
    return {
        "id": file.pk,
        "name": file.name,
        "sha256": file.sha256,
        "size_bytes": file.size_bytes,
        "weight_bytes": file.weight_bytes,
        "inputs": file.signature["inputs"],
        "outputs": file.signature["outputs"],
        "created_at": iso(file.created_at),
    }


def tensor_text(tensors: Sequence[Mapping[str, Any]]) -> str:
    """Return inputs or outputs in words: x FP32 any × 4."""
    told = []
    for one in tensors:
        sizes = ["any" if size < 0 else str(size) for size in one["shape"]]
        told.append(f"{one['name']} {one['datatype']} {' × '.join(sizes)}".strip())
    return ", ".join(told)


def model_facts(row: ServedModel) -> ServedModelAnswer:
    """Return a model at an endpoint."""
    return {
        "name": row.name,
        "file": row.file_id,
        "by": row.added_by.username,
        "memory_bytes": row.memory_bytes,
        "most_batch": row.most_batch,
        "deadline_ms": row.deadline_ms,
        "state": row.state,
        "note": row.note,
        "inputs": row.file.signature["inputs"],
        "outputs": row.file.signature["outputs"],
    }


def _number(endpoint: Endpoint) -> int:
    return int(endpoint.pk)


def move_status(endpoint: Endpoint) -> EndpointMove:
    """Return the move of an endpoint, for its page. {} without a move."""
    there = sorted(endpoint.successors.all(), key=_number)
    if not there:
        return {}
    latest = there[-1]
    if latest.took_over_at is None and latest.job.state not in Job.State.live():
        return {}
    return {
        "job": latest.job_id,
        "gpu": str(latest.gpu),
        "done": latest.took_over_at is not None,
    }


def endpoint_facts(endpoint: Endpoint) -> EndpointAnswer:
    """Return an endpoint with its models and its address."""
    job = endpoint.job
    rows = [row for row in endpoint.models.all() if row.removed_at is None]
    return {
        "job": job.pk,
        "name": job.name,
        "state": job.state,
        "reason": job.reason,
        "owner": job.owner.username,
        "gpu": f"{job.node.name}:{endpoint.gpu.index}",
        "gpu_name": endpoint.gpu.name,
        "room_bytes": endpoint.memory_bytes,
        "admits": endpoint.admits,
        "ends_at": iso(job.reservation.end),
        "address": reverse("serve-v2", args=[job.pk, "v2"]),
        "may_move": job.may_move,
        "moves": move_status(endpoint),
        "models": [model_facts(row) for row in rows],
    }


def endpoints_of(user: User):  # type: ignore[no-untyped-def]
    """Return the endpoints that a User may see, with the data of their facts."""
    return (
        Endpoint.objects.visible_to(user)
        .select_related("job__owner", "job__node", "job__reservation", "gpu")
        .prefetch_related("models__file", "models__added_by")
        .prefetch_related("successors__job", "successors__gpu__node")
        .order_by("-job__created_at")
    )


def may_change(user: User, job: Job) -> bool:
    """Whether a User may change an endpoint."""
    return job.owner_id == user.pk
