"""The web's side of the transfer of checkpoints between nodes.

A node may upload only a requested checkpoint. It may download only the checkpoint from
which a Job ordered on it resumes. The address has the number of that Job, not of the
Job that wrote the checkpoint.
"""

import hashlib

from django.db.models import Q
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone

from placement.jobs.nodes import checkpoint_relay, checkpoint_store, job_worker
from placement.jobs.nodes.node_channel import (
    MOST_PIECE_BYTES,
    body_of,
    for_nodes,
    json_of,
    length_of,
    number,
    piece_of,
    refused,
)
from placement.models import CarriedCheckpoint, Job, JobPart
from placement.protocol.node_refusals import LogConflict
from placement.protocol.rendezvous import LATER, NONE, REFUSED, StartCheckpoint
from telemetry.models import Node
from telemetry.protocol.codec import read
from telemetry.web.error_answers import problem_response

State = CarriedCheckpoint.State
MOST_ABOUT_BYTES = 4096
MOST_PROBLEM = 300


@for_nodes("PUT")
def announce_checkpoint(request: HttpRequest, node: Node, *, pk: int) -> HttpResponse:
    """Receive the size of a requested checkpoint. Answer the offset to continue at."""
    row = _requested_transfer(node, pk)
    if row is None:
        return refused("not-found", "no checkpoint of such a job was asked for here")
    try:
        size, sha256, why, outcome = _parse_announcement(request)
    except ValueError as error:
        return refused("invalid", f"not an announcement: {error}")
    if outcome == LATER:
        checkpoint_relay.held_up(Q(pk=row.pk), why)
        return refused("unavailable", why)
    too_large = checkpoint_relay.announce(
        row,
        size_bytes=size,
        sha256=sha256,
        problem=why,
        now=timezone.now(),
        unreadable=outcome == REFUSED,
    )
    if too_large:
        return refused("too-large", too_large)
    row.refresh_from_db()
    return JsonResponse({"size": row.have_bytes})


def _parse_announcement(request: HttpRequest) -> tuple[int, str, str, str]:
    """Parse an announcement: size and sum, or the reason why there is no checkpoint.

    Raises:
        ValueError: it is not a valid announcement.
    """
    if not 0 <= length_of(request) <= MOST_ABOUT_BYTES:
        raise ValueError("its length")
    body = json_of(request)
    if not isinstance(body, dict):
        raise ValueError("no object")
    why = body.get("problem", "")
    if why:
        outcome = body.get("outcome", NONE)
        if outcome not in (NONE, LATER, REFUSED):
            raise ValueError("outcome")
        return 0, "", str(why)[:MOST_PROBLEM].replace("\0", ""), outcome
    checked = read(StartCheckpoint, {**body, "number": 0})
    return checked.size_bytes, checked.sha256, "", ""


@for_nodes("PUT")
def piece(request: HttpRequest, node: Node, *, pk: int) -> HttpResponse:
    """Store a piece at its byte offset. 409 has the right offset."""
    offset = number(request, "offset")
    if offset is None:
        return refused("invalid", "offset must be a whole number")
    row = _requested_transfer(node, pk)
    if row is None or row.state != State.COMING:
        return refused("not-found", "no checkpoint of such a job was asked for here")
    if not 0 < length_of(request) <= MOST_PIECE_BYTES:
        return refused("too-large", f"1 to {MOST_PIECE_BYTES} bytes a request")
    data = body_of(request)
    if hashlib.sha256(data).hexdigest() != request.headers.get("X-Sha256", ""):
        return refused("unavailable", "the piece was not received as it was sent")
    try:
        have = checkpoint_relay.receive(
            row, offset=offset, data=data, now=timezone.now()
        )
    except LogConflict as conflict:
        return problem_response(conflict)
    except OSError as error:
        checkpoint_relay.held_up(
            Q(pk=row.pk), f"the portal cannot store it: {error.strerror}"
        )
        return refused(
            "storage-full", f"the checkpoint cannot be stored: {error.strerror}"
        )
    return JsonResponse({"size": have})


@for_nodes("GET")
def checkpoint(request: HttpRequest, node: Node, *, pk: int, part: int) -> HttpResponse:
    """Send a piece of the checkpoint for a Job of this node. The node checks the
    whole.
    """
    offset = number(request, "offset")
    if offset is None:
        return refused("invalid", "offset must be a whole number")
    row = _ordered(node, pk, part)
    path = None if row is None else checkpoint_store.path_of(row)
    if path is None or not path.is_file():
        return refused("not-found", "no checkpoint for such a job here")
    return HttpResponse(piece_of(path, offset), content_type="application/octet-stream")


def _requested_transfer(node: Node, pk: int) -> CarriedCheckpoint | None:
    """Return the transfer that was requested from a node."""
    rows = CarriedCheckpoint.objects.filter(
        job_worker.served_by(node.name),
        job=pk,
        state__in=checkpoint_relay.OPEN,
        ordered_at__isnull=False,
    )
    return rows.select_related("job").first()


def _ordered(node: Node, pk: int, part: int) -> CarriedCheckpoint | None:
    """Return a part of the checkpoint for a Job that is ordered on this node."""
    job = Job.objects.live().filter(pk=pk, attempt__gt=0).select_related("node").first()
    if job is None or job.resume_from_id is None:
        return None
    here = JobPart.objects.filter(job=job, node=node).exists()
    if not here and not job_worker.serves(node, job.node):
        return None
    rows = CarriedCheckpoint.objects.filter(job=job.resume_from_id, number=part)
    return rows.filter(state=State.WHOLE).select_related("job").first()
