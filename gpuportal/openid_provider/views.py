"""The addresses of the provider: sign in to a service, and the service's own calls."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from authlib.common.urls import add_params_to_uri
from authlib.oauth2.rfc6749 import InvalidRequestError, OAuth2Error
from authlib.oidc.core.errors import (
    ConsentRequiredError,
    InteractionRequiredError,
    LoginRequiredError,
    RequestNotSupportedError,
    RequestURINotSupportedError,
)
from axes.helpers import get_client_ip_address
from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from gpuportal.openid_provider.provider import (
    METHODS,
    SERVER,
    CodeGrant,
    SignInState,
    check_parameters,
    issuer,
)
from gpuportal.openid_provider.signing_key import ALGORITHM, public_keys
from reservations.accounts.openid_clients import service
from reservations.accounts.openid_clients.queries import (
    access_token,
    consent_of,
    groups_of,
    person_of,
    username_for_services,
)
from reservations.accounts.openid_clients.rules import (
    SCOPES,
    claims_of,
    consent_covers,
    present_scopes,
    sign_in_too_old,
)
from reservations.accounts.second_factors.rules import Demand
from reservations.accounts.second_factors.sign_in import (
    LONGEST_BACK,
    PROVED_AT,
    demand_of,
    signed_in_at,
)
from reservations.models import OpenidClient, User
from reservations.rules.errors import NotFound, TooFast
from reservations.store.access import reader
from reservations.web.rate_limits import check_address_rate
from telemetry.web.query_filters import whole_number

log = logging.getLogger(__name__)
View = Callable[[HttpRequest], HttpResponse]
AUTHORIZE_PER_MINUTE = 300
"""Most sign-ins of one address. A whole course may come from one."""
CALLS_PER_MINUTE = 1200
"""Most calls of one address, such as the machine of a service."""
SIGNED_IN = "portal_signed_in"
"""Parameter of the address to which the sign-in page leads back."""


def _provider_on(view: View) -> View:
    """Answer 404 unless the site offers this."""

    @wraps(view)
    def checked(request: HttpRequest) -> HttpResponse:
        if not settings.OPENID_PROVIDER:
            raise Http404
        return view(request)

    return checked


# --- what a service reads ---------------------------------------------------------


@require_safe
@login_not_required
@_provider_on
def configuration(request: HttpRequest) -> JsonResponse:
    """Describe the provider (OpenID Connect Discovery 1.0, section 3)."""
    origin = issuer()
    return _public_json(
        {
            "issuer": origin,
            "authorization_endpoint": origin + reverse("openid-authorize"),
            "token_endpoint": origin + reverse("openid-token"),
            "userinfo_endpoint": origin + reverse("openid-userinfo"),
            "jwks_uri": origin + reverse("openid-keys"),
            "revocation_endpoint": origin + reverse("openid-revoke"),
            "scopes_supported": list(SCOPES),
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
            "token_endpoint_auth_methods_supported": METHODS,
            "revocation_endpoint_auth_methods_supported": METHODS,
            "code_challenge_methods_supported": ["S256"],
            "prompt_values_supported": ["none", "login", "consent"],
            "claims_supported": [
                *("iss", "sub", "aud", "exp", "iat", "auth_time", "nonce", "amr"),
                *("at_hash", "name", "preferred_username", "email"),
                *("email_verified", "groups"),
            ],
            "request_parameter_supported": False,
            "request_uri_parameter_supported": False,
            "claims_parameter_supported": False,
            "authorization_response_iss_parameter_supported": True,
        }
    )


@require_safe
@login_not_required
@_provider_on
def keys(request: HttpRequest) -> JsonResponse:
    """List the public keys that verify ID tokens (RFC 7517)."""
    return _public_json({"keys": public_keys()})


def _public_json(data: Mapping[str, Any]) -> JsonResponse:
    response = JsonResponse(data)
    response["Cache-Control"] = "public, max-age=300"
    response["Access-Control-Allow-Origin"] = "*"
    response["Cross-Origin-Resource-Policy"] = "cross-origin"
    return response


# --- the sign-in ------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@never_cache
@login_not_required
@_provider_on
def authorize(request: HttpRequest) -> HttpResponse:
    """Let a person sign in to a service, after the portal's own sign-in.

    The portal's sign-in asks for the second factor before anybody is signed in.
    """
    now = timezone.now()
    address = get_client_ip_address(request) or "unknown"
    check_address_rate(
        "openid-authorize", address=address, per_minute=AUTHORIZE_PER_MINUTE, now=now
    )
    user = request.user if isinstance(request.user, User) else None
    try:
        if len(request.get_full_path()) > LONGEST_BACK:
            raise InvalidRequestError("The request is too long.")
        check_parameters([request.GET, request.POST])
        grant: CodeGrant = SERVER.get_consent_grant(request, end_user=user)
    except OAuth2Error as error:
        return _refused(request, error)
    try:
        return _answer(request, grant, user, now)
    except OAuth2Error as error:
        error.redirect_uri = grant.redirect_uri
        return _refused(request, error)


def _answer(
    request: HttpRequest, grant: CodeGrant, user: User | None, now: datetime
) -> HttpResponse:
    """Answer a valid request.

    Raises:
        OAuth2Error: goes to the service.
    """
    # OpenID Connect Core 1.0, section 6: not ignored, because they replace parameters.
    if "request" in request.GET:
        raise RequestNotSupportedError
    if "request_uri" in request.GET:
        raise RequestURINotSupportedError
    prompts = set(request.GET.get("prompt", "").split())
    silent = "none" in prompts
    if silent and len(prompts) > 1:
        raise InvalidRequestError("The prompt none goes with no other.")
    if user is None:
        if silent:
            raise LoginRequiredError
        return redirect_to_login(_after_sign_in(request), reverse("login"))
    try:
        too_old = sign_in_too_old(
            signed_in_at(request.session, user),
            prompts=prompts,
            max_age=request.GET.get("max_age", ""),
            now=now,
        )
    except ValueError as error:
        raise InvalidRequestError("max_age is no number of seconds.") from error
    if too_old:
        return _sign_in_again(request, grant, silent)
    if demand_of(request.session, user, now) is Demand.REQUIRED:
        if silent:
            raise InteractionRequiredError
        return redirect("second-factors")
    client: OpenidClient = grant.client.row
    scopes = grant.request.scope.split()
    if request.method == "POST":
        if "allow" not in request.POST:
            return _leave(request, grant, None, scopes)
        try:
            service.give_consent(user=user, client=client, scopes=scopes, now=now)
        except NotFound as error:
            raise InvalidRequestError("The client was deleted meanwhile.") from error
        return _leave(request, grant, user, scopes)
    found = consent_of(user, client)
    given = None if found is None else found.scopes
    if "consent" not in prompts and consent_covers(given, scopes, public=client.public):
        return _leave(request, grant, user, scopes)
    if silent:
        raise ConsentRequiredError
    page = {
        "client": client,
        "host": urlsplit(grant.redirect_uri).netloc,
        "scopes": scopes,
        "username": username_for_services(user),
        "groups": groups_of(user),
    }
    return render(request, "gpuportal/openid_provider/consent.html", page)


def _sign_in_again(
    request: HttpRequest, grant: CodeGrant, silent: bool
) -> HttpResponse:
    """Ask a person to sign in again. The button ends the session, never a link."""
    if silent:
        raise LoginRequiredError
    if "again" in request.POST:
        logout(request)
        return redirect_to_login(_after_sign_in(request), reverse("login"))
    page = {"client": grant.client.row}
    return render(request, "gpuportal/openid_provider/sign_in_again.html", page)


def _after_sign_in(request: HttpRequest) -> str:
    """Return the address to come back to after the sign-in.

    The sign-in satisfies ``prompt=login`` and ``max_age``. The service can verify that
    by the claim ``auth_time``.
    """
    values = request.GET.copy()
    prompts = [one for one in values.get("prompt", "").split() if one != "login"]
    values["prompt"] = " ".join(prompts)
    values.pop("max_age", None)
    values[SIGNED_IN] = "1"
    return f"{request.path}?{values.urlencode()}"


def _leave(
    request: HttpRequest, grant: CodeGrant, user: User | None, scopes: list[str]
) -> HttpResponse:
    """Go back to the service with a code. User None: the person did not agree."""
    if user is not None:
        grant.request.sign_in_state = SignInState(
            signed_in_at(request.session, user), PROVED_AT in request.session
        )
    found = SERVER.create_authorization_response(
        grant.request, grant_user=user, grant=grant
    )
    if "Location" not in found:
        # The request was checked a second time, and the service was gone by then.
        why = "The service was switched off or changed meanwhile."
        return _refused(request, InvalidRequestError(why))
    return _go(request, found["Location"], grant.client.row.name)


def _refused(request: HttpRequest, error: OAuth2Error) -> HttpResponse:
    """Refuse to the service, or to the person if its address is not certain."""
    error.state = request.GET.get("state")
    status, _body, headers = error()
    location = dict(headers).get("Location")
    if location:
        return _go(request, location, urlsplit(location).netloc)
    log.info("sign-in to a service refused: %s", error)
    page = {"why": error.get_error_description() or error.error}
    return render(
        request, "gpuportal/openid_provider/refused.html", page, status=status
    )


def _go(request: HttpRequest, location: str, name: str) -> HttpResponse:
    """Go back to the service, and say who answers (RFC 9207).

    After a form it is a page and no redirect, because the Content Security Policy lets
    no form lead to another site, also not by redirects.
    """
    url = add_params_to_uri(location, [("iss", issuer())])
    if request.method == "POST" or SIGNED_IN in request.GET:
        page = {"url": url, "name": name}
        return render(request, "gpuportal/openid_provider/go.html", page)
    response = HttpResponse(status=302)
    response["Location"] = url
    return response


# --- calls of services ------------------------------------------------------------


def _service_call(view: View) -> View:
    """Limit the calls of one address, and answer problems as RFC 6749 says."""

    @csrf_exempt
    @never_cache
    @login_not_required
    @_provider_on
    @wraps(view)
    def called(request: HttpRequest) -> HttpResponse:
        address = get_client_ip_address(request) or "unknown"
        try:
            check_address_rate(
                f"openid-{view.__name__}",
                address=address,
                per_minute=CALLS_PER_MINUTE,
                now=timezone.now(),
            )
            check_parameters([request.GET, request.POST])
            return view(request)
        except TooFast as error:
            response = _error("temporarily_unavailable", 429)
            response["Retry-After"] = str(error.retry_seconds)
            return response
        except OAuth2Error as error:
            return _error(error.error, error.status_code)
        except ValueError:
            # Authlib lets it through for an Authorization header that it cannot read.
            return _error("invalid_request", 400)

    return called


def _error(code: str, status: int) -> JsonResponse:
    return JsonResponse({"error": code}, status=status)


@sensitive_post_parameters("client_secret", "code", "refresh_token", "code_verifier")
@require_POST
@_service_call
def token(request: HttpRequest) -> HttpResponse:
    """Exchange a code or a refresh token for tokens."""
    with transaction.atomic(durable=True):
        found: HttpResponse = SERVER.create_token_response(request)
    return found


@sensitive_post_parameters("client_secret", "token")
@require_POST
@_service_call
def revoke(request: HttpRequest) -> HttpResponse:
    """End a token that a service no longer needs (RFC 7009)."""
    with transaction.atomic(durable=True):
        found: HttpResponse = SERVER.create_endpoint_response("revocation", request)
    return found


@require_http_methods(["GET", "POST"])
@_service_call
def userinfo(request: HttpRequest) -> HttpResponse:
    """Return what the access token gives (OpenID Connect Core 1.0, section 5.3).

    The token is in the header only (RFC 6750, section 2.1).
    """
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    found = access_token(text.strip(), timezone.now()) if text else None
    if kind.lower() != "bearer" or found is None:
        response = _error("invalid_token", 401)
        response["WWW-Authenticate"] = 'Bearer error="invalid_token"'
        return response
    consent = found.consent
    scopes = present_scopes(
        found.scopes, given=consent.scopes, allowed=consent.client.scopes
    )
    return JsonResponse(claims_of(person_of(consent.user), scopes))


# --- what people gave -------------------------------------------------------------


@require_POST
@_provider_on
def consent_end(request: HttpRequest) -> HttpResponse:
    """End one of the person's own consents."""
    pk = whole_number(request.POST.get("consent", ""))
    user = reader(request)
    if service.end_consent(consent_pk=pk, user=user, now=timezone.now()) is None:
        raise Http404("no such consent of yours")
    return redirect(f"{reverse('me')}#services")
