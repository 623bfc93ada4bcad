"""The flow of codes and tokens, by Authlib, on the rows of the portal.

Authlib checks requests as RFC 6749, 7009, 7636 and OpenID Connect Core 1.0 say. This
module tells it which services, codes and tokens there are. Only the code flow exists.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from authlib.integrations.django_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Request
from authlib.oauth2.rfc6749 import (
    InvalidRequestError,
    OAuth2Payload,
    grants,
)
from authlib.oauth2.rfc6750 import BearerTokenGenerator
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import OpenIDCode
from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from joserfc.jwk import RSAKey

from gpuportal.openid_provider.signing_key import ALGORITHM, key_id, signing_key
from gpuportal.openid_provider.stored_rows import (
    RegisteredClient,
    StoredCode,
    StoredToken,
)
from reservations.accounts.openid_clients import service
from reservations.accounts.openid_clients.queries import (
    client_of,
    person_of,
    token_of_text,
)
from reservations.accounts.openid_clients.rules import (
    ACCESS_LASTS,
    OFFLINE,
    claims_of,
)
from reservations.models import OpenidClient, User

METHODS = ["client_secret_basic", "client_secret_post", "none"]
"""How a service proves who it is. `none` is for public ones only."""
LONGEST_NONCE = 255
CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
"""A SHA-256 digest in base64url without padding (RFC 7636, section 4.2)."""
PRINTABLE = re.compile(r"[ !#-\[\]-~]*")
"""The characters that the description of an error may have (RFC 6749, section
4.1.2.1).
"""
DESCRIBED = ("response_type", "grant_type", "redirect_uri", "client_id", "scope")
"""Parameters that Authlib puts into such descriptions, or that find rows."""


def issuer() -> str:
    """Return the address that names this provider in every token."""
    found: str = settings.PORTAL_URL
    return found


@dataclass
class SignInState:
    """How the person at the browser signed in to the portal."""

    signed_in_at: datetime
    second_factor: bool


class CodeGrant(grants.AuthorizationCodeGrant):  # type: ignore[misc]
    """The code flow."""

    TOKEN_ENDPOINT_AUTH_METHODS = METHODS

    def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
        """Store a code for the person who agreed."""
        data: Mapping[str, str] = request.payload.data
        state: SignInState = request.sign_in_state
        stored = service.issue_code(
            text=code,
            user=request.user,
            client=request.client.row,
            scopes=request.scope.split(),
            redirect_uri=request.payload.redirect_uri,
            nonce=data.get("nonce", ""),
            challenge=data.get("code_challenge", ""),
            signed_in_at=state.signed_in_at,
            second_factor=state.second_factor,
            now=timezone.now(),
        )
        if not stored:
            raise InvalidRequestError(
                "The consent was ended meanwhile.",
                redirect_uri=request.payload.redirect_uri,
            )

    def query_authorization_code(
        self, code: str, client: RegisteredClient
    ) -> StoredCode | None:
        """Return a code that was issued to this service."""
        row = service.redeem(code, client.row, timezone.now())
        return None if row is None else StoredCode(row)

    def delete_authorization_code(self, authorization_code: StoredCode) -> None:
        """Let it work once."""
        service.mark_used(authorization_code.row, timezone.now())

    def authenticate_user(self, authorization_code: StoredCode) -> User:
        """Return the person. Those who may not sign in were refused before."""
        return authorization_code.row.consent.user

    def generate_token(self, **values: Any) -> dict[str, Any]:
        """Add a refresh token only if the person agreed to that."""
        asked = OFFLINE in values["scope"].split()
        values["include_refresh_token"] &= asked
        found: dict[str, Any] = super().generate_token(**values)
        return _with_signed_refresh(found, self.request.authorization_code.row.pk)


class RefreshGrant(grants.RefreshTokenGrant):  # type: ignore[misc]
    """The exchange of a refresh token, which works once, for new tokens."""

    TOKEN_ENDPOINT_AUTH_METHODS = METHODS
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token: str) -> StoredToken | None:
        """Return a refresh token that was issued to this service."""
        client: OpenidClient = self.request.client.row
        row = service.refreshable(refresh_token, client, timezone.now())
        return None if row is None else StoredToken(row)

    def generate_token(self, **values: Any) -> dict[str, Any]:
        """Draw new tokens for the same sign-in."""
        found: dict[str, Any] = super().generate_token(**values)
        return _with_signed_refresh(found, self.request.refresh_token.row.code_id)

    def authenticate_user(self, refresh_token: StoredToken) -> User:
        """Return the person. Those who may not sign in were refused before."""
        return refresh_token.row.consent.user

    def revoke_old_credential(self, refresh_token: StoredToken) -> None:
        """End the token that was exchanged."""
        service.replace_token(refresh_token.row, timezone.now())


class Proof(CodeChallenge):  # type: ignore[misc]
    """PKCE, by S256 only. Public services have to use it."""

    SUPPORTED_CODE_CHALLENGE_METHOD = ["S256"]

    def validate_code_challenge(self, grant: CodeGrant, redirect_uri: str) -> None:
        """Refuse a request without a challenge if one is needed."""
        super().validate_code_challenge(grant, redirect_uri)
        data: Mapping[str, str] = grant.request.payload.data
        challenge = data.get("code_challenge")
        if not challenge and grant.request.client.row.public:
            raise InvalidRequestError("Missing 'code_challenge'")
        if challenge and not CHALLENGE.fullmatch(challenge):
            raise InvalidRequestError("Invalid 'code_challenge'")
        if challenge and data.get("code_challenge_method") != "S256":
            raise InvalidRequestError("Unsupported 'code_challenge_method'")


class IdToken(OpenIDCode):  # type: ignore[misc]
    """The ID token."""

    def __call__(self, grant: CodeGrant) -> None:
        """Add the token to answers. The page decides about ``prompt``."""
        grant.register_hook("after_create_token_response", self.process_token)
        grant.register_hook(
            "after_validate_authorization_request_payload", self.check_nonce
        )

    def check_nonce(self, grant: CodeGrant, redirect_uri: str) -> None:
        """Refuse a nonce that cannot be stored."""
        nonce = grant.request.payload.data.get("nonce", "")
        if len(nonce) > LONGEST_NONCE or "\0" in nonce:
            raise InvalidRequestError("The nonce is too long.")

    def resolve_client_private_key(self, client: RegisteredClient) -> RSAKey:
        """Return the key that signs."""
        return signing_key()

    def get_client_algorithm(self, client: RegisteredClient) -> str:
        """Return the algorithm."""
        return ALGORITHM

    def get_encode_header(self, client: RegisteredClient) -> dict[str, str]:
        """Return the head of the token."""
        return {"alg": ALGORITHM, "kid": key_id(signing_key())}

    def get_client_claims(self, client: RegisteredClient) -> dict[str, Any]:
        """Return who issues the token, and for whom."""
        return {"iss": issuer(), "aud": client.get_client_id()}

    def generate_user_info(self, user: User, scope: str) -> dict[str, Any]:
        """Return what the scopes give."""
        return claims_of(person_of(user), scope.split())


class Revocation(RevocationEndpoint):  # type: ignore[misc]
    """The address at which a service ends a token that it no longer needs."""

    CLIENT_AUTH_METHODS = METHODS

    def query_token(self, token_string: str, token_type_hint: str) -> Any:
        """Return a token by its access or its refresh token."""
        row = token_of_text(token_string)
        return None if row is None else StoredToken(row)

    def revoke_token(self, token: StoredToken, request: OAuth2Request) -> None:
        """End it."""
        service.revoke_token(token.row)


class Parameters(OAuth2Payload):  # type: ignore[misc]
    """The parameters of a request, of its address and of its body."""

    def __init__(self, request: HttpRequest) -> None:
        self._data = request.GET.dict() | request.POST.dict()
        self._lists = {
            name: request.GET.getlist(name) + request.POST.getlist(name)
            for name in self._data
        }

    @property
    def data(self) -> dict[str, str]:
        """The last value of each."""
        return self._data

    @property
    def datalist(self) -> dict[str, list[str]]:
        """All values of each."""
        return self._lists


class PortalRequest(OAuth2Request):  # type: ignore[misc]
    """A request, with the address that browsers see."""

    sign_in_state: SignInState | None = None

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(
            method=request.method or "GET",
            uri=issuer() + request.get_full_path(),
            headers=request.headers,
        )
        self.payload = Parameters(request)
        self._request = request

    @property
    def args(self) -> Mapping[str, str]:
        """The parameters of the address."""
        return self._request.GET

    @property
    def form(self) -> Mapping[str, str]:
        """The parameters of the body."""
        return self._request.POST


class OpenidServer(AuthorizationServer):  # type: ignore[misc]
    """The endpoints."""

    def __init__(self) -> None:
        super().__init__(client_model=None, token_model=None)
        self.register_grant(CodeGrant, [Proof(required=True), IdToken()])
        self.register_grant(RefreshGrant)
        self.register_endpoint(Revocation)

    def query_client(self, client_id: str) -> RegisteredClient | None:
        """Return a service that is switched on."""
        row = client_of(client_id) if CLIENT_ID.fullmatch(client_id) else None
        return None if row is None else RegisteredClient(row)

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        """Store the tokens of an answer."""
        given = request.authorization_code or request.refresh_token
        service.store_token(
            access=token["access_token"],
            refresh=token.get("refresh_token"),
            scopes=token["scope"].split(),
            of=given.row,
            now=timezone.now(),
        )

    def create_oauth2_request(self, request: HttpRequest) -> PortalRequest:
        """Return a request as Authlib reads it."""
        return PortalRequest(request)

    def create_bearer_token_generator(self) -> BearerTokenGenerator:
        """Return what draws tokens. 256 random bits each."""
        return BearerTokenGenerator(
            access_token_generator=_draw,
            refresh_token_generator=_draw,
            expires_generator=int(ACCESS_LASTS.total_seconds()),
        )

    def send_signal(self, *args: Any, **values: Any) -> None:
        """Send no signal, because nothing listens."""


def _draw(*_args: Any, **_values: Any) -> str:
    return secrets.token_urlsafe(32)


def _with_signed_refresh(token: dict[str, Any], code_pk: int | None) -> dict[str, Any]:
    if "refresh_token" not in token:
        return token
    return token | {"refresh_token": service.draw_refresh(code_pk)}


def check_parameters(data: Sequence[Mapping[str, str]]) -> None:
    """Refuse parameters that Authlib could not name in an error.

    Raises:
        InvalidRequestError.
    """
    for values in data:
        for name in DESCRIBED:
            if not PRINTABLE.fullmatch(values.get(name, "")):
                raise InvalidRequestError(f"Characters of '{name}' are not allowed.")


SERVER = OpenidServer()
