"""What the portal remembers between sending a browser to a provider and its return.

It is in a signed cookie that expires. A session would let anybody fill the table of
sessions before they sign in.
"""

import secrets
from dataclasses import asdict, dataclass, replace

from django.conf import settings
from django.core import signing
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.crypto import constant_time_compare

SALT = "gpuportal.oidc"
LASTS_SECONDS = 600
LONGEST_BACK = 2000


@dataclass(frozen=True)
class PendingSignIn:
    """One sign-in that has begun."""

    provider: str
    state: str
    nonce: str
    verifier: str
    back: str
    """The page to go back to. The login page decides whether it is safe."""
    user: int
    """The signed-in person who connects a login; 0: a visitor signs in."""

    def with_nonce(self, nonce: str) -> "PendingSignIn":
        """Return it with a nonce that another part drew, such as a SAML request ID."""
        return replace(self, nonce=nonce)


def begin(*, provider: str, back: str, user: int = 0) -> PendingSignIn:
    """Return a new sign-in with random secrets."""
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    back = back if len(back) <= LONGEST_BACK else ""
    return PendingSignIn(provider, state, nonce, verifier, back, user)


def keep(
    response: HttpResponseBase, pending: PendingSignIn, *, by_form: bool = False
) -> None:
    """Store it in the browser. It replaces an earlier one.

    Args:
        by_form: the provider answers with a form, which its site sends. Browsers add a
            cookie to it only with SameSite=None, and only over https.
    """
    response.set_cookie(
        _name(),
        signing.dumps(asdict(pending), salt=SALT, compress=True),
        max_age=LASTS_SECONDS,
        secure=settings.PRODUCTION,
        httponly=True,
        samesite="None" if by_form and settings.PRODUCTION else "Lax",
    )


def drop(response: HttpResponseBase) -> None:
    """Remove it, so that it works once."""
    response.set_cookie(
        _name(),
        max_age=0,
        secure=settings.PRODUCTION,
        httponly=True,
        samesite="Lax",
    )


def returned(
    request: HttpRequest, *, provider: str, state: str
) -> PendingSignIn | None:
    """Return the sign-in that this browser began and that a request ends.

    None: it began too long ago, in another browser, or not at all.
    """
    try:
        found = PendingSignIn(
            **signing.loads(
                request.COOKIES.get(_name(), ""), salt=SALT, max_age=LASTS_SECONDS
            )
        )
    except (signing.BadSignature, TypeError):
        return None
    same = constant_time_compare(found.state, state)
    return found if same and found.provider == provider else None


def _name() -> str:
    # No other host can set a cookie with this prefix.
    return "__Host-oidc" if settings.PRODUCTION else "oidc"
