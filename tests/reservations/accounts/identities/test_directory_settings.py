"""Settings of the LDAP directory: what is refused, and what the rest means."""

import pytest

from reservations.accounts.identities.provider_settings import read_login_settings

pytestmark = pytest.mark.pure
FINE = {
    "LOGIN": "password,ldap",
    "LDAP_URL": "ldaps://ldap.example.org",
    "LDAP_BASE": "ou=people,dc=example,dc=org",
    "LDAP_BIND_DN": "cn=portal,dc=example,dc=org",
    "LDAP_BIND_PASSWORD_FILE": "/secret",
}
FILES = {
    "/secret": "s3cret\n",
    "/empty": "\n",
    "/ca.pem": "-----BEGIN CERTIFICATE-----",
    "/no.pem": "a key",
}


def read(more: dict[str, str]):
    def read_file(name: str) -> str:
        if name not in FILES:
            raise FileNotFoundError(name)
        return FILES[name]

    environ = {key: value for key, value in (FINE | more).items() if value}
    return read_login_settings(environ, read_file, production=True)


def test_a_directory_that_is_searched():
    found = read({"LDAP_GROUP_BASE": "ou=groups,dc=example,dc=org"})
    one = found.directory
    assert found.problems == () and found.methods == ("password", "ldap")
    assert found.sources == (one,) and found.providers == ()
    assert (one.name, one.issuer, one.tls) == ("ldap.example.org", "ldap", "ldaps")
    assert (one.filter, one.login_attributes) == ("(uid={user})", ("uid",))
    assert one.bind_password == "s3cret" and "s3cret" not in repr(found)
    assert (one.sign_up, one.match_usernames) == ("mapped", False)
    assert (one.unix_user_claim, one.unix_uid_claim) == ("", "")
    posix = read({"LDAP_UNIX_UID_ATTRIBUTE": "uidNumber"}).directory
    assert (posix.unix_user_claim, posix.unix_uid_claim) == ("uid", "uidNumber")
    wrong = read({"LDAP_UNIX_USER_ATTRIBUTE": "u id"}).problems
    assert wrong == ("LDAP_UNIX_USER_ATTRIBUTE: u id is not the name of one",)
    assert one.folds_case and not one.plain_over_network


def test_without_ldap_among_the_ways_nothing_is_read():
    assert read({"LOGIN": "password"}).directory is None


@pytest.mark.parametrize(
    ("more", "tls"),
    [
        ({"LDAP_URL": "ldap://dc1.example.org ldap://dc2.example.org"}, "starttls"),
        ({"LDAP_URL": "ldap://127.0.0.1:3890"}, "plain"),
        ({"LDAP_URL": "ldap://[::1]", "LDAP_START_TLS": "1"}, "starttls"),
        (
            {
                "LDAP_URL": "ldap://dc1.example.org",
                "LDAP_START_TLS": "0",
                "LDAP_PLAIN_TEXT": "1",
            },
            "plain",
        ),
        # It is no way around the certificate of ldaps.
        ({"LDAP_PLAIN_TEXT": "1", "LDAP_START_TLS": "0"}, "ldaps"),
    ],
)
def test_passwords_are_encrypted_unless_a_setting_allows_otherwise(more, tls):
    found = read(more)
    assert found.problems == ()
    assert found.directory.tls == tls
    over_network = tls == "plain" and "127" not in more["LDAP_URL"]
    assert found.directory.plain_over_network == over_network


WRONG = {
    "no address": ({"LDAP_URL": ""}, "LDAP_URL is not set"),
    "another scheme": ({"LDAP_URL": "https://ldap.example.org"}, "LDAP_URL: it must"),
    "a socket": ({"LDAP_URL": "ldapi:///"}, "LDAP_URL: it must"),
    "no host": ({"LDAP_URL": "ldaps://"}, "LDAP_URL: it must"),
    "a base in it": ({"LDAP_URL": "ldaps://x/dc=org?uid"}, "more than a host"),
    "a user in it": ({"LDAP_URL": "ldaps://u:p@x"}, "more than a host"),
    "a bad port": ({"LDAP_URL": "ldaps://x:port"}, "is not an address"),
    "mixed": ({"LDAP_URL": "ldaps://a ldap://b"}, "all addresses are ldaps"),
    "loopback and not": (
        {"LDAP_URL": "ldap://127.0.0.1 ldap://b", "LDAP_START_TLS": "0"},
        "in the open",
    ),
    "a name like loopback": (
        {"LDAP_URL": "ldap://127.0.0.1.example.org", "LDAP_START_TLS": "0"},
        "in the open",
    ),
    "plain": (
        {"LDAP_URL": "ldap://ldap.example.org", "LDAP_START_TLS": "0"},
        "LDAP_START_TLS=0 sends passwords over the network in the open",
    ),
    "no base": ({"LDAP_BASE": ""}, "LDAP_BASE is not set"),
    "no password": ({"LDAP_BIND_PASSWORD_FILE": ""}, "LDAP_BIND_PASSWORD is not set"),
    "empty password": ({"LDAP_BIND_PASSWORD_FILE": "/empty"}, "/empty is empty"),
    "no file": ({"LDAP_BIND_PASSWORD_FILE": "/x"}, "cannot be read"),
    "no authority": ({"LDAP_CA_FILE": "/x.pem"}, "LDAP_CA_FILE: /x.pem cannot"),
    "no certificate": ({"LDAP_CA_FILE": "/no.pem"}, "no certificate"),
    "no place": ({"LDAP_FILTER": "(uid=*)"}, "LDAP_FILTER: {user} is missing"),
    "part of a value": ({"LDAP_FILTER": "(mail={user}@x)"}, "the whole value"),
    "any attribute": ({"LDAP_FILTER": "({user}=x)"}, "the whole value"),
    "two filters": ({"LDAP_FILTER": "(uid={user})(cn=x)"}, "one filter in brackets"),
    "open bracket": ({"LDAP_FILTER": "(&(uid={user})"}, "one filter in brackets"),
    "no brackets": ({"LDAP_FILTER": "uid={user}"}, "one filter in brackets"),
    "another place": ({"LDAP_FILTER": "(&(uid={user})(cn={name}))"}, "in braces"),
    "a reusable id": ({"LDAP_ID_ATTRIBUTE": "uid"}, "LDAP_ID_ATTRIBUTE: use one of"),
    "a mail as id": ({"LDAP_ID_ATTRIBUTE": "mail"}, "LDAP_ID_ATTRIBUTE: use one of"),
    "no attribute": ({"LDAP_USERNAME_ATTRIBUTE": "u)("}, "LDAP_USERNAME_ATTRIBUTE"),
    "both binds": ({"LDAP_USER_DN": "uid={user},dc=org"}, "Remove LDAP_BIND_DN"),
    "no DN": ({"LDAP_USER_DN": "{user}@x", "LDAP_BIND_DN": ""}, "it must be a DN"),
    "a part of a DN": (
        {"LDAP_USER_DN": "uid=x{user},dc=org", "LDAP_BIND_DN": ""},
        "it must be a DN",
    ),
    "groups nowhere": (
        {"LDAP_GROUP_FILTER": "(member={dn})"},
        "LDAP_GROUP_BASE is not set",
    ),
    "all groups": (
        {"LDAP_GROUP_FILTER": "(cn=*)", "LDAP_GROUP_BASE": "dc=org"},
        "{dn} or {user} is missing",
    ),
    "sign up": ({"LDAP_SIGN_UP": "yes"}, "LDAP_SIGN_UP: use one of"),
    "match": ({"LDAP_MATCH_USERNAMES": "yes"}, "LDAP_MATCH_USERNAMES: use one of"),
}


@pytest.mark.parametrize(("more", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_is_named(more, text):
    found = read(more)
    assert found.directory is None
    assert len(found.problems) == 1
    assert text in found.problems[0]


def test_an_openid_provider_cannot_have_the_key_of_the_directory():
    uni = {
        "LOGIN": "oidc,ldap",
        "OIDC_PROVIDERS": "ldap",
        "OIDC_LDAP_ISSUER": "https://sso.example.org",
        "OIDC_LDAP_CLIENT_ID": "c",
        "OIDC_LDAP_CLIENT_SECRET": "s",
    }
    assert "is the LDAP directory" in read(uni).problems[0]
