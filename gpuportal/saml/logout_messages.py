"""Logout messages between the portal and a SAML provider (HTTP-Redirect, both ways).

The signature is of the query string as the browser brings it, and is verified before
anything in it is read (SAML 2.0 Bindings, section 3.4.4.1). python3-saml accepts a
message that leaves out the issuer or the destination. So this module compares them
exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from gpuportal.oidc.kept_answer import ProviderAnswerInvalid
from gpuportal.saml.provider_metadata import ProviderMetadata
from gpuportal.saml.toolkit_settings import (
    instant,
    plain,
    request_data,
    toolkit_settings,
)
from reservations.accounts.identities.provider_sessions import ProviderSession
from reservations.accounts.identities.saml_settings import SamlProvider

LONGEST_QUERY = 2**15
WINDOW = timedelta(minutes=5)
"""How far the time of a message may be from the time here, before or after."""
REQUEST, ANSWER = "SAMLRequest", "SAMLResponse"
SIGNED = ("RelayState", "SigAlg", "Signature")
ALGORITHMS = frozenset(
    f"http://www.w3.org/2001/04/xmldsig-more#rsa-sha{bits}" for bits in (256, 384, 512)
)
PROTOCOL = "{urn:oasis:names:tc:SAML:2.0:protocol}"
ASSERTION = "{urn:oasis:names:tc:SAML:2.0:assertion}"


@dataclass(frozen=True)
class LogoutRequest:
    """A valid request of the provider to end sessions of a person."""

    request_id: str
    made_at: datetime
    name: str
    """The NameID."""
    indexes: tuple[str, ...]
    """Of the sessions at the provider. Empty: all sessions of the person."""
    state: str | None
    """The RelayState, which the answer returns to the provider, or None."""


def can_sign_out(provider: SamlProvider, metadata: ProviderMetadata) -> bool:
    """Return whether there is single logout: an address there and a key here."""
    return bool(provider.private_key and metadata.logout_url)


def logout_request(
    provider: SamlProvider,
    metadata: ProviderMetadata,
    session: ProviderSession,
    *,
    state: str,
) -> tuple[str, str]:
    """Return the address to which the browser goes, and the ID of the request."""
    from onelogin.saml2.logout_request import OneLogin_Saml2_Logout_Request

    auth = _toolkit(provider, metadata)
    request = OneLogin_Saml2_Logout_Request(
        auth.get_settings(),
        name_id=session.name,
        name_id_format=session.format,
        nq=session.qualifier or None,
        spnq=session.portal_qualifier or None,
        # The toolkit writes it into XML as it is.
        session_index=escape(session.index),
    )
    fields = {REQUEST: request.get_request(), "RelayState": state}
    auth.add_request_signature(fields)
    return auth.redirect_to(metadata.logout_url, fields), str(request.id)


def logout_answer(
    provider: SamlProvider, metadata: ProviderMetadata, request: LogoutRequest
) -> str:
    """Return the address to which the browser goes with the answer to a request."""
    from onelogin.saml2.logout_response import OneLogin_Saml2_Logout_Response

    auth = _toolkit(provider, metadata)
    answer = OneLogin_Saml2_Logout_Response(auth.get_settings())
    answer.build(request.request_id)
    fields = {ANSWER: answer.get_response()}
    if request.state is not None:
        fields["RelayState"] = request.state
    auth.add_response_signature(fields)
    return str(auth.redirect_to(metadata.logout_answer_url, fields))


def read_logout_request(
    provider: SamlProvider, metadata: ProviderMetadata, query: str
) -> LogoutRequest:
    """Return the request of a query string, after all checks but that for a replay.

    Raises:
        ProviderAnswerInvalid: a check failed.
    """
    from onelogin.saml2.logout_request import OneLogin_Saml2_Logout_Request

    auth = _toolkit(provider, metadata, query)
    fields = _signed_fields(auth, query, REQUEST)
    try:
        request = OneLogin_Saml2_Logout_Request(auth.get_settings(), fields[REQUEST])
        request.is_valid(request_data(provider.logout), raise_exceptions=True)
        root = _element(request.get_xml())
        made_at = _check_message(root, provider, "LogoutRequest")
        names = root.findall(f"{ASSERTION}NameID")
        if len(names) != 1 or len(names[0]):
            raise ProviderAnswerInvalid("its request has no plain NameID")
        indexes = [one.text or "" for one in root.findall(f"{PROTOCOL}SessionIndex")]
        return LogoutRequest(
            request_id=root.get("ID"),
            made_at=made_at,
            name=request.get_nameid(root),
            indexes=tuple(indexes),
            state=fields.get("RelayState"),
        )
    except Exception as error:
        raise _refusal(error) from error


def read_logout_answer(
    provider: SamlProvider, metadata: ProviderMetadata, query: str, *, request_id: str
) -> bool:
    """Return whether the provider has signed the person out, by its answer.

    Args:
        request_id: of the request that this browser sent.

    Raises:
        ProviderAnswerInvalid: a check failed.
    """
    from onelogin.saml2.constants import OneLogin_Saml2_Constants
    from onelogin.saml2.logout_response import OneLogin_Saml2_Logout_Response

    auth = _toolkit(provider, metadata, query)
    fields = _signed_fields(auth, query, ANSWER)
    try:
        answer = OneLogin_Saml2_Logout_Response(auth.get_settings(), fields[ANSWER])
        answer.is_valid(
            request_data(provider.logout), request_id=request_id, raise_exceptions=True
        )
        _check_message(_element(answer.get_xml()), provider, "LogoutResponse")
        if answer.get_in_response_to() != request_id:
            raise ProviderAnswerInvalid("its answer is for another request")
        status = answer.get_status()
    except Exception as error:
        raise _refusal(error) from error
    return bool(status == OneLogin_Saml2_Constants.STATUS_SUCCESS)


def _toolkit(
    provider: SamlProvider, metadata: ProviderMetadata, query: str = ""
) -> Any:
    """Return the toolkit, which verifies the query string as it came.

    Raises:
        ProviderAnswerInvalid: there is no single logout.
    """
    from onelogin.saml2.auth import OneLogin_Saml2_Auth

    if not can_sign_out(provider, metadata):
        raise ProviderAnswerInvalid(
            "single logout is off: its metadata have no address, or SAML_KEY_FILE is "
            "not set"
        )
    if len(query) > LONGEST_QUERY:
        raise ProviderAnswerInvalid("its message is too long")
    as_it_came = {"query_string": query, "validate_signature_from_qs": True}
    return OneLogin_Saml2_Auth(
        request_data(provider.logout) | as_it_came, toolkit_settings(provider, metadata)
    )


def _signed_fields(auth: Any, query: str, kind: str) -> Mapping[str, str]:
    """Return the fields of a query string whose signature is valid.

    The signature is of the text of the fields. So each must be there once, by its plain
    name, or what is read would not be what was signed.

    Raises:
        ProviderAnswerInvalid.
    """
    plain_names = [part.partition("=")[0] for part in query.split("&")]
    read = parse_qsl(query, keep_blank_values=True)
    fields = dict(read)
    for name in (kind, *SIGNED):
        times = sum(name == other for other, _value in read)
        if times != plain_names.count(name) or times > 1:
            raise ProviderAnswerInvalid(f"its message has the field {name} twice")
    if not all(fields.get(name) for name in (kind, "SigAlg", "Signature")):
        raise ProviderAnswerInvalid("its message is not signed")
    if fields["SigAlg"] not in ALGORITHMS:
        raise ProviderAnswerInvalid("its message is signed by a weak method")
    check = (
        auth.validate_request_signature
        if kind == REQUEST
        else auth.validate_response_signature
    )
    if not check(fields):
        raise ProviderAnswerInvalid("the signature of its message is not valid")
    return fields


def _check_message(root: Any, provider: SamlProvider, tag: str) -> datetime:
    """Compare exactly what the toolkit does not. Return when the message was made.

    Raises:
        ProviderAnswerInvalid.
    """
    issuers = root.findall(f"{ASSERTION}Issuer")
    if root.tag != f"{PROTOCOL}{tag}":
        raise ProviderAnswerInvalid("its message is of another kind")
    if [one.text for one in issuers] != [provider.issuer]:
        raise ProviderAnswerInvalid("its message is of another issuer")
    if root.get("Destination") != provider.logout:
        raise ProviderAnswerInvalid("its message is for another address")
    made_at = instant(root.get("IssueInstant"))
    if made_at is None or abs(datetime.now(UTC) - made_at) > WINDOW:
        raise ProviderAnswerInvalid(
            "its message is more than five minutes old, or the clocks differ"
        )
    return made_at


def _element(text: str | bytes) -> Any:
    from onelogin.saml2.xml_utils import OneLogin_Saml2_XML

    return OneLogin_Saml2_XML.to_etree(text)


def _refusal(error: Exception) -> ProviderAnswerInvalid:
    from onelogin.saml2.errors import OneLogin_Saml2_ValidationError

    if isinstance(error, ProviderAnswerInvalid):
        return error
    if isinstance(error, OneLogin_Saml2_ValidationError):
        return ProviderAnswerInvalid(plain(error))
    # lxml, xmlsec and the toolkit raise a dozen classes for a broken document.
    return ProviderAnswerInvalid("its message cannot be read")
