"""The session at a SAML provider that goes on after a sign-out from the portal.

It is in a signed cookie for ten minutes, in case the person wants to end it, too. The
session of the portal is gone by then.
"""

from dataclasses import asdict

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from gpuportal.oidc.signed_cookie import SignedCookie
from reservations.accounts.identities.provider_sessions import ProviderSession

COOKIE = SignedCookie("ended", "gpuportal.saml.ended_session", lasts_seconds=600)


def keep(response: HttpResponseBase, session: ProviderSession) -> None:
    """Store it in the browser."""
    COOKIE.keep(response, asdict(session))


def drop(response: HttpResponseBase) -> None:
    """Remove it."""
    COOKIE.drop(response)


def returned(request: HttpRequest) -> ProviderSession | None:
    """Return the session that the browser keeps. None: it keeps none."""
    fields = COOKIE.fields(request)
    try:
        return None if fields is None else ProviderSession(**fields)
    except TypeError:  # another release wrote it
        return None
