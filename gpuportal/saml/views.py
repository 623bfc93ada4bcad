"""The redirect to a SAML provider, and the return with a form of the provider."""

import logging
from collections.abc import Callable
from dataclasses import asdict
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
from gpuportal.oidc.kept_answer import ProviderAnswerInvalid
from gpuportal.oidc.sign_in_failures import answer_or_failure, expired
from gpuportal.saml import ended_session
from gpuportal.saml.assertion_reader import (
    portal_metadata,
    read_assertion,
    sign_in_request,
)
from gpuportal.saml.logout_messages import (
    ANSWER,
    WINDOW,
    can_sign_out,
    logout_answer,
    logout_request,
    read_logout_answer,
    read_logout_request,
)
from gpuportal.saml.provider_metadata import metadata_of
from reservations.accounts.identities import service
from reservations.accounts.identities.assertions import (
    keep_claims,
    take_claims,
    use_assertion,
)
from reservations.accounts.identities.provider_sessions import end_provider_sessions
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

log = logging.getLogger(__name__)
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
            signs_in=view.__name__ not in ("end", "logout"),
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
    claims = read_claims(
        found.claims,
        username_claim="username",
        groups_claim="groups",
        unix_user_claim="unix_user",
        unix_uid_claim="unix_uid" if provider.unix_uid_claim else "",
    )
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
        session = asdict(found.session) if found.session.can_be_kept else None
        response = begin_session(
            request,
            user,
            backend=BACKEND,
            back=pending.back,
            provider=provider.key,
            provider_session=session,
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


@require_http_methods(["GET"])
@never_cache
@login_not_required
@_with_saml
def end(request: HttpRequest, provider: SamlProvider) -> HttpResponseBase:
    """Send a person who signed out to the provider, to sign out there too.

    Raises:
        SignInRefused: there is no single logout, or no session that it could end.
    """
    ended, found = ended_session.returned(request), metadata_of(provider)
    if ended is None or not can_sign_out(provider, found):
        raise SignInRefused(
            sentence("Sign out at {provider} itself", provider=provider.name),
            sentence(
                "The portal cannot do it for you. Close all windows of the browser."
            ),
            status=404,
        )
    begun = pending_sign_in.begin(provider=_sign_out_key(provider), back="")
    url, request_id = logout_request(provider, found, ended, state=begun.state)
    response = redirect(url)
    pending_sign_in.keep(response, begun.with_nonce(request_id))
    ended_session.drop(response)
    return response


@require_http_methods(["GET"])
@never_cache
@login_not_required
@_with_saml
def logout(request: HttpRequest, provider: SamlProvider) -> HttpResponseBase:
    """Take a logout message of the provider: a request, or the answer to one.

    The browser that brings a request need not be signed in, and its cookies count for
    nothing: many providers use a frame, in which browsers send none.

    Raises:
        ProviderAnswerInvalid: a check failed, or the request was used before.
    """
    query = request.META.get("QUERY_STRING", "")
    if ANSWER in request.GET:
        return _signed_out(request, provider, query)
    asked = read_logout_request(provider, metadata_of(provider), query)
    used = use_assertion(
        issuer=provider.issuer,
        assertion_id=asked.request_id,
        expires_at=asked.made_at + 2 * WINDOW,
    )
    if used is None:
        raise ProviderAnswerInvalid("its request was used before")
    ended = end_provider_sessions(
        provider=provider.key,
        name=asked.name,
        indexes=asked.indexes,
        now=timezone.now(),
    )
    log.info("%s ended %s sessions", provider.issuer, ended)
    return redirect(logout_answer(provider, metadata_of(provider), asked))


def _signed_out(
    request: HttpRequest, provider: SamlProvider, query: str
) -> HttpResponseBase:
    pending = pending_sign_in.returned(
        request,
        provider=_sign_out_key(provider),
        state=request.GET.get("RelayState", ""),
    )
    if pending is None:
        raise ProviderAnswerInvalid("this browser has not asked for it")
    if not read_logout_answer(
        provider, metadata_of(provider), query, request_id=pending.nonce
    ):
        raise SignInRefused(
            sentence("{provider} did not sign you out", provider=provider.name),
            sentence("Close all windows of the browser."),
            status=502,
        )
    response = redirect(f"{reverse('login')}?gone={provider.key}")
    pending_sign_in.drop(response)
    return response


def _sign_out_key(provider: SamlProvider) -> str:
    """Return the key of a sign-out that has begun, which is no key of a provider."""
    return f"{provider.key} end"
