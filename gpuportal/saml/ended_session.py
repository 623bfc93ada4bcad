"""The session at a SAML provider that goes on after a sign-out from the portal.

It is in a signed cookie for ten minutes, in case the person wants to end it, too. The
session of the portal is gone by then.
"""

from dataclasses import asdict

from django.conf import settings
from django.core import signing
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from reservations.accounts.identities.provider_sessions import ProviderSession

SALT = "gpuportal.saml.ended_session"
LASTS_SECONDS = 600


def keep(response: HttpResponseBase, session: ProviderSession) -> None:
    """Store it in the browser."""
    response.set_cookie(
        _name(),
        signing.dumps(asdict(session), salt=SALT, compress=True),
        max_age=LASTS_SECONDS,
        secure=settings.PRODUCTION,
        httponly=True,
        samesite="Lax",
    )


def drop(response: HttpResponseBase) -> None:
    """Remove it."""
    response.set_cookie(
        _name(),
        max_age=0,
        secure=settings.PRODUCTION,
        httponly=True,
        samesite="Lax",
    )


def returned(request: HttpRequest) -> ProviderSession | None:
    """Return what the browser keeps. None: nothing, or for too long."""
    try:
        return ProviderSession(
            **signing.loads(
                request.COOKIES.get(_name(), ""), salt=SALT, max_age=LASTS_SECONDS
            )
        )
    except (signing.BadSignature, TypeError):
        return None


def _name() -> str:
    # No other host can set a cookie with this prefix.
    return "__Host-ended" if settings.PRODUCTION else "ended"
