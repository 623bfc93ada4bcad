"""The JSON API, /api/v1/, which joins the routers of the apps.

A request carries a session (with CSRF, as a page's script) or a token, ``Authorization:
Bearer gp_...``, which has scopes and never an operator's rights. All errors are problem
details (RFC 9457).
"""

import importlib.util
import json
import logging
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import (
    BadRequest,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.http import Http404, HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.urls import URLPattern, URLResolver
from django.utils.translation import gettext
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.openapi.schema import OpenAPISchema
from ninja.parser import Parser
from ninja.renderers import JSONRenderer
from ninja.security import HttpBearer, SessionAuth

from gpuportal.http import problems
from gpuportal.http.openapi import with_problems
from gpuportal.http.token_auth import ScopeMissing, scopes_needed, user_of
from reservations.models import User
from telemetry.protocol.sentences import sentence
from telemetry.web.json_values import MOST_DEPTH, JsonTooDeep, unstorable
from telemetry.web.translation import translated_values

log = logging.getLogger(__name__)


CSRF_FAILED = "CSRF check Failed"
"""django-ninja's answer to a request whose CSRF token is missing or wrong."""


class JsonBodyRefused(ValueError):
    """A JSON body that no operation takes; ``fields`` name what is wrong."""

    def __init__(self, detail: str, fields: dict[str, str] | None = None) -> None:
        self.fields = fields or {}
        super().__init__(detail)


class JsonParser(Parser):
    """Reads a body that is one JSON object, with values that the database can keep."""

    def parse_body(self, request: HttpRequest) -> Any:
        """Return the object of a body; None where the body is ``null``.

        Raises:
            ValueError: it is not JSON.
            BodyRefused: it is not an object, is nested too deeply, or has a value that
                cannot be stored.
        """
        try:
            sent = json.loads(request.body)
            wrong = unstorable(sent)
        except (RecursionError, JsonTooDeep):
            raise JsonBodyRefused(
                sentence(
                    "It is nested more than {levels} levels deep.", levels=MOST_DEPTH
                )
            ) from None
        if sent is not None and not isinstance(sent, dict):
            raise JsonBodyRefused(sentence("It must be a JSON object."))
        if wrong:
            raise JsonBodyRefused(sentence("Some fields are wrong"), wrong)
        return sent


def scopes_of(request: HttpRequest) -> tuple[str, ...]:
    """Return the scopes that a token needs for this request."""
    match = request.resolver_match
    route = match.route if match else ""
    return scopes_needed(str(request.method), route, lambda: _sent(request))


def _sent(request: HttpRequest) -> dict[str, Any]:
    if request.method != "POST" or request.content_type == "multipart/form-data":
        return {}
    try:
        return JsonParser().parse_body(request) or {}
    except ValueError:
        # The operation refuses it later on.
        return {}


class TokenAuth(HttpBearer):
    """``Authorization: Bearer gp_...``"""

    def authenticate(self, request: HttpRequest, token: str) -> User | None:
        """Return the token's User; None: unknown, expired, revoked, switched off.

        Raises:
            HttpError: the token lacks the scope.
        """
        try:
            user = user_of(token, scopes=scopes_of(request))
        except ScopeMissing as missing:
            raise HttpError(403, str(missing)) from missing
        if user is not None:
            request.user = user
        return user


class PageAuth(SessionAuth):
    """The session of a page; a request with a token is the token's alone."""

    def __call__(self, request: HttpRequest) -> Any:
        """Check CSRF and return the session's User."""
        if "Authorization" in request.headers:
            return None
        return super().__call__(request)


class WordsRenderer(JSONRenderer):
    """Writes JSON with its sentences in the reader's language.

    A program that names no language reads English.
    """

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> Any:
        """Return the body of an answer."""
        return super().render(
            request, translated_values(data), response_status=response_status
        )


class PortalAPI(NinjaAPI):
    """A NinjaAPI whose operations authenticate by themselves."""

    @property
    def urls(self) -> tuple[list[URLResolver | URLPattern], str, str]:
        """Return the addresses, for ``path()``.

        SignInMiddleware would send programs to the login page; only the
        schema is left to it.
        """
        patterns, app_name, namespace = super().urls
        for pattern in patterns:
            schema = getattr(pattern, "name", "") in ("openapi-json", "api-root")
            if not schema and isinstance(pattern, URLPattern):
                pattern.callback.login_required = False  # type: ignore[attr-defined]
        return patterns, app_name, namespace

    def get_openapi_schema(self, **where: Any) -> OpenAPISchema:
        """Return the schema, with the problems that every operation may answer."""
        schema = super().get_openapi_schema(**where)
        with_problems(schema)
        return schema


api = PortalAPI(
    title="GPU Portal",
    version="1",
    auth=[TokenAuth(), PageAuth()],
    docs_url=None,
    urls_namespace="api",
    parser=JsonParser(),
    renderer=WordsRenderer(),
)
for _floor in ("telemetry", "reservations", "placement"):
    # An app without an `api` module has no router.
    if importlib.util.find_spec(f"{_floor}.api") is not None:
        api.add_router("", f"{_floor}.api.router")
api.add_router("", "gpuportal.board.api.router")


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    """Name each field that is wrong, with one sentence."""
    return problems.respond(problems.invalid(error.errors))


@api.exception_handler(AuthenticationError)
def _unknown(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    response = problems.respond(
        problems.problem(
            HTTPStatus.UNAUTHORIZED,
            code="signed-out",
            title=gettext("Signed out"),
            detail=gettext("Sign in again, or send a token that is valid."),
        )
    )
    response["WWW-Authenticate"] = 'Bearer realm="GPU Portal"'
    return response


@api.exception_handler(HttpError)
def _http(request: HttpRequest, error: HttpError) -> HttpResponse:
    refused = error.__cause__
    if isinstance(refused, JsonBodyRefused):
        if refused.fields:
            return problems.respond(problems.invalid_fields(refused.fields))
        return problems.respond(
            problems.problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                code="invalid",
                title=gettext("The body is wrong"),
                detail=str(refused),
            )
        )
    if error.message == CSRF_FAILED:
        return problems.respond(
            problems.problem(
                HTTPStatus.FORBIDDEN,
                code="page-expired",
                title=gettext("This page has expired"),
                detail=gettext("Nothing was changed. Reload the page and try again."),
            )
        )
    status = HTTPStatus(error.status_code)
    code = {
        HTTPStatus.FORBIDDEN: "not-allowed",
        HTTPStatus.BAD_REQUEST: "bad-request",
    }.get(status, f"http-{int(status)}")
    said = gettext(problems.UNREADABLE) if status == 400 else error.message
    return problems.respond(problems.problem(status, code=code, detail=said))


@api.exception_handler(Http404)
def _missing(request: HttpRequest, error: Http404) -> HttpResponse:
    return problems.respond(problems.not_found())


@api.exception_handler(RequestDataTooBig)
def _too_large(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE // 2**20
    return problems.respond(
        problems.problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="too-large",
            title=gettext("Too large"),
            detail=gettext("A request here may have %(size)s MiB.") % {"size": most},
        )
    )


@api.exception_handler(BadRequest)
@api.exception_handler(MultiPartParserError)
@api.exception_handler(SuspiciousOperation)
def _malformed(request: HttpRequest, error: Exception) -> HttpResponse:
    """A malformed form, a null character in a field's name, and similar errors."""
    return problems.respond(
        problems.problem(
            HTTPStatus.BAD_REQUEST,
            code="bad-request",
            detail=gettext("The request cannot be read."),
        )
    )


@api.exception_handler(Exception)
def _other(request: HttpRequest, error: Exception) -> HttpResponse:
    """A refusal or an outage as a problem; a crash is logged and says little."""
    if problems.status_of(error) is not None:
        return problems.problem_response(error)
    number = problems.value_problem(request, error)
    if number is not None:
        return problems.respond(number)
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return problems.respond(
        problems.problem(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            code="crash",
            title=gettext("Something broke"),
            detail=gettext(
                "This is a fault of the portal, not yours. It has been logged."
            ),
        )
    )
