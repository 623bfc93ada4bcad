"""What a service may register and ask for."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from reservations.accounts.openid_clients.rules import (
    MOST_URIS,
    OpenidPerson,
    RedirectInvalid,
    claims_of,
    consent_covers,
    granted_scopes,
    read_redirect_uris,
    sign_in_too_old,
)

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def test_addresses_are_kept_as_they_are():
    typed = (
        "\n https://a.example/back?x=1 \r\n\nhttp://localhost:8888/cb\nhttp://[::1]/"
    )
    assert read_redirect_uris(typed + "\nhttp://localhost:8888/cb") == [
        "https://a.example/back?x=1",
        "http://localhost:8888/cb",
        "http://[::1]/",
    ]


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("", "Enter at least one address."),
        ("\n".join(f"https://a.example/{n}" for n in range(MOST_URIS + 1)), "at most"),
        ("http://grafana.lab/login", "not encrypted"),
        ("http://localhost.evil.example/", "not encrypted"),
        ("javascript:alert(1)", "not a web address"),
        ("data://a.example/x", "not a web address"),
        ("/login", "not a web address"),
        ("https:///x", "not a web address"),
        ("https://a.example:port/", "not a web address"),
        ("https://[::1/", "not a web address"),
        ("https://*.example.org/", "compared exactly"),
        ("https://a.example/#x", "no #"),
        ("https://a.example/#", "no #"),
        ("https://ada@a.example/", "no user name"),
        ("https://a.example/ü", "umlauts"),
        ("https://a.example/a b", "spaces"),
        ('https://a.example/"', "quotes"),
        ("https://a.example/\\", "quotes"),
        (f"https://a.example/{'x' * 400}", "400 characters"),
    ],
)
def test_an_address_that_others_could_use_is_refused(uri, why):
    with pytest.raises(RedirectInvalid) as refused:
        read_redirect_uris(uri)
    assert why in str(refused.value)


def test_scopes_are_all_allowed_or_none():
    allowed = ["openid", "profile", "groups"]
    assert granted_scopes("groups openid openid", allowed) == ["openid", "groups"]
    for asked in (None, "", "groups", "openid email", "openid OpenId"):
        assert granted_scopes(asked, allowed) is None


def test_people_are_asked_for_what_they_did_not_give():
    assert consent_covers(["openid", "groups"], ["openid"], public=False)
    assert not consent_covers(["openid"], ["openid", "groups"], public=False)
    assert not consent_covers(None, ["openid"], public=False)
    assert not consent_covers(["openid"], ["openid"], public=True)


def test_the_age_of_a_sign_in():
    def old(prompts=(), max_age=""):
        return sign_in_too_old(
            NOW - timedelta(seconds=60), prompts=prompts, max_age=max_age, now=NOW
        )

    assert old({"login"}) and old(max_age="59") and old(max_age="0")
    assert not (old() or old(max_age="60") or old({"consent"}, "999999999"))
    for wrong in ("-1", "1.5", "x", "²", "1" * 10):
        with pytest.raises(ValueError, match=re.escape(wrong)):
            old(max_age=wrong)


def test_a_claim_needs_its_scope():
    ada = OpenidPerson("s1", "ada", "Ada L", "a@b.example", True, ["nlp"])
    assert claims_of(ada, ["openid", "offline_access"]) == {"sub": "s1"}
    assert claims_of(ada, ["openid", "email"]) == {
        "sub": "s1",
        "email": "a@b.example",
        "email_verified": True,
    }
