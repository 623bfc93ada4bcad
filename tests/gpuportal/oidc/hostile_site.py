"""An OpenID provider in a thread that can be told to lie, and a browser for it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.http import HttpResponse
from django.test import Client
from joserfc import jwt
from joserfc.jwk import ECKey

from reservations.accounts.identities.provider_settings import LoginSettings, Provider

KEY = ECKey.generate_key("P-256", {"kid": "one", "use": "sig"})
OTHER_KEY = ECKey.generate_key("P-256", {"kid": "two", "use": "sig"})
Answer = tuple[int, dict[str, str], bytes]


class HostileSite:
    """What the provider answers. Tests change it."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.claims: dict[str, Any] = {"sub": "7", "preferred_username": "mia"}
        self.header: dict[str, Any] = {"alg": "ES256", "kid": "one"}
        self.sign: Callable[[dict[str, Any], dict[str, Any]], str] = self._signed
        self.key = KEY
        self.metadata: dict[str, Any] = {}
        self.answers: dict[str, Answer | Callable[[], Answer]] = {}
        """Answers by path that replace the right ones."""
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.nonce = ""

    def provider(self, key: str = "uni", **more: Any) -> Provider:
        """Return the portal's settings of this provider."""
        values = {"name": "Uni Example", "sign_up": "all", **more}
        return Provider(
            key, client_id="c", client_secret="s", issuer=self.issuer, **values
        )

    @staticmethod
    def _signed(header: dict[str, Any], claims: dict[str, Any]) -> str:
        key = OTHER_KEY if header.get("kid") == "two" else KEY
        return jwt.encode(header, claims, key)

    def token(self) -> str:
        """Return an ID token with what the test changed."""
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": "c", "iat": now, "exp": now + 60}
        claims |= {"nonce": self.nonce, **self.claims}
        return self.sign(
            self.header, {name: x for name, x in claims.items() if x is not None}
        )

    def answer(self, path: str) -> Answer:
        """Return the answer of one address."""
        self.asked.append(path)
        changed = self.answers.get(path)
        if changed is not None:
            return changed() if callable(changed) else changed
        if path == "/.well-known/openid-configuration":
            found: dict[str, Any] = {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                **self.metadata,
            }
        elif path == "/keys":
            found = {"keys": [self.key.as_dict(private=False)]}
        elif path == "/token":
            found = {"access_token": "a", "id_token": self.token()}
        else:
            return 404, {}, b"{}"
        return 200, {}, json.dumps(found).encode()


@contextmanager
def hostile_site() -> Iterator[HostileSite]:
    """Serve a provider on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            site.forms.append({k: v[0] for k, v in parse_qs(body).items()})
            self._send()

        def _send(self) -> None:
            status, headers, body = site.answer(urlsplit(self.path).path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = HostileSite(server.server_port)
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def use(settings: Any, *providers: Provider, passwords: bool = True) -> None:
    """Let the portal use providers."""
    methods = ("password", "oidc") if passwords else ("oidc",)
    settings.LOGIN_SETTINGS = LoginSettings(methods, providers, ())
    backends = list(settings.AUTHENTICATION_BACKENDS)
    if not passwords:
        backends.remove("django.contrib.auth.backends.ModelBackend")
    settings.AUTHENTICATION_BACKENDS = [*backends, "gpuportal.oidc.backend.OidcBackend"]


def begin(client: Client, key: str = "uni", back: str = "") -> dict[str, str]:
    """Start a sign-in. Return the query that the provider gets."""
    answer = client.get(f"/login/{key}/", {"next": back} if back else {})
    assert answer.status_code == 302, answer.content.decode()
    query = parse_qs(urlsplit(answer["Location"]).query)
    return {name: values[0] for name, values in query.items()}


def sign_in(
    site: HostileSite, client: Client, key: str = "uni", back: str = ""
) -> HttpResponse:
    """Sign in as the person of the claims. Return the portal's last answer."""
    asked = begin(client, key, back)
    site.nonce = asked["nonce"]
    return client.get(f"/login/{key}/back/", {"code": "x", "state": asked["state"]})
