"""The shape that an encrypted assertion must have before it is decrypted.

Everybody can encrypt for the portal, because its certificate is public. The library
that decrypts can read what an element refers to (XML Encryption 1.1, section 5.5). So
this module allows only parts that refer to nothing outside of the document, and only
algorithms that keep the text secret.
"""

from typing import Any

from gpuportal.oidc.kept_answer import ProviderAnswerInvalid

DS = "{http://www.w3.org/2000/09/xmldsig#}"
XENC = "{http://www.w3.org/2001/04/xmlenc#}"
XENC11 = "{http://www.w3.org/2009/xmlenc11#}"
ASSERTION = "{urn:oasis:names:tc:SAML:2.0:assertion}"
CONTENT = frozenset(
    {
        *(f"http://www.w3.org/2009/xmlenc11#aes{bits}-gcm" for bits in (128, 192, 256)),
        *(f"http://www.w3.org/2001/04/xmlenc#aes{bits}-cbc" for bits in (128, 256)),
    }
)
"""How the assertion is encrypted. AD FS and Entra ID have CBC only."""
KEY = frozenset(
    {
        "http://www.w3.org/2001/04/xmlenc#rsa-oaep-mgf1p",
        "http://www.w3.org/2009/xmlenc11#rsa-oaep",
    }
)
"""How the key of the assertion is encrypted. PKCS #1 v1.5 lets others try keys."""
PARTS = frozenset(
    {
        *(
            f"{XENC}{name}"
            for name in (
                *("EncryptedData", "EncryptedKey", "EncryptionMethod"),
                *("CipherData", "CipherValue", "ReferenceList", "DataReference"),
            )
        ),
        *(
            f"{DS}{name}"
            for name in (
                *("KeyInfo", "DigestMethod", "X509Data", "X509Certificate", "KeyName"),
                *("X509IssuerSerial", "X509IssuerName", "X509SerialNumber", "X509SKI"),
                *("X509SubjectName",),
            )
        ),
        f"{XENC11}MGF",
    }
)


def check_encryption(document: Any) -> bool:
    """Return whether the assertion is encrypted. Nothing is decrypted here.

    Args:
        document: the root element of an answer, as lxml has it.

    Raises:
        ProviderAnswerInvalid: something encrypted has another shape.
    """
    data = list(document.iter(f"{XENC}EncryptedData"))
    holders = list(document.iter(f"{ASSERTION}EncryptedAssertion"))
    if not data and not holders:
        return False
    if (
        len(data) != 1
        or len(holders) != 1
        or holders[0].getparent() is not document
        or data[0].getparent() is not holders[0]
        or next(document.iter(f"{ASSERTION}Assertion"), None) is not None
    ):
        raise ProviderAnswerInvalid("its answer has not one encrypted assertion")
    keys = list(data[0].iter(f"{XENC}EncryptedKey"))
    if len(keys) != 1 or keys[0].getparent() is not data[0].find(f"{DS}KeyInfo"):
        raise ProviderAnswerInvalid("its assertion is not encrypted with one key")
    if {one.tag for one in holders[0].iterdescendants()} - PARTS:
        raise ProviderAnswerInvalid("its encrypted assertion has a part too many")
    for element, allowed in ((data[0], CONTENT), (keys[0], KEY)):
        methods = element.findall(f"{XENC}EncryptionMethod")
        if len(methods) != 1 or methods[0].get("Algorithm") not in allowed:
            raise ProviderAnswerInvalid("its assertion is encrypted by a weak method")
    return True
