"""The pages of sign-ins that failed, at whatever identity provider."""

import logging
from collections.abc import Callable

from axes.helpers import get_client_ip_address
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone

from gpuportal.oidc import pending_sign_in
from gpuportal.oidc.provider_client import (
    CodeRefused,
    ProviderAnswerInvalid,
    ProviderAway,
)
from reservations.accounts.identities.identity_source import IdentitySource
from reservations.accounts.identities.rules import SignInRefused
from reservations.web.rate_limits import check_address_rate
from telemetry.protocol.sentences import Sentence, sentence

log = logging.getLogger(__name__)
PER_MINUTE = 300
"""Most sign-ins of one address. A whole course may come from one."""


def answer_or_failure(
    request: HttpRequest,
    provider: IdentitySource,
    *,
    what: str,
    view: Callable[[], HttpResponseBase],
    signs_in: bool = True,
) -> HttpResponseBase:
    """Return the answer of a view, or the page of its failure.

    Args:
        what: the step of the sign-in, whose requests are counted together.
        signs_in: False: the step is one of a sign-out.

    Raises:
        TooFast: the limit of the address is exceeded.
    """
    now = timezone.now()
    address = get_client_ip_address(request) or "unknown"
    check_address_rate(f"login-{what}", address=address, per_minute=PER_MINUTE, now=now)
    try:
        return view()
    except ProviderAway as error:
        log.warning("%s is away: %s", provider.issuer, error)
        return failed(
            request,
            provider,
            sentence("{provider} does not answer", provider=provider.name),
            sentence(
                "Nobody can sign in with {provider} just now. People who are "
                "signed in can go on working. The reason: {why}.",
                provider=provider.name,
                why=str(error),
            ),
            status=503,
        )
    except CodeRefused:
        return expired(request, provider)
    except ProviderAnswerInvalid as error:
        log.warning("%s: %s", provider.issuer, error)
        return failed(
            request,
            provider,
            sentence("The answer of {provider} is not valid", provider=provider.name),
            sentence(
                "You were not signed in. Contact the lab admin if this happens "
                "again. The reason: {why}.",
                why=str(error),
            )
            if signs_in
            else sentence(
                "It ended no session here. Contact the lab admin if this happens "
                "again. The reason: {why}.",
                why=str(error),
            ),
            status=502,
            signs_in=signs_in,
        )
    except SignInRefused as error:
        return failed(
            request,
            provider,
            error.title,
            error.why,
            status=error.status,
            signs_in=signs_in,
        )


def failed(
    request: HttpRequest,
    provider: IdentitySource,
    title: Sentence,
    why: Sentence,
    *,
    status: int,
    signs_in: bool = True,
) -> HttpResponse:
    """Return the page of a failure, and forget the sign-in."""
    page = {"provider": provider, "title": title, "why": why, "signs_in": signs_in}
    response = render(
        request, "gpuportal/oidc/sign_in_failed.html", page, status=status
    )
    pending_sign_in.drop(response)
    # The reason was logged. This would add an error of the portal.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def expired(request: HttpRequest, provider: IdentitySource) -> HttpResponse:
    """Return the page of a sign-in that is too old, or was used before."""
    return failed(
        request,
        provider,
        sentence("This sign-in is no longer valid"),
        sentence(
            "It took longer than ten minutes, was used before, or began in another "
            "browser."
        ),
        status=400,
    )
