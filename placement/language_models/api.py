"""The JSON API of served language models.

Calls are not here: they have an OpenAI-compatible API at /serve/<job>/v1/.
"""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Schema, Status

from placement.language_models import queries as show
from placement.language_models.service import (
    LanguageModelRequest,
    serve_language_model,
    set_callers,
)
from placement.models import LanguageModelEndpoint
from reservations.models import Membership, User
from reservations.rules.errors import NotFound
from reservations.web.request_keys import repeatable
from telemetry.protocol.sentences import sentence
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

router = Router(tags=["serving"])


class ServeLanguageModel(Schema):
    """A language model to serve, in the caller's reservation or for hours from now."""

    model: str = ""
    """Folder on the node, or name in the Hugging Face cache."""
    job: int | None = None
    """Instead: a job that has trained the model."""
    name: str = ""
    """In requests. Empty: made of the model's name."""
    well_known: str = ""
    """The model whose memory is estimated. Empty: guessed from the model's name."""
    spec: int | None = None
    """Instead: the number of a stored config.json."""
    context_tokens: int = 4096
    """Most tokens of a prompt and its answer."""
    sequences: int = 8
    """Requests that are computed together."""
    precision: str = ""
    """bf16, fp16 or fp32. Empty: bf16, or fp16 if none of the GPUs has bf16."""
    server: str = "auto"
    """auto, vllm or transformers."""
    environment_folder: str = ""
    """The environment on the node that has the server."""
    callers: str = "owner"
    """Allowed callers: owner, account or anybody."""
    reservation: int | None = None
    hours: float | None = None
    gpus: int | None = None
    """At most so many GPUs."""
    membership: int | None = None


class Callers(Schema):
    """Allowed callers of a served language model: owner, account or anybody."""

    callers: str


class LanguageModelEndpointList(NextPage):
    """Served language models that the caller may see."""

    count: int
    """Of all pages."""
    endpoints: list[show.LanguageModelEndpointAnswer]


@router.get("/serve/text")
def language_model_list(
    request: HttpRequest,
    response: HttpResponse,
    limit: int = Query(50, ge=1, le=200),
    offset: int = Query(0, ge=0, le=10**9),
    cursor: str = CURSOR,
) -> LanguageModelEndpointList:
    """Served language models that the caller may see, newest first."""
    rows = show.language_model_endpoints(_user(request))
    page, following = cursor_page(
        rows, by="job__created_at", cursor=cursor, limit=limit, offset=offset
    )
    link_next(request, response, following)
    return {
        "count": rows.count(),
        "endpoints": [show.endpoint_facts(row) for row in page],
        "next": following,
    }


@router.post("/serve/text", response={201: dict[str, Any]})
@repeatable
def language_model_add(
    request: HttpRequest, body: ServeLanguageModel
) -> Status[show.LanguageModelEndpointAnswer]:
    """Serve a language model on the fewest GPUs that hold it."""
    user = _user(request)
    asked = LanguageModelRequest(
        model=body.model,
        of_job=body.job,
        name=body.name,
        well_known=body.well_known,
        spec_id=body.spec,
        context_tokens=body.context_tokens,
        sequences=body.sequences,
        precision=body.precision,
        server=body.server,
        environment_folder=body.environment_folder,
        callers=body.callers,
        reservation_id=body.reservation,
        hours=body.hours,
        max_gpus=body.gpus,
    )
    job = serve_language_model(
        user=user,
        asked=asked,
        membership=_membership(user, body.membership),
        now=timezone.now(),
    )
    return Status(201, show.endpoint_facts(_endpoint(request, job.pk)))


@router.get("/serve/text/{int:job_id}")
def language_model_one(
    request: HttpRequest, job_id: int
) -> show.LanguageModelEndpointAnswer:
    """One served language model."""
    return show.endpoint_facts(_endpoint(request, job_id))


@router.patch("/serve/text/{int:job_id}")
def language_model_callers(
    request: HttpRequest, job_id: int, body: Callers
) -> show.LanguageModelEndpointAnswer:
    """Set who may call the caller's language model."""
    set_callers(
        user=_user(request), job_id=job_id, callers=body.callers, now=timezone.now()
    )
    return show.endpoint_facts(_endpoint(request, job_id))


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


def _endpoint(request: HttpRequest, job_id: int) -> LanguageModelEndpoint:
    row = show.language_model_endpoints(_user(request)).filter(job=job_id).first()
    if row is None:
        raise NotFound(what=sentence("language model at job #{job_id}", job_id=job_id))
    return row
