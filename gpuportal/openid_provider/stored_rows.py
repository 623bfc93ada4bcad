"""Services, codes and tokens, as Authlib asks about them."""

from authlib.oauth2.rfc6749 import ClientMixin, TokenMixin
from django.utils.crypto import constant_time_compare

from reservations.accounts.openid_clients.rules import OFFLINE, granted_scopes
from reservations.models import ApiToken, OpenidClient, OpenidCode, OpenidToken
from reservations.rules.window import unix


class RegisteredClient(ClientMixin):  # type: ignore[misc]
    """A service, as Authlib asks about it."""

    def __init__(self, row: OpenidClient) -> None:
        self.row = row

    def get_client_id(self) -> str:
        """Return its ID."""
        return self.row.client_id

    def get_default_redirect_uri(self) -> None:
        """Return None: every request has to name the address."""
        return

    def get_allowed_scope(self, scope: str | None) -> str | None:
        """Return the scopes of a request. None refuses it."""
        found = granted_scopes(scope, self.row.scopes)
        return None if found is None else " ".join(found)

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        """Return whether it is exactly a registered address."""
        return redirect_uri in self.row.redirect_uris

    def check_client_secret(self, client_secret: str) -> bool:
        """Return whether it is the secret."""
        if self.row.public:
            return False
        offered = ApiToken.hash_token(client_secret)
        return constant_time_compare(offered, self.row.secret_hash)

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        """Return whether it may prove itself so: with its secret if it has one."""
        return self.row.public == (method == "none")

    def check_response_type(self, response_type: str) -> bool:
        """Return whether it may ask for this: a code, and nothing else."""
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        """Return whether it may exchange this for tokens."""
        return grant_type == "authorization_code" or (
            grant_type == "refresh_token" and OFFLINE in self.row.scopes
        )


class StoredCode:
    """A code, as Authlib asks about it."""

    code_challenge_method = "S256"

    def __init__(self, row: OpenidCode) -> None:
        self.row = row
        self.code_challenge = row.challenge

    def get_redirect_uri(self) -> str:
        """Return the address of the request."""
        return self.row.redirect_uri

    def get_scope(self) -> str:
        """Return the scopes that the person gave."""
        return " ".join(self.row.scopes)

    def get_nonce(self) -> str:
        """Return the nonce of the request; "" if it had none."""
        return self.row.nonce

    def get_auth_time(self) -> int:
        """Return when the person signed in to the portal."""
        return unix(self.row.signed_in_at)

    def get_acr(self) -> None:
        """Return None: no class of authentication is promised."""
        return

    def get_amr(self) -> list[str] | None:
        """Return whether a second factor was proved (RFC 8176)."""
        return ["mfa"] if self.row.second_factor else None


class StoredToken(TokenMixin):  # type: ignore[misc]
    """A token, as Authlib asks about it."""

    def __init__(self, row: OpenidToken) -> None:
        self.row = row

    def check_client(self, client: RegisteredClient) -> bool:
        """Return whether it was issued to this service."""
        return self.row.consent.client_id == client.row.pk

    def get_scope(self) -> str:
        """Return its scopes."""
        return " ".join(self.row.scopes)
