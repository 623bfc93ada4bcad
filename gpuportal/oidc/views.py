"""The redirect to an identity provider, and the return from it."""

from collections.abc import Callable
from functools import partial, wraps

from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from gpuportal.oidc import pending_sign_in
from gpuportal.oidc.provider_client import (
    ProviderAnswerInvalid,
    ProviderAway,
    client_of,
)
from gpuportal.oidc.sign_in_failures import answer_or_failure, expired
from reservations.accounts.identities import service
from reservations.accounts.identities.provider_settings import Provider
from reservations.accounts.identities.queries import provider_named
from reservations.accounts.identities.rules import SignInRefused, read_claims
from reservations.accounts.second_factors.sign_in import (
    begin_session,
    proof_required,
    to_start,
)
from reservations.models import User
from reservations.rules.window import unix
from reservations.store.access import reader
from telemetry.protocol.sentences import sentence

BACKEND = "gpuportal.oidc.backend.OidcBackend"


def _with_provider(
    view: Callable[[HttpRequest, Provider], HttpResponseBase],
) -> Callable[[HttpRequest, str], HttpResponseBase]:
    """Pass the provider of an address to a view, and answer for its failures."""

    @wraps(view)
    def found(request: HttpRequest, key: str) -> HttpResponseBase:
        provider = provider_named(key)
        if provider is None:
            raise Http404
        return answer_or_failure(
            request,
            provider,
            what=view.__name__,
            view=partial(view, request, provider),
            signs_in=view.__name__ != "end",
        )

    return found


def _back_address(request: HttpRequest, provider: Provider) -> str:
    return request.build_absolute_uri(reverse("oidc-back", args=[provider.key]))


@require_http_methods(["GET"])
@never_cache
@login_not_required
@_with_provider
def start(request: HttpRequest, provider: Provider) -> HttpResponseBase:
    """Send a visitor to the provider."""
    back = request.GET.get(REDIRECT_FIELD_NAME, "")
    if request.user.is_authenticated:
        return to_start(back)
    pending = pending_sign_in.begin(provider=provider.key, back=back)
    response = redirect(_way_there(request, provider, pending))
    pending_sign_in.keep(response, pending)
    return response


@require_POST
@never_cache
@proof_required(back="me")
@_with_provider
def connect(request: HttpRequest, provider: Provider) -> HttpResponseBase:
    """Show a signed-in person the link that connects a login.

    It is a page and not a redirect, because the Content Security Policy lets no form
    lead to another site. The POST proves that the person wants it.
    """
    user = reader(request)
    pending = pending_sign_in.begin(
        provider=provider.key, back=reverse("me"), user=user.pk
    )
    page = {"provider": provider, "url": _way_there(request, provider, pending)}
    response = render(request, "gpuportal/oidc/connect.html", page)
    pending_sign_in.keep(response, pending)
    return response


def _way_there(
    request: HttpRequest, provider: Provider, pending: pending_sign_in.PendingSignIn
) -> str:
    return client_of(provider).authorization_url(
        redirect_uri=_back_address(request, provider),
        state=pending.state,
        nonce=pending.nonce,
        verifier=pending.verifier,
    )


@require_http_methods(["GET"])
@never_cache
@login_not_required
@_with_provider
def back(request: HttpRequest, provider: Provider) -> HttpResponseBase:
    """Sign in a person who comes back from the provider."""
    pending = pending_sign_in.returned(
        request, provider=provider.key, state=request.GET.get("state", "")
    )
    if pending is None:
        if isinstance(request.user, User):
            # The browser's Back button, or a second tab.
            return to_start("")
        return expired(request, provider)
    _check_answer(request, provider)
    now = timezone.now()
    raw = client_of(provider).claims(
        code=request.GET["code"],
        redirect_uri=_back_address(request, provider),
        nonce=pending.nonce,
        verifier=pending.verifier,
        now=unix(now),
    )
    claims = read_claims(
        raw,
        username_claim=provider.username_claim,
        groups_claim=provider.groups_claim,
        unix_user_claim=provider.unix_user_claim,
        unix_uid_claim=provider.unix_uid_claim,
    )
    if pending.user:
        if not isinstance(request.user, User) or request.user.pk != pending.user:
            raise SignInRefused(
                sentence("Not connected"),
                sentence("You signed out, or signed in as another person meanwhile."),
            )
        service.connect(user=request.user, provider=provider, claims=claims, now=now)
    else:
        user = service.sign_in(provider=provider, claims=claims, now=now)
    response = (
        to_start(pending.back)
        if pending.user
        else begin_session(
            request, user, backend=BACKEND, back=pending.back, provider=provider.key
        )
    )
    pending_sign_in.drop(response)
    return response


def _check_answer(request: HttpRequest, provider: Provider) -> None:
    """Refuse an answer without a code.

    Raises:
        SignInRefused: the person did not agree.
        ProviderAway: the provider says so.
        ProviderAnswerInvalid: any other error, or another provider answers (RFC 9207).
    """
    error = request.GET.get("error", "")
    if error == "access_denied":
        raise SignInRefused(
            sentence("You did not agree at {provider}", provider=provider.name),
            sentence("Without your consent the portal does not know who you are."),
        )
    if error in ("temporarily_unavailable", "server_error"):
        raise ProviderAway(error)
    if error:
        shown = error[:40] if error.isidentifier() and error.isascii() else "unknown"
        raise ProviderAnswerInvalid(f"it refused the request ({shown})")
    said = request.GET.get("iss")
    if said is not None and said != client_of(provider).configuration().issuer:
        raise ProviderAnswerInvalid("another provider answered")
    if not request.GET.get("code"):
        raise ProviderAnswerInvalid("it sent no code")


@require_http_methods(["GET"])
@never_cache
@login_not_required
@_with_provider
def end(request: HttpRequest, provider: Provider) -> HttpResponseBase:
    """Send a person who signed out to the provider, to sign out there too.

    See OpenID Connect RP-Initiated Logout 1.0.
    """
    url = client_of(provider).end_session_url()
    if url is None:
        raise SignInRefused(
            sentence("Sign out at {provider} itself", provider=provider.name),
            sentence(
                "{provider} has no address for this. Close all windows of the browser.",
                provider=provider.name,
            ),
            status=404,
        )
    return redirect(url)
