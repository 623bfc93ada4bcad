"""The tokens of a node for the HTTPS channel, as files on the node.

The *enrolment token* comes with the enrolment and stays. With it and its key the node
proves itself and gets a *short token*, which ends after a day. The node makes the
secret of a short token itself, and the portal stores its hash. So an answer that is
lost does no harm: the node sends the same hash again.

A short token is ``gpn1.<enrolment>.<number>.<secret>``. It names the enrolment, so that
it is not used after another one.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

LIFE_SECONDS = 86_400
RENEW_AFTER_SECONDS = LIFE_SECONDS * 2 / 3
_TEXT = re.compile(r"gpn1\.([0-9a-f]{16})\.(\d{1,9})\.[A-Za-z0-9_-]{43}")


class ShortToken(NamedTuple):
    """A short token, and its number since the enrolment. The first one is 1."""

    enrolment: str
    """The start of the hash of the enrolment token."""
    number: int
    text: str


def token_hash(token: str) -> str:
    """Return the stored form of a token (random, so without a salt)."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_short(text: str) -> ShortToken | None:
    """Return a short token. None: the text is not one.

    >>> read_short("secret") is None
    True
    """
    found = _TEXT.fullmatch(text.strip())
    return ShortToken(found[1], int(found[2]), found[0]) if found else None


def start_of(enrolment: str) -> str:
    """Return the start of the hash of an enrolment token, as short tokens have it."""
    return token_hash(enrolment)[:16]
