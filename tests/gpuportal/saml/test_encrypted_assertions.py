"""Assertions that are encrypted for the portal, and those that try to use that."""

from collections.abc import Callable
from typing import Any

import pytest
import xmlsec
from lxml import etree

from gpuportal.saml import encryption_shape
from tests.gpuportal.openid_provider.relying_party import text
from tests.gpuportal.saml.identity_site import (
    NS,
    answer,
    certificate_as_pem,
    encrypt,
    make_key,
    metadata,
    sign,
    use,
)
from tests.gpuportal.saml.test_saml_sign_in import OTHER_KEY, Visitor

pytestmark = pytest.mark.django_db
PORTAL_KEY, PORTAL_CERTIFICATE = make_key()
XENC = "http://www.w3.org/2001/04/xmlenc#"


@pytest.fixture
def uni(settings, tmp_path):
    file = tmp_path / "metadata.xml"
    file.write_text(metadata())
    return use(
        settings,
        file,
        sign_up="all",
        private_key=PORTAL_KEY.decode(),
        certificate=certificate_as_pem(PORTAL_CERTIFICATE),
    )


def sealed(request_id: str, **more: Any) -> etree._Element:
    return encrypt(sign(answer(request_id)), PORTAL_CERTIFICATE, **more)


def test_the_metadata_offer_the_key_and_an_encrypted_assertion_signs_in(uni, client):
    told = text(client.get("/login/saml/metadata/"))
    assert 'use="encryption"' in told and PORTAL_CERTIFICATE[:64] in told
    cbc = {"method": xmlsec.Transform.AES256, "bits": 256}
    for number, more in enumerate(({}, cbc)):
        ada = Visitor()
        document = sign(answer(ada.request_id, assertion_id=f"_a{number}"))
        back = ada.returns(encrypt(document, PORTAL_CERTIFICATE, **more))
        assert ada.is_in, text(back)
        # It works once, as a plain one.
        assert ada.returns(document).status_code == 400


def test_a_plain_assertion_still_signs_in(uni):
    ada = Visitor()
    ada.returns(sign(answer(ada.request_id)))
    assert ada.is_in


def with_part(document: etree._Element, path: str, tag: str, **attributes: str):
    etree.SubElement(document.find(path, {**NS, "xenc": XENC}), tag, attributes)
    return document


def twice(document: etree._Element) -> etree._Element:
    holder = document.find("saml:EncryptedAssertion", NS)
    document.append(etree.fromstring(etree.tostring(holder)))
    return document


def beside_a_forged_one(request_id: str) -> etree._Element:
    document = sealed(request_id)
    document.append(answer(request_id).find("saml:Assertion", NS))
    return document


def cut(document: etree._Element) -> etree._Element:
    [*_, value] = document.iter(f"{{{XENC}}}CipherValue")
    value.text = "AAAA" + value.text[4:]
    return document


INFO = ".//xenc:EncryptedData/ds:KeyInfo"
LIES: dict[str, Callable[[str], etree._Element]] = {
    "not signed inside": lambda i: encrypt(answer(i), PORTAL_CERTIFICATE),
    "signed by another key": lambda i: encrypt(
        sign(answer(i), key=OTHER_KEY), PORTAL_CERTIFICATE
    ),
    "for another audience": lambda i: encrypt(
        sign(answer(i, audience="https://other.example")), PORTAL_CERTIFICATE
    ),
    "for another request": lambda i: encrypt(sign(answer("_x")), PORTAL_CERTIFICATE),
    "for another key": lambda i: encrypt(sign(answer(i)), make_key()[1]),
    "changed": lambda i: cut(sealed(i)),
    "twice": lambda i: twice(sealed(i)),
    "beside a forged one": beside_a_forged_one,
    "refers to a file": lambda i: with_part(
        sealed(i),
        ".//xenc:EncryptedData/xenc:CipherData",
        f"{{{XENC}}}CipherReference",
        URI="file:///etc/passwd",
    ),
    "a key elsewhere": lambda i: with_part(
        sealed(i),
        INFO,
        f"{{{NS['ds']}}}RetrievalMethod",
        URI="http://127.0.0.1/",
        Type=f"{XENC}EncryptedKey",
    ),
    "PKCS 1.5": lambda i: sealed(i, key_method=xmlsec.Transform.RSA_PKCS1),
    "triple DES": lambda i: changed_method(sealed(i)),
}


def changed_method(document: etree._Element) -> etree._Element:
    method = next(document.iter(f"{{{XENC}}}EncryptionMethod"))
    method.set("Algorithm", f"{XENC}tripledes-cbc")
    return document


@pytest.mark.parametrize("lie", LIES)
def test_nothing_else_that_is_encrypted_signs_in(uni, lie):
    ada = Visitor()
    back = ada.returns(LIES[lie](ada.request_id))
    assert back.status_code == 502 and not ada.is_in
    assert "passwd" not in text(back)


@pytest.mark.parametrize("lie", ["refers to a file", "a key elsewhere", "twice"])
def test_such_a_document_is_refused_before_it_is_decrypted(uni, lie, monkeypatch):
    from onelogin.saml2 import response

    def decrypt(*_: object, **__: object) -> None:
        raise AssertionError("decrypted")

    monkeypatch.setattr(response.OneLogin_Saml2_Utils, "decrypt_element", decrypt)
    with pytest.raises(encryption_shape.ProviderAnswerInvalid):
        encryption_shape.check_encryption(LIES[lie]("_r"))


def test_without_a_key_an_encrypted_assertion_is_refused(settings, tmp_path, client):
    file = tmp_path / "metadata.xml"
    file.write_text(metadata())
    use(settings, file, sign_up="all")
    assert "encryption" not in text(client.get("/login/saml/metadata/"))
    ada = Visitor()
    assert ada.returns(sealed(ada.request_id)).status_code == 502 and not ada.is_in
