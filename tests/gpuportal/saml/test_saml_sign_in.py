"""Sign-in with a SAML provider, and assertions that prove nothing."""

import copy
import re
import threading
from datetime import timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import xmlsec
from django.test import Client
from django.utils import timezone
from lxml import etree

from gpuportal.doctor.portal_facts import _saml_login
from gpuportal.http.login_limits import clear_logins
from gpuportal.oidc import kept_answer
from gpuportal.saml.provider_metadata import metadata_of
from reservations.models import (
    AuditEntry,
    ClaimMapping,
    Identity,
    Membership,
    UsedAssertion,
    User,
)
from tests.factories import make_account, make_user
from tests.gpuportal.openid_provider.relying_party import browser_of, text
from tests.gpuportal.saml.identity_site import (
    ADA,
    AUDIENCE,
    BACK,
    ISSUER,
    NS,
    answer,
    as_form,
    make_key,
    metadata,
    read_request,
    sign,
    use,
)

pytestmark = pytest.mark.django_db
GROUPS = "urn:oid:1.3.6.1.4.1.5923.1.5.1.1"


@pytest.fixture
def uni(settings, tmp_path):
    file = tmp_path / "metadata.xml"
    file.write_text(metadata())
    return use(settings, file, sign_up="all")


class Visitor:
    """A browser that has gone to the provider."""

    def __init__(self, back: str = "") -> None:
        self.portal = Client()
        self.go(self.portal.get("/login/saml/", {"next": back} if back else {}))

    def go(self, there: Any) -> None:
        assert there.status_code == 302, text(there)
        self.request, self.state = read_request(there["Location"])
        self.request_id: str = self.request.get("ID")

    def returns(self, document: Any, *, state: str | None = None) -> Any:
        form = document if isinstance(document, str) else as_form(document)
        return self.portal.post(
            "/login/saml/back/",
            {"SAMLResponse": form, "RelayState": state or self.state},
        )

    @property
    def is_in(self) -> bool:
        return "_auth_user_id" in self.portal.session


def test_a_person_signs_in_and_comes_back_to_the_page(uni, settings):
    vision = make_account("vision")
    ClaimMapping.objects.create(
        issuer=ISSUER, value="gpu-users", account=vision, role="member"
    )
    ada = Visitor(back="/help/")
    request = ada.request
    assert request.get("AssertionConsumerServiceURL") == BACK
    assert request.get("Destination") == "https://idp.uni.example/sso"
    assert request.find("saml:Issuer", NS).text == AUDIENCE
    groups = {**ADA, GROUPS: ["gpu-users", "sports"]}
    back = ada.returns(sign(answer(ada.request_id, attributes=groups)))
    assert back["Location"] == "/login/?next=/help/", text(back)
    user = User.objects.get()
    assert ada.is_in and not user.has_usable_password() and not user.is_superuser
    assert (user.username, user.display_name) == ("ada", "Ada Lovelace")
    assert user.email == "ada@uni.example"
    identity = Identity.objects.get(user=user)
    assert (identity.issuer, identity.subject) == (ISSUER, "8f3a-persistent")
    assert identity.groups == ["gpu-users", "sports"]
    assert Membership.objects.get(user=user, active=True).account == vision

    # Another day: the same person, although name and mail are others now. Without the
    # attribute nothing changes. With an empty one the group ends.
    for attributes, member in (({}, True), ({"isMemberOf": []}, False)):
        again = Visitor()
        document = answer(
            again.request_id, attributes=attributes, assertion_id=f"_b{member}"
        )
        again.returns(sign(document))
        assert again.is_in and User.objects.get() == user
        assert Membership.objects.get(user=user).active == member

    # The session ends with the setting.
    settings.AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
    assert ada.portal.get("/me/").status_code == 302


def test_nobody_is_found_by_a_mail_address_or_a_user_name(uni):
    old = make_user("someone", email="ada@uni.example")
    first = Visitor()
    first.returns(sign(answer(first.request_id)))
    assert User.objects.count() == 2 and not Identity.objects.filter(user=old).exists()
    # Another NameID with the same user name and mail address is another person.
    second = Visitor()
    refused = second.returns(
        sign(answer(second.request_id, name_id="other", assertion_id="_b"))
    )
    assert refused.status_code == 409 and not second.is_in
    assert "Another person has your user name here" in text(refused)


def wrapped(document: etree._Element, where: str) -> etree._Element:
    """Move the signed assertion away, and put a forged one in its place."""
    good = document.find("saml:Assertion", NS)
    evil = copy.deepcopy(good)
    evil.remove(evil.find("ds:Signature", NS))
    evil.find("saml:Subject/saml:NameID", NS).text = "the-admin"
    evil.set("ID", "_evil")
    document.replace(good, evil)
    if where == "sibling":
        document.append(good)
    elif where == "before":
        document.insert(2, good)
    elif where == "inside":
        evil.append(good)
    elif where == "in the signature":
        signature = good.find("ds:Signature", NS)
        good.remove(signature)
        holder = etree.SubElement(signature, f"{{{NS['ds']}}}Object")
        holder.append(good)
        evil.insert(1, signature)
    elif where == "same ID":
        evil.set("ID", good.get("ID"))
        signature = good.find("ds:Signature", NS)
        good.remove(signature)
        etree.SubElement(signature, f"{{{NS['ds']}}}Object").append(good)
        evil.insert(1, signature)
    elif where == "extension":
        holder = etree.Element(f"{{{NS['samlp']}}}Extensions")
        holder.append(good)
        document.insert(1, holder)
    return document


def changed(document: etree._Element, path: str, value: str) -> etree._Element:
    document.find(path, NS).text = value
    return document


OTHER_KEY = make_key()[0]
LIES: dict[str, Any] = {
    "unsigned": answer,
    "only the answer is signed": lambda i: sign(answer(i), what="samlp:Response"),
    "signed by another key": lambda i: sign(answer(i), key=OTHER_KEY),
    "changed after it was signed": lambda i: changed(
        sign(answer(i)), ".//saml:NameID", "the-admin"
    ),
    "signed with SHA-1": lambda i: sign(
        answer(i), method=xmlsec.Transform.RSA_SHA1, digest=xmlsec.Transform.SHA1
    ),
    "signed with a shared key": lambda i: sign_symmetric(answer(i)),
    **{
        f"wrapped: {where}": partial(
            lambda i, where: wrapped(sign(answer(i)), where), where=where
        )
        for where in (
            *("sibling", "before", "inside", "in the signature", "same ID"),
            "extension",
        )
    },
    "another audience": lambda i: sign(answer(i, audience="https://wiki.example")),
    "no audience": lambda i: sign(answer(i, audience=None)),
    "expired": lambda i: sign(answer(i, lasts=-400)),
    "just expired": lambda i: sign(answer(i, lasts=-1)),
    "another recipient": lambda i: sign(answer(i, recipient="https://evil.example/")),
    "a recipient that contains ours": lambda i: sign(
        answer(i, recipient=f"https://evil.example/?{BACK}")
    ),
    "another destination": lambda i: sign(answer(i, destination=f"{BACK}evil")),
    "another issuer": lambda i: sign(answer(i, issuer="https://idp.evil.example")),
    "another request": lambda i: sign(answer("_other")),
    "no request": lambda i: sign(answer(i, answered_id="", confirmed_id="")),
    "another request in the assertion": lambda i: sign(answer(i, confirmed_id="_o")),
    "no request in the assertion": lambda i: sign(answer(i, confirmed_id="")),
    "not for ever": lambda i: sign(
        answer(i, format="urn:oasis:names:tc:SAML:2.0:nameid-format:transient")
    ),
    "a mail address": lambda i: sign(
        answer(i, format="urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress")
    ),
    "no promise": lambda i: sign(
        answer(i, format="urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified")
    ),
    "no format": lambda i: sign(answer(i, format="")),
    "no name": lambda i: sign(answer(i, name_id="")),
    "a long name": lambda i: sign(answer(i, name_id="x" * 256)),
    "refused": lambda i: sign(answer(i, status="Requester")),
    "not a document": lambda i: b"<x",
    "an entity": lambda i: (
        b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
        + etree.tostring(sign(answer(i))).replace(b"8f3a", b"&e;")
    ),
    "too long": lambda i: b"x" * 2**18,
    "empty": lambda i: b"",
}


def sign_symmetric(document: etree._Element) -> etree._Element:
    """Sign with the certificate, which everybody knows, as an HMAC key."""
    found = document.find("saml:Assertion", NS)
    signature = xmlsec.template.create(
        found, xmlsec.Transform.EXCL_C14N, xmlsec.Transform.HMAC_SHA256, ns="ds"
    )
    found.insert(1, signature)
    reference = xmlsec.template.add_reference(
        signature, xmlsec.Transform.SHA256, uri="#_a1"
    )
    xmlsec.template.add_transform(reference, xmlsec.Transform.ENVELOPED)
    xmlsec.template.add_transform(reference, xmlsec.Transform.EXCL_C14N)
    context = xmlsec.SignatureContext()
    context.key = xmlsec.Key.from_binary_data(xmlsec.KeyData.HMAC, metadata().encode())
    context.register_id(found, "ID")
    context.sign(signature)
    return document


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.once
def test_an_assertion_that_proves_nothing_signs_nobody_in(uni, lie):
    visitor = Visitor()
    refused = visitor.returns(LIES[lie](visitor.request_id))
    assert refused.status_code in (400, 403, 502), lie
    assert not visitor.is_in and not User.objects.exists()
    assert not UsedAssertion.objects.exists()
    page = text(refused)
    assert "root:" not in page and "the-admin" not in page
    # The same visitor can try again, and a good one is accepted after all these.
    again = Visitor()
    assert again.returns(sign(answer(again.request_id))).status_code == 302
    assert again.is_in


@pytest.mark.once
def test_a_comment_does_not_cut_a_name_in_two(uni):
    visitor = Visitor()
    document = sign(answer(visitor.request_id, name_id="the-admin.evil"))
    raw = etree.tostring(document).replace(b"the-admin.evil", b"the-admin<!--x-->.evil")
    visitor.returns(as_form(raw))
    # Canonical XML leaves comments out, so the signature is valid.
    assert Identity.objects.get().subject == "the-admin.evil"


def test_an_assertion_works_once_and_in_one_browser(uni):
    ada = Visitor()
    cookies = copy.deepcopy(ada.portal.cookies)
    form = as_form(sign(answer(ada.request_id)))
    # Of another browser that has not begun, or has begun its own.
    for thief in (Client(), Visitor().portal):
        stolen = thief.post(
            "/login/saml/back/", {"SAMLResponse": form, "RelayState": ada.state}
        )
        assert stolen.status_code == 400 and "_auth_user_id" not in thief.session
    assert ada.returns(form, state="other").status_code == 400
    ada.portal.cookies = copy.deepcopy(cookies)
    assert ada.returns(form).status_code == 302 and ada.is_in
    # A thief who has the cookie and the whole form comes too late.
    late = Client()
    late.cookies = cookies
    replayed = late.post(
        "/login/saml/back/", {"SAMLResponse": form, "RelayState": ada.state}
    )
    assert replayed.status_code == 400 and "no longer valid" in text(replayed)
    assert "_auth_user_id" not in late.session
    assert UsedAssertion.objects.count() == 1
    assert clear_logins(timezone.now() + timedelta(hours=1))["assertions"] == 1


def test_a_signed_in_person_connects_the_login(uni):
    ada, mallory = make_user("ada"), make_user("mallory")

    def begun(user: User) -> Visitor:
        visitor = Visitor.__new__(Visitor)
        visitor.portal = browser_of(user)
        page = text(visitor.portal.post("/me/logins/saml/connect/"))
        url = re.search(r'href="(https://idp[^"]+)"', page)
        assert url, page
        visitor.request, visitor.state = read_request(url[1].replace("&amp;", "&"))
        visitor.request_id = visitor.request.get("ID")
        return visitor

    visitor = begun(ada)
    there = visitor.returns(sign(answer(visitor.request_id)))
    assert not Identity.objects.exists()
    # Not in the browser of another person, and once.
    assert browser_of(mallory).get(there["Location"]).status_code == 403
    assert Client().get(there["Location"])["Location"].startswith("/login/?next=")
    assert visitor.portal.get(there["Location"])["Location"] == "/me/#logins"
    assert visitor.portal.get(there["Location"]).status_code == 403
    assert Identity.objects.get().user == ada
    assert UsedAssertion.objects.get().claims is None
    verbs = AuditEntry.objects.filter(subject=f"user:{ada.pk}")
    assert [row.verb for row in verbs] == ["identity.linked"]
    # It belongs to ada now.
    other = begun(mallory)
    there = other.returns(sign(answer(other.request_id, assertion_id="_b")))
    assert other.portal.get(there["Location"]).status_code == 409
    assert 'class="state state-good"' in text(visitor.portal.get("/me/"))


@pytest.mark.once
def test_an_attribute_can_identify_a_person(settings, tmp_path):
    (tmp_path / "metadata.xml").write_text(metadata())
    use(
        settings,
        tmp_path / "metadata.xml",
        sign_up="all",
        id_attribute="pairwise-id",
        unix_user_claim="uid",
        unix_uid_claim="uidNumber",
    )
    numbers = "urn:oid:1.3.6.1.1.1.1.0"
    format = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"
    name = "urn:oasis:names:tc:SAML:attribute:pairwise-id"
    for values, subject in ((["P1@uni"], "P1@uni"), (["a", "b"], None), ([], None)):
        visitor = Visitor()
        visitor.returns(
            sign(
                answer(
                    visitor.request_id,
                    attributes={**ADA, name: values, numbers: ["1815"]},
                    format=format,
                    assertion_id=f"_{len(values)}",
                )
            )
        )
        assert visitor.is_in == (subject is not None)
    found = Identity.objects.get()
    assert (found.subject, found.unix_user, found.unix_uid) == ("P1@uni", "ada", 1815)


@pytest.mark.once
def test_a_provider_that_is_away_or_broken_is_a_page(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_answer, "PAUSE_SECONDS", 0)
    file = tmp_path / "metadata.xml"
    provider = use(settings, file)
    ends = ' validUntil="2020-01-01T00:00:00Z"'
    for content, status, why in (
        (None, 503, "cannot be read: FileNotFoundError"),
        ("<x", 502, "cannot be read"),
        (metadata(entity="https://other.example"), 502, f"do not name {ISSUER}"),
        (metadata(more=ends), 502, "ended 2020"),
        (metadata("AAAA"), 502, "certificate"),
        (metadata(url="javascript:alert(1)"), 502, "no https address"),
        ("x" * (2**20 + 1), 502, "longer than 1 MiB"),
    ):
        if content is not None:
            file.write_text(content)
        page = Client().get("/login/saml/")
        assert (page.status_code, why in text(page)) == (status, True), text(page)
        state = _saml_login(provider, timezone.now())
        assert why in state.fault
    file.write_text(metadata(make_key(days=20)[1]))
    soon = _saml_login(provider, timezone.now())
    assert "its certificate ends" in soon.fault and "SAML_METADATA" in soon.fix
    # What was read once is used while the file is away.
    file.unlink()
    monkeypatch.setattr(kept_answer, "KEPT_SECONDS", 0)
    assert Client().get("/login/saml/").status_code == 302


@pytest.mark.once
def test_metadata_by_address_and_those_of_the_portal(settings, tmp_path):
    (tmp_path / "m").write_text(metadata())

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))
    )
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        provider = use(settings, f"{url}/m")
        found = metadata_of(provider)
        assert found.sign_in_url == "https://idp.uni.example/sso"
        state = _saml_login(provider, timezone.now())
        assert state.fault == "" and "its certificate ends" in state.answer
        use(settings, f"{url}/missing")
        assert "status 404" in text(Client().get("/login/saml/"))
    finally:
        server.shutdown()
        server.server_close()
    use(settings, f"{url}/gone")
    assert Client().get("/login/saml/").status_code == 503
    ours = Client().get("/login/saml/metadata/")
    root = etree.fromstring(ours.content)
    assert root.get("entityID") == AUDIENCE and BACK.encode() in ours.content
    assert 'WantAssertionsSigned="true"' in text(ours)
    assert "Sign in with Uni Example" in text(Client().get("/login/"))


@pytest.mark.once
def test_the_cookie_comes_with_a_form_of_another_site_only_over_https(uni, settings):
    settings.PRODUCTION = True
    found = Client().get("/login/saml/").cookies["__Host-oidc"]
    assert (found["samesite"], found["secure"], found["httponly"]) == (
        *("None", True, True),
    )


@pytest.mark.once
def test_without_the_setting_there_is_no_such_page():
    for path in ("/login/saml/", "/login/saml/metadata/"):
        assert Client().get(path).status_code == 404
    assert Client().post("/login/saml/back/").status_code == 404
