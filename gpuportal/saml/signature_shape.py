"""The shape that a signature of a SAML document must have before it is verified.

The library that verifies signatures reads references and runs transforms before it
looks at the signature value (XML Signature, section 3.2). So a visitor without any key
could let it open files or compute without end. This module allows only what SAML 2.0
Core, sections 5.4.2 to 5.4.4, describes.
"""

from typing import Any

from gpuportal.oidc.kept_answer import ProviderAnswerInvalid

MOST_SIGNATURES = 2
"""One of the answer and one of its assertion."""
MOST_TRANSFORMS = 2
DS = "{http://www.w3.org/2000/09/xmldsig#}"
ENVELOPED = "http://www.w3.org/2000/09/xmldsig#enveloped-signature"
EXCLUSIVE = "http://www.w3.org/2001/10/xml-exc-c14n#"
CANONICAL = frozenset({EXCLUSIVE, f"{EXCLUSIVE}WithComments"})
NOT_NEEDED = ("Object", "Manifest", "RetrievalMethod")


def check_signatures(document: Any) -> None:
    """Refuse a document whose signatures are not of the usual shape.

    Nothing is verified here, and nothing outside of the document is read.

    Args:
        document: the root element of an answer, as lxml has it.

    Raises:
        ProviderAnswerInvalid.
    """
    ids = document.xpath("//@ID")
    if len(set(ids)) != len(ids):
        raise ProviderAnswerInvalid("its answer has an ID twice")
    signatures = list(document.iter(f"{DS}Signature"))
    if len(signatures) > MOST_SIGNATURES:
        raise ProviderAnswerInvalid("its answer has too many signatures")
    for name in NOT_NEEDED:
        if next(document.iter(f"{DS}{name}"), None) is not None:
            raise ProviderAnswerInvalid(f"a signature has the part {name}")
    for signature in signatures:
        _check_signature(signature)


def _check_signature(signature: Any) -> None:
    references = list(signature.iter(f"{DS}Reference"))
    parent = signature.getparent()
    covered = None if parent is None else parent.get("ID")
    if (
        not covered
        or len(references) != 1
        or signature.xpath(".//@URI") != [f"#{covered}"]
    ):
        # The second comparison also finds other elements that name something to read.
        raise ProviderAnswerInvalid("a signature does not cover one element")
    transforms = list(signature.iter(f"{DS}Transform"))
    algorithms = {one.get("Algorithm") for one in transforms}
    if len(transforms) > MOST_TRANSFORMS or not algorithms <= CANONICAL | {ENVELOPED}:
        raise ProviderAnswerInvalid("a signature has a transform that is not allowed")
    methods = list(signature.iter(f"{DS}CanonicalizationMethod"))
    if len(methods) != 1 or methods[0].get("Algorithm") not in CANONICAL:
        raise ProviderAnswerInvalid("a signature has no exclusive canonicalization")
