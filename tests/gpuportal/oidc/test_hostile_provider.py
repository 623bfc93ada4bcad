"""Providers that lie, are away or answer nonsense: a page says so. Nobody gets in."""

import json
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.core.checks import Error
from django.test import Client
from django.utils import timezone
from joserfc import jwt
from joserfc.jwk import OctKey

from gpuportal.checks import people_can_sign_in
from gpuportal.oidc import provider_client
from gpuportal.oidc.pending_sign_in import COOKIE
from reservations.accounts.identities.provider_settings import LoginSettings
from reservations.accounts.invitations import invite
from reservations.models import Identity, User
from tests.factories import make_user
from tests.gpuportal.oidc.hostile_site import (
    OTHER_KEY,
    begin,
    hostile_site,
    sign_in,
    use,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def site(settings):
    with hostile_site() as found:
        use(settings, found.provider())
        yield found


def refused(answer, status: int, text: str) -> None:
    page = answer.content.decode()
    assert answer.status_code == status, page
    assert text in page
    assert "Traceback" not in page
    assert not User.objects.filter(identities__isnull=False).exists()
    assert "_auth_user_id" not in answer.wsgi_request.session


def symmetric(secret: str):
    key = OctKey.import_key(secret)
    return lambda header, claims: jwt.encode(
        header | {"alg": "HS256"}, claims, key, algorithms=["HS256"]
    )


def unsigned(header, claims):
    return jwt.encode({"alg": "none"}, claims, OTHER_KEY, algorithms=["none"])


NOW = int(time.time())
WRONG_CLAIMS = {
    "nonce": {"nonce": "another"},
    "no nonce": {"nonce": None},
    "list nonce": {"nonce": ["another"]},
    "audience": {"aud": "other"},
    "no audience": {"aud": None},
    "audiences": {"aud": ["c", "other"]},
    "party": {"aud": ["c", "other"], "azp": "other"},
    "issuer": {"iss": "https://sso.other.example"},
    "expired": {"exp": NOW - 3600},
    "no expiry": {"exp": None},
    "text expiry": {"exp": "tomorrow"},
    "future": {"iat": NOW + 3600},
    "no subject": {"sub": None},
    "number subject": {"sub": 7},
    "long subject": {"sub": "x" * 256},
}


@pytest.mark.once
@pytest.mark.parametrize("claims", WRONG_CLAIMS.values(), ids=WRONG_CLAIMS)
def test_a_wrong_claim_is_refused(site, claims):
    site.claims |= claims
    refused(sign_in(site, Client()), 502, "is not valid")


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_a_wrong_signature_is_refused(site):
    forgeries = {
        "alg none": unsigned,
        "HS256 with the client's id": symmetric("c" * 32),
        "HS256 with the public key": symmetric(
            json.dumps(site.key.as_dict(private=False))
        ),
        "another key, same name": lambda header, claims: jwt.encode(
            header, claims, OTHER_KEY
        ),
        "nonsense": lambda header, claims: "a.b.c",
        "no token": lambda header, claims: "",
        "not ASCII": lambda header, claims: "ä.ö.ü",
    }
    for forge in forgeries.values():
        site.sign = forge
        refused(sign_in(site, Client()), 502, "ID token is not valid")


def test_a_published_symmetric_key_is_no_key(site):
    key = OctKey.import_key("c" * 32)
    site.answers["/keys"] = (200, {}, json.dumps({"keys": [key.as_dict()]}).encode())
    site.sign = symmetric("c" * 32)
    refused(sign_in(site, Client()), 502, "publishes no key")


def test_a_clock_that_is_a_little_off_is_accepted(site):
    site.claims |= {"iat": NOW + 30, "exp": int(time.time()) - 20}
    assert sign_in(site, Client()).status_code == 302
    assert User.objects.get().username == "mia"


@pytest.mark.once
def test_new_keys_are_read_when_a_token_names_one(site, monkeypatch):
    assert sign_in(site, Client()).status_code == 302
    site.key, site.header["kid"] = OTHER_KEY, "two"
    monkeypatch.setattr(provider_client, "PAUSE_SECONDS", 0)
    assert sign_in(site, Client()).status_code == 302
    assert site.asked.count("/keys") == 2


BAD_ANSWERS = {
    "garbage": (200, {}, b"<html>\xff\xfe"),
    "list": (200, {}, b"[]"),
    "deep": (200, {}, b"[" * 100_000),
    "huge": (200, {}, b"{" + b" " * 2**20),
    "redirect inside": (302, {"Location": "http://169.254.169.254/latest"}, b""),
    "empty": (200, {}, b""),
    "error": (400, {}, b'{"error": "<script>alert(1)</script>"}'),
}


@pytest.mark.once
@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_a_bad_answer_is_a_page(site, bad):
    for path in ("/token", "/keys"):
        site.answers = {path: bad}
        answer = sign_in(site, Client())
        refused(answer, 502, "The answer of Uni Example is not valid")
        assert "<script>alert" not in answer.content.decode()


@pytest.mark.once
@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_a_bad_configuration_is_a_page(site, bad):
    site.answers["/.well-known/openid-configuration"] = bad
    refused(Client().get("/login/uni/"), 502, "The answer of Uni Example is not valid")


BAD_METADATA = {
    "another issuer": {"issuer": "https://sso.other.example"},
    "no keys": {"jwks_uri": None},
    "script": {"authorization_endpoint": "javascript:alert(1)"},
    "plain http": {"token_endpoint": "http://sso.other.example/token"},
    "password": {"token_endpoint": "https://a:b@sso.other.example/token"},
    "no PKCE": {"code_challenge_methods_supported": ["plain"]},
}


@pytest.mark.once
@pytest.mark.parametrize("bad", BAD_METADATA.values(), ids=BAD_METADATA)
def test_a_bad_address_in_the_configuration_is_refused(site, bad):
    site.metadata = bad
    refused(Client().get("/login/uni/"), 502, "The answer of Uni Example is not valid")


@pytest.mark.parametrize("host", ["169.254.169.254", "10.0.0.5", "127.0.0.2", "[::1]"])
def test_an_endpoint_does_not_lead_inside(site, host):
    site.metadata = {"token_endpoint": f"https://{host}/token"}
    refused(sign_in(site, Client()), 502, "no address that the portal may call")


@pytest.mark.once
def test_a_provider_that_is_away_says_so_and_stops_nobody(settings):
    with hostile_site() as site:
        use(settings, site.provider())
        mia = Client()
        assert sign_in(site, mia).status_code == 302
    # The configuration is known, so people reach the provider's own page.
    use(settings, replace(site.provider(), name="Uni without configuration"))
    answer = Client().get("/login/uni/")
    page = answer.content.decode()
    assert answer.status_code == 503
    assert "Uni without configuration does not answer" in page
    assert "The reason: Connection refused." in page
    # The page of the login still works, and those who are signed in go on.
    assert Client().get("/login/").status_code == 200
    assert mia.get("/mine/").status_code == 200


def test_a_provider_that_is_away_in_the_middle_is_a_page(site):
    for answer in ((503, {}, b"down"), (500, {}, b"")):
        site.answers["/token"] = answer
        refused(sign_in(site, Client()), 503, "Uni Example does not answer")


def test_a_failure_is_not_tried_again_by_everybody(site):
    path = "/.well-known/openid-configuration"
    site.answers[path] = (500, {}, b"")
    for _ in range(3):
        assert Client().get("/login/uni/").status_code == 503
    assert site.asked == [path]


def test_an_answer_that_drips_is_ended(site, monkeypatch):
    monkeypatch.setattr(provider_client, "TIMEOUT_SECONDS", 0.2)

    def slow():
        time.sleep(1.0)
        return 200, {}, b"{}"

    site.answers["/.well-known/openid-configuration"] = slow
    refused(Client().get("/login/uni/"), 503, "does not answer")


def test_an_error_of_the_provider_is_a_page(site):
    pages = {
        "access_denied": (403, "You did not agree"),
        "temporarily_unavailable": (503, "does not answer"),
        "invalid_scope": (502, "invalid_scope"),
        "<b>bold</b>": (502, "unknown"),
    }
    for error, (status, text) in pages.items():
        client = Client()
        state = begin(client)["state"]
        query = {"error": error, "state": state, "error_description": "<i>x</i>"}
        answer = client.get("/login/uni/back/", query)
        refused(answer, status, text)
        assert "<b>bold" not in answer.content.decode()
        assert "<i>x" not in answer.content.decode()


def test_only_the_browser_that_began_can_end_it(site, time_machine):
    client, other = Client(), Client()
    asked = begin(client)
    site.nonce = asked["nonce"]
    query = {"code": "x", "state": asked["state"]}
    refused(other.get("/login/uni/back/", query), 400, "no longer valid")
    begin(other)
    refused(other.get("/login/uni/back/", query), 400, "no longer valid")
    for bad in ({}, {"state": ""}, {"state": "ä"}, query | {"state": "other"}):
        copy = Client()
        copy.cookies["oidc"] = client.cookies["oidc"].value
        refused(copy.get("/login/uni/back/", bad), 400, "no longer valid")
    time_machine.move_to(timezone.now() + timedelta(seconds=COOKIE.lasts_seconds + 5))
    refused(client.get("/login/uni/back/", query), 400, "no longer valid")
    assert "/token" not in site.asked


def test_another_provider_cannot_answer(site):
    client = Client()
    asked = begin(client)
    query = {"code": "x", "state": asked["state"], "iss": "https://sso.other.example"}
    refused(client.get("/login/uni/back/", query), 502, "another provider answered")


def test_no_code_is_a_page(site):
    client = Client()
    query = {"state": begin(client)["state"]}
    refused(client.get("/login/uni/back/", query), 502, "it sent no code")


def test_the_request_has_state_nonce_and_pkce(site):
    asked = begin(Client())
    assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 43
    client = Client()
    sign_in(site, client)
    form = site.forms[-1]
    assert form["grant_type"] == "authorization_code"
    assert form["redirect_uri"] == "http://testserver/login/uni/back/"
    assert len(form["code_verifier"]) >= 43


@pytest.mark.once
def test_it_leads_back_to_pages_of_the_portal_only(site):
    pages = {
        "/help/?a=b": "/help/?a=b",
        "//evil.example/": "/mine/",
        "https://evil.example/": "/mine/",
        "javascript:alert(1)": "/mine/",
        "/" + "x" * 5000: "/mine/",
    }
    for back, wanted in pages.items():
        client = Client()
        answer = sign_in(site, client, back=back)
        assert client.get(answer["Location"])["Location"] == wanted


def test_a_switched_off_person_is_refused(site):
    sign_in(site, Client())
    User.objects.update(is_active=False)
    client = Client()
    answer = sign_in(site, client)
    assert answer.status_code == 403
    assert "switched off" in answer.content.decode()
    assert "_auth_user_id" not in client.session


@pytest.mark.once
def test_the_session_is_new_and_ends_with_the_setting(site, settings):
    client = Client()
    client.force_login(make_user("stranger"))
    client.logout()
    sign_in(site, client)
    assert client.get("/mine/").status_code == 200
    settings.AUTHENTICATION_BACKENDS = settings.AUTHENTICATION_BACKENDS[:-1]
    assert client.get("/mine/").status_code == 302


def test_one_mail_address_at_two_providers_is_two_people(site, settings):
    with hostile_site() as second:
        use(settings, site.provider(), second.provider("partner", name="Partner"))
        mail = {"email": "mia@uni.example", "email_verified": True}
        site.claims |= mail
        second.claims |= mail | {"preferred_username": "mia.partner"}
        sign_in(site, Client())
        sign_in(second, Client(), "partner")
        people = Identity.objects.order_by("pk").values_list("user__username", "issuer")
        assert list(people) == [("mia", site.issuer), ("mia.partner", second.issuer)]
        assert User.objects.filter(email="mia@uni.example").count() == 2


def test_one_user_name_at_two_providers_is_refused(site):
    make_user("Mia")
    answer = sign_in(site, Client())
    refused(answer, 409, "exists already")


@pytest.mark.once
def test_a_person_connects_a_login_and_signs_in_with_it(site):
    ada = make_user("ada")
    client = Client()
    client.force_login(ada)
    assert "Connect Uni Example" in client.get("/me/").content.decode()
    assert client.get("/me/logins/uni/connect/").status_code == 405
    page = client.post("/me/logins/uni/connect/")
    assert page.context["url"].startswith(site.issuer)
    query = dict(x.split("=") for x in page.context["url"].partition("?")[2].split("&"))
    site.nonce = query["nonce"]
    back = {"code": "x", "state": query["state"]}
    # Only the person who began it.
    other = Client()
    other.force_login(make_user("bob"))
    other.cookies["oidc"] = client.cookies["oidc"].value
    assert other.get("/login/uni/back/", back).status_code == 403
    assert client.get("/login/uni/back/", back)["Location"] == "/login/?next=/me/"
    assert Identity.objects.get().user == ada
    fresh = Client()
    sign_in(site, fresh)
    assert fresh.get("/mine/").wsgi_request.user == ada
    # It is taken now.
    page = other.post("/me/logins/uni/connect/")
    query = dict(x.split("=") for x in page.context["url"].partition("?")[2].split("&"))
    site.nonce = query["nonce"]
    answer = other.get("/login/uni/back/", {"code": "x", "state": query["state"]})
    assert answer.status_code == 409
    assert "belongs to another person" in answer.content.decode()


@pytest.mark.once
def test_without_passwords_the_page_has_only_the_button(site, settings):
    ada = make_user("ada")
    ada.set_password("long enough, and known")
    ada.save()
    form = {"username": "ada", "password": "long enough, and known"}
    assert 'name="password"' in Client().get("/login/").content.decode()
    assert Client().post("/login/", form).status_code == 302
    use(settings, site.provider(), passwords=False)
    page = Client().get("/login/?next=/help/").content.decode()
    assert "Sign in with Uni Example" in page and 'name="password"' not in page
    assert 'href="/login/uni/?next=/help/"' in page
    client = Client()
    assert client.post("/login/", form).status_code == 200
    assert "_auth_user_id" not in client.session


def test_without_passwords_an_invitation_does_not_work(site, settings):
    ada = make_user("ada")
    ada.set_unusable_password()
    ada.save()
    ((_user, text),) = invite(user_ids=[ada.pk], actor=None, now=timezone.now())
    client = Client()
    assert client.get(f"/welcome/{text}/").status_code == 302
    use(settings, site.provider(), passwords=False)
    assert client.get("/welcome/").status_code == 404
    assert Client().get(f"/welcome/{text}/").status_code == 404


def test_starts_have_a_limit(site, monkeypatch):
    monkeypatch.setattr("gpuportal.oidc.sign_in_failures.PER_MINUTE", 2)
    codes = {Client().get("/login/uni/").status_code for _ in range(6)}
    assert codes == {302, 429}


def test_an_unknown_provider_is_not_found(site):
    assert Client().get("/login/other/").status_code == 404
    assert Client().get("/login/other/back/").status_code == 404
    assert Client().post("/login/uni/").status_code == 405


def test_the_check_names_what_is_missing(settings):
    settings.LOGIN_SETTINGS = LoginSettings(("oidc",), (), ("OIDC_ISSUER is not set",))
    (found,) = people_can_sign_in()
    assert isinstance(found, Error) and found.msg == "OIDC_ISSUER is not set"
