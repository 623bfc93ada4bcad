"""The settings of python3-saml for the portal and its provider."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from gpuportal.saml.provider_metadata import REDIRECT, ProviderMetadata
from reservations.accounts.identities.saml_settings import SamlProvider

PERSISTENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent"
UNSPECIFIED = "urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified"
POST = "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-POST"
QUOTE = {'"': "&quot;"}
SECURITY: Mapping[str, Any] = {
    "wantAssertionsSigned": True,
    "wantNameId": True,
    "wantAttributeStatement": False,
    "requestedAuthnContext": False,
    "rejectDeprecatedAlgorithm": True,
    "allowRepeatAttributeName": True,
    "allowSingleLabelDomains": True,
}


def portal_settings(provider: SamlProvider) -> dict[str, Any]:
    """Return the part of the settings that describes the portal."""
    logout = {"url": provider.logout, "binding": REDIRECT}
    return {
        "entityId": provider.entity_id,
        "assertionConsumerService": {
            "url": provider.back,
            "binding": POST,
        },
        # Logout messages are signed, so without a key there are none.
        "singleLogoutService": logout if provider.private_key else {},
        "NameIDFormat": UNSPECIFIED if provider.id_attribute else PERSISTENT,
        "x509cert": provider.certificate,
        "privateKey": provider.private_key,
    }


def toolkit_settings(
    provider: SamlProvider, metadata: ProviderMetadata
) -> dict[str, Any]:
    """Return the settings of the toolkit for a provider."""
    logout = {
        # The toolkit writes both into XML as they are.
        "url": escape(metadata.logout_url, QUOTE),
        "responseUrl": escape(metadata.logout_answer_url, QUOTE),
        "binding": REDIRECT,
    }
    return {
        "strict": True,
        "sp": portal_settings(provider),
        "idp": {
            "entityId": provider.issuer,
            "singleSignOnService": {
                "url": metadata.sign_in_url,
                "binding": REDIRECT,
            },
            "singleLogoutService": logout if metadata.logout_url else {},
            "x509certMulti": {"signing": list(metadata.certificates)},
        },
        "security": {
            **SECURITY,
            "wantNameId": not provider.id_attribute,
            "logoutRequestSigned": bool(provider.private_key),
            "logoutResponseSigned": bool(provider.private_key),
        },
    }


def request_data(address: str) -> dict[str, Any]:
    """Return a request as the toolkit reads it, by the address of the settings."""
    parts = urlsplit(address)
    return {
        "https": "on" if parts.scheme == "https" else "off",
        "http_host": parts.netloc,
        "script_name": parts.path,
        "get_data": {},
        "post_data": {},
    }


def instant(text: str | None) -> datetime | None:
    """Return the moment that a document names. None: it names none."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def plain(error: Exception) -> str:
    """Return a sentence of the toolkit without what the answer wrote into it."""
    code = str(error).partition(":")[0]
    return "".join(one for one in code if one.isascii() and one.isprintable())[:120]
