"""A service that calls over HTTP: the portal's own client of identity providers."""

import html
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from django.db import connection
from django.utils import timezone

from gpuportal.oidc.provider_client import CodeRefused, ProviderClient
from reservations.accounts.identities.provider_settings import Provider
from reservations.rules.window import unix
from tests.factories import make_account, make_membership, make_user
from tests.gpuportal.openid_provider.relying_party import (
    BACK,
    ISSUER,
    VERIFIER,
    Service,
    agree,
    browser_of,
    on,
    text,
)


def test_a_real_client_finds_the_provider_and_verifies_its_token(live_asgi, settings):
    on(settings, live_asgi)
    omar = make_user("omar", is_superuser=True)
    make_membership(ada := make_user("ada"), make_account("vision"))
    grafana = Service(omar)
    # It asks the UserInfo endpoint for a claim that the ID token does not have.
    client = ProviderClient(
        Provider(
            *("portal", "Portal", live_asgi, grafana.client_id, grafana.secret),
            scopes="openid profile groups",
            groups_claim="unknown",
        )
    )
    url = client.authorization_url(
        redirect_uri=BACK, state="s", nonce="n", verifier=VERIFIER
    )
    assert url.startswith(f"{live_asgi}/openid/authorize?")
    back = agree(browser_of(ada), url.removeprefix(live_asgi))
    assert back["iss"] == client.configuration().issuer == live_asgi
    asked = {"redirect_uri": BACK, "nonce": "n", "now": unix(timezone.now())}
    claims = client.claims(code=back["code"], verifier=VERIFIER, **asked)
    assert claims["preferred_username"] == "ada" and claims["groups"] == ["vision"]
    with pytest.raises(CodeRefused):
        client.claims(code=back["code"], verifier=VERIFIER, **asked)


@pytest.mark.django_db(transaction=True)
def test_of_many_who_redeem_a_code_at_once_one_gets_tokens_and_then_nobody(settings):
    on(settings)
    grafana = Service(make_user("omar", is_superuser=True))
    code = agree(browser_of(make_user("ada")), grafana.url())["code"]

    def redeem(_number: int) -> tuple[int, dict]:
        try:
            answer = grafana.redeem(code)
            return answer.status_code, json.loads(answer.content)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        answers = sorted(pool.map(redeem, range(4)), key=lambda one: one[0])
    assert [status for status, _body in answers] == [200, 400, 400, 400]
    # The others were taken for thieves.
    assert grafana.userinfo(answers[0][1]["access_token"]).status_code == 401


def documented_hub() -> SimpleNamespace:
    """Return JupyterHub's settings of the documentation, with a secret "s"."""
    page = (Path(__file__).parents[3] / "docs/logins.md").read_text()
    block = re.search(r"```python\n(c\.JupyterHub\..*?)```", page, re.DOTALL)
    assert block
    hub = SimpleNamespace(
        JupyterHub=SimpleNamespace(), GenericOAuthenticator=SimpleNamespace()
    )
    exec(block[1], {"c": hub, "open": lambda _path: io.StringIO("s\n")})
    return hub.GenericOAuthenticator


@pytest.mark.once
@pytest.mark.django_db
def test_the_documented_lines_sign_a_person_in_to_a_hub(settings):
    # What oauthenticator 17 sends: the secret in the form, PKCE, no nonce.
    on(settings)
    hub = documented_hub()
    assert hub.client_secret == "s"
    service = Service(make_user("omar", is_superuser=True), name="JupyterHub")
    service.row.redirect_uris = [hub.oauth_callback_url]
    service.row.save()
    [group] = hub.allowed_groups
    make_membership(ada := make_user("ada"), make_account(group))
    asked = {"redirect_uri": hub.oauth_callback_url, "nonce": None}
    query = service.query(scope=" ".join(hub.scope), **asked)
    browser = browser_of(ada)
    begin = f"{hub.authorize_url.removeprefix(ISSUER)}?{urlencode(query)}"
    answer = text(browser.post(begin, {"allow": "yes"}))
    back = html.unescape(re.search(r'content="0;url=([^"]+)"', answer)[1])
    assert back.startswith(f"{hub.oauth_callback_url}?")
    form = {
        "grant_type": "authorization_code",
        "code": parse_qs(urlsplit(back).query)["code"][0],
        "redirect_uri": hub.oauth_callback_url,
        "code_verifier": VERIFIER,
        "client_id": service.client_id,
        "client_secret": service.secret,
    }
    tokens = service.http.post(hub.token_url.removeprefix(ISSUER), form).json()
    told = service.http.get(
        hub.userdata_url.removeprefix(ISSUER),
        headers={"Authorization": f"Bearer {tokens['access_token']}"},
    ).json()
    user, _, key = hub.auth_state_groups_key.partition(".")
    assert user == "oauth_user" and told[key] == [group]
    assert told[hub.username_claim] and told["preferred_username"] == "ada"
