"""The SAML identity provider of the site, read from the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from reservations.accounts.identities.identity_source import (
    LOOPBACK,
    IdentitySource,
    SettingMissing,
    SourceVariables,
)

KEY = "saml"
PREFIX = "SAML_"
LONGEST_ENTITY = 400
LEAST_KEY_BITS = 2048
ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9:._/-]{0,254}")
BACK, METADATA = "/login/saml/back/", "/login/saml/metadata/"
LOGOUT = "/login/saml/logout/"
OIDS: Mapping[str, str] = {
    "uid": "urn:oid:0.9.2342.19200300.100.1.1",
    "mail": "urn:oid:0.9.2342.19200300.100.1.3",
    "cn": "urn:oid:2.5.4.3",
    "uidNumber": "urn:oid:1.3.6.1.1.1.1.0",
    "displayName": "urn:oid:2.16.840.1.113730.3.1.241",
    "eduPersonAffiliation": "urn:oid:1.3.6.1.4.1.5923.1.1.1.1",
    "eduPersonPrincipalName": "urn:oid:1.3.6.1.4.1.5923.1.1.1.6",
    "eduPersonEntitlement": "urn:oid:1.3.6.1.4.1.5923.1.1.1.7",
    "isMemberOf": "urn:oid:1.3.6.1.4.1.5923.1.5.1.1",
    "subject-id": "urn:oasis:names:tc:SAML:attribute:subject-id",
    "pairwise-id": "urn:oasis:names:tc:SAML:attribute:pairwise-id",
}
"""Names that assertions have for what people call by a short one (eduPerson, and the
SAML V2.0 Subject Identifier Attributes Profile)."""


@dataclass(frozen=True, kw_only=True)
class SamlProvider(IdentitySource):
    """A SAML 2.0 identity provider. Its entity ID is the issuer of identities."""

    key: str = KEY
    metadata: str
    """An https address, or the path of a file."""
    portal: str
    """The address of the portal, without a slash at the end."""
    entity_id: str
    """The portal's own name at the provider."""
    id_attribute: str = ""
    """Identifies a person. "": the NameID does."""
    username_attribute: str = "uid"
    name_attribute: str = "displayName"
    mail_attribute: str = "mail"
    private_key: str = field(default="", repr=False)
    """PEM. Opens encrypted assertions and signs logout messages. "": neither."""
    certificate: str = ""
    """PEM. The provider encrypts for it, and verifies logout messages with it."""

    @property
    def back(self) -> str:
        """The address at which the portal takes assertions."""
        return self.portal + BACK

    @property
    def logout(self) -> str:
        """The address at which the portal takes logout messages."""
        return self.portal + LOGOUT


def names_of_attribute(name: str) -> tuple[str, ...]:
    """Return the names under which an assertion may have an attribute.

    >>> names_of_attribute("mail")
    ('mail', 'urn:oid:0.9.2342.19200300.100.1.3')
    >>> names_of_attribute("groups")
    ('groups',)
    """
    return (name, OIDS[name]) if name in OIDS else (name,)


def read_saml(
    environ: Mapping[str, str],
    read_file: Callable[[str], str],
    *,
    production: bool,
) -> SamlProvider:
    """Read the variables that begin with `SAML_`, and `PORTAL_URL`.

    Raises:
        SettingMissing: one is missing or invalid.
    """
    variables = SourceVariables(PREFIX, environ, read_file)
    value = variables.value
    portal = environ.get("PORTAL_URL", "").strip().rstrip("/")
    if not _is_safe(portal, production=production) or urlsplit(portal).path:
        raise SettingMissing(
            "LOGIN=saml needs PORTAL_URL, the https address of the portal without a "
            "path"
        )
    issuer = value("ENTITY_ID")
    if not issuer:
        raise SettingMissing(
            "SAML_ENTITY_ID is not set: the name of the provider, as its metadata says"
        )
    if len(issuer) > LONGEST_ENTITY or not re.fullmatch(r"[!#-&(-;=?-~]+", issuer):
        raise SettingMissing(
            f"SAML_ENTITY_ID: it has more than {LONGEST_ENTITY} characters, a space or "
            "a quote"
        )
    metadata = value("METADATA")
    if not metadata:
        raise SettingMissing(
            "SAML_METADATA is not set: the address or the file of the provider's "
            "metadata"
        )
    if "://" in metadata and not _is_safe(metadata, production=production):
        raise SettingMissing("SAML_METADATA: it must begin with https://, or be a file")
    if "://" not in metadata and not metadata.startswith("/"):
        raise SettingMissing("SAML_METADATA: the path of a file begins with /")
    private_key, certificate = _key_pair(variables)
    return SamlProvider(
        private_key=private_key,
        certificate=certificate,
        name=value("NAME") or urlsplit(issuer).hostname or KEY,
        issuer=issuer,
        metadata=metadata,
        portal=portal,
        entity_id=value("PORTAL_ENTITY_ID") or portal + METADATA,
        id_attribute=_attribute(variables, "ID_ATTRIBUTE", ""),
        username_attribute=_attribute(variables, "USERNAME_ATTRIBUTE", "uid"),
        name_attribute=_attribute(variables, "NAME_ATTRIBUTE", "displayName"),
        mail_attribute=_attribute(variables, "MAIL_ATTRIBUTE", "mail"),
        groups_claim=_attribute(variables, "GROUPS_ATTRIBUTE", "isMemberOf"),
        **_unix_attributes(variables),
        sign_up=variables.sign_up(),
        match_usernames=variables.switch("MATCH_USERNAMES"),
    )


def _key_pair(variables: SourceVariables) -> tuple[str, str]:
    """Return key and certificate of the file that `SAML_KEY_FILE` names, as PEM.

    Raises:
        SettingMissing: it has not one of each that belong together.
    """
    if not variables.value("KEY") and not variables.value("KEY_FILE"):
        return "", ""
    # Only here, because most sites have no such key.
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.x509 import load_pem_x509_certificate

    text = variables.secret("KEY").encode()
    try:
        key = serialization.load_pem_private_key(text, password=None)
        certificate = load_pem_x509_certificate(text)
    except (ValueError, TypeError) as error:
        raise SettingMissing(
            "SAML_KEY_FILE: it has no private key without a password, or no "
            "certificate, as PEM"
        ) from error
    if not isinstance(key, RSAPrivateKey) or key.key_size < LEAST_KEY_BITS:
        raise SettingMissing(f"SAML_KEY_FILE: use RSA with {LEAST_KEY_BITS} bits")
    if certificate.public_key() != key.public_key():
        raise SettingMissing("SAML_KEY_FILE: the certificate is of another key")
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.TraditionalOpenSSL
    pem = serialization.Encoding.PEM
    return (
        key.private_bytes(pem, form, plain).decode(),
        certificate.public_bytes(pem).decode(),
    )


def _attribute(variables: SourceVariables, name: str, default: str) -> str:
    found = variables.value(name, default)
    if found and not ATTRIBUTE.fullmatch(found):
        raise SettingMissing(f"SAML_{name}: {found[:80]} is not the name of one")
    return found


def _unix_attributes(variables: SourceVariables) -> dict[str, str]:
    for name in ("UNIX_USER_ATTRIBUTE", "UNIX_UID_ATTRIBUTE"):
        _attribute(variables, name, "")
    return variables.unix_claims(
        "ATTRIBUTE", variables.value("USERNAME_ATTRIBUTE", "uid")
    )


def _is_safe(url: str, *, production: bool) -> bool:
    """Return whether it is an https address, or a plain one of this machine."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return False
    plain = parts.scheme == "http" and host in LOOPBACK and not production
    whole = not parts.fragment and "@" not in parts.netloc
    return bool(host) and (parts.scheme == "https" or plain) and whole
