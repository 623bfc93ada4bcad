"""Requests to a SAML provider, and the checks of its assertions.

python3-saml checks the document against the schema, the signature of the assertion and
what it covers, issuer and times. It accepts an assertion that leaves out or only begins
with some values. So this module compares them exactly (SAML 2.0 Profiles, section
4.1.4.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpuportal.oidc.kept_answer import ProviderAnswerInvalid
from gpuportal.saml.encryption_shape import check_encryption
from gpuportal.saml.provider_metadata import ProviderMetadata
from gpuportal.saml.signature_shape import check_signatures
from gpuportal.saml.toolkit_settings import (
    PERSISTENT,
    SECURITY,
    instant,
    plain,
    portal_settings,
    request_data,
    toolkit_settings,
)
from reservations.accounts.identities.provider_sessions import ProviderSession
from reservations.accounts.identities.rules import SignInRefused
from reservations.accounts.identities.saml_settings import (
    SamlProvider,
    names_of_attribute,
)
from telemetry.protocol.sentences import sentence

LONGEST_ANSWER = 2**18
BEARER = "urn:oasis:names:tc:SAML:2.0:cm:bearer"
NAMES = {"saml": "urn:oasis:names:tc:SAML:2.0:assertion"}


@dataclass(frozen=True)
class Assertion:
    """The identity and the attributes of a person in a valid assertion."""

    assertion_id: str
    expires_at: datetime
    claims: Mapping[str, Any]
    """Named as ``read_claims`` reads them. Without groups: the attribute is missing."""
    session: ProviderSession
    """By which the provider may end the session that begins now."""


def sign_in_request(
    provider: SamlProvider, metadata: ProviderMetadata, *, state: str
) -> tuple[str, str]:
    """Return the address to which the browser goes, and the ID of the request."""
    from onelogin.saml2.auth import OneLogin_Saml2_Auth

    auth = OneLogin_Saml2_Auth(
        request_data(provider.back), toolkit_settings(provider, metadata)
    )
    url = auth.login(return_to=state)
    return str(url), str(auth.get_last_request_id())


def portal_metadata(provider: SamlProvider) -> str | bytes:
    """Return the metadata of the portal, for the provider."""
    from onelogin.saml2.settings import OneLogin_Saml2_Settings

    toolkit = OneLogin_Saml2_Settings(
        {
            "strict": True,
            "sp": portal_settings(provider),
            # The key for encryption is in the metadata only if it is wanted.
            "security": {
                **SECURITY,
                "wantAssertionsEncrypted": bool(provider.private_key),
            },
        },
        sp_validation_only=True,
    )
    found: str | bytes = toolkit.get_sp_metadata()
    return found


def read_assertion(
    provider: SamlProvider,
    metadata: ProviderMetadata,
    answer: str,
    *,
    request_id: str,
) -> Assertion:
    """Return what an answer of the provider says, after all checks.

    Args:
        answer: the base64 text that the browser brings.
        request_id: of the request that this browser sent.

    Raises:
        ProviderAnswerInvalid: a check failed.
        SignInRefused: the provider refused the sign-in, or the assertion does not
            identify a person for ever.
    """
    from onelogin.saml2.response import OneLogin_Saml2_Response
    from onelogin.saml2.settings import OneLogin_Saml2_Settings

    if len(answer) > LONGEST_ANSWER:
        raise ProviderAnswerInvalid("its answer is too long")
    toolkit = OneLogin_Saml2_Settings(toolkit_settings(provider, metadata))
    encrypted = _is_encrypted(answer)
    if encrypted and not provider.private_key:
        raise ProviderAnswerInvalid(
            "its assertion is encrypted, and SAML_KEY_FILE is not set"
        )
    try:
        response = OneLogin_Saml2_Response(toolkit, answer)
        check_signatures(response.get_xml_document())
        response.is_valid(
            request_data(provider.back), request_id=request_id, raise_exceptions=True
        )
        document = response.get_xml_document()
        expires_at = _check(document, provider, request_id)
        if provider.entity_id not in response.get_audiences():
            raise ProviderAnswerInvalid("its assertion is for another audience")
        return Assertion(
            assertion_id=response.get_assertion_id(),
            expires_at=expires_at,
            claims=_claims(
                provider,
                response.get_nameid_data(),
                response.get_attributes(),
                response.get_friendlyname_attributes(),
            ),
            session=_session(response),
        )
    except SignInRefused:
        raise
    except Exception as error:
        if encrypted:
            # One text for all, so that nobody learns from it what was decrypted.
            raise ProviderAnswerInvalid(
                "its encrypted assertion is not valid"
            ) from error
        raise _refusal(provider, error) from error


def _session(response: Any) -> ProviderSession:
    name_id = response.get_nameid_data()
    return ProviderSession(
        name=name_id.get("Value") or "",
        format=name_id.get("Format") or "",
        qualifier=name_id.get("NameQualifier") or "",
        portal_qualifier=name_id.get("SPNameQualifier") or "",
        index=response.get_session_index() or "",
    )


def _is_encrypted(answer: str) -> bool:
    """Return whether the assertion of an answer is encrypted.

    Raises:
        ProviderAnswerInvalid: it cannot be read, or must not be decrypted.
    """
    from onelogin.saml2.utils import OneLogin_Saml2_Utils
    from onelogin.saml2.xml_utils import OneLogin_Saml2_XML

    try:
        document = OneLogin_Saml2_XML.to_etree(OneLogin_Saml2_Utils.b64decode(answer))
    except Exception as error:
        raise ProviderAnswerInvalid("its answer cannot be read") from error
    return check_encryption(document)


def _refusal(
    provider: SamlProvider, error: Exception
) -> ProviderAnswerInvalid | SignInRefused:
    """Return what a failed check means for the person."""
    from onelogin.saml2.errors import OneLogin_Saml2_ValidationError

    if isinstance(error, ProviderAnswerInvalid):
        return error
    if not isinstance(error, OneLogin_Saml2_ValidationError):
        # lxml, xmlsec and the toolkit raise a dozen classes for a broken document.
        return ProviderAnswerInvalid("its answer cannot be read")
    if error.code == OneLogin_Saml2_ValidationError.STATUS_CODE_IS_NOT_SUCCESS:
        return SignInRefused(
            sentence("{provider} did not sign you in", provider=provider.name),
            sentence("Try again, or contact its support."),
        )
    return ProviderAnswerInvalid(plain(error))


def _check(document: Any, provider: SamlProvider, request_id: str) -> datetime:
    """Compare exactly what the toolkit does not. Return when the assertion ends.

    The document has one assertion, and its signature is valid.

    Raises:
        ProviderAnswerInvalid.
    """
    if document.get("InResponseTo") != request_id:
        raise ProviderAnswerInvalid("its answer is for another request")
    if document.get("Destination") not in (None, provider.back):
        raise ProviderAnswerInvalid("its answer is for another address")
    now = datetime.now(UTC)
    for one in document.xpath(
        "./saml:Assertion/saml:Subject/saml:SubjectConfirmation"
        "[@Method=$bearer]/saml:SubjectConfirmationData",
        namespaces=NAMES,
        bearer=BEARER,
    ):
        until = instant(one.get("NotOnOrAfter"))
        if (
            one.get("Recipient") == provider.back
            and one.get("InResponseTo") == request_id
            and one.get("NotBefore") is None
            and until is not None
            and until > now
        ):
            return until
    raise ProviderAnswerInvalid("its assertion is old, or for another recipient")


def _claims(
    provider: SamlProvider,
    name_id: Mapping[str, Any],
    by_name: Mapping[str, list[Any]],
    by_friendly_name: Mapping[str, list[Any]],
) -> dict[str, Any]:
    """Return the claims of a valid assertion.

    Raises:
        SignInRefused: the NameID may be another person's one day.
    """

    def values(attribute: str) -> list[str] | None:
        for name in names_of_attribute(attribute):
            if name in by_name:
                return [one for one in by_name[name] if isinstance(one, str)]
        found = by_friendly_name.get(attribute)
        return None if found is None else [x for x in found if isinstance(x, str)]

    def one(attribute: str) -> str:
        return (values(attribute) or [""])[0]

    if provider.id_attribute:
        found = values(provider.id_attribute) or []
        subject = found[0] if len(found) == 1 else ""
    else:
        subject = str(name_id.get("Value") or "").strip()
        if name_id.get("Format") != PERSISTENT:
            raise SignInRefused(
                sentence("The answer of the provider is not valid"),
                sentence(
                    "It does not say who you are by a name that stays yours. The lab "
                    "admin can set SAML_ID_ATTRIBUTE."
                ),
                status=502,
            )
    claims: dict[str, Any] = {
        "sub": subject,
        "username": one(provider.username_attribute),
        "name": one(provider.name_attribute),
        "email": one(provider.mail_attribute),
    }
    for name, attribute in (
        ("unix_user", provider.unix_user_claim),
        ("unix_uid", provider.unix_uid_claim),
    ):
        claims[name] = values(attribute) if attribute else None
    groups = values(provider.groups_claim)
    return claims if groups is None else claims | {"groups": groups}
