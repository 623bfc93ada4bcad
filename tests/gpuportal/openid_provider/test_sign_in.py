"""Sign-in to a service with the portal, and attacks on it."""

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from gpuportal.openid_provider import signing_key
from reservations.accounts import people
from reservations.accounts.openid_clients import service
from reservations.models import (
    ApiToken,
    AuditEntry,
    Identity,
    OpenidClient,
    OpenidCode,
    OpenidConsent,
    OpenidToken,
)
from tests.factories import PASSWORD, make_account, make_membership, make_user
from tests.gpuportal.openid_provider.relying_party import (
    BACK,
    ISSUER,
    Service,
    agree,
    browser_of,
    on,
    text,
    way_back,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def omar(settings):
    on(settings)
    return make_user("omar", is_superuser=True, is_staff=True)


@pytest.fixture
def ada():
    user = make_user("ada", email="ada@uni.example")
    for name in ("vision", "nlp"):
        make_membership(user, make_account(name))
    make_membership(user, make_account("left"), active=False)
    return user


@pytest.fixture
def grafana(omar) -> Service:
    return Service(omar)


def error_of(answer) -> tuple[int, str]:
    return answer.status_code, json.loads(answer.content)["error"]


def test_a_person_signs_in_from_nothing_to_the_service(grafana, ada):
    browser = Client()
    url = grafana.url(scope="openid profile email groups offline_access")
    there = browser.get(url)
    assert there.status_code == 302 and there["Location"].startswith("/login/?next=")
    entered = browser.post(
        there["Location"], {"username": "ada", "password": PASSWORD}, follow=True
    )
    page = text(entered)
    assert "your mail address (ada@uni.example)" in page
    assert "(now: nlp, vision)" in page and "grafana.example.org" in page
    back = way_back(
        browser.post(
            entered.request["PATH_INFO"] + "?" + entered.request["QUERY_STRING"],
            {"allow": "yes"},
        )
    )
    assert (back["state"], back["iss"]) == ("s&1", ISSUER)
    answer = grafana.redeem(back["code"])
    assert answer.status_code == 200, text(answer)
    assert "no-store" in answer["Cache-Control"]
    found = json.loads(answer.content)
    assert found["expires_in"] == 3600 and found["token_type"] == "Bearer"
    claims = grafana.claims(answer)
    given = {
        "preferred_username": "ada",
        "name": "Ada",
        "email": "ada@uni.example",
        "email_verified": False,
        "groups": ["nlp", "vision"],
    }
    assert given.items() <= claims.items()
    assert claims["sub"] not in ("ada", str(ada.pk)) and len(claims["sub"]) == 36
    assert "amr" not in claims and claims["auth_time"] <= claims["iat"]
    told = grafana.userinfo(found["access_token"])
    assert json.loads(told.content) == given | {"sub": claims["sub"]}
    # Nothing that works is stored.
    secrets = (grafana.secret, back["code"], found["access_token"])
    rows = [*OpenidClient.objects.values(), *OpenidCode.objects.values()]
    stored = str([*rows, *OpenidToken.objects.values(), *AuditEntry.objects.values()])
    assert not [one for one in (*secrets, found["refresh_token"]) if one in stored]
    verbs = [row.verb for row in AuditEntry.objects.filter(verb__startswith="openid")]
    assert sorted(verbs) == ["openid.client-made", "openid.consent-given"]

    # The next sign-in asks nothing, and the person is the same one.
    again = browser.get(grafana.url(nonce="n2"))
    assert again.status_code == 302
    second = grafana.redeem(way_back(again)["code"])
    assert grafana.claims(second, nonce="n2")["sub"] == claims["sub"]
    # More than was given is asked for, and so is what prompt=consent says.
    assert way_back(browser.get(grafana.url(prompt="none")))["code"]
    assert 'name="allow"' in text(browser.get(grafana.url(prompt="consent")))


def test_a_code_works_once_and_a_replay_ends_its_tokens(grafana, ada):
    code = agree(browser_of(ada), grafana.url())["code"]
    access = json.loads(grafana.redeem(code).content)["access_token"]
    assert grafana.userinfo(access).status_code == 200
    assert error_of(grafana.redeem(code)) == (400, "invalid_grant")
    assert error_of(grafana.userinfo(access)) == (401, "invalid_token")
    # More replays end nothing, and so do not fill the audit log.
    assert error_of(grafana.redeem(code)) == (400, "invalid_grant")
    log = AuditEntry.objects.get(verb="openid.code-replayed")
    assert (log.actor, log.subject) == (None, f"user:{ada.pk}")
    assert log.detail == {"service": "Grafana", "tokens": 1}


def test_a_refresh_token_works_once_and_a_replay_ends_all(grafana, ada, omar):
    scope = "openid groups offline_access"
    code = agree(browser_of(ada), grafana.url(scope=scope))["code"]
    first = json.loads(grafana.redeem(code).content)
    other = Service(omar, name="GitLab")
    assert error_of(other.refresh(first["refresh_token"])) == (400, "invalid_grant")
    second = json.loads(grafana.refresh(first["refresh_token"]).content)
    assert grafana.userinfo(first["access_token"]).status_code == 401
    told = json.loads(grafana.userinfo(second["access_token"]).content)
    assert told["groups"] == ["nlp", "vision"] and "email" not in told
    narrow = grafana.refresh(second["refresh_token"], scope="openid email")
    assert error_of(narrow) == (400, "invalid_scope")
    assert error_of(grafana.refresh(first["refresh_token"])) == (400, "invalid_grant")
    assert error_of(grafana.refresh(second["refresh_token"])) == (400, "invalid_grant")
    assert grafana.userinfo(second["access_token"]).status_code == 401
    assert AuditEntry.objects.filter(verb="openid.refresh-replayed").count() == 1


@pytest.mark.once
def test_refreshes_are_limited_and_old_rows_go_but_a_replay_is_noticed(
    grafana, ada, monkeypatch, time_machine
):
    now = timezone.now().replace(microsecond=0)
    time_machine.move_to(now, tick=False)
    monkeypatch.setattr(service, "MOST_REFRESHES", 2)
    scope = "openid offline_access"
    browser = browser_of(ada)
    code = agree(browser, grafana.url(scope=scope))["code"]
    texts = [json.loads(grafana.redeem(code).content)["refresh_token"]]

    def refresh() -> None:
        answer = grafana.refresh(texts[-1])
        assert answer.status_code == 200, text(answer)
        texts.append(json.loads(answer.content)["refresh_token"])

    refresh()
    time_machine.move_to(now + timedelta(minutes=10), tick=False)
    refresh()
    slow = grafana.refresh(texts[-1])
    assert error_of(slow) == (429, "temporarily_unavailable")
    assert slow["Retry-After"] == "3000"
    time_machine.move_to(now + timedelta(minutes=60), tick=False)
    refresh()
    assert OpenidToken.objects.exclude(replaced_at=None).count() == 2
    # No row knows the first one any more.
    first = ApiToken.hash_token(texts[0])
    assert not OpenidToken.objects.filter(refresh_hash=first).exists()
    for unknown in (f"{texts[0]}x", "1-x.y", "0", ".", "\0."):
        assert error_of(grafana.refresh(unknown)) == (400, "invalid_grant")
    assert OpenidToken.objects.count() == 3
    for _ in range(2):
        assert error_of(grafana.refresh(texts[0])) == (400, "invalid_grant")
        assert not OpenidToken.objects.exists()
    assert AuditEntry.objects.filter(verb="openid.refresh-replayed").count() == 1


@pytest.mark.parametrize(
    "change",
    [
        {"redirect_uri": f"{BACK}/"},
        {"redirect_uri": f"{BACK}?next=//evil.example"},
        {"redirect_uri": "https://grafana.example.org.evil.example/"},
        {"redirect_uri": "https://evil.example/\"'<é>"},
        {"redirect_uri": None},
        {"client_id": "gp-unknown"},
        {"client_id": "\0"},
        {"client_id": None},
        {"state": "s" * 3000},
    ],
    ids=str,
)
@pytest.mark.once
def test_an_unknown_service_or_address_gets_nothing(grafana, ada, change):
    browser = browser_of(ada)
    for answer in (
        browser.get(grafana.url(**change)),
        browser.post(grafana.url(**change), {"allow": "yes"}),
        Client().get(grafana.url(**change)),
    ):
        assert answer.status_code in (400, 401), change
        assert "Location" not in answer and "evil" not in answer.get("Location", "")
        assert "This sign-in is not possible" in text(answer)
        assert "http-equiv" not in text(answer)
    assert not OpenidCode.objects.exists()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"scope": "openid admin"}, "invalid_scope"),
        ({"scope": "profile"}, "invalid_scope"),
        ({"scope": None}, "invalid_scope"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": "id_token token"}, "unsupported_response_type"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"code_challenge": "a" * 44}, "invalid_request"),
        ({"code_challenge": "a" * 42 + "."}, "invalid_request"),
        ({"code_challenge": "a" * 128 + "\n"}, "invalid_request"),
        ({"nonce": "n" * 256}, "invalid_request"),
        ({"max_age": "-1"}, "invalid_request"),
        ({"prompt": "none login"}, "invalid_request"),
        ({"prompt": "none"}, "consent_required"),
        ({"request": "e30.e30."}, "request_not_supported"),
        ({"request_uri": "https://evil.example/"}, "request_uri_not_supported"),
    ],
    ids=str,
)
@pytest.mark.once
def test_a_request_that_is_not_allowed_goes_back_with_the_error(
    grafana, ada, change, error
):
    back = way_back(browser_of(ada).get(grafana.url(**change)))
    assert (back["error"], back["state"], back["iss"]) == (error, "s&1", ISSUER)
    assert "code" not in back and not OpenidCode.objects.exists()


@pytest.mark.once
def test_a_name_that_people_choose_is_not_given_to_services(grafana):
    # The identity provider let this person be root.
    chosen = make_user("root", name_from_provider=True)
    browser = browser_of(chosen)
    assert "your user name" not in text(browser.get(grafana.url()))
    answer = grafana.redeem(agree(browser, grafana.url())["code"])
    claims = grafana.claims(answer)
    told = grafana.userinfo(json.loads(answer.content)["access_token"])
    assert "root" not in (claims | json.loads(told.content)).values()
    assert "preferred_username" not in claims | json.loads(told.content)
    chosen.unix_user = "r017"
    chosen.save()
    told = grafana.userinfo(json.loads(answer.content)["access_token"])
    assert json.loads(told.content)["preferred_username"] == "r017"


@pytest.mark.once
def test_a_token_gives_what_service_and_person_allow_now(grafana, ada):
    code = agree(browser_of(ada), grafana.url())["code"]
    access = json.loads(grafana.redeem(code).content)["access_token"]

    def told() -> set[str]:
        return set(json.loads(grafana.userinfo(access).content))

    assert {"email", "groups"} <= told()
    OpenidClient.objects.update(scopes=["openid", "profile", "groups"])
    assert "email" not in told() and "groups" in told()
    OpenidConsent.objects.update(scopes=["openid", "profile"])
    assert told() == {"sub", "name", "preferred_username"}


@pytest.mark.once
def test_a_service_that_is_switched_off_in_between_is_a_page(grafana, ada, monkeypatch):
    def off_meanwhile(**_values):
        OpenidClient.objects.update(enabled=False)

    monkeypatch.setattr(service, "give_consent", off_meanwhile)
    refused = browser_of(ada).post(grafana.url(), {"allow": "yes"})
    assert refused.status_code == 400 and "switched off" in text(refused)


@pytest.mark.once
def test_a_service_gets_only_its_own_scopes(omar, ada):
    small = Service(omar, name="Wiki", scopes=("openid", "profile"))
    assert way_back(browser_of(ada).get(small.url()))["error"] == "invalid_scope"
    scope = {"scope": "openid profile offline_access"}
    assert way_back(browser_of(ada).get(small.url(**scope)))["error"] == "invalid_scope"
    code = agree(browser_of(ada), small.url(scope="openid profile"))["code"]
    found = json.loads(small.redeem(code).content)
    assert "refresh_token" not in found
    assert set(json.loads(small.userinfo(found["access_token"]).content)) == {
        *("sub", "name", "preferred_username")
    }


def test_a_code_is_bound_to_service_address_and_proof(grafana, ada, omar):
    other = Service(omar, name="GitLab")
    thief = Service(omar, name="Desktop", public=True)
    browser = browser_of(ada)
    code = agree(browser, grafana.url())["code"]
    for answer, error in (
        (other.redeem(code), (400, "invalid_grant")),
        (thief.redeem(code), (400, "invalid_grant")),
        (grafana.redeem(code, redirect_uri=f"{BACK}/"), (400, "invalid_grant")),
        (grafana.redeem(code, redirect_uri=None), (400, "invalid_grant")),
        (grafana.redeem(code, code_verifier="w" * 43), (400, "invalid_grant")),
        (grafana.redeem(code, code_verifier=None), (400, "invalid_request")),
        (grafana.redeem(code, code_verifier="short"), (400, "invalid_request")),
    ):
        assert error_of(answer) == error
    # A program that knows the ID of the service and not its secret.
    secret, grafana.secret = grafana.secret, "guess"
    assert error_of(grafana.redeem(code)) == (401, "invalid_client")
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": BACK}
    form |= {"client_id": grafana.client_id}
    assert error_of(Client().post("/openid/token", form)) == (401, "invalid_client")
    grafana.secret = secret
    # A code without a challenge takes no verifier: RFC 9700, section 4.8.2.
    plain = {"code_challenge": None, "code_challenge_method": None, "nonce": "n3"}
    bare = way_back(browser.get(grafana.url(**plain)))["code"]
    assert error_of(grafana.redeem(bare)) == (400, "invalid_request")
    assert grafana.redeem(bare, code_verifier=None).status_code == 200
    # None of that burnt the first one. A minute does.
    OpenidCode.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert error_of(grafana.redeem(code)) == (400, "invalid_grant")
    assert OpenidToken.objects.count() == 1


@pytest.mark.once
def test_a_public_service_needs_pkce_and_asks_each_time(omar, ada):
    tool = Service(omar, name="Desktop", public=True)
    browser = browser_of(ada)
    missing = {"code_challenge": None, "code_challenge_method": None}
    assert way_back(browser.get(tool.url(**missing)))["error"] == "invalid_request"
    code = agree(browser, tool.url())["code"]
    assert error_of(tool.redeem(code, code_verifier=None)) == (400, "invalid_request")
    assert tool.redeem(code).status_code == 200
    assert 'name="allow"' in text(browser.get(tool.url()))


@pytest.mark.once
def test_nobody_agrees_by_accident(grafana, ada):
    assert way_back(Client().get(grafana.url(prompt="none")))["error"] == (
        "login_required"
    )
    browser = browser_of(ada)
    denied = way_back(browser.post(grafana.url(), {"deny": "yes"}))
    assert denied["error"] == "access_denied" and denied["state"] == "s&1"
    # A form of another site.
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = browser.cookies
    assert strict.post(grafana.url(), {"allow": "yes"}).status_code == 403
    assert not OpenidConsent.objects.exists()
    page = browser.get(grafana.url())
    assert page["X-Frame-Options"] == "DENY"
    assert "form-action 'self'" in page["Content-Security-Policy"]


@pytest.mark.once
def test_a_service_may_ask_for_a_new_sign_in(grafana, ada, time_machine):
    now = timezone.now().replace(microsecond=0)
    time_machine.move_to(now, tick=False)
    browser = Client()
    browser.post("/login/", {"username": "ada", "password": PASSWORD})
    agree(browser, grafana.url())
    time_machine.move_to(now + timedelta(seconds=100), tick=False)
    assert way_back(browser.get(grafana.url(max_age="100")))["code"]
    for change in ({"max_age": "99"}, {"prompt": "login"}):
        silent = {**change, "prompt": "none"}
        if "max_age" in change:
            back = way_back(browser.get(grafana.url(**silent)))
            assert back["error"] == "login_required"
        page = browser.get(grafana.url(**change))
        assert "wants to be sure that you are ada" in text(page)
        # A link alone ends no session.
        assert "_auth_user_id" in browser.session
    left = browser.post(grafana.url(prompt="login", max_age="99"), {"again": "yes"})
    assert "_auth_user_id" not in browser.session
    entered = browser.post(
        left["Location"], {"username": "ada", "password": PASSWORD}, follow=True
    )
    answer = grafana.redeem(way_back(entered)["code"])
    assert grafana.claims(answer)["auth_time"] == now.timestamp() + 100


def test_what_ends_the_tokens_of_a_person(grafana, ada, omar):
    now = timezone.now()
    scope = "openid offline_access"
    ways = {
        "revoked": lambda: browser_of(ada).post(
            "/me/services/end/",
            {"consent": OpenidConsent.objects.get(user=ada).pk},
        ),
        "disconnected": lambda: browser_of(omar).post(
            f"/manage/people/{ada.pk}/",
            {
                "act": "disconnect",
                "identity": Identity.objects.create(
                    user=ada, issuer="https://uni.example", subject="1"
                ).pk,
            },
        ),
        "signed out": lambda: people.sign_out(user_id=ada.pk, actor=omar, now=now),
        "service off": lambda: service.set_enabled(
            client_pk=grafana.row.pk, enabled=False, actor=omar, now=now
        ),
    }
    for what, end in ways.items():
        browser = browser_of(ada)
        way = browser.get(grafana.url(scope=scope))
        back = (
            agree(browser, grafana.url(scope=scope))
            if way.status_code == 200
            else (way_back(way))
        )
        found = json.loads(grafana.redeem(back["code"]).content)
        waiting = way_back(browser.get(grafana.url(scope=scope)))["code"]
        end()
        assert grafana.userinfo(found["access_token"]).status_code == 401, what
        assert grafana.refresh(found["refresh_token"]).status_code in (400, 401), what
        assert grafana.redeem(waiting).status_code in (400, 401), what
        assert not OpenidToken.objects.exists() and not OpenidCode.objects.exists()
    refused = browser_of(ada).get(grafana.url(scope=scope))
    assert "This sign-in is not possible" in text(refused)
    service.set_enabled(client_pk=grafana.row.pk, enabled=True, actor=omar, now=now)

    # Also where only the row says that a person may not sign in.
    browser = browser_of(ada)
    code, unused = (
        way_back(browser.get(grafana.url(scope=scope)))["code"] for _ in range(2)
    )
    found = json.loads(grafana.redeem(code).content)
    ada.is_active = False
    ada.save()
    assert grafana.userinfo(found["access_token"]).status_code == 401
    assert error_of(grafana.redeem(unused)) == (400, "invalid_grant")
    assert error_of(grafana.refresh(found["refresh_token"])) == (400, "invalid_grant")


@pytest.mark.once
def test_a_person_ends_only_own_consents(grafana, ada):
    agree(browser_of(ada), grafana.url())
    row = OpenidConsent.objects.get()
    thief = browser_of(make_user("mallory"))
    for pk in (row.pk, "x", ""):
        answer = thief.post("/me/services/end/", {"consent": pk})
        assert answer.status_code == 404
    assert "End the sign-in to Grafana" in text(browser_of(ada).get("/me/"))
    assert "End the sign-in" not in text(thief.get("/me/"))
    browser_of(ada).post("/me/services/end/", {"consent": row.pk})
    assert not OpenidConsent.objects.exists()
    assert AuditEntry.objects.filter(verb="openid.consent-ended", actor=ada).exists()


@pytest.mark.once
def test_a_service_ends_its_own_tokens_only(grafana, ada, omar):
    browser = browser_of(ada)
    code = agree(browser, grafana.url(scope="openid offline_access"))["code"]
    found = json.loads(grafana.redeem(code).content)
    other = Service(omar, name="GitLab")
    sent = {"token": found["refresh_token"]}
    assert error_of(other.call("/openid/revoke", sent)) == (400, "invalid_grant")
    assert grafana.userinfo(found["access_token"]).status_code == 200
    with CaptureQueriesContext(connection) as queries:
        assert grafana.call("/openid/revoke", sent).status_code == 200
    acts = [one["sql"] for one in queries if "openid" in one["sql"]]
    ends = next(n for n, sql in enumerate(acts) if sql.startswith("DELETE"))
    # A refresh holds the lock of the service, and so does the end of a token.
    if connection.features.has_select_for_update:
        assert any("FOR NO KEY UPDATE" in sql for sql in acts[:ends])
    assert grafana.userinfo(found["access_token"]).status_code == 401
    assert grafana.call("/openid/revoke", {"token": "unknown"}).status_code == 200


@pytest.mark.once
def test_strange_calls_get_plain_errors(grafana, settings):
    calls = Client()
    for header in (
        "Basic",
        "Basic ",
        "Basic /w==",
        "Basic !",
        "Bearer x",
        "Basic Og==",
    ):
        for path, kind in (
            ("token", {"grant_type": "authorization_code"}),
            ("revoke", {"token": "x"}),
        ):
            answer = calls.post(
                f"/openid/{path}", kind, headers={"Authorization": header}
            )
            status, error = error_of(answer)
            assert status in (400, 401), header
            assert error in ("invalid_client", "invalid_request"), header
    for kind in ("password", "client_credentials", 'é"', ""):
        answer = grafana.call("/openid/token", {"grant_type": kind, "x": "1"})
        assert answer.status_code == 400
        assert error_of(answer)[1] in ("unsupported_grant_type", "invalid_request")
    missing = grafana.call("/openid/token", {"grant_type": "authorization_code"})
    assert error_of(missing) == (400, "invalid_request")
    assert calls.get("/openid/token").status_code == 405
    for header in ("", "Bearer", "Bearer ", "Basic x", "Bearer \0"):
        answer = calls.get("/openid/userinfo", headers={"Authorization": header})
        assert answer.status_code == 401 and "Bearer" in answer["WWW-Authenticate"]
    assert calls.get("/openid/userinfo?access_token=x").status_code == 401
    settings.OPENID_PROVIDER = False
    for path in ("authorize", "keys", "userinfo"):
        assert calls.get(f"/openid/{path}").status_code == 404
    assert calls.post("/openid/token").status_code == 404
    assert calls.get("/.well-known/openid-configuration").status_code == 404


@pytest.mark.once
def test_calls_of_one_address_are_limited(grafana, monkeypatch):
    from gpuportal.openid_provider import views

    monkeypatch.setattr(views, "CALLS_PER_MINUTE", 0)
    answer = grafana.redeem("x")
    assert error_of(answer) == (429, "temporarily_unavailable")
    assert 0 < int(answer["Retry-After"]) <= 60
    monkeypatch.setattr(views, "AUTHORIZE_PER_MINUTE", 0)
    assert Client().get(grafana.url()).status_code == 429


@pytest.mark.once
def test_after_a_new_key_old_tokens_are_still_verified(grafana, ada):
    browser = browser_of(ada)
    answer = grafana.redeem(agree(browser, grafana.url())["code"])
    signing_key.rotate()
    assert grafana.claims(answer)["preferred_username"] == "ada"
    later = grafana.redeem(way_back(browser.get(grafana.url()))["code"])
    assert grafana.claims(later)["preferred_username"] == "ada"
    kids = [key["kid"] for key in signing_key.public_keys()]
    assert len(set(kids)) == 2
    published = text(Client().get("/openid/keys"))
    assert [kid for kid in kids if kid in published] == kids
    assert '"d"' not in published


@pytest.mark.once
def test_what_has_ended_is_cleared(grafana, ada):
    browser = browser_of(ada)
    agree(browser, grafana.url())
    code = agree(browser, grafana.url(scope="openid offline_access"))["code"]
    found = json.loads(grafana.redeem(code).content)
    grafana.refresh(found["refresh_token"])
    now = timezone.now()
    # The code that nobody redeemed. The used refresh token shows a replay.
    assert service.clear_tokens(now + timedelta(hours=2)) == 1
    assert OpenidToken.objects.count() == 2 and OpenidCode.objects.count() == 1
    assert service.clear_tokens(now + timedelta(days=31)) == 3
