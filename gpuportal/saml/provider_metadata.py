"""The metadata of a SAML provider: its address and its certificates.

The metadata are trusted because an operator named their file or https address. The
address is called without redirects, and a federation's list of all providers is too
long for it.
"""

import http.client
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from gpuportal.oidc.kept_answer import (
    KeptAnswer,
    ProviderAnswerInvalid,
    ProviderAway,
)
from reservations.accounts.identities.saml_settings import SamlProvider
from reservations.notifications.webhook_rules import WebhookRefused, parse
from telemetry.web import bounded_call

TIMEOUT_SECONDS = 5.0
MOST_BYTES = 2**20
LONGEST_SECONDS = 86400.0
"""How long metadata are used while new ones cannot be read."""
METADATA_NS = "{urn:oasis:names:tc:SAML:2.0:metadata}"
REDIRECT = "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect"
FOR_EVER = datetime.max.replace(tzinfo=UTC)
_lookups = ThreadPoolExecutor(max_workers=2, thread_name_prefix="saml")


@dataclass(frozen=True)
class ProviderMetadata:
    """The part of the metadata that sign-ins and sign-outs need."""

    sign_in_url: str
    certificates: tuple[str, ...]
    """For signatures, as base64 of DER."""
    ends_at: datetime
    """When the last of them ends."""
    valid_until: datetime = FOR_EVER
    """When the provider no longer vouches for any of this (``validUntil``)."""
    logout_url: str = ""
    """Where people sign out of the provider. "": it has no such address."""
    logout_answer_url: str = ""
    """Where it takes the answers to its own logout requests."""


def metadata_of(provider: SamlProvider) -> ProviderMetadata:
    """Return the metadata, from the last ten minutes if possible.

    Older ones are used while new ones cannot be read, for a day at most and never after
    their ``validUntil``. So a certificate that the provider withdrew is not trusted
    for long.

    Raises:
        ProviderAway, ProviderAnswerInvalid.
    """
    return _kept.setdefault(
        provider,
        KeptAnswer(
            lambda: _read(provider, _text(provider)),
            longest_seconds=LONGEST_SECONDS,
            still_valid=lambda found: datetime.now(UTC) < found.valid_until,
        ),
    ).get()


_kept: dict[SamlProvider, KeptAnswer[ProviderMetadata]] = {}


def _text(provider: SamlProvider) -> bytes:
    if "://" in provider.metadata:
        return _fetched(provider.metadata)
    try:
        with Path(provider.metadata).open("rb") as file:
            found = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ProviderAway(
            f"its metadata cannot be read: {type(error).__name__}"
        ) from error
    if len(found) > MOST_BYTES:
        raise ProviderAnswerInvalid("its metadata are longer than 1 MiB")
    return found


def _fetched(url: str) -> bytes:
    try:
        target = parse(url, loopback_http=url.startswith("http:"))
        endpoint = bounded_call.HostPort(target.secure, target.host, target.port)
        addresses = bounded_call.resolved(
            endpoint, seconds=TIMEOUT_SECONDS, pool=_lookups
        )
        status, body = bounded_call.call(
            bounded_call.PinnedConnection(endpoint, addresses, seconds=TIMEOUT_SECONDS),
            "GET",
            target.path,
            headers={"Accept": "application/samlmetadata+xml, application/xml"},
            seconds=TIMEOUT_SECONDS,
            most_bytes=MOST_BYTES,
        )
    except WebhookRefused as error:
        raise ProviderAnswerInvalid("the address of its metadata is wrong") from error
    except (bounded_call.AnswerTooLong, http.client.HTTPException) as error:
        raise ProviderAnswerInvalid(bounded_call.error_text(error)) from error
    except (OSError, UnicodeError) as error:
        raise ProviderAway(bounded_call.error_text(error)) from error
    if status != 200:
        kind = ProviderAway if status >= 500 else ProviderAnswerInvalid
        raise kind(f"its metadata were answered with status {status}")
    return body


def _read(provider: SamlProvider, text: bytes) -> ProviderMetadata:
    from onelogin.saml2.idp_metadata_parser import OneLogin_Saml2_IdPMetadataParser
    from onelogin.saml2.xml_utils import OneLogin_Saml2_XML

    try:
        root = OneLogin_Saml2_XML.to_etree(text)
        found: dict[str, Any] = OneLogin_Saml2_IdPMetadataParser.parse(
            text, entity_id=provider.issuer
        ).get("idp", {})
        entity = next(
            one
            for one in root.iter(f"{METADATA_NS}EntityDescriptor")
            if one.get("entityID") == provider.issuer
        )
        roles = entity.findall(f"{METADATA_NS}IDPSSODescriptor")
        parts = [*entity.iterancestors(), entity, *roles]
        until = [_instant(x) for one in parts if (x := one.get("validUntil"))]
    except StopIteration as error:
        raise ProviderAnswerInvalid(
            f"its metadata do not name {provider.issuer}"
        ) from error
    except Exception as error:
        # lxml and the toolkit raise a dozen classes for a broken document.
        raise ProviderAnswerInvalid("its metadata cannot be read") from error
    valid_until = min(until, default=FOR_EVER)
    if valid_until <= datetime.now(UTC):
        raise ProviderAnswerInvalid(f"its metadata ended {valid_until:%Y-%m-%d}")
    url = found.get("singleSignOnService", {}).get("url", "")
    _check_url(url)
    several = found.get("x509certMulti", {}).get("signing", [])
    certificates = tuple(several or filter(None, [found.get("x509cert")]))
    if not certificates:
        raise ProviderAnswerInvalid("its metadata have no certificate for signatures")
    ends_at = max(map(_end_of, certificates))
    return ProviderMetadata(
        url, certificates, ends_at, valid_until, *_logout_urls(roles)
    )


def _logout_urls(roles: list[Any]) -> tuple[str, str]:
    """Return the address of the logout, and the one for answers. "": none.

    People can sign in without one, so a wrong one counts as none.
    """
    for role in roles:
        for one in role.findall(f"{METADATA_NS}SingleLogoutService"):
            url = one.get("Location", "")
            urls = url, one.get("ResponseLocation", url)
            if one.get("Binding") == REDIRECT and all(map(_is_safe, urls)):
                return urls
    return "", ""


def _is_safe(url: str) -> bool:
    try:
        parse(url, loopback_http=True)
    except WebhookRefused:
        return False
    return True


def _check_url(url: str) -> None:
    if not _is_safe(url):
        raise ProviderAnswerInvalid(
            "its metadata have no https address for HTTP-Redirect"
        )


def _end_of(certificate: str) -> datetime:
    try:
        der = b64decode(certificate, validate=True)
        return x509.load_der_x509_certificate(der).not_valid_after_utc
    except ValueError as error:
        raise ProviderAnswerInvalid("a certificate of it cannot be read") from error


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
