"""Settings of logins: what is missing is named, and nothing has a default secret."""

import pytest

from reservations.accounts.identities.provider_settings import read_login_settings

ONE = {
    "LOGIN": "password,oidc",
    "OIDC_ISSUER": "https://sso.uni.example/realms/uni/",
    "OIDC_CLIENT_ID": "portal",
    "OIDC_CLIENT_SECRET": "s",
}


def read(environ, files=None, *, production=True):
    def read_file(name):
        if name not in (files or {}):
            raise FileNotFoundError(name)
        return files[name]

    return read_login_settings(environ, read_file, production=production)


def test_passwords_only_without_settings():
    found = read({})
    assert found.passwords and found.providers == () and found.problems == ()


def test_one_provider():
    found = read(ONE | {"OIDC_NAME": "Uni Example"})
    (one,) = found.providers
    assert found.problems == () and found.methods == ("password", "oidc")
    assert (one.key, one.name) == ("oidc", "Uni Example")
    assert one.issuer == "https://sso.uni.example/realms/uni"
    assert one.discovery_url.endswith("/realms/uni/.well-known/openid-configuration")
    assert one.sign_up == "mapped" and not one.match_usernames
    assert "client_secret" not in repr(one)


def test_the_whole_discovery_address_is_fine_too():
    issuer = "https://sso.uni.example/.well-known/openid-configuration"
    (one,) = read(ONE | {"OIDC_ISSUER": issuer}).providers
    assert one.issuer == "https://sso.uni.example"
    assert one.name == "sso.uni.example"


def test_several_providers():
    found = read(
        {
            "LOGIN": "oidc",
            "OIDC_PROVIDERS": "uni, partner",
            "OIDC_UNI_ISSUER": "https://sso.uni.example",
            "OIDC_UNI_CLIENT_ID": "a",
            "OIDC_UNI_CLIENT_SECRET": "s",
            "OIDC_PARTNER_ISSUER": "https://login.partner.example",
            "OIDC_PARTNER_CLIENT_ID": "b",
            "OIDC_PARTNER_CLIENT_SECRET_FILE": "/etc/secret",
            "OIDC_PARTNER_SIGN_UP": "all",
            "OIDC_PARTNER_MATCH_USERNAMES": "1",
        },
        {"/etc/secret": "from a file\n"},
    )
    assert found.problems == () and not found.passwords
    assert [one.key for one in found.providers] == ["uni", "partner"]
    partner = found.providers[1]
    assert partner.client_secret == "from a file" and partner.match_usernames


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"LOGIN": "oidc,kerberos"}, "LOGIN: “kerberos” is not a way"),
        ({"OIDC_ISSUER": ""}, "OIDC_ISSUER is not set"),
        ({"OIDC_ISSUER": "http://sso.uni.example"}, "must begin with https://"),
        ({"OIDC_ISSUER": "http://127.0.0.1:8000"}, "must begin with https://"),
        ({"OIDC_ISSUER": "https://a:b@sso.uni.example"}, "a user name"),
        ({"OIDC_ISSUER": "https://sso.uni.example?x=1"}, "a query"),
        ({"OIDC_ISSUER": "https://[x"}, "is not an address"),
        ({"OIDC_ISSUER": "https://ä.example"}, "other characters"),
        ({"OIDC_CLIENT_ID": " "}, "OIDC_CLIENT_ID is not set"),
        ({"OIDC_CLIENT_SECRET": ""}, "There is no default"),
        ({"OIDC_SCOPES": "profile"}, "the scope openid is missing"),
        ({"OIDC_SIGN_UP": "yes"}, "OIDC_SIGN_UP: use one of off, mapped, all"),
        ({"OIDC_MATCH_USERNAMES": "maybe"}, "use one of 0, 1"),
        ({"OIDC_PROVIDERS": "Uni"}, "“Uni” is not a key"),
        (
            {"OIDC_CLIENT_SECRET": "", "OIDC_CLIENT_SECRET_FILE": "/gone"},
            "/gone cannot be read: FileNotFoundError",
        ),
        (
            {"OIDC_CLIENT_SECRET": "", "OIDC_CLIENT_SECRET_FILE": "/empty"},
            "/empty is empty",
        ),
    ],
)
def test_a_problem_is_named(change, words):
    found = read(ONE | change, {"/empty": "\n"})
    assert words in " ".join(found.problems)
    if "kerberos" not in words and "Uni" not in words:
        assert found.providers == ()


def test_two_providers_cannot_have_one_issuer():
    same = {
        name.replace("OIDC_", f"OIDC_{key}_"): value
        for key in ("A", "B")
        for name, value in ONE.items()
        if name != "LOGIN"
    }
    found = read({"LOGIN": "oidc", "OIDC_PROVIDERS": "a,b"} | same)
    assert len(found.problems) == 2


def test_plain_http_to_this_machine_is_for_development():
    local = ONE | {"OIDC_ISSUER": "http://127.0.0.1:8000"}
    assert read(local, production=False).problems == ()
