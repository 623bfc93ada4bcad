"""Single logout with a SAML provider, and messages that must end no session."""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from django.utils import timezone
from lxml import etree

from gpuportal.http.login_limits import clear_logins
from gpuportal.oidc.kept_answer import ProviderAnswerInvalid
from gpuportal.saml.logout_messages import read_logout_answer, read_logout_request
from gpuportal.saml.provider_metadata import metadata_of
from reservations.accounts.second_factors.sign_in import door_user
from reservations.models import ApiToken, UsedAssertion, User
from reservations.web.session_consumer import user_of_session
from tests.gpuportal.openid_provider.relying_party import text
from tests.gpuportal.saml.identity_site import (
    AUDIENCE,
    LOGOUT,
    NS,
    PERSISTENT,
    answer,
    certificate_as_pem,
    logout_message,
    metadata,
    read_signed,
    sign,
    signed_query,
    use,
)
from tests.gpuportal.saml.test_encrypted_assertions import (
    PORTAL_CERTIFICATE,
    PORTAL_KEY,
)
from tests.gpuportal.saml.test_saml_sign_in import OTHER_KEY, Visitor

pytestmark = pytest.mark.django_db
THERE = "https://idp.uni.example/slo?realm=a&amp;x=%22"
SERVICE = (
    f'<md:SingleLogoutService Binding="{NS["samlp"][:-8]}bindings:HTTP-Redirect"'
    f' Location="{THERE}" ResponseLocation="https://idp.uni.example/slo-answer"/>'
)
SUCCESS = (
    '<samlp:Status><samlp:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:{}"/>'
    "</samlp:Status>"
)


@pytest.fixture
def uni(settings, tmp_path):
    return with_logout(settings, tmp_path)


def with_logout(settings: Any, folder: Any, **more: Any) -> Any:
    (folder / "metadata.xml").write_text(metadata(logout=SERVICE))
    key = {
        "private_key": PORTAL_KEY.decode(),
        "certificate": certificate_as_pem(PORTAL_CERTIFICATE),
    }
    return use(settings, folder / "metadata.xml", **{"sign_up": "all", **key, **more})


def signed_in(number: int = 1, **more: Any) -> Visitor:
    visitor = Visitor()
    document = answer(
        visitor.request_id, assertion_id=f"_a{number}", index=f"_s{number}", **more
    )
    visitor.returns(sign(document))
    assert visitor.is_in
    return visitor


def ask(query: str) -> Any:
    """Bring a request as a frame of the provider does: without any cookie."""
    return Client().get(f"/login/saml/logout/?{query}")


def indexes(*values: str) -> str:
    rows = "".join(f"<samlp:SessionIndex>{x}</samlp:SessionIndex>" for x in values)
    return f"<saml:NameID>8f3a-persistent</saml:NameID>{rows}"


def test_a_request_of_the_provider_ends_the_sessions_that_it_names(uni, caplog):
    one, two, three = signed_in(1), signed_in(2), signed_in(3)
    other = signed_in(4, name_id="grace", attributes={"uid": ["grace"]})
    ada = User.objects.get(username="ada")
    ApiToken.objects.create(
        user=ada,
        token_hash="h",
        expires_at=timezone.now() + timedelta(days=1),
    )
    key = one.portal.session.session_key
    assert door_user(key, timezone.now()) == user_of_session(key) == ada
    with caplog.at_level(logging.INFO, "gpuportal.saml.views"):
        there = ask(
            signed_query(logout_message(content=indexes("_s1", "_s9")), state="r&1")
        )
    assert there.status_code == 302 and "ended 1 sessions" in caplog.text
    assert there["Location"].startswith("https://idp.uni.example/slo-answer?")
    told, state = read_signed(there["Location"], "SAMLResponse", PORTAL_CERTIFICATE)
    assert state == "r&1" and told.get("InResponseTo") == "_l1"
    assert told.find("saml:Issuer", NS).text == AUDIENCE
    assert told.find("samlp:Status/samlp:StatusCode", NS).get("Value")[-7:] == "Success"
    assert not one.is_in and two.is_in and three.is_in and other.is_in
    # What a websocket, a terminal and a workspace ask again and again.
    assert door_user(key, timezone.now()) is user_of_session(key) is None
    # Without an index all sessions of the person end, by SHA-512 as well.
    query = signed_query(logout_message(message_id="_l2"), bits=512)
    assert ask(query).status_code == 302
    assert not two.is_in and not three.is_in and other.is_in
    assert ApiToken.objects.get().revoked_at is None
    # Nobody left is no error, and both are kept only for as long as they work.
    assert ask(signed_query(logout_message(message_id="_l3"))).status_code == 302
    assert clear_logins(timezone.now() + timedelta(hours=1))["assertions"] == 7


@pytest.mark.once
def test_a_sign_in_that_waits_for_the_second_factor_ends_too(
    uni, settings, monkeypatch
):
    from reservations.accounts.second_factors import sign_in

    monkeypatch.setattr(sign_in, "has_factor", lambda _user: True)
    settings.SECOND_FACTOR_AFTER_PROVIDER = True
    monkeypatch.setattr(
        sign_in, "policy", lambda: type("P", (), {"after_providers": True})()
    )
    ada = Visitor()
    there = ada.returns(sign(answer(ada.request_id)))
    assert (
        there["Location"] == "/second-factor/" and sign_in.PENDING in ada.portal.session
    )
    ask(signed_query(logout_message(content=indexes("_s1"))))
    assert sign_in.PENDING not in ada.portal.session


ENCRYPTED = '<saml:EncryptedID><x xmlns="urn:x"/></saml:EncryptedID>'
LIES: dict[str, tuple[Callable[[], str], str]] = {
    "another issuer": (
        lambda: signed_query(logout_message(issuer="https://evil.example")),
        "issuer",
    ),
    "no issuer": (lambda: signed_query(logout_message(issuer=None)), "another issuer"),
    "another address": (
        lambda: signed_query(logout_message(destination=f"{LOGOUT}x")),
        "another address",
    ),
    "the address of assertions": (
        lambda: signed_query(
            logout_message(destination=LOGOUT.replace("logout", "back"))
        ),
        "received at",
    ),
    "no address": (lambda: signed_query(logout_message(destination=None)), "address"),
    "an hour old": (lambda: signed_query(logout_message(seconds=-3600)), "clocks"),
    "an hour early": (lambda: signed_query(logout_message(seconds=3600)), "clocks"),
    "over": (
        lambda: signed_query(
            logout_message(attributes='NotOnOrAfter="2020-01-01T00:00:00Z"')
        ),
        "Could not validate timestamp",
    ),
    "another key": (lambda: signed_query(logout_message(), key=OTHER_KEY), "signature"),
    "not signed": (
        lambda: signed_query(logout_message()).partition("&SigAlg")[0],
        "not signed",
    ),
    "an empty signature": (
        lambda: (
            f"{signed_query(logout_message()).partition('&Signature')[0]}&Signature="
        ),
        "not signed",
    ),
    "SHA-1": (
        lambda: signed_query(logout_message()).replace(
            quote("2001/04/xmldsig-more#rsa-sha256", safe=""),
            quote("2000/09/xmldsig#rsa-sha1", safe=""),
        ),
        "weak method",
    ),
    "another message": (
        lambda: signed_query(logout_message()).replace(
            signed_query(logout_message()).partition("&")[0],
            signed_query(logout_message(message_id="_evil")).partition("&")[0],
        ),
        "signature",
    ),
    "two messages": (
        lambda: (
            signed_query(logout_message(message_id="_evil")).partition("&")[0]
            + "&"
            + signed_query(logout_message())
        ),
        "twice",
    ),
    "a hidden second message": (
        lambda: signed_query(logout_message()) + "&SAML%52equest=eA==",
        "twice",
    ),
    "another state": (
        lambda: signed_query(logout_message(), state="a").replace(
            "RelayState=a", "RelayState=b"
        ),
        "signature",
    ),
    "the address is no SAML": (lambda: signed_query("<x/>"), "schema|Invalid|read"),
    "not a document": (lambda: signed_query("<x"), "cannot be read"),
    "an answer as a request": (
        lambda: signed_query(
            logout_message("LogoutResponse", content=SUCCESS.format("Success"))
        ),
        "another kind",
    ),
    "an encrypted name": (
        lambda: signed_query(logout_message(content=ENCRYPTED)),
        "Invalid|plain NameID",
    ),
    "an entity": (
        lambda: signed_query(
            '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
            + logout_message(content="<saml:NameID>&e;</saml:NameID>")
        ),
        "cannot be read",
    ),
    "too long": (lambda: signed_query(logout_message(), state="x" * 2**15), "too long"),
    "nothing": (lambda: "", "not signed"),
}


@pytest.mark.once
def test_a_message_that_proves_nothing_is_refused(uni):
    found = metadata_of(uni)
    for lie, (query, why) in LIES.items():
        with pytest.raises(ProviderAnswerInvalid) as refused:
            read_logout_request(uni, found, query())
        said = str(refused.value)
        assert any(one in said for one in why.split("|")), (lie, said)
        assert "root:" not in said
    with pytest.raises(ProviderAnswerInvalid):
        # Of a request, not of an answer, although it is signed.
        query = signed_query(logout_message(), kind="SAMLResponse")
        read_logout_answer(uni, found, query, request_id="_l1")


@pytest.mark.once
def test_a_request_works_once_and_a_refused_one_ends_no_session(uni):
    ada = signed_in()
    stranger = signed_query(logout_message(), key=OTHER_KEY)
    unasked = signed_query(
        logout_message("LogoutResponse", content=SUCCESS.format("Success")),
        kind="SAMLResponse",
    )
    for query, why in ((stranger, "signature of its"), (unasked, "has not asked")):
        refused = ask(query)
        page = text(refused)
        assert refused.status_code == 502 and why in page
        assert "It ended no session here." in page and "Try again" not in page
    assert ada.is_in and UsedAssertion.objects.count() == 1
    assert Client().post("/login/saml/logout/").status_code == 405
    # A good one still ends it, once.
    good = signed_query(logout_message())
    assert ask(good).status_code == 302 and not ada.is_in
    again = signed_in(2)
    assert "used before" in text(ask(good)) and again.is_in


@pytest.mark.once
def test_a_sign_out_leads_to_the_provider_and_back(uni):
    name = "a&b<c"
    ada = signed_in(name_id="a&amp;b&lt;c")
    page = text(ada.portal.post("/logout/", follow=True))
    assert "Your session at Uni Example goes on" in page and not ada.is_in
    assert 'href="/login/saml/end/"' in page
    there = ada.portal.get("/login/saml/end/")["Location"]
    assert there.startswith("https://idp.uni.example/slo?realm=a&x=%22&SAMLRequest=")
    asked, state = read_signed(there, "SAMLRequest", PORTAL_CERTIFICATE)
    assert asked.get("Destination") == "https://idp.uni.example/slo?realm=a&x=%22"
    named = asked.find("saml:NameID", NS)
    assert (named.text, named.get("Format")) == (name, PERSISTENT)
    assert asked.find("samlp:SessionIndex", NS).text == "_s1"
    assert asked.find("saml:Issuer", NS).text == AUDIENCE

    def answered(
        status: str = "Success", to: str = asked.get("ID"), **more: Any
    ) -> Any:
        query = signed_query(
            logout_message(
                "LogoutResponse",
                attributes=f'InResponseTo="{to}"' if to else "",
                content=SUCCESS.format(status),
            ),
            kind="SAMLResponse",
            **more,
        )
        return ada.portal.get(f"/login/saml/logout/?{query}")

    cookies = ada.portal.cookies["oidc"].value
    for lie in (
        {"to": "_other", "state": state},
        {"to": "", "state": state},
        {"state": "other"},
        {"state": state, "key": OTHER_KEY},
    ):
        ada.portal.cookies["oidc"] = cookies
        assert answered(**lie).status_code == 502, lie
    ada.portal.cookies["oidc"] = cookies
    refused = text(answered("Responder", state=state))
    assert "Uni Example did not sign you out" in refused
    ada.portal.cookies["oidc"] = cookies
    back = answered(state=state)
    assert back["Location"] == "/login/?gone=saml"
    assert "You signed out here and at Uni Example" in text(
        ada.portal.get(back["Location"])
    )
    # It works once, and a browser that has not signed out has nothing to end.
    assert answered(state=state).status_code == 502
    for browser in (ada.portal, Client()):
        nothing = browser.get("/login/saml/end/")
        assert nothing.status_code == 404
        assert "Sign out at Uni Example itself" in text(nothing)


@pytest.mark.once
def test_the_name_need_not_be_what_identifies_a_person(settings, tmp_path):
    with_logout(settings, tmp_path, id_attribute="pairwise-id")
    transient = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"
    attributes = {
        "uid": ["ada"],
        "urn:oasis:names:tc:SAML:attribute:pairwise-id": ["p1@uni"],
    }
    ada = signed_in(attributes=attributes, format=transient, name_id="_t77")
    ask(signed_query(logout_message(content="<saml:NameID>p1@uni</saml:NameID>")))
    assert ada.is_in
    query = signed_query(
        logout_message(message_id="_l2", content="<saml:NameID>_t77</saml:NameID>")
    )
    assert ask(query).status_code == 302 and not ada.is_in


@pytest.mark.once
def test_single_logout_needs_an_address_there_and_a_key_here(settings, tmp_path):
    path = "SingleLogoutService"
    with_logout(settings, tmp_path)
    ours = etree.fromstring(Client().get("/login/saml/metadata/").content)
    [found] = ours.iter(f"{{urn:oasis:names:tc:SAML:2.0:metadata}}{path}")
    assert found.get("Location") == LOGOUT
    uses = [one.get("use") for one in ours.iter("{*}KeyDescriptor")]
    assert "signing" in uses
    with_logout(settings, tmp_path, private_key="", certificate="")
    assert path not in text(Client().get("/login/saml/metadata/"))
    (tmp_path / "none").mkdir()
    for folder, logout, key in (
        (tmp_path / "none", "", {}),
        (tmp_path / "none", SERVICE.replace("https:", "javascript:"), {}),
        (tmp_path, SERVICE, {"private_key": "", "certificate": ""}),
    ):
        with_logout(settings, folder, **key)
        (folder / "metadata.xml").write_text(metadata(logout=logout))
        ada = signed_in(len(str(folder)) + len(logout))
        assert "single logout is off" in text(ask(signed_query(logout_message())))
        ada.portal.post("/logout/")
        assert ada.portal.get("/login/saml/end/").status_code == 404
