"""Calls to an identity provider: its configuration, its keys and its tokens.

The provider's own host is trusted, because an operator named it. An endpoint on another
host must have a public address, or one in a network that the site allows
(`WEBHOOK_ALLOWED_NETWORKS`). So a provider cannot make the portal call machines of the
institute. Redirects are not followed.
"""

import base64
import hashlib
import http.client
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

from joserfc.jwk import KeySet

from gpuportal.oidc.id_token import (
    IdTokenInvalid,
    SigningKeyUnknown,
    read_keys,
    verified_claims,
)
from gpuportal.oidc.kept_answer import (
    PAUSE_SECONDS,
    KeptAnswer,
    ProviderAnswerInvalid,
    ProviderAway,
)
from reservations.accounts.identities.provider_settings import Provider
from reservations.notifications import webhook
from reservations.notifications.webhook_rules import WebhookRefused, parse
from telemetry.web import bounded_call

TIMEOUT_SECONDS = 5.0
"""Of one call, in all."""
MOST_BYTES = 2**18
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_lookups = ThreadPoolExecutor(max_workers=4, thread_name_prefix="provider")
"""Apart from those of webhooks, whose hosts any person can name."""
BASIC, POST = "client_secret_basic", "client_secret_post"


class CodeRefused(ProviderAnswerInvalid):
    """The provider does not know the code: it is old, or was used before."""


@dataclass
class Configuration:
    """What a provider says about itself (OpenID Connect Discovery, section 3)."""

    metadata: Mapping[str, Any]
    keys: KeySet | None = None
    keys_read_at: float = 0.0

    @property
    def issuer(self) -> str:
        """As ID tokens write it."""
        return str(self.metadata["issuer"])


class ProviderClient:
    """The client of one provider. Its threads share the configuration."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._kept = KeptAnswer(lambda: Configuration(self._metadata()))

    def configuration(self) -> Configuration:
        """Return the provider's configuration, from the last ten minutes if possible.

        An older one is used while the provider does not answer.

        Raises:
            ProviderAway, ProviderAnswerInvalid.
        """
        return self._kept.get()

    def _metadata(self) -> Mapping[str, Any]:
        found = self._json("GET", self.provider.discovery_url)
        issuer = found.get("issuer")
        if issuer not in (self.provider.issuer, f"{self.provider.issuer}/"):
            raise ProviderAnswerInvalid("its configuration names another issuer")
        for name in ENDPOINTS:
            url = found.get(name)
            if not isinstance(url, str):
                raise ProviderAnswerInvalid(f"its configuration has no {name}")
            self._endpoint(url)
        methods = found.get("code_challenge_methods_supported")
        if isinstance(methods, list) and "S256" not in methods:
            raise ProviderAnswerInvalid("it does not support PKCE with S256")
        return found

    def authorization_url(
        self, *, redirect_uri: str, state: str, nonce: str, verifier: str
    ) -> str:
        """Return the address to which the browser goes.

        Raises:
            ProviderAway, ProviderAnswerInvalid.
        """
        url = str(self.configuration().metadata["authorization_endpoint"])
        query = {
            "response_type": "code",
            "client_id": self.provider.client_id,
            "redirect_uri": redirect_uri,
            "scope": self.provider.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge(verifier),
            "code_challenge_method": "S256",
        }
        return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(query)}"

    def end_session_url(self) -> str | None:
        """Return the address at which people sign out of the provider, if it has one.

        Raises:
            ProviderAway, ProviderAnswerInvalid.
        """
        url = self.configuration().metadata.get("end_session_endpoint")
        if not isinstance(url, str):
            return None
        self._endpoint(url)
        query = urlencode({"client_id": self.provider.client_id})
        return f"{url}{'&' if urlsplit(url).query else '?'}{query}"

    def claims(
        self, *, code: str, redirect_uri: str, nonce: str, verifier: str, now: int
    ) -> dict[str, Any]:
        """Exchange a code for an ID token. Return its claims after all checks.

        Providers may give the user name and the groups only at their UserInfo endpoint
        (OpenID Connect Core 1.0, section 5.3). It is asked for what is missing.

        Raises:
            CodeRefused: the code is not valid, or was used.
            ProviderAway, ProviderAnswerInvalid: or the token did not pass a check.
        """
        answer = self._token(code, redirect_uri, verifier)
        stored = self.configuration()
        token = answer["id_token"]
        checks: dict[str, Any] = {
            "issuer": stored.issuer,
            "client_id": self.provider.client_id,
            "nonce": nonce,
            "now": now,
        }
        try:
            try:
                found = verified_claims(token, self._keys(stored), **checks)
            except SigningKeyUnknown:
                # The provider may have replaced its keys since they were read.
                keys = self._keys(stored, again=True)
                found = verified_claims(token, keys, **checks)
        except IdTokenInvalid as error:
            raise ProviderAnswerInvalid(
                f"its ID token is not valid: {error}"
            ) from error
        provider = self.provider
        unix = (provider.unix_user_claim, provider.unix_uid_claim)
        wanted = (provider.username_claim, provider.groups_claim, *filter(None, unix))
        url, access = stored.metadata.get("userinfo_endpoint"), answer["access_token"]
        if all(name.partition(".")[0] in found for name in wanted) or not (
            isinstance(url, str) and isinstance(access, str)
        ):
            return found
        info = self._json("GET", url, headers={"Authorization": f"Bearer {access}"})
        if info.get("sub") != found["sub"]:
            raise ProviderAnswerInvalid("its UserInfo endpoint names another person")
        return info | found

    def _keys(self, stored: Configuration, *, again: bool = False) -> KeySet:
        pause = time.monotonic() - stored.keys_read_at < PAUSE_SECONDS
        if stored.keys is not None and (not again or pause):
            return stored.keys
        found = read_keys(self._json("GET", stored.metadata["jwks_uri"]))
        stored.keys, stored.keys_read_at = found, time.monotonic()
        return found

    def _token(self, code: str, redirect_uri: str, verifier: str) -> dict[str, Any]:
        metadata = self.configuration().metadata
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        # Without a list it is basic (Discovery, section 3).
        listed = metadata.get("token_endpoint_auth_methods_supported")
        methods = listed if isinstance(listed, list) else [BASIC]
        one = self.provider
        if POST in methods:
            # Preferred, because not every provider decodes a basic secret that has
            # other characters than letters and digits.
            form |= {"client_id": one.client_id, "client_secret": one.client_secret}
        elif BASIC in methods:
            # RFC 6749, section 2.3.1: both are encoded as in a form.
            pair = f"{quote_plus(one.client_id)}:{quote_plus(one.client_secret)}"
            encoded = base64.b64encode(pair.encode()).decode()
            headers["Authorization"] = f"Basic {encoded}"
        else:
            raise ProviderAnswerInvalid("it takes no client secret")
        answer = self._json(
            "POST", metadata["token_endpoint"], urlencode(form).encode(), headers
        )
        if not isinstance(answer.get("id_token"), str):
            raise ProviderAnswerInvalid("it sent no ID token")
        return {"access_token": None, **answer}

    # --- one call -----------------------------------------------------------------

    def _endpoint(self, url: str) -> tuple[bounded_call.HostPort, str]:
        """Return the host and the path of an endpoint that may be called."""
        try:
            target = parse(url, loopback_http=self.provider.issuer.startswith("http:"))
        except WebhookRefused as error:
            raise ProviderAnswerInvalid("one of its addresses is not https") from error
        return (
            bounded_call.HostPort(target.secure, target.host, target.port),
            target.path,
        )

    def _addresses(self, url: str, endpoint: bounded_call.HostPort) -> list[str]:
        if endpoint.host == urlsplit(self.provider.issuer).hostname:
            return bounded_call.resolved(
                endpoint, seconds=TIMEOUT_SECONDS, pool=_lookups
            )
        try:
            return [webhook.resolve(parse(url), pool=_lookups)]
        except WebhookRefused as error:
            raise ProviderAnswerInvalid(
                f"{endpoint.host} has no address that the portal may call"
            ) from error

    def _json(
        self,
        method: str,
        url: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        endpoint, path = self._endpoint(url)
        sent = {"Accept": "application/json", **(headers or {})}
        try:
            addresses = self._addresses(url, endpoint)
            status, body = bounded_call.call(
                bounded_call.PinnedConnection(
                    endpoint, addresses, seconds=TIMEOUT_SECONDS
                ),
                method,
                path,
                data=data,
                headers=sent,
                seconds=TIMEOUT_SECONDS,
                most_bytes=MOST_BYTES,
            )
        except (bounded_call.AnswerTooLong, http.client.HTTPException) as error:
            raise ProviderAnswerInvalid(bounded_call.error_text(error)) from error
        except (OSError, UnicodeError) as error:
            raise ProviderAway(bounded_call.error_text(error)) from error
        return _object(method, status, body)


def _object(method: str, status: int, body: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer."""
    if status >= 500:
        raise ProviderAway(f"it answered with status {status}")
    if 300 <= status < 400:
        raise ProviderAnswerInvalid(
            f"it answered with status {status}, and redirects are not followed"
        )
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProviderAnswerInvalid(
            f"it answered with status {status} and no JSON"
        ) from error
    if not isinstance(found, dict):
        raise ProviderAnswerInvalid("its answer is no JSON object")
    if method == "POST" and found.get("error") == "invalid_grant":
        raise CodeRefused("it does not accept the code")
    if status != 200:
        code = found.get("error")
        shown = code if isinstance(code, str) and code.isidentifier() else "no reason"
        raise ProviderAnswerInvalid(f"it answered with status {status} ({shown[:40]})")
    return found


def challenge(verifier: str) -> str:
    """Return the S256 challenge of PKCE (RFC 7636, section 4.2).

    >>> challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM'
    """
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


_clients: dict[Provider, ProviderClient] = {}


def client_of(provider: Provider) -> ProviderClient:
    """Return the client of a provider, which this process makes once."""
    return _clients.setdefault(provider, ProviderClient(provider))
