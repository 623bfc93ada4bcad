"""The JSON API of served models: files, endpoints, and their models.

Inference is not here: it is the Open Inference Protocol at /serve/<job>/v2/.
"""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import File, Query, Router, Schema, Status
from ninja.files import UploadedFile

from placement.models import Endpoint
from placement.plans.api import UPLOADS_PER_MINUTE
from placement.serving import endpoint_move as serve_moving
from placement.serving import model_store
from placement.serving import queries as show
from placement.serving import service as serving
from reservations.models import Membership, User
from reservations.rules.errors import NotFound
from reservations.web.rate_limits import check_rate
from reservations.web.request_keys import repeatable
from telemetry.protocol.sentences import sentence
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

router = Router(tags=["serving"])
NOTHING_BESIDE: list[UploadedFile] = []


class Serve(Schema):
    """A model to serve, in the caller's reservation or for hours from now."""

    file: int
    name: str = ""
    reservation: int | None = None
    hours: float | None = None
    membership: int | None = None
    most_batch: int = 8
    """Rows in one batch."""
    deadline_ms: int = 10_000
    """For requests without a deadline."""
    admits: str = "owner"
    threads: int = 1
    may_move: bool = True
    """Whether it moves automatically if its Gpu is lost or a stranger uses it."""


class Bring(Schema):
    """A model to add to an endpoint."""

    file: int
    name: str = ""
    most_batch: int = 8
    deadline_ms: int = 10_000


class Admit(Schema):
    """Whose models an endpoint accepts: owner, account or anybody."""

    admits: str


class ModelFileList(NextPage):
    """The caller's model files."""

    files: list[show.ModelFileAnswer]


class EndpointList(NextPage):
    """Endpoints that the caller may see."""

    count: int
    """Of all pages."""
    endpoints: list[show.EndpointAnswer]


@router.get("/serve/files")
def file_list(
    request: HttpRequest,
    response: HttpResponse,
    limit: int = Query(200, ge=1, le=200),
    cursor: str = CURSOR,
) -> ModelFileList:
    """The caller's model files, newest first."""
    rows = model_store.own_files(_user(request))
    page, following = cursor_page(rows, by="created_at", cursor=cursor, limit=limit)
    link_next(request, response, following)
    return {"files": [show.file_facts(row) for row in page], "next": following}


@router.post("/serve/files", response={201: dict[str, Any]})
def file_add(
    request: HttpRequest,
    file: File[UploadedFile],
    beside: File[list[UploadedFile]] = NOTHING_BESIDE,
) -> Status[show.ModelFileAnswer]:
    """Store an ONNX model to serve: the .onnx file, with the files of its weights in
    `beside` if there are any, or a .zip or .tar of its folder.
    """
    user, now = _user(request), timezone.now()
    check_rate("upload", user_pk=user.pk, per_minute=UPLOADS_PER_MINUTE, now=now)
    row = model_store.store_file(user=user, upload=file, beside=beside, now=now)
    return Status(201, show.file_facts(row))


@router.delete("/serve/files/{int:file_id}", response={204: None})
def file_drop(request: HttpRequest, file_id: int) -> Status[None]:
    """Delete a file that is not being served."""
    model_store.drop_file(user=_user(request), file_id=file_id, now=timezone.now())
    return Status(204, None)


@router.get("/serve")
def endpoint_list(
    request: HttpRequest,
    response: HttpResponse,
    limit: int = Query(50, ge=1, le=200),
    offset: int = Query(0, ge=0, le=10**9),
    cursor: str = CURSOR,
) -> EndpointList:
    """Endpoints that the caller may see, newest first."""
    rows = show.endpoints_of(_user(request))
    page, following = cursor_page(
        rows, by="job__created_at", cursor=cursor, limit=limit, offset=offset
    )
    link_next(request, response, following)
    return {
        "count": rows.count(),
        "endpoints": [show.endpoint_facts(row) for row in page],
        "next": following,
    }


@router.post("/serve", response={201: dict[str, Any]})
@repeatable
def endpoint_add(request: HttpRequest, body: Serve) -> Status[show.EndpointAnswer]:
    """Serve a model on the best GPU of a reservation, or of a new one."""
    user = _user(request)
    job = serving.deploy(
        user=user,
        file_id=body.file,
        said=body.dict(),
        reservation_id=body.reservation,
        hours=body.hours,
        membership=_membership(user, body.membership),
        now=timezone.now(),
    )
    return Status(201, show.endpoint_facts(_endpoint(request, job.pk)))


@router.get("/serve/{int:job_id}")
def endpoint_one(request: HttpRequest, job_id: int) -> show.EndpointAnswer:
    """One endpoint with its models. Their figures are at /serve/<job>/stats."""
    return show.endpoint_facts(_endpoint(request, job_id))


@router.patch("/serve/{int:job_id}")
def endpoint_admits(
    request: HttpRequest, job_id: int, body: Admit
) -> show.EndpointAnswer:
    """Set whose models the caller's endpoint accepts."""
    serving.set_admits(
        user=_user(request), job_id=job_id, admits=body.admits, now=timezone.now()
    )
    return show.endpoint_facts(_endpoint(request, job_id))


@router.post("/serve/{int:job_id}/move", response={201: dict[str, Any]})
def endpoint_move(request: HttpRequest, job_id: int) -> Status[show.EndpointAnswer]:
    """Move the caller's endpoint to the best other GPU. Its address stays the same."""
    job = serve_moving.move_now(user=_user(request), job_id=job_id, now=timezone.now())
    return Status(201, show.endpoint_facts(_endpoint(request, job.pk)))


@router.post("/serve/{int:job_id}/models", response={201: dict[str, Any]})
def model_add(
    request: HttpRequest, job_id: int, body: Bring
) -> Status[show.ServedModelAnswer]:
    """Add a model to an endpoint that accepts it."""
    row = serving.bring(
        user=_user(request),
        job_id=job_id,
        file_id=body.file,
        said=body.dict(),
        now=timezone.now(),
    )
    return Status(201, show.model_facts(row))


@router.delete("/serve/{int:job_id}/models/{str:name}", response={204: None})
def model_drop(request: HttpRequest, job_id: int, name: str) -> Status[None]:
    """Remove a model from an endpoint."""
    serving.take_out(user=_user(request), job_id=job_id, name=name, now=timezone.now())
    return Status(204, None)


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _membership(user: User, pk: int | None) -> Membership | None:
    if pk is None:
        return None
    row = user.memberships.filter(pk=pk, active=True).first()
    if row is None:
        raise NotFound(what=sentence("membership #{pk} of yours", pk=pk))
    return row


def _endpoint(request: HttpRequest, job_id: int) -> Endpoint:
    row: Endpoint | None = show.endpoints_of(_user(request)).filter(job=job_id).first()
    if row is None:
        raise NotFound(what=sentence("endpoint of job #{job_id}", job_id=job_id))
    return row
