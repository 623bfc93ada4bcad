"""The rules of services: scopes, redirect addresses, and claims about people."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from reservations.accounts.identities.identity_source import LOOPBACK
from telemetry.protocol.sentences import Sentence, sentence

OPENID, PROFILE, EMAIL, GROUPS, OFFLINE = (
    *("openid", "profile", "email", "groups"),
    "offline_access",
)
SCOPES = (OPENID, PROFILE, EMAIL, GROUPS, OFFLINE)
"""In the order of pages. OpenID Connect Core 1.0, sections 5.4 and 11, and groups."""
CODE_LASTS = timedelta(seconds=60)
ACCESS_LASTS = timedelta(hours=1)
REFRESH_LASTS = timedelta(days=30)
"""From the sign-in to the service. New refresh tokens do not extend it."""
MOST_REFRESHES = 60
REFRESHES_PERIOD = timedelta(hours=1)
"""A consent gives at most so many new tokens in this time. A token lasts an hour."""
LONGEST_URI = 400
MOST_URIS = 10
_PRINTABLE = re.compile(r"[!-\[\]-~]+")


class RedirectInvalid(Exception):
    """A redirect address cannot be registered. ``why`` is for the operator."""

    def __init__(self, why: Sentence) -> None:
        self.why = why
        super().__init__(why)


def read_redirect_uris(text: str) -> list[str]:
    """Return the addresses of a text, one a line, without repetitions.

    Raises:
        RedirectInvalid: no address, too many, or one that people must not be sent to.
    """
    found = list(dict.fromkeys(line.strip() for line in text.splitlines()))
    uris = [line for line in found if line]
    if not uris:
        raise RedirectInvalid(sentence("Enter at least one address."))
    if len(uris) > MOST_URIS:
        raise RedirectInvalid(
            sentence("Enter at most {most} addresses.", most=MOST_URIS)
        )
    for uri in uris:
        _check_redirect_uri(uri)
    return uris


def _check_redirect_uri(uri: str) -> None:
    """Refuse an address that is not exact, or that others on the way can read.

    RFC 6749, section 3.1.2: absolute, without a fragment. RFC 9700, section 2.1: https,
    except to the person's own machine.
    """
    if len(uri) > LONGEST_URI or not _PRINTABLE.fullmatch(uri) or '"' in uri:
        raise RedirectInvalid(
            sentence(
                "Use at most {most} characters, without spaces, quotes and umlauts.",
                most=LONGEST_URI,
            )
        )
    try:
        parts = urlsplit(uri)
        host, _port = parts.hostname or "", parts.port
    except ValueError as error:
        raise RedirectInvalid(
            sentence("“{uri}” is not a web address.", uri=uri)
        ) from error
    if not host or parts.scheme not in ("https", "http"):
        raise RedirectInvalid(
            sentence("“{uri}” is not a web address. Begin with https://.", uri=uri)
        )
    if parts.scheme == "http" and host not in LOOPBACK:
        raise RedirectInvalid(
            sentence(
                "“{uri}” is not encrypted. Use https://, or http:// to localhost.",
                uri=uri,
            )
        )
    if "*" in uri:
        raise RedirectInvalid(
            sentence("“{uri}” has a *. Addresses are compared exactly.", uri=uri)
        )
    if "#" in uri or parts.username is not None:
        raise RedirectInvalid(
            sentence("“{uri}” must have no # and no user name.", uri=uri)
        )


def granted_scopes(asked: str | None, allowed: Collection[str]) -> list[str] | None:
    """Return the scopes of a request, in the order of ``SCOPES``.

    None: a scope that the service may not ask for, or openid is missing.

    >>> granted_scopes("email openid", ["openid", "profile", "email"])
    ['openid', 'email']
    >>> granted_scopes("openid groups", ["openid"]) is None
    True
    """
    wanted = set((asked or "").split())
    if OPENID not in wanted or not wanted <= set(allowed):
        return None
    return [scope for scope in SCOPES if scope in wanted]


def present_scopes(
    scopes: Iterable[str], *, given: Collection[str], allowed: Collection[str]
) -> list[str]:
    """Return what a token still gives, after the service or the consent has changed.

    Args:
        scopes: of the token.
        given: the scopes to which the person agrees now.
        allowed: the scopes that the service may ask for now.

    >>> present_scopes(["openid", "email"], given=["openid"], allowed=["openid"])
    ['openid']
    """
    return [one for one in scopes if one in given and one in allowed]


def consent_covers(
    given: Iterable[str] | None, asked: Iterable[str], *, public: bool
) -> bool:
    """Return whether a person need not be asked again.

    Args:
        given: the scopes that they agreed to; None: they never did.
        public: the service has no secret, so another program can pretend to be it (RFC
            8252, section 8.6). People are always asked then.
    """
    return given is not None and not public and set(asked) <= set(given)


def sign_in_too_old(
    signed_in_at: datetime, *, prompts: Collection[str], max_age: str, now: datetime
) -> bool:
    """Return whether a person has to sign in to the portal again.

    Args:
        prompts: the words of the parameter ``prompt``.
        max_age: the parameter of this name, in seconds; "": there is none.

    Raises:
        ValueError: ``max_age`` is no number of seconds.
    """
    if "login" in prompts:
        return True
    if not max_age:
        return False
    if not (max_age.isascii() and max_age.isdigit() and len(max_age) <= 9):
        raise ValueError(max_age)
    return now - signed_in_at > timedelta(seconds=int(max_age))


@dataclass(frozen=True)
class OpenidPerson:
    """The facts about a person that services may get."""

    subject: str
    username: str
    """Empty: it is not given away, because the person may have chosen it."""
    name: str
    mail: str
    mail_verified: bool
    """Whether the site vouches for the address."""
    groups: Sequence[str]
    """Names of the accounts under which they may book."""


def claims_of(person: OpenidPerson, scopes: Collection[str]) -> dict[str, Any]:
    """Return the claims that scopes give (OpenID Connect Core 1.0, section 5.1).

    >>> claims_of(OpenidPerson("7", "ada", "Ada", "", False, ["nlp"]), ["groups"])
    {'sub': '7', 'groups': ['nlp']}
    """
    found: dict[str, Any] = {"sub": person.subject}
    if PROFILE in scopes:
        found["name"] = person.name
        if person.username:
            found["preferred_username"] = person.username
    if EMAIL in scopes and person.mail:
        found |= {"email": person.mail, "email_verified": person.mail_verified}
    if GROUPS in scopes:
        found["groups"] = list(person.groups)
    return found
