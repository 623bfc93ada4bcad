"""The web's side of the HTTPS channel: scripts down to nodes, logs up.

Every request has the node's token. A node sees its own Jobs only. Others are not found,
whether they exist or not.
"""

import hashlib
import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import BadRequest
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from placement.jobs.nodes import job_worker, log_store
from placement.jobs.plan_files import files_for_job
from placement.models import Job, JobPart, JobQuerySet
from placement.protocol import signing
from placement.protocol.launchers import beside_bytes
from placement.protocol.node_http import (
    BOOT_HEADER,
    FILE_PIECE_BYTES,
    KEY_HEADER,
    MOST_BOOT_ID,
)
from placement.protocol.node_refusals import LogConflict, LogTooLarge
from telemetry.inventory.enrollment import mark_channel
from telemetry.inventory.node_identity import record_boot
from telemetry.inventory.short_tokens import node_with_token
from telemetry.models import Node
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.web.error_answers import problem_response
from telemetry.web.json_values import unstorable

MOST_PIECE_BYTES = 2**20

View = Callable[..., HttpResponse]


def for_nodes(*methods: str) -> Callable[[View], View]:
    """Admit a node with its token. ``view(request, node, ...)``."""

    def decorate(view: View) -> View:
        @csrf_exempt
        @login_not_required
        @require_http_methods(methods)
        @wraps(view)
        def admitted(request: HttpRequest, **kwargs: object) -> HttpResponse:
            node = node_of(request)
            if node is None:
                answer = refused("signed-out", "no such node, or not its token")
                answer["WWW-Authenticate"] = "Node"
                return answer
            if not _same_job(request, kwargs.get("pk")):
                return refused(
                    "not-found", "this portal knows another job of that number"
                )
            return view(request, node, **kwargs)

        return admitted

    return decorate


def _same_job(request: HttpRequest, pk: Any) -> bool:
    """Whether a node's request is about the Job that has this number here.

    After a restore the node may have another Job with this number. A node whose worker
    is older sends no key.
    """
    key = request.headers.get(KEY_HEADER)
    if key is None or pk is None:
        return True
    return Job.objects.filter(pk=pk, key=key).exists()


def node_of(request: HttpRequest) -> Node | None:
    """Return the node of a request's token."""
    return node_with(request.headers.get("Authorization", ""))


def node_with(shown: str) -> Node | None:
    """Return the node of an Authorization header."""
    name, token = name_and_token(shown)
    return node_with_token(name, token, timezone.now()) if name else None


def name_and_token(shown: str) -> tuple[str, str]:
    """Return what an Authorization header shows of a node; empty: nothing."""
    scheme, _, rest = shown.partition(" ")
    name, colon, token = rest.partition(":")
    if scheme != "Node" or not colon or len(rest) > 512:
        return "", ""
    return name, token


def refused(code: str, detail: str) -> JsonResponse:
    """Return a refusal for a node."""
    return problem_response(RequestRefused(code, detail))


@for_nodes("GET")
def hello(request: HttpRequest, node: Node) -> HttpResponse:
    """Answer a node that checks its token and its order key."""
    now = timezone.now()
    mark_channel(name=node.name, now=now)
    boot_id = request.headers.get(BOOT_HEADER, "")
    if len(boot_id) <= MOST_BOOT_ID and boot_id.isprintable():
        record_boot(node=node, boot_id=boot_id, now=now)
    digest = signing.public_key_sha256(signing.public_key_pem())
    return JsonResponse({"node": node.name, "order_key_sha256": digest})


@for_nodes("GET")
def script(request: HttpRequest, node: Node, *, pk: int) -> HttpResponse:
    """Send a Job's script. Its sha256 is in the signed order too."""
    job = _jobs_on_node(node).filter(pk=pk, kind=Job.Kind.SCRIPT).first()
    if job is None:
        return refused("not-found", "no script of such a job here")
    return _with_sum(job.script.encode())


@for_nodes("GET")
def files(request: HttpRequest, node: Node, *, pk: int) -> HttpResponse:
    """Send the files of a script's Plan as one JSON object, name to text."""
    jobs = _jobs_on_node(node).filter(pk=pk, kind=Job.Kind.SCRIPT)
    job = jobs.select_related("plan").first()
    if job is None or job.plan is None:
        return refused("not-found", "no files of such a job here")
    return _with_sum(files_for_job(job.plan))


@for_nodes("GET")
def beside(request: HttpRequest, node: Node, *, pk: int) -> HttpResponse:
    """Send the files beside a Job's script as one JSON object, path to text."""
    jobs = _jobs_on_node(node).filter(pk=pk, kind=Job.Kind.SCRIPT)
    job = jobs.select_related("script_folder").first()
    if job is None or job.script_folder is None:
        return refused("not-found", "no files beside the script of such a job here")
    return _with_sum(beside_bytes(job.script_folder.files))


def _jobs_on_node(node: Node) -> JobQuerySet:
    """Return Jobs that run on a node, or have a part there."""
    parts = JobPart.objects.filter(node=node).values("job")
    return Job.objects.filter(job_worker.served_by(node.name) | Q(pk__in=parts))


def _with_sum(body: bytes) -> HttpResponse:
    return HttpResponse(
        body,
        content_type="application/octet-stream",
        headers={"X-Sha256": hashlib.sha256(body).hexdigest()},
    )


@for_nodes("PUT")
def log(request: HttpRequest, node: Node, *, pk: int) -> HttpResponse:
    """Append a piece of log at its byte offset. 409 has the right offset."""
    attempt = number(request, "attempt")
    offset = number(request, "offset")
    if attempt is None or offset is None:
        return refused("invalid", "attempt and offset must be whole numbers")
    job = _jobs_on_node(node).filter(pk=pk).first()
    if job is None or not 1 <= attempt <= job.attempt:
        return refused("not-found", "no such job here")
    length = length_of(request)
    if length < 0:
        return refused("length-needed", "the length must be known")
    if length > MOST_PIECE_BYTES:
        return refused("too-large", f"at most {MOST_PIECE_BYTES} bytes a request")
    try:
        part = JobPart.objects.filter(job=job, node=node).first()
        size = log_store.append(
            job,
            attempt=attempt,
            offset=offset,
            data=body_of(request),
            part=part.number if part else 0,
        )
    except (LogConflict, LogTooLarge) as error:
        return problem_response(error)
    except OSError as error:
        return refused("storage-full", f"the log cannot be stored: {error.strerror}")
    if part is not None:
        JobPart.objects.filter(pk=part.pk).update(log_bytes=size)
    if attempt == job.attempt and (part is None or part.number == 0):
        rows = Job.objects.filter(pk=pk, attempt=attempt)
        # The end of a Job tells the whole size, which its last pieces reach later.
        rows.filter(Q(ended_at=None) | Q(log_bytes__lt=size)).update(log_bytes=size)
    return JsonResponse({"size": size})


def body_of(request: HttpRequest) -> bytes:
    """Read the body of a request whose length has been checked.

    `request.body` would keep it with the request. Requests are in reference cycles,
    so many bodies would wait for the garbage collector.

    Raises:
        BadRequest: the node has given the request up, and the server has closed it.
    """
    try:
        return request.read(length_of(request))
    except ValueError as error:
        raise BadRequest(str(error)) from None


def number(request: HttpRequest, name: str) -> int | None:
    """Return a whole number in the address. None: it has none."""
    text = request.GET.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def length_of(request: HttpRequest) -> int:
    """Return the declared length of a request in bytes. -1: none is declared."""
    text = request.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() and len(text) <= 18 else -1


def json_of(request: HttpRequest) -> Any:
    """Return the JSON document of a request, with values that the database can store.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has another value.
    """
    try:
        document = json.loads(request.body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    wrong = unstorable(document)
    if wrong:
        raise ValueError(" ".join(f"{path}: {why}" for path, why in wrong.items()))
    return document


def piece_of(path: Path, offset: int) -> bytes:
    """Return up to ``FILE_PIECE_BYTES`` of a file. From its end on b"".

    An offset past the end is not passed to seek, because file systems limit it.
    """
    with path.open("rb") as file:
        if offset >= os.fstat(file.fileno()).st_size:
            return b""
        file.seek(offset)
        return file.read(FILE_PIECE_BYTES)
