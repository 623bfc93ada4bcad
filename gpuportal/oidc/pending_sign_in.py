"""What the portal remembers between sending a browser to a provider and its return.

It is in a signed cookie that expires.
"""

import secrets
from dataclasses import asdict, dataclass, replace

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.crypto import constant_time_compare

from gpuportal.oidc.signed_cookie import SignedCookie

COOKIE = SignedCookie("oidc", "gpuportal.oidc", lasts_seconds=600)
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
        by_form: the provider answers with a form, which its site sends.
    """
    COOKIE.keep(response, asdict(pending), by_form=by_form)


def drop(response: HttpResponseBase) -> None:
    """Remove it, so that it works once."""
    COOKIE.drop(response)


def returned(
    request: HttpRequest, *, provider: str, state: str
) -> PendingSignIn | None:
    """Return the sign-in that this browser began and that a request ends.

    None: it began too long ago, in another browser, or not at all.
    """
    fields = COOKIE.fields(request)
    try:
        found = None if fields is None else PendingSignIn(**fields)
    except TypeError:  # another release wrote it
        return None
    if found is None or found.provider != provider:
        return None
    return found if constant_time_compare(found.state, state) else None
