"""The web's side of the channel for served models: files down to nodes, states up."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone

from placement.jobs import model_files
from placement.jobs.nodes.node_channel import (
    for_nodes,
    json_of,
    length_of,
    number,
    piece_of,
    refused,
)
from placement.models import Endpoint, Job, ServedModel
from placement.serving.model_states import record
from telemetry.models import Node

MOST_STATES_BYTES = 64 * 1024


@for_nodes("GET", "PUT")
def models(request: HttpRequest, node: Node, *, pk: int) -> HttpResponse:
    """Send the models that a Job is to serve, or receive their states."""
    endpoint = _endpoint(node, pk)
    if endpoint is None:
        return refused("not-found", "no such job that serves here")
    if request.method == "PUT":
        return _record_states(request, endpoint)
    rows = _served(endpoint)
    return JsonResponse(
        {
            "models": [
                {
                    "id": row.pk,
                    "name": row.name,
                    "sha256": row.file.sha256,
                    "parts": row.file.parts,
                    "memory_bytes": row.memory_bytes,
                    "most_batch": row.most_batch,
                    "deadline_ms": row.deadline_ms,
                }
                for row in rows
            ]
        }
    )


@for_nodes("GET")
def model(request: HttpRequest, node: Node, *, pk: int, model_id: int) -> HttpResponse:
    """Send a piece of a model's file, or of a part of it. The node checks the hash."""
    offset = number(request, "offset")
    part = number(request, "part") if "part" in request.GET else 0
    if offset is None or part is None:
        return refused("invalid", "offset and part must be whole numbers")
    endpoint = _endpoint(node, pk)
    rows = _served(endpoint) if endpoint else []
    row = next((one for one in rows if one.pk == model_id), None)
    path = None if row is None else model_files.path_of(row.file, part)
    if path is None or not path.is_file():
        return refused("not-found", "no such model of a job here")
    return HttpResponse(piece_of(path, offset), content_type="application/octet-stream")


def _record_states(request: HttpRequest, endpoint: Endpoint) -> HttpResponse:
    """Store a node's report on an endpoint's models."""
    if not 0 <= length_of(request) <= MOST_STATES_BYTES:
        return refused(
            "too-large", f"at most {MOST_STATES_BYTES} bytes, of a known length"
        )
    try:
        said = json_of(request)["models"]
    except (ValueError, KeyError, TypeError):
        return refused("invalid", "an object with models is wanted")
    record(endpoint, said, timezone.now())
    return HttpResponse(status=204)


def _endpoint(node: Node, job_id: int) -> Endpoint | None:
    """Return the endpoint of a Job that serves on this node."""
    return (
        Endpoint.objects.select_related("job__owner", "job__reservation")
        .filter(job__pk=job_id, job__node=node, job__in=Job.objects.live().values("pk"))
        .first()
    )


def _served(endpoint: Endpoint) -> list[ServedModel]:
    """Return the models that an endpoint is to serve."""
    rows = endpoint.models.filter(removed_at=None, file__dropped_at=None)
    return list(rows.select_related("file").order_by("pk"))
