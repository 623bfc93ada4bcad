"""Served language models for pages and programs."""

from typing import TypedDict

from django.urls import reverse

from placement.jobs.queries import iso
from placement.models import Job, LanguageModelEndpoint, LanguageModelEndpointQuerySet
from placement.planner.launch.recipes import FINE_TUNE, PRE_TRAIN
from reservations.models import User
from telemetry.models import Gpu
from telemetry.web.answer_types import UtcInstant

MOST_TRAINED = 20


class LanguageModelEndpointAnswer(TypedDict):
    """A served language model."""

    job: int
    name: str
    """Of the model, in requests."""
    model: str
    """Folder or cached name of the model on the node. Empty: results of a job."""
    of_job: int | None
    """The job that trained it."""
    state: str
    """Of its job."""
    reason: str
    owner: str
    """Login."""
    gpus: list[str]
    """node:index"""
    context_tokens: int
    """Most tokens of a prompt and its answer."""
    sequences: int
    """Requests that are computed together."""
    weight_bytes: int
    """Estimated, of all GPUs together."""
    cache_bytes: int
    """Estimated KV cache, of all GPUs together."""
    total_bytes: int
    """Estimated memory, of all GPUs together."""
    callers: str
    """Allowed callers: owner, account or anybody."""
    ends_at: UtcInstant | None
    address: str
    """Path of the OpenAI-compatible API: base_url without the portal's address."""


def language_model_endpoints(user: User) -> LanguageModelEndpointQuerySet:
    """Return the served models that a User may see, newest first."""
    rows: LanguageModelEndpointQuerySet = (
        LanguageModelEndpoint.objects.visible_to(user)
        .select_related("job__owner", "job__node", "job__reservation")
        .order_by("-job__created_at")
    )
    return rows


def endpoint_facts(row: LanguageModelEndpoint) -> LanguageModelEndpointAnswer:
    """Return a served model as JSON values."""
    job, given = row.job, row.job.recipe_settings
    trained = str(given.get("of_job") or "").partition("-")[0]
    return {
        "job": job.pk,
        "name": row.name,
        "model": str(given.get("model") or ""),
        "of_job": int(trained) if trained else None,
        "state": job.state,
        "reason": job.reason,
        "owner": job.owner.username,
        "gpus": gpu_labels(row),
        "context_tokens": int(given["context_tokens"]),
        "sequences": int(given["sequences"]),
        "weight_bytes": row.weight_bytes,
        "cache_bytes": row.cache_bytes,
        "total_bytes": row.total_bytes,
        "callers": row.callers,
        "ends_at": iso(job.reservation.end),
        "address": reverse("serve-v1", args=[job.pk, "v1"]),
    }


def gpu_labels(row: LanguageModelEndpoint) -> list[str]:
    """Return its Gpus as node:index, in rank order."""
    found = Gpu.objects.filter(uuid__in=row.gpu_uuids).select_related("node")
    labels = {gpu.uuid: f"{gpu.node.name}:{gpu.index}" for gpu in found}
    return [labels[uuid] for uuid in row.gpu_uuids if uuid in labels]


def trained_jobs(user: User) -> list[Job]:
    """Return the User's jobs that have trained a language model, newest first."""
    rows = Job.objects.filter(
        owner=user, state=Job.State.DONE, recipe__in=(FINE_TUNE.name, PRE_TRAIN.name)
    )
    return list(rows.order_by("-pk")[:MOST_TRAINED])
