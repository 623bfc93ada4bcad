"""Settings of the SAML provider: what is missing is named."""

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from reservations.accounts.identities.provider_settings import read_login_settings
from tests.gpuportal.saml.identity_site import certificate_as_pem, make_key

SAML = {
    "LOGIN": "password,saml",
    "PORTAL_URL": "https://gpu.example.org/",
    "SAML_ENTITY_ID": "https://idp.example.org/saml",
    "SAML_METADATA": "https://idp.example.org/metadata",
}


def read(environ, *, production=True):
    return read_login_settings(environ, lambda name: "", production=production)


def test_a_provider():
    found = read(SAML | {"SAML_GROUPS_ATTRIBUTE": "eduPersonEntitlement"})
    assert found.problems == () and found.methods == ("password", "saml")
    one = found.saml
    assert one is not None and found.sources == found.with_redirect == (one,)
    assert (one.key, one.name) == ("saml", "idp.example.org")
    assert (one.issuer, one.groups_claim) == (
        "https://idp.example.org/saml",
        "eduPersonEntitlement",
    )
    assert one.back == "https://gpu.example.org/login/saml/back/"
    assert one.entity_id == "https://gpu.example.org/login/saml/metadata/"
    assert one.sign_up == "mapped" and not one.match_usernames
    assert read({**SAML, "LOGIN": "password"}).saml is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"PORTAL_URL": ""}, "PORTAL_URL"),
        ({"PORTAL_URL": "http://gpu.example.org"}, "PORTAL_URL"),
        ({"PORTAL_URL": "https://gpu.example.org/x"}, "PORTAL_URL"),
        ({"SAML_ENTITY_ID": ""}, "SAML_ENTITY_ID"),
        ({"SAML_ENTITY_ID": "a'] | //*['"}, "SAML_ENTITY_ID"),
        ({"SAML_ENTITY_ID": "x" * 401}, "SAML_ENTITY_ID"),
        ({"SAML_METADATA": ""}, "SAML_METADATA"),
        ({"SAML_METADATA": "http://idp.example.org/"}, "SAML_METADATA"),
        ({"SAML_METADATA": "file:///etc/passwd"}, "SAML_METADATA"),
        ({"SAML_METADATA": "idp.xml"}, "SAML_METADATA"),
        ({"SAML_METADATA": "https://[x/"}, "SAML_METADATA"),
        ({"SAML_USERNAME_ATTRIBUTE": "a b"}, "SAML_USERNAME_ATTRIBUTE"),
        ({"SAML_ID_ATTRIBUTE": "'"}, "SAML_ID_ATTRIBUTE"),
        ({"SAML_SIGN_UP": "maybe"}, "SAML_SIGN_UP"),
        ({"SAML_MATCH_USERNAMES": "2"}, "SAML_MATCH_USERNAMES"),
    ],
)
def test_what_is_wrong_is_named(change, why):
    found = read(SAML | change)
    assert found.saml is None and why in " ".join(found.problems)


def test_a_key_and_its_certificate_come_from_one_file():
    key, certificate = make_key()
    other = certificate_as_pem(make_key()[1])
    mine = certificate_as_pem(certificate)
    files = {
        "good": key.decode() + mine,
        "only the key": key.decode(),
        "only the certificate": mine,
        "another": key.decode() + other,
        "nothing": "x",
    }
    for name in files:
        found = read_login_settings(
            SAML | {"SAML_KEY_FILE": name}, files.__getitem__, production=True
        )
        if name == "good":
            assert found.saml is not None and found.saml.certificate == mine_of(mine)
            assert "PRIVATE KEY" in found.saml.private_key
            assert "PRIVATE" not in repr(found.saml)
        else:
            assert found.saml is None and "SAML_KEY_FILE" in " ".join(found.problems)


def mine_of(pem: str) -> str:
    """Return a certificate with the lines that openssl writes."""
    found = load_pem_x509_certificate(pem.encode())
    return found.public_bytes(Encoding.PEM).decode()


def test_a_file_and_this_machine_in_development():
    here = {"PORTAL_URL": "http://127.0.0.1:8010", "SAML_METADATA": "/etc/idp.xml"}
    assert read(SAML | here, production=False).problems == ()
    assert read(SAML | here).saml is None


def test_an_openid_provider_has_another_key_and_issuer():
    oidc = {
        "LOGIN": "oidc,saml",
        "OIDC_PROVIDERS": "saml,uni",
        "OIDC_UNI_ISSUER": "https://idp.example.org/saml",
        "OIDC_UNI_CLIENT_ID": "c",
        "OIDC_UNI_CLIENT_SECRET": "s",
    }
    found = read(SAML | oidc)
    assert [one.key for one in found.providers] == ["uni"]
    assert len(found.problems) == 2
    assert "“saml” is the SAML provider" in found.problems[0]
    assert "same issuer" in found.problems[1]
