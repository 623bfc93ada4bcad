"""The redirect to a SAML provider, and the return with a form of the provider."""

from collections.abc import Callable
from functools import partial, wraps

from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods, require_POST

from gpuportal.oidc import pending_sign_in
from gpuportal.oidc.sign_in_failures import answer_or_failure, expired
from gpuportal.saml.assertion_reader import (
    portal_metadata,
    read_assertion,
    sign_in_request,
)
from gpuportal.saml.provider_metadata import metadata_of
from reservations.accounts.identities import service
from reservations.accounts.identities.assertions import (
    keep_claims,
    take_claims,
    use_assertion,
)
from reservations.accounts.identities.queries import saml_provider
from reservations.accounts.identities.rules import SignInRefused, read_claims
from reservations.accounts.identities.saml_settings import SamlProvider
from reservations.accounts.second_factors.sign_in import (
    begin_session,
    proof_required,
    to_start,
)
from reservations.store.access import reader
from telemetry.protocol.sentences import sentence

BACKEND = "gpuportal.saml.saml_backend.SamlBackend"


def _with_saml(
    view: Callable[[HttpRequest, SamlProvider], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Pass the provider to a view, and answer for its failures."""

    @wraps(view)
    def found(request: HttpRequest) -> HttpResponseBase:
        provider = saml_provider()
        if provider is None:
            raise Http404
        return answer_or_failure(
            request,
            provider,
            what=f"saml-{view.__name__}",
            view=partial(view, request, provider),
        )

    return found


@require_http_methods(["GET", "HEAD"])
@login_not_required
@_with_saml
def metadata(request: HttpRequest, provider: SamlProvider) -> HttpResponse:
    """Return what the provider needs to know of the portal."""
    return HttpResponse(
        portal_metadata(provider), content_type="application/samlmetadata+xml"
    )


@require_http_methods(["GET"])
@never_cache
@login_not_required
@_with_saml
def start(request: HttpRequest, provider: SamlProvider) -> HttpResponseBase:
    """Send a visitor to the provider."""
    back = request.GET.get(REDIRECT_FIELD_NAME, "")
    if request.user.is_authenticated:
        return to_start(back)
    url, pending = _way_there(provider, back=back)
    response = redirect(url)
    pending_sign_in.keep(response, pending, by_form=True)
    return response


@require_POST
@never_cache
@proof_required(back="me")
@_with_saml
def connect(request: HttpRequest, provider: SamlProvider) -> HttpResponseBase:
    """Show a signed-in person the link that connects a login."""
    url, pending = _way_there(provider, back=reverse("me"), user_pk=reader(request).pk)
    page = {"provider": provider, "url": url}
    response = render(request, "gpuportal/oidc/connect.html", page)
    pending_sign_in.keep(response, pending, by_form=True)
    return response


def _way_there(
    provider: SamlProvider, *, back: str, user_pk: int = 0
) -> tuple[str, pending_sign_in.PendingSignIn]:
    begun = pending_sign_in.begin(provider=provider.key, back=back, user=user_pk)
    url, request_id = sign_in_request(
        provider, metadata_of(provider), state=begun.state
    )
    return url, begun.with_nonce(request_id)


@csrf_exempt
@require_POST
@never_cache
@login_not_required
@_with_saml
def back(request: HttpRequest, provider: SamlProvider) -> HttpResponseBase:
    """Sign in a person whom the provider sends back.

    The signed cookie, the state and the ID of the request take the place of the token
    of our own forms.
    """
    pending = pending_sign_in.returned(
        request, provider=provider.key, state=request.POST.get("RelayState", "")
    )
    if pending is None:
        return expired(request, provider)
    found = read_assertion(
        provider,
        metadata_of(provider),
        request.POST.get("SAMLResponse", ""),
        request_id=pending.nonce,
    )
    claims = read_claims(found.claims, username_claim="username", groups_claim="groups")
    used = use_assertion(
        issuer=provider.issuer,
        assertion_id=found.assertion_id,
        expires_at=found.expires_at,
    )
    if used is None:
        return expired(request, provider)
    if pending.user:
        # The session does not come with a form of another site, but with a redirect.
        token = keep_claims(used, user_pk=pending.user, claims=claims)
        response: HttpResponseBase = redirect(f"{reverse('saml-finish')}?token={token}")
    else:
        user = service.sign_in(provider=provider, claims=claims, now=timezone.now())
        response = begin_session(
            request, user, backend=BACKEND, back=pending.back, provider=provider.key
        )
    pending_sign_in.drop(response)
    return response


@require_http_methods(["GET"])
@never_cache
@_with_saml
def finish(request: HttpRequest, provider: SamlProvider) -> HttpResponseBase:
    """Connect the login of a person who has just come back.

    Raises:
        SignInRefused: it is another person, or it was done before.
    """
    now, user = timezone.now(), reader(request)
    claims = take_claims(request.GET.get("token", ""), user=user, now=now)
    if claims is None:
        raise SignInRefused(
            sentence("Not connected"),
            sentence("You signed out, or signed in as another person meanwhile."),
        )
    service.connect(user=user, provider=provider, claims=claims, now=now)
    return redirect(f"{reverse('me')}#logins")
