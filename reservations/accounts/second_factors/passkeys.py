"""Passkeys by the FIDO2 library, bound to exactly the portal's origin.

A workspace has a host below the portal's domain, and a browser lets it ask for the
portal's passkeys. So a signature counts only with the portal's own scheme, host and
port.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.http import HttpRequest
from fido2.server import Fido2Server
from fido2.webauthn import (
    AttestedCredentialData,
    AuthenticationResponse,
    PublicKeyCredentialRpEntity,
    PublicKeyCredentialUserEntity,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from reservations.models import SecondFactor, User

LONGEST_ANSWER = 20_000
UserHandle = "gpuportal:{pk}"


class PasskeyRefused(Exception):
    """An answer of a browser proves nothing. The text is for the log."""


@dataclass(frozen=True)
class Origin:
    """Where the portal is, as the browser names it."""

    text: str
    """`https://gpu.example.org`."""

    @property
    def rp_id(self) -> str:
        """The host, to which a passkey is bound."""
        return urlsplit(self.text).hostname or ""

    @property
    def possible(self) -> bool:
        """Whether browsers offer passkeys here: TLS or localhost, and no IP address."""
        parts = urlsplit(self.text)
        host = parts.hostname or ""
        named = any(one.isalpha() for one in host) and ":" not in host
        return named and (parts.scheme == "https" or host == "localhost")


def origin_of(request: HttpRequest) -> Origin:
    """Return the origin of a request. Behind a proxy it is the proxy's."""
    return Origin(f"{request.scheme}://{request.get_host()}".lower())


def _server(origin: Origin) -> Fido2Server:
    return Fido2Server(
        PublicKeyCredentialRpEntity(id=origin.rp_id, name="GPU Portal"),
        verify_origin=lambda said: said == origin.text,
    )


def credential_of(factor: SecondFactor) -> AttestedCredentialData:
    """Return the id and the public key of a passkey."""
    return AttestedCredentialData(base64.b64decode(factor.secret))


def stored_form(credential: AttestedCredentialData) -> str:
    """Return what the database holds of a passkey."""
    return base64.b64encode(bytes(credential)).decode()


def begin_registration(
    user: User, factors: Sequence[SecondFactor], origin: Origin
) -> tuple[str, Any]:
    """Return the options for the browser, as JSON, and the state for the answer."""
    options, state = _server(origin).register_begin(
        PublicKeyCredentialUserEntity(
            id=UserHandle.format(pk=user.pk).encode(),
            name=user.username,
            display_name=str(user),
        ),
        credentials=[credential_of(one) for one in factors],
        resident_key_requirement=ResidentKeyRequirement.DISCOURAGED,
        user_verification=UserVerificationRequirement.PREFERRED,
    )
    return json.dumps(dict(options)["publicKey"]), state


def registered(state: Any, answer: str, origin: Origin) -> tuple[str, int]:
    """Return the stored form of a new passkey and its counter.

    Raises:
        PasskeyRefused: the answer is invalid, of another origin, or of another request.
    """
    try:
        found = _server(origin).register_complete(state, _read(answer))
    except PasskeyRefused:
        raise
    except Exception as error:
        # The library raises ValueError, KeyError, TypeError and others on what a
        # hostile browser sends.
        raise PasskeyRefused(f"{type(error).__name__}: {error}"[:200]) from error
    if found.credential_data is None:
        raise PasskeyRefused("no credential")
    return stored_form(found.credential_data), found.counter


def begin_proof(factors: Sequence[SecondFactor], origin: Origin) -> tuple[str, Any]:
    """Return the options for the browser, as JSON, and the state for the answer."""
    options, state = _server(origin).authenticate_begin(
        credentials=[credential_of(one) for one in factors],
        user_verification=UserVerificationRequirement.PREFERRED,
    )
    return json.dumps(dict(options)["publicKey"]), state


def proved(
    state: Any, factors: Sequence[SecondFactor], answer: str, origin: Origin
) -> tuple[SecondFactor, int]:
    """Return the passkey that signed, and its counter.

    Raises:
        PasskeyRefused: the answer is invalid, of another origin or request, or of a
            passkey that was copied.
    """
    known = {credential_of(one).credential_id: one for one in factors}
    try:
        response = AuthenticationResponse.from_dict(_read(answer))
        credentials = [credential_of(one) for one in factors]
        used = _server(origin).authenticate_complete(state, credentials, response)
        counter = response.response.authenticator_data.counter
    except PasskeyRefused:
        raise
    except Exception as error:
        raise PasskeyRefused(f"{type(error).__name__}: {error}"[:200]) from error
    factor = known[used.credential_id]
    # Web Authentication Level 3, section 6.1.1. Many passkeys count nothing: 0.
    if (counter or factor.counter) and counter <= factor.counter:
        raise PasskeyRefused("its counter did not grow: it may have been copied")
    return factor, counter


def _read(answer: str) -> Any:
    if len(answer) > LONGEST_ANSWER:
        raise PasskeyRefused("too long")
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise PasskeyRefused("no JSON") from error
    if not isinstance(found, dict):
        raise PasskeyRefused("no object")
    return found
