"""Pages of served models: the list, the form, one endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.files.uploadedfile import UploadedFile
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods, require_safe

from placement.jobs.views.viewer import reader, usable_reservations
from placement.models import Endpoint, ModelFile, ServedModel
from placement.planner.values.errors import BadInput
from placement.plans.api import UPLOADS_PER_MINUTE
from placement.protocol.job_lifecycle import JobState
from placement.serving import example_requests, model_store
from placement.serving import queries as show
from placement.serving import service as serving
from placement.serving.forms import (
    ADMITS,
    BOOK,
    ENDPOINT,
    RESERVATION,
    RESULT,
    EndpointFilterForm,
    ServeForm,
)
from reservations.models import User
from reservations.store.membership_rights import payers
from reservations.web.rate_limits import check_rate
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import add_errors
from telemetry.web.recognition import shown

PAGE_ROWS = 30


@require_safe
def serve_list(request: HttpRequest) -> HttpResponse:
    """Show the endpoints that the User may see, and the User's files."""
    user = reader(request)
    form = EndpointFilterForm(request.GET)
    form.is_valid()
    asked = {name: value for name, value in form.cleaned_data.items() if value}
    rows = show.endpoints_of(user)
    if "q" in asked:
        rows = rows.filter(job__name__icontains=asked["q"])
    if "state" in asked:
        live = list(JobState.live())
        rows = (
            rows.filter(job__state__in=live)
            if asked["state"] == "live"
            else rows.exclude(job__state__in=live)
        )
    page = Paginator(rows, PAGE_ROWS).get_page(request.GET.get("page"))
    return render(
        request,
        "placement/serving/serve_list.html",
        {
            "form": form,
            "page": page,
            "rows": [(one, show.endpoint_facts(one)) for one in page],
            "filtered": bool(asked),
            "page_query": urlencode(asked),
            "files": [
                (
                    row,
                    show.tensor_text(row.signature["inputs"]),
                    show.tensor_text(row.signature["outputs"]),
                )
                for row in model_store.own_files(user)
            ],
            "most_files": model_store.MOST_FILES,
        },
    )


@require_http_methods(["GET", "HEAD", "POST"])
def serve_new(request: HttpRequest) -> HttpResponse:
    """Show the form to serve a model, or its errors."""
    user = reader(request)
    posted = request.method == "POST"
    places = _places(user)
    form = ServeForm(
        request.POST if posted else None,
        request.FILES if posted else None,
        files=_files(user),
        places=places,
        memberships=[(str(row.pk), str(row.account)) for row in payers(user)],
        initial={
            "file": request.GET.get("file", ""),
            "place": f"{ENDPOINT}:{request.GET.get('endpoint', '')}",
        },
    )
    if posted:
        form.is_valid()
        _take_in(user, form)
    if posted and not form.errors:
        job_id = _serve(user, form)
        if job_id is not None:
            return redirect("serve", job_id)
    return render(
        request,
        "placement/serving/serve_new.html",
        {"form": form, "places": places},
        status=422 if form.errors else 200,
    )


def _places(user: User) -> list[tuple[str, str]]:
    """Return the possible places: own reservations, a new booking, open endpoints."""
    now = timezone.now()
    found = [(BOOK, gettext("book the best GPU, from now"))]
    found += [
        (
            f"{RESERVATION}:{row.pk}",
            gettext("the best GPU of %(reservation)s")
            % {"reservation": shown(row.label)},
        )
        for row in usable_reservations(user, now)
    ]
    there = Endpoint.objects.open_to(user).select_related("job__owner", "job__node")
    found += [
        (
            f"{ENDPOINT}:{row.job_id}",
            gettext("on the same GPU as %(name)s, job %(number)s")
            % {"name": row.job.name, "number": row.job_id},
        )
        for row in there.order_by("-job_id")[:PAGE_ROWS]
    ]
    return found


def _serve(user: User, form: ServeForm) -> int | None:
    """Carry out a valid form. Refusals become errors of the form."""
    data, now = form.cleaned_data, timezone.now()
    try:
        file_id = int(data["file"])
        word, _, number = data["place"].partition(":")
        if word == ENDPOINT:
            serving.bring(
                user=user, job_id=int(number), file_id=file_id, said=data, now=now
            )
            return int(number)
        memberships = user.memberships.filter(pk=data["membership"] or 0)
        job = serving.deploy(
            user=user,
            file_id=file_id,
            said=data,
            reservation_id=int(number) if word == RESERVATION else None,
            hours=data["hours"] if word == BOOK else None,
            membership=memberships.first() if word == BOOK else None,
            now=now,
        )
    except BadInput as error:
        for field, text in error.fields.items():
            # The parser's "file" is the upload here.
            named = field in form.fields and field != "file"
            form.add_error(field if named else "upload", text)
        return None
    except CodedError as error:
        add_errors(form, error)
        return None
    return job.pk


def _files(user: User) -> list[tuple[str, str]]:
    """Return the models that need no upload: stored files and results of Jobs."""
    kept = [(str(row.pk), row.name) for row in model_store.own_files(user)]
    left = model_store.own_results(user)
    return kept + [
        (
            f"{RESULT}{row.pk}",
            gettext("%(path)s, result of job %(number)s")
            % {"path": row.path, "number": row.job_id},
        )
        for row in left
    ]


def _take_in(user: User, form: ServeForm) -> None:
    """Store the model even if the form has errors, so it is not sent again."""
    now, data = timezone.now(), form.cleaned_data
    uploads, chosen = data.get("upload"), str(data.get("file") or "")
    if not uploads and not chosen.startswith(RESULT):
        return
    try:
        check_rate("upload", user_pk=user.pk, per_minute=UPLOADS_PER_MINUTE, now=now)
        if uploads:
            row = _store(user, uploads, now)
        else:
            number = int(chosen.removeprefix(RESULT))
            row = model_store.store_result(user=user, result_id=number, now=now)
    except BadInput as error:
        form.add_error("upload", "; ".join(error.fields.values()))
    except CodedError as error:
        add_errors(form, error)
    else:
        form.choose(row.pk, row.name)


def _store(user: User, uploads: list[UploadedFile], now: datetime) -> ModelFile:
    """Store the chosen files: the model first, then its weights."""
    first, *beside = sorted(
        uploads, key=lambda one: not (one.name or "").lower().endswith(".onnx")
    )
    return model_store.store_file(user=user, upload=first, beside=beside, now=now)


@dataclass(frozen=True)
class CallExample:
    """How a program calls a model once."""

    command: str
    file: str
    """Address of its request.json. "": the command contains the request."""
    made: bool
    """False: the model's inputs are too large for an example in JSON."""


def _call(
    request: HttpRequest, facts: Mapping[str, Any], row: ServedModel
) -> CallExample:
    """Return the command that calls a model once."""
    body = example_requests.example_request(row.file.signature["inputs"])
    command = example_requests.curl_command(
        request.build_absolute_uri(facts["address"]), row.name, body
    )
    apart = body is not None and not example_requests.is_inline(body)
    file = reverse("serve-request", args=[facts["job"], row.pk]) if apart else ""
    return CallExample(command, file, body is not None)


@require_safe
def serve_request(request: HttpRequest, pk: int, model: int) -> HttpResponse:
    """Download request.json: an example request for one model of an endpoint."""
    endpoint = show.endpoints_of(reader(request)).filter(job_id=pk).first()
    rows = endpoint.models.all() if endpoint is not None else ()
    row = next((row for row in rows if row.pk == model and not row.removed_at), None)
    body = (
        example_requests.example_request(row.file.signature["inputs"]) if row else None
    )
    if body is None:
        raise Http404("no such example")
    answer = JsonResponse(body)
    answer["Content-Disposition"] = (
        f'attachment; filename="{example_requests.REQUEST_FILE}"'
    )
    return answer


@require_safe
def serve_show(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one endpoint. Its script then updates its figures."""
    user = reader(request)
    endpoint = show.endpoints_of(user).filter(job_id=pk).first()
    if endpoint is None:
        raise Http404("no such endpoint")
    facts = show.endpoint_facts(endpoint)
    mine = show.may_change(user, endpoint.job)
    rows = [row for row in endpoint.models.all() if row.removed_at is None]
    page = {
        "job": pk,
        "live": endpoint.job.state in JobState.live(),
        "models": [
            {**show.model_facts(row), "mine": mine or row.added_by_id == user.pk}
            for row in rows
        ],
        "urls": {
            "stats": reverse("serve-stats", args=[pk]),
            "v2": facts["address"],
        },
    }
    return render(
        request,
        "placement/serving/serve_show.html",
        {
            "endpoint": endpoint,
            "job": endpoint.job,
            "facts": facts,
            "rows": rows,
            "mine": mine,
            "sees_job": user.is_operator or endpoint.job.owner_id == user.pk,
            "admits": ADMITS,
            "may_bring": Endpoint.objects.open_to(user).filter(pk=endpoint.pk).exists(),
            "call": _call(request, facts, rows[0]) if rows else None,
            "page": page,
        },
    )
