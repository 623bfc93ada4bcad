"""The nodes' channel for results: the wanted files, the list, the bytes."""

from django.db.models import Q
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone

from placement.jobs.nodes import job_worker, result_files
from placement.jobs.nodes.node_channel import (
    MOST_PIECE_BYTES,
    body_of,
    for_nodes,
    json_of,
    length_of,
    number,
    refused,
)
from placement.models import Job, JobPart, ResultFile
from placement.planner.values.errors import BadInput
from telemetry.models import Node
from telemetry.web.error_answers import problem_response

MOST_LIST_BYTES = 2**20


@for_nodes("GET", "PUT")
def job_results(request: HttpRequest, node: Node, *, pk: int) -> HttpResponse:
    """Send the site's limits for one Job (GET), or store its list (PUT)."""
    job = _job(request, node, pk)
    attempt = number(request, "attempt")
    if job is None or attempt is None:
        return refused("not-found", "no such job here")
    if request.method == "GET":
        policy = result_files.limits()
        return JsonResponse(
            {"most_files": policy.most_files, "most_bytes": policy.most_bytes}
        )
    if not 0 < length_of(request) <= MOST_LIST_BYTES:
        return refused("too-large", f"1 to {MOST_LIST_BYTES} bytes, told first")
    above = "" if job_worker.serves(node, job.node) else f"{node.name}/"
    try:
        said = json_of(request)
        rows = result_files.store_list(
            job=job, attempt=attempt, said=said, now=timezone.now()
        )
    except ValueError:
        return refused("invalid", "must be JSON that can be stored")
    except BadInput as error:
        return problem_response(error)
    return JsonResponse(
        {
            "files": [
                {
                    "id": row.pk,
                    "path": row.path.removeprefix(above),
                    "size": row.size_bytes,
                    "have": row.received_bytes,
                }
                for row in rows
            ]
        }
    )


@for_nodes("PUT")
def job_result(
    request: HttpRequest, node: Node, *, pk: int, file_id: int
) -> HttpResponse:
    """Append a piece of one file at its byte offset. 409 has the right offset."""
    job = _job(request, node, pk)
    offset = number(request, "offset")
    if offset is None:
        return refused("invalid", "offset must be a whole number")
    file = None
    if job is not None:
        file = ResultFile.objects.filter(
            pk=file_id, job=job, refused="", complete_at=None, dropped_at=None
        ).first()
    if file is None:
        return refused("not-found", "no such file of a job here")
    if not 0 <= length_of(request) <= MOST_PIECE_BYTES:
        return refused(
            "too-large", f"at most {MOST_PIECE_BYTES} bytes a request, told first"
        )
    try:
        size = result_files.append(
            file=file, offset=offset, data=body_of(request), now=timezone.now()
        )
    except (result_files.ResultMisplaced, result_files.ResultSpoiled) as error:
        return problem_response(error)
    except OSError as error:
        return refused("storage-full", f"it cannot be stored: {error.strerror}")
    return JsonResponse({"size": size})


def _job(request: HttpRequest, node: Node, pk: int) -> Job | None:
    """Return a Job that ran on this node, or had a part there, in this attempt."""
    attempt = number(request, "attempt")
    parts = JobPart.objects.filter(node=node).values("job")
    here = job_worker.served_by(node.name) | Q(pk__in=parts)
    job = Job.objects.filter(here, pk=pk).select_related("node").first()
    if job is None or attempt is None or not 1 <= attempt <= job.attempt:
        return None
    return job
