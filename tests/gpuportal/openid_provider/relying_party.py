"""A service that signs people in with the portal, and a browser for them."""

import base64
import html
import json
import re
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from gpuportal.oidc.id_token import read_keys, verified_claims
from gpuportal.oidc.provider_client import challenge
from reservations.accounts.openid_clients.rules import SCOPES
from reservations.accounts.openid_clients.service import ClientFields, make_client
from reservations.models import OpenidClient, User
from reservations.rules.window import unix

ISSUER = "https://gpu.example.org"
BACK = "https://grafana.example.org/login/generic_oauth"
VERIFIER = "v" * 43


def on(settings: Any, issuer: str = ISSUER) -> None:
    """Let the site be a provider."""
    settings.OPENID_PROVIDER = True
    settings.PORTAL_URL = issuer


class Service:
    """A registered service. It knows its secret and calls the portal."""

    def __init__(
        self,
        by: User,
        *,
        name: str = "Grafana",
        scopes: tuple[str, ...] = SCOPES,
        public: bool = False,
    ) -> None:
        fields = ClientFields(name, [BACK], list(scopes))
        self.row, self.secret = make_client(
            fields=fields, public=public, actor=by, now=timezone.now()
        )
        self.http = Client()

    @property
    def client_id(self) -> str:
        return self.row.client_id

    def query(self, **more: str | None) -> dict[str, str]:
        """Return the parameters of a sign-in. None leaves one out."""
        values = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": BACK,
            "scope": "openid profile email groups",
            "state": "s&1",
            "nonce": "n1",
            "code_challenge": challenge(VERIFIER),
            "code_challenge_method": "S256",
            **more,
        }
        return {name: text for name, text in values.items() if text is not None}

    def url(self, **more: str | None) -> str:
        return f"/openid/authorize?{urlencode(self.query(**more))}"

    def call(self, path: str, form: dict[str, str], **more: str | None) -> HttpResponse:
        """Send a form as this service, with its secret in the header."""
        pair = base64.b64encode(f"{self.client_id}:{self.secret}".encode()).decode()
        headers = {"Authorization": f"Basic {pair}"}
        if self.row.public:
            headers, form = {}, {"client_id": self.client_id, **form}
        form = form | {name: text or "" for name, text in more.items()}
        sent = {name: text for name, text in form.items() if text}
        return self.http.post(path, sent, headers=headers)

    def redeem(self, code: str, **more: str | None) -> HttpResponse:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": BACK,
            "code_verifier": VERIFIER,
        }
        return self.call("/openid/token", form, **more)

    def refresh(self, token: str, **more: str | None) -> HttpResponse:
        form = {"grant_type": "refresh_token", "refresh_token": token}
        return self.call("/openid/token", form, **more)

    def userinfo(self, access: str) -> HttpResponse:
        return self.http.get(
            "/openid/userinfo", headers={"Authorization": f"Bearer {access}"}
        )

    def claims(self, answer: HttpResponse, nonce: str = "n1") -> dict[str, Any]:
        """Return the claims of an answer's ID token after all checks."""
        keys = read_keys(json.loads(self.http.get("/openid/keys").content))
        return verified_claims(
            json.loads(answer.content)["id_token"],
            keys,
            issuer=ISSUER,
            client_id=self.client_id,
            nonce=nonce,
            now=unix(timezone.now()),
        )

    def fresh(self) -> OpenidClient:
        return OpenidClient.objects.get(pk=self.row.pk)


def browser_of(user: User) -> Client:
    """Return a browser in which a person is signed in."""
    client = Client(raise_request_exception=True)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def way_back(answer: HttpResponse) -> dict[str, str]:
    """Return what a service gets at its address, by a redirect or by the page."""
    if answer.status_code == 302:
        url = answer["Location"]
    else:
        assert answer.status_code == 200, answer.content.decode()
        found = re.search(r'http-equiv="refresh" content="0;url=([^"]+)"', text(answer))
        assert found, text(answer)
        url = html.unescape(found[1])
    assert url.startswith(f"{BACK}?"), url
    return {name: x[0] for name, x in parse_qs(urlsplit(url).query).items()}


def agree(browser: Client, url: str) -> dict[str, str]:
    """Agree on the page that asks. Return what the service gets."""
    page = browser.get(url)
    assert page.status_code == 200 and 'name="allow"' in text(page), text(page)
    return way_back(browser.post(url, {"allow": "yes"}))


def text(answer: HttpResponse) -> str:
    return answer.content.decode()
