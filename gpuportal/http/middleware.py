"""Turn refusals and outages into answers that a person or program can use."""

import logging
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote, urlencode, urlsplit

from django.conf import settings
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render, resolve_url
from django.template.loader import render_to_string
from django.utils import timezone, translation
from django.utils.cache import patch_vary_headers
from django.utils.deprecation import MiddlewareMixin
from django.utils.http import url_has_allowed_host_and_scheme

from gpuportal.http import problems
from reservations.accounts.second_factors.rules import Demand
from reservations.accounts.second_factors.sign_in import (
    demand_of,
    second_factor_missing,
)
from reservations.models import User
from reservations.notifications.reader_locale import chosen_language, zone_of
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import RETRY_SECONDS, problem_of, problem_response

logger = logging.getLogger(__name__)


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class NullMiddleware(MiddlewareMixin):
    """Replaces null characters of an address, as HTML's parser does (U+FFFD).

    No stored text has one, and PostgreSQL refuses them. So such an address finds
    nothing, and a page answers as for any other unknown word.
    """

    def process_request(self, request: HttpRequest) -> None:
        """Replace them in the path and in the query."""
        query = request.META.get("QUERY_STRING", "")
        if "\0" in request.path_info:
            request.path = request.path.replace("\0", REPLACEMENT)
            request.path_info = request.path_info.replace("\0", REPLACEMENT)
        if "%00" in query or "\0" in query:
            encoded = quote(REPLACEMENT)
            request.META["QUERY_STRING"] = query.replace("\0", "%00").replace(
                "%00", encoded
            )


ISOLATING_HEADERS = {
    # Another site cannot load an answer as its image or script.
    "Cross-Origin-Resource-Policy": "same-origin",
    # Pages use none of these, so a script that was slipped in cannot, either.
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), "
    "microphone=(), payment=(), usb=()",
    "X-Permitted-Cross-Domain-Policies": "none",
    # The browser looks up the host of a link only if a person follows the link.
    "X-DNS-Prefetch-Control": "off",
}
"""Headers that Django does not set: docs/design/security.md#headers."""


class IsolatingHeadersMiddleware(MiddlewareMixin):
    """Add the headers that separate the portal from other sites."""

    def process_response(
        self, request: HttpRequest, response: HttpResponse
    ) -> HttpResponse:
        """Add them, unless a view has set its own."""
        for name, value in ISOLATING_HEADERS.items():
            response.headers.setdefault(name, value)
        return response


class SignInMiddleware(LoginRequiredMiddleware):
    """Redirect a visitor to the sign-in page, and from there back to the previous page.

    For a browser with a session that has ended, the address has ``ended``. After a
    form, the way back is the page that shows the form, because the address that
    receives it may not accept GET.
    """

    def process_view(
        self,
        request: HttpRequest,
        view_func: Callable[..., HttpResponseBase],
        view_args: tuple[object, ...],
        view_kwargs: dict[str, object],
    ) -> HttpResponseBase | None:
        """Let pass what is open to everybody, before Django reads the visitor from the
        database. Those pages open while it is away, in a browser with a session too.
        """
        if not getattr(view_func, "login_required", True):
            return None
        return super().process_view(request, view_func, view_args, view_kwargs)

    def handle_no_permission(
        self, request: HttpRequest, view_func: Callable[..., HttpResponseBase]
    ) -> HttpResponseRedirect:
        """Redirect to the sign-in page."""
        back = request.get_full_path()
        if request.method not in {"GET", "HEAD"}:
            back = form_page(request) or back
        query = {REDIRECT_FIELD_NAME: back}
        if settings.SESSION_COOKIE_NAME in request.COOKIES:
            query["ended"] = "1"
        return HttpResponseRedirect(
            f"{resolve_url(self.get_login_url(view_func))}?{urlencode(query, safe='/')}"
        )


def form_page(request: HttpRequest) -> str:
    """Return the path of the page on which a form was filled in; "" if unknown."""
    sent_from = request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(
        sent_from, {request.get_host()}, require_https=request.is_secure()
    ):
        return ""
    parts = urlsplit(sent_from)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


class TimeZoneMiddleware(MiddlewareMixin):
    """Show times in the User's own zone, or in the site's if the User chose none."""

    def process_view(
        self,
        request: HttpRequest,
        view: Callable[..., HttpResponse],
        _args: Sequence[object],
        _kwargs: Mapping[str, object],
    ) -> None:
        """Activate the zone. The User is loaded by then, so this costs no query."""
        try:
            own = getattr(request.user, "time_zone", "")
        except problems.OUTAGES:
            own = ""  # the view handles the outage
        zone = zone_of(own)
        if zone is None:
            timezone.deactivate()
        else:
            timezone.activate(zone)

    def process_response(
        self, request: HttpRequest, response: HttpResponse
    ) -> HttpResponse:
        """Deactivate the zone before the next work of this thread."""
        timezone.deactivate()
        return response


class LanguageMiddleware(MiddlewareMixin):
    """Answer in the language of the cookie, or else of the browser.

    It runs before everything that may answer. UserLanguageMiddleware activates the
    User's choice later, because only then is the User loaded.
    """

    def process_request(self, request: HttpRequest) -> None:
        """Activate the visitor's language."""
        translation.activate(translation.get_language_from_request(request))

    def process_response(
        self, request: HttpRequest, response: HttpResponse
    ) -> HttpResponse:
        """Set the Content-Language header, and deactivate the language for the next
        work of this thread."""
        patch_vary_headers(response, ("Accept-Language",))
        response.headers.setdefault("Content-Language", translation.get_language())
        translation.deactivate()
        return response


class UserLanguageMiddleware(MiddlewareMixin):
    """Answer in the language that the User chose, if they chose one."""

    def process_view(
        self,
        request: HttpRequest,
        view: Callable[..., HttpResponse],
        _args: Sequence[object],
        _kwargs: Mapping[str, object],
    ) -> None:
        """Activate it. The User is loaded by then, so this costs no query."""
        activate_language_of_user(request)


class SecondFactorMiddleware(MiddlewareMixin):
    """Lead operators who need a second factor to the page that sets one up.

    It runs after the middlewares of zone and language, because it may answer.
    """

    OPEN_PAGES = frozenset(
        {"second-factors", "language", "time-zone", "help", "logout"}
    )
    """Names of addresses that stay open, beside those that need no sign-in."""

    def process_view(
        self,
        request: HttpRequest,
        view: Callable[..., HttpResponse],
        _args: Sequence[object],
        _kwargs: Mapping[str, object],
    ) -> HttpResponse | None:
        """Redirect after the grace. Until then a banner asks (``SiteContext``)."""
        if not getattr(view, "login_required", True):
            return None
        try:
            user = request.user
            if not isinstance(user, User):
                return None
            demand = demand_of(request.session, user, timezone.now())
        except problems.OUTAGES:
            return None  # the view handles the outage
        request.second_factor_demand = demand  # type: ignore[attr-defined]
        found = request.resolver_match
        if demand is not Demand.REQUIRED or (
            found is not None and found.url_name in self.OPEN_PAGES
        ):
            return None
        if problems.wants_problem(request):
            return problem_response(second_factor_missing())
        return HttpResponseRedirect(resolve_url("second-factors"))


def activate_language_of_user(request: HttpRequest) -> None:
    """Activate the language that the User chose. Without one, change nothing.

    For views that answer without ``process_view``, such as the error pages.
    """
    try:
        own = chosen_language(getattr(request, "user", None))
    except problems.OUTAGES:
        own = ""  # the view handles the outage
    if own:
        translation.activate(own)


class ProblemMiddleware(MiddlewareMixin):
    """Answers for errors that a view let through (see ``problems.py``).

    It is between AuthenticationMiddleware and SignInMiddleware, because the first
    access to ``request.user`` reads the database, and Django passes errors of other
    middlewares' ``process_view`` to no middleware.
    """

    def process_view(
        self,
        request: HttpRequest,
        view: Callable[..., HttpResponse],
        _args: Sequence[object],
        _kwargs: Mapping[str, object],
    ) -> HttpResponse | None:
        """Load the visitor if the view needs one. Return 503 if that fails."""
        if not getattr(view, "login_required", True):
            return None
        try:
            _ = request.user.is_authenticated
        except problems.OUTAGES as error:
            return self.process_exception(request, error)
        return None

    def process_response(
        self, request: HttpRequest, response: HttpResponse
    ) -> HttpResponse:
        """Answer a program with a problem if an address has no such method."""
        if response.status_code != 405 or not request.path.startswith("/api/"):
            return response
        allowed = response.headers.get("Allow", "")
        refused = problem_response(
            RequestRefused(
                "method",
                sentence("This address accepts {methods} only.", methods=allowed),
            )
        )
        refused["Allow"] = allowed
        return refused

    def process_exception(
        self, request: HttpRequest, error: Exception
    ) -> HttpResponse | None:
        """Answer with the error's status; None: a crash, which Django reports."""
        refusal = problems.refusal_of(error, request)
        if refusal is None:
            return None
        if isinstance(error, problems.OUTAGES):
            logger.error("%s %s: %s", request.method, request.path, error)
        if problems.wants_problem(request):
            return problem_response(refusal)
        if isinstance(error, problems.OUTAGES):
            return outage_page()
        return render(
            request,
            "gpuportal/pages/problem.html",
            {"problem": problem_of(refusal)},
            status=refusal.status,
        )


def outage_page() -> HttpResponse:
    """Return a page that is made without the database."""
    response = HttpResponse(render_to_string("503.html"), status=503)
    response["Retry-After"] = str(RETRY_SECONDS)
    response["Cache-Control"] = "no-store"
    return response
