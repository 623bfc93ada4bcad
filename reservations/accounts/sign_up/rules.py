"""Which mail addresses may sign up, and the user names that they give.

An address is compared in one form: small letters, a domain in ASCII (RFC 5891), and
no part after a plus sign. Otherwise one mailbox would make many people.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from telemetry.protocol.sentences import Sentence, sentence

LONGEST_ADDRESS = 254
"""RFC 5321, section 4.5.3.1.3, without the angle brackets."""
LONGEST_LOCAL = 64
LONGEST_DOMAIN = 253
LINK_LIFE = timedelta(hours=1)
WINDOW = timedelta(hours=1)
MOST_MAILS = 3
"""Most mails to one address within ``WINDOW``."""
MOST_MAILS_IN_ALL = 500
"""Most mails of the site within ``WINDOW``: so many, that a course can sign up, and so
few, that nobody can use the portal to send mails to a whole university."""
LOCAL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_'-]|\.(?!\.))*(?<!\.)")
"""The part before the @. RFC 5321 allows more. Quotes, %, ! and : have a meaning for
old mail servers, which would deliver to another host."""
LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
DOMAIN = re.compile(rf"(?:{LABEL}\.)+(?:[a-z]{{2,63}}|xn--[a-z0-9-]{{1,59}})")
EVERY_SUBDOMAIN = "*."
_Given = TypeVar("_Given")


class AddressInvalid(ValueError):
    """A mail address, or a domain, that cannot be used. The text says why."""

    def __init__(self, why: Sentence) -> None:
        self.why = why
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class MailAddress:
    """A mail address in the form in which addresses are compared."""

    local: str
    domain: str

    def __str__(self) -> str:
        return f"{self.local}@{self.domain}"


def read_address(typed: str) -> MailAddress:
    """Return an address that a visitor typed.

    Raises:
        AddressInvalid: it is no address, or one that cannot sign up.

    >>> str(read_address(" Ada.Lovelace@Example.ORG "))
    'ada.lovelace@example.org'
    >>> str(read_address("ada@exämple.org"))
    'ada@xn--exmple-cua.org'
    """
    text = typed.strip()
    local, at, domain = text.rpartition("@")
    if "+" in local:
        raise AddressInvalid(sentence("Leave out the part from + to @."))
    if (
        not at
        or len(local) > LONGEST_LOCAL
        or not LOCAL.fullmatch(local)
        or not (ascii_form := _ascii_form(domain))
        or len(local) + 1 + len(ascii_form) > LONGEST_ADDRESS
    ):
        raise AddressInvalid(
            sentence("Enter a mail address, such as name@example.org.")
        )
    return MailAddress(local.lower(), ascii_form)


def _ascii_form(typed: str) -> str:
    """Return a domain in small ASCII letters. "": it is none.

    >>> _ascii_form("Uni-KÖLN.de"), _ascii_form("faß.de"), _ascii_form("127.0.0.1")
    ('xn--uni-kln-e1a.de', '', '')
    """
    text = unicodedata.normalize("NFC", typed).lower()
    found = text
    if not text.isascii():
        try:
            found = text.encode("idna").decode("ascii")
            # RFC 3490 maps ß, wide letters and invisible ones to the letters of
            # another domain.
            found = found if found.encode().decode("idna") == text else ""
        except UnicodeError:
            found = ""
    valid = len(found) <= LONGEST_DOMAIN and DOMAIN.fullmatch(found)
    return found if valid else ""


def read_domain(typed: str) -> str:
    """Return an entry of the list of domains.

    Raises:
        AddressInvalid: it is none.

    >>> read_domain("@Example.org"), read_domain("*.example.org")
    ('example.org', '*.example.org')
    """
    text = typed.strip().removeprefix("@")
    every = EVERY_SUBDOMAIN if text.startswith(EVERY_SUBDOMAIN) else ""
    found = _ascii_form(text.removeprefix(EVERY_SUBDOMAIN))
    if not found:
        raise AddressInvalid(
            sentence("Enter a domain, such as example.org or *.example.org.")
        )
    return every + found


def entry_of(domain: str, entries: Mapping[str, _Given]) -> _Given | None:
    """Return what the list of domains has for a domain. None: it may not sign up.

    The domain itself counts before a pattern, and a longer pattern before a shorter.

    >>> entry_of("cs.example.org", {"example.org": 1})
    >>> entry_of("a.cs.example.org", {"*.example.org": 1, "*.cs.example.org": 2})
    2
    """
    if domain in entries:
        return entries[domain]
    labels = domain.split(".")
    for first in range(1, len(labels)):
        pattern = EVERY_SUBDOMAIN + ".".join(labels[first:])
        if pattern in entries:
            return entries[pattern]
    return None


def shown_domain(entry: str) -> str:
    """Return an entry as people know it, with the letters of its language.

    >>> shown_domain("*.xn--exmple-cua.org")
    '*.exämple.org'
    """
    every = entry.startswith(EVERY_SUBDOMAIN)
    text = entry.removeprefix(EVERY_SUBDOMAIN)
    with suppress(UnicodeError):
        text = text.encode().decode("idna")
    return (EVERY_SUBDOMAIN if every else "") + text


def user_names(address: MailAddress) -> tuple[str, str]:
    """Return the user names that an address gives, the best first.

    People do not choose another one, because they could choose that of a colleague.

    >>> user_names(MailAddress("o'brien", "example.org"))
    ('obrien', 'obrien@example.org')
    """
    local = address.local.replace("'", "")
    return local, f"{local}@{address.domain}"
