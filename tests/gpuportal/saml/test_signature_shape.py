"""Signatures that make the verifying library work, before anybody has signed."""

import copy
import os
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from lxml import etree
from onelogin.saml2.response import OneLogin_Saml2_Response

from gpuportal.oidc.kept_answer import ProviderAnswerInvalid
from gpuportal.saml.assertion_reader import read_assertion
from gpuportal.saml.provider_metadata import ProviderMetadata
from reservations.accounts.identities.saml_settings import SamlProvider
from tests.gpuportal.saml.identity_site import (
    AUDIENCE,
    CERTIFICATE,
    ISSUER,
    NS,
    PORTAL,
    answer,
    as_form,
    sign,
)

EXCLUSIVE = "http://www.w3.org/2001/10/xml-exc-c14n#"
SIGNED = sign(answer("_q"))
METADATA = ProviderMetadata(
    "https://idp.uni.example/sso", (CERTIFICATE,), datetime(2100, 1, 1, tzinfo=UTC)
)
PROVIDER = SamlProvider(
    name="Uni", issuer=ISSUER, metadata="-", portal=PORTAL, entity_id=AUDIENCE
)


def part(document: Any, name: str) -> Any:
    return next(document.iter(f"{{{NS['ds']}}}{name}"))


def add(document: Any, where: str, name: str, **attributes: str) -> Any:
    parent = part(document, where)
    return etree.SubElement(parent, f"{{{NS['ds']}}}{name}", attributes)


def second_reference(document: Any, file: str) -> None:
    more = copy.deepcopy(part(document, "Reference"))
    more.set("URI", file)
    part(document, "SignedInfo").append(more)


def xpath_filter(document: Any, _file: str) -> None:
    there = part(document, "Transform")
    there.set("Algorithm", "http://www.w3.org/TR/1999/REC-xpath-19991116")
    etree.SubElement(there, f"{{{NS['ds']}}}XPath").text = "count(//*//*//*//*)"


def stylesheet(document: Any, _file: str) -> None:
    there = part(document, "Transform")
    there.set("Algorithm", "http://www.w3.org/TR/1999/REC-xslt-19991116")
    etree.SubElement(there, "{http://www.w3.org/1999/XSL/Transform}stylesheet")


def nine_signatures(document: Any, _file: str) -> None:
    for _ in range(8):
        document.append(copy.deepcopy(part(document, "Signature")))


ONE, TRANSFORM = "does not cover one element", "transform that is not allowed"
ATTACKS: dict[str, tuple[Any, str]] = {
    "a second reference": (second_reference, ONE),
    "a file": (lambda d, f: part(d, "Reference").set("URI", f), ONE),
    "the whole document": (lambda d, f: part(d, "Reference").set("URI", ""), ONE),
    "a pointer": (
        lambda d, f: part(d, "Reference").set("URI", "#xpointer(id('_a1'))"),
        ONE,
    ),
    "another element": (lambda d, f: part(d, "Reference").set("URI", "#_r_a1"), ONE),
    "a signature without a parent's ID": (
        lambda d, f: d.find("saml:Issuer", NS).append(
            copy.deepcopy(part(d, "Signature"))
        ),
        ONE,
    ),
    "an address in the key": (
        lambda d, f: add(d, "Signature", "KeyInfo").append(
            etree.Element(
                "{http://www.w3.org/2001/04/xmlenc#}CipherReference", {"URI": f}
            )
        ),
        ONE,
    ),
    "XPath": (xpath_filter, TRANSFORM),
    "XSLT": (stylesheet, TRANSFORM),
    "base64": (
        lambda d, f: part(d, "Transform").set("Algorithm", f"{NS['ds']}base64"),
        TRANSFORM,
    ),
    "many transforms": (
        lambda d, f: add(d, "Transforms", "Transform", Algorithm=EXCLUSIVE),
        TRANSFORM,
    ),
    "inclusive canonicalization": (
        lambda d, f: part(d, "CanonicalizationMethod").set(
            "Algorithm", "http://www.w3.org/TR/2001/REC-xml-c14n-20010315"
        ),
        "no exclusive canonicalization",
    ),
    "an object": (lambda d, f: add(d, "Signature", "Object"), "the part Object"),
    "a manifest": (lambda d, f: add(d, "Signature", "Manifest"), "the part Manifest"),
    "a key elsewhere": (
        lambda d, f: add(d, "Signature", "RetrievalMethod", URI=f),
        "the part RetrievalMethod",
    ),
    "nine signatures": (nine_signatures, "too many signatures"),
}


@pytest.fixture
def verified(monkeypatch):
    """Let nothing be verified, so that no attack can let the test wait."""

    def is_valid(*_args: Any, **_values: Any) -> None:
        raise ProviderAnswerInvalid("it would be verified")

    monkeypatch.setattr(OneLogin_Saml2_Response, "is_valid", is_valid)


def refusal(document: Any) -> str:
    with pytest.raises(ProviderAnswerInvalid) as refused:
        read_assertion(PROVIDER, METADATA, as_form(document), request_id="_q")
    return str(refused.value)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.usefixtures("verified")
def test_a_signature_that_would_make_us_work_is_not_verified(attack, tmp_path):
    # A program that opens this file waits for a writer.
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    change, why = ATTACKS[attack]
    document = copy.deepcopy(SIGNED)
    change(document, fifo.as_uri())
    assert re.search(why, refusal(document))


@pytest.mark.usefixtures("verified")
def test_usual_signatures_are_verified():
    both = sign(copy.deepcopy(SIGNED), what="samlp:Response")
    for document in (SIGNED, both, answer("_q")):
        assert refusal(document) == "it would be verified"
