"""The JSON API, /api/v1/, which joins the routers of the apps.

A request carries a session (with CSRF, as a page's script) or a token, ``Authorization:
Bearer gp_...``, which has scopes and never an operator's rights. All errors are problem
details (RFC 9457).
"""

import importlib.util
import json
import logging
from typing import Any, cast

from django.conf import settings
from django.core.exceptions import (
    BadRequest,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.http import Http404, HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.urls import URLPattern, URLResolver
from django.utils import timezone
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.parser import Parser
from ninja.renderers import JSONRenderer
from ninja.security import HttpBearer, SessionAuth

from gpuportal.http import problems
from gpuportal.http.openapi import ApiSchema, with_names, with_problems
from gpuportal.http.token_auth import scopes_needed, usable_token
from reservations.accounts.second_factors.sign_in import check_demand
from reservations.models import User
from reservations.web.rate_limits import with_rate_headers
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import problem_response
from telemetry.web.field_errors import field_sentences
from telemetry.web.json_values import MOST_DEPTH, JsonTooDeep, unstorable
from telemetry.web.translation import translated_values

log = logging.getLogger(__name__)


CSRF_FAILED = "CSRF check Failed"
"""django-ninja's answer to a request whose CSRF token is missing or wrong."""


def _body_refused(detail: str) -> RequestRefused:
    return RequestRefused(
        "invalid", detail, title=sentence("The request body is not valid")
    )


class JsonParser(Parser):
    """Reads a body that is one JSON object, with values that the database can keep."""

    def parse_body(self, request: HttpRequest) -> Any:
        """Return the object of a body; None if the body is ``null``.

        Raises:
            ValueError: it is not JSON.
            RequestRefused: it is not an object, is nested too deeply, or has a value
                that cannot be stored.
        """
        try:
            sent = json.loads(request.body)
            wrong = unstorable(sent)
        except (RecursionError, JsonTooDeep):
            raise _body_refused(
                sentence(
                    "It is nested more than {levels} levels deep.", levels=MOST_DEPTH
                )
            ) from None
        if sent is not None and not isinstance(sent, dict):
            raise _body_refused(sentence("It must be a JSON object."))
        if wrong:
            raise problems.fields_refusal(wrong)
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
    except (ValueError, RequestRefused):
        # The operation refuses it later.
        return {}


class TokenAuth(HttpBearer):
    """``Authorization: Bearer gp_...``"""

    def authenticate(self, request: HttpRequest, token: str) -> User | None:
        """Return the token's User; None: unknown, expired, revoked, switched off.

        Raises:
            RequestRefused: the token lacks the scope.
        """
        found = usable_token(token, scopes=scopes_of(request))
        if found is None:
            return None
        request.user = found.user
        request.api_token = found  # type: ignore[attr-defined]
        return cast(User, found.user)


class PageAuth(SessionAuth):
    """The session of a page; a request with a token is the token's alone."""

    def __call__(self, request: HttpRequest) -> Any:
        """Check CSRF and return the session's User."""
        if "Authorization" in request.headers:
            return None
        user = super().__call__(request)
        if isinstance(user, User):
            check_demand(request.session, user, timezone.now())
        return user


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

        SignInMiddleware would redirect programs to the login page. Only the schema is
        left to it.
        """
        patterns, app_name, namespace = super().urls
        for pattern in patterns:
            schema = getattr(pattern, "name", "") in ("openapi-json", "api-root")
            if not schema and isinstance(pattern, URLPattern):
                pattern.callback.login_required = False  # type: ignore[attr-defined]
        return patterns, app_name, namespace

    def get_openapi_schema(
        self,
        *,
        path_prefix: str | None = None,
        path_params: dict[str, Any] | None = None,
    ) -> ApiSchema:
        """Return the schema, with names and the problems that operations may return."""
        if path_prefix is None:
            path_prefix = self.get_root_path(path_params or {})
        schema = ApiSchema(self, path_prefix)
        with_problems(with_names(schema))
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
api.add_decorator(with_rate_headers, mode="view")
for _floor in ("telemetry", "reservations", "placement"):
    # An app without an `api` module has no router.
    if importlib.util.find_spec(f"{_floor}.api") is not None:
        api.add_router("", f"{_floor}.api.router")
api.add_router("", "gpuportal.board.api.router")


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    """Name each invalid field, with one sentence."""
    # A location is (source, parameter, field, ...) or (source, field).
    fields = field_sentences(error.errors, skip=2)
    if any(
        tuple(one["loc"][:1]) == ("body",) and len(one["loc"]) == 2
        for one in error.errors
    ):
        fields = {"body": sentence("Send a JSON object.")}
    return problem_response(problems.fields_refusal(fields))


@api.exception_handler(AuthenticationError)
def _unknown(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    return problem_response(
        RequestRefused(
            "signed-out",
            sentence("Sign in again, or send a token that is valid."),
            title=sentence("Signed out"),
        )
    )


@api.exception_handler(HttpError)
def _http(request: HttpRequest, error: HttpError) -> HttpResponse:
    refused: RequestRefused
    if isinstance(error.__cause__, RequestRefused):
        refused = error.__cause__
    elif error.message == CSRF_FAILED:
        refused = problems.page_expired()
    else:  # "Cannot parse request body"
        refused = RequestRefused(
            "bad-request",
            sentence("The request's body cannot be read: it must be valid JSON."),
        )
    return problem_response(refused)


@api.exception_handler(Http404)
def _missing(request: HttpRequest, error: Http404) -> HttpResponse:
    return problem_response(problems.no_such_address())


@api.exception_handler(RequestDataTooBig)
def _too_large(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return problem_response(problems.too_large(settings.DATA_UPLOAD_MAX_MEMORY_SIZE))


@api.exception_handler(BadRequest)
@api.exception_handler(MultiPartParserError)
@api.exception_handler(SuspiciousOperation)
def _malformed(request: HttpRequest, error: Exception) -> HttpResponse:
    """Answer a body that is no form, a null character in a field's name, and the
    like.
    """
    return problem_response(
        RequestRefused("bad-request", sentence("The request cannot be read."))
    )


@api.exception_handler(Exception)
def _unexpected_problem(request: HttpRequest, error: Exception) -> HttpResponse:
    """Answer a refusal or an outage with a problem. A crash is logged and explained
    briefly.
    """
    refused = problems.refusal_of(error, request)
    if refused is None:
        log.error("%s %s failed", request.method, request.path, exc_info=error)
        refused = RequestRefused(
            "crash",
            sentence("This is a fault of the portal, not yours. It has been logged."),
            title=sentence("Something broke"),
        )
    return problem_response(refused)
