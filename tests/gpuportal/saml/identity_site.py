"""A SAML identity provider that signs with xmlsec, and that can be told to lie."""

import base64
import functools
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import xmlsec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID
from lxml import etree

from reservations.accounts.identities.provider_settings import LoginSettings
from reservations.accounts.identities.saml_settings import SamlProvider

ISSUER = "https://idp.uni.example/saml"
PORTAL = "https://gpu.example.org"
BACK = f"{PORTAL}/login/saml/back/"
LOGOUT = f"{PORTAL}/login/saml/logout/"
AUDIENCE = f"{PORTAL}/login/saml/metadata/"
NS = {
    "samlp": "urn:oasis:names:tc:SAML:2.0:protocol",
    "saml": "urn:oasis:names:tc:SAML:2.0:assertion",
    "ds": "http://www.w3.org/2000/09/xmldsig#",
}
PERSISTENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent"
ADA: Mapping[str, Sequence[str]] = {
    "urn:oid:0.9.2342.19200300.100.1.1": ["ada"],
    "displayName": ["Ada Lovelace"],
    "urn:oid:0.9.2342.19200300.100.1.3": ["ada@uni.example"],
}


def make_key(days: int = 365) -> tuple[bytes, str]:
    """Return a private key as PEM, and its certificate as base64 of DER."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "idp")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=400))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    der = certificate.public_bytes(serialization.Encoding.DER)
    return pem, base64.b64encode(der).decode()


KEY, CERTIFICATE = make_key()


def metadata(
    certificate: str = CERTIFICATE,
    *,
    entity: str = ISSUER,
    more: str = "",
    url: str = "https://idp.uni.example/sso",
    logout: str = "",
) -> str:
    """Return the metadata of the provider.

    Args:
        logout: the element of single logout, if it has one.
    """
    return f"""<?xml version="1.0"?>
<md:EntityDescriptor xmlns:md="urn:oasis:names:tc:SAML:2.0:metadata"
    xmlns:ds="{NS["ds"]}" entityID="{entity}"{more}>
  <md:IDPSSODescriptor protocolSupportEnumeration="{NS["samlp"]}">
    <md:KeyDescriptor><ds:KeyInfo><ds:X509Data>
      <ds:X509Certificate>{certificate}</ds:X509Certificate>
    </ds:X509Data></ds:KeyInfo></md:KeyDescriptor>{logout}
    <md:SingleSignOnService
      Binding="urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect" Location="{url}"/>
  </md:IDPSSODescriptor>
</md:EntityDescriptor>"""


def use(settings: Any, file: Any, **more: Any) -> SamlProvider:
    """Let people sign in with the provider whose metadata are in a file."""
    provider = SamlProvider(
        **{
            "name": "Uni Example",
            "issuer": ISSUER,
            "metadata": str(file),
            "portal": PORTAL,
            "entity_id": AUDIENCE,
            "groups_claim": "isMemberOf",
            **more,
        }
    )
    settings.LOGIN_SETTINGS = LoginSettings(("password", "saml"), (), (), saml=provider)
    settings.AUTHENTICATION_BACKENDS = [
        "django.contrib.auth.backends.ModelBackend",
        "gpuportal.saml.saml_backend.SamlBackend",
    ]
    return provider


def read_request(url: str) -> tuple[etree._Element, str]:
    """Return the request that a browser brings to the provider, and the RelayState."""
    query = parse_qs(urlsplit(url).query)
    text = zlib.decompress(base64.b64decode(query["SAMLRequest"][0]), -15)
    return etree.fromstring(text), query["RelayState"][0]


def _at(seconds: float) -> str:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def answer(
    request_id: str,
    *,
    attributes: Mapping[str, Sequence[str]] = ADA,
    name_id: str = "8f3a-persistent",
    format: str = PERSISTENT,
    audience: str | None = AUDIENCE,
    recipient: str = BACK,
    destination: str = BACK,
    issuer: str = ISSUER,
    confirmed_id: str | None = None,
    answered_id: str | None = None,
    lasts: float = 300,
    status: str = "Success",
    assertion_id: str = "_a1",
    index: str = "_s1",
) -> etree._Element:
    """Return an answer without a signature. Each value can be a lie."""
    confirmed_id = request_id if confirmed_id is None else confirmed_id
    answered_id = request_id if answered_id is None else answered_id
    only_for = (
        f"<saml:AudienceRestriction><saml:Audience>{audience}</saml:Audience>"
        "</saml:AudienceRestriction>"
        if audience is not None
        else ""
    )
    rows = "".join(
        f'<saml:Attribute Name="{name}">'
        + "".join(f"<saml:AttributeValue>{x}</saml:AttributeValue>" for x in values)
        + "</saml:Attribute>"
        for name, values in attributes.items()
    )
    if rows:
        rows = f"<saml:AttributeStatement>{rows}</saml:AttributeStatement>"
    in_response = f' InResponseTo="{answered_id}"' if answered_id else ""
    confirmed = f' InResponseTo="{confirmed_id}"' if confirmed_id else ""
    return etree.fromstring(
        f"""<samlp:Response xmlns:samlp="{NS["samlp"]}" xmlns:saml="{NS["saml"]}"
 ID="_r{assertion_id}" Version="2.0" IssueInstant="{_at(0)}"{in_response}
 Destination="{destination}"><saml:Issuer>{issuer}</saml:Issuer>
 <samlp:Status><samlp:StatusCode
  Value="urn:oasis:names:tc:SAML:2.0:status:{status}"/></samlp:Status>
 <saml:Assertion ID="{assertion_id}" Version="2.0" IssueInstant="{_at(0)}">
  <saml:Issuer>{issuer}</saml:Issuer><saml:Subject>
  <saml:NameID Format="{format}">{name_id}</saml:NameID>
  <saml:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer">
   <saml:SubjectConfirmationData NotOnOrAfter="{_at(lasts)}"
    Recipient="{recipient}"{confirmed}/>
  </saml:SubjectConfirmation></saml:Subject>
  <saml:Conditions NotBefore="{_at(-60)}" NotOnOrAfter="{_at(lasts)}">{only_for}
  </saml:Conditions>
  <saml:AuthnStatement AuthnInstant="{_at(0)}" SessionIndex="{index}">
   <saml:AuthnContext>
   <saml:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:Password</saml:AuthnContextClassRef>
  </saml:AuthnContext></saml:AuthnStatement>
  {rows}
 </saml:Assertion></samlp:Response>"""
    )


def logout_message(
    tag: str = "LogoutRequest",
    *,
    message_id: str = "_l1",
    issuer: str | None = ISSUER,
    destination: str | None = LOGOUT,
    seconds: float = 0,
    attributes: str = "",
    content: str = "<saml:NameID>8f3a-persistent</saml:NameID>",
) -> str:
    """Return a logout message without a signature. Each value can be a lie."""
    there = f' Destination="{destination}"' if destination else ""
    from_whom = f"<saml:Issuer>{issuer}</saml:Issuer>" if issuer else ""
    return (
        f'<samlp:{tag} xmlns:samlp="{NS["samlp"]}" xmlns:saml="{NS["saml"]}"'
        f' ID="{message_id}" Version="2.0" IssueInstant="{_at(seconds)}"{there}'
        f" {attributes}>{from_whom}{content}</samlp:{tag}>"
    )


@functools.cache
def loaded(key: bytes) -> Any:
    """Return a private key. Its numbers are checked once, which takes long."""
    return serialization.load_pem_private_key(key, None)


def signed_query(
    message: str,
    *,
    kind: str = "SAMLRequest",
    state: str | None = None,
    key: bytes = KEY,
    bits: int = 256,
) -> str:
    """Return the query string of a message by HTTP-Redirect."""
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(message.encode()) + packer.flush()
    method = f"http://www.w3.org/2001/04/xmldsig-more#rsa-sha{bits}"
    fields = {kind: base64.b64encode(packed)}
    if state is not None:
        fields["RelayState"] = state.encode()
    query = urlencode(fields | {"SigAlg": method.encode()})
    digest = {256: hashes.SHA256(), 512: hashes.SHA512()}[bits]
    signature = loaded(key).sign(query.encode(), padding.PKCS1v15(), digest)
    return f"{query}&{urlencode({'Signature': base64.b64encode(signature)})}"


def read_signed(url: str, kind: str, certificate: str) -> tuple[etree._Element, str]:
    """Return the message of the portal and the RelayState. The signature is checked."""
    query = urlsplit(url).query
    fields = parse_qs(query)
    parts = {one.partition("=")[0]: one for one in query.split("&")}
    ordered = [parts[name] for name in (kind, "RelayState", "SigAlg") if name in parts]
    public = x509.load_der_x509_certificate(base64.b64decode(certificate)).public_key()
    public.verify(
        base64.b64decode(fields["Signature"][0]),
        "&".join(ordered).encode(),
        padding.PKCS1v15(),
        hashes.SHA256(),
    )
    text = zlib.decompress(base64.b64decode(fields[kind][0]), -15)
    return etree.fromstring(text), fields.get("RelayState", [""])[0]


def sign(
    document: etree._Element,
    *,
    key: bytes = KEY,
    what: str = "saml:Assertion",
    method: Any = xmlsec.Transform.RSA_SHA256,
    digest: Any = xmlsec.Transform.SHA256,
) -> etree._Element:
    """Sign the assertion, or the whole answer."""
    found = document.xpath(f"//{what}", namespaces=NS)[0]
    signature = xmlsec.template.create(
        found, xmlsec.Transform.EXCL_C14N, method, ns="ds"
    )
    found.insert(1, signature)
    reference = xmlsec.template.add_reference(
        signature, digest, uri=f"#{found.get('ID')}"
    )
    xmlsec.template.add_transform(reference, xmlsec.Transform.ENVELOPED)
    xmlsec.template.add_transform(reference, xmlsec.Transform.EXCL_C14N)
    context = xmlsec.SignatureContext()
    context.key = xmlsec.Key.from_memory(key, xmlsec.KeyFormat.PEM)
    context.register_id(found, "ID")
    context.sign(signature)
    return document


def as_form(document: etree._Element | bytes) -> str:
    """Return an answer as a browser brings it."""
    raw = document if isinstance(document, bytes) else etree.tostring(document)
    return base64.b64encode(raw).decode()


def certificate_as_pem(certificate: str) -> str:
    """Return a certificate of ``make_key`` as PEM."""
    return f"-----BEGIN CERTIFICATE-----\n{certificate}\n-----END CERTIFICATE-----\n"


def encrypt(
    document: etree._Element,
    certificate: str,
    *,
    method: Any = xmlsec.Transform.AES128_GCM,
    key_method: Any = xmlsec.Transform.RSA_OAEP,
    bits: int = 128,
) -> etree._Element:
    """Encrypt the assertion for the holder of a certificate."""
    manager = xmlsec.KeysManager()
    manager.add_key(
        xmlsec.Key.from_memory(
            certificate_as_pem(certificate), xmlsec.KeyFormat.CERT_PEM
        )
    )
    found = document.find("saml:Assertion", NS)
    # A document of its own, so that it keeps its namespaces.
    plain = etree.fromstring(etree.tostring(found))
    data = xmlsec.template.encrypted_data_create(
        plain, method, type=xmlsec.EncryptionType.ELEMENT, ns="xenc"
    )
    xmlsec.template.encrypted_data_ensure_cipher_value(data)
    info = xmlsec.template.encrypted_data_ensure_key_info(data, ns="ds")
    key = xmlsec.template.add_encrypted_key(info, key_method)
    xmlsec.template.encrypted_data_ensure_cipher_value(key)
    context = xmlsec.EncryptionContext(manager)
    context.key = xmlsec.Key.generate(
        xmlsec.KeyData.AES, bits, xmlsec.KeyDataType.SESSION
    )
    sealed = context.encrypt_xml(data, plain)
    holder = etree.Element(f"{{{NS['saml']}}}EncryptedAssertion")
    holder.append(sealed)
    document.replace(found, holder)
    # Read again, because lxml does not find what xmlsec has added by its name.
    return etree.fromstring(etree.tostring(document))
