"""Why a machine may not join."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from enum import StrEnum
from http import HTTPStatus

from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import joined, sentence


class JoinFault(StrEnum):
    """Reasons to refuse a join token or a request."""

    MISTYPED = "mistyped"
    UNKNOWN = "unknown"
    USED = "used"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    TRIED = "tried"
    NAME = "name"
    UNSIGNED = "unsigned"
    OTHER_KEY = "other-key"


_ANOTHER = sentence("Make another one under Manage, Pools, Add a machine.")
_COPY = sentence("Copy the whole token from Manage, Pools, Add a machine.")
_WORDS = {
    JoinFault.MISTYPED: joined((sentence("This is no join token."), _COPY)),
    JoinFault.UNKNOWN: joined(
        (sentence("The portal does not know this token."), _COPY)
    ),
    JoinFault.USED: joined(
        (
            sentence("This token was used already. It works for one machine, once."),
            _ANOTHER,
        )
    ),
    JoinFault.EXPIRED: joined((sentence("This token has expired."), _ANOTHER)),
    JoinFault.WITHDRAWN: joined((sentence("An admin withdrew this token."), _ANOTHER)),
    JoinFault.TRIED: joined(
        (
            sentence("This token was tried with wrong secrets too often and ended."),
            _ANOTHER,
        )
    ),
    JoinFault.NAME: sentence(
        "A node was enrolled under this name after the token was made. Make a token "
        "that lets it join again."
    ),
    JoinFault.UNSIGNED: sentence(
        "The machine's key did not sign its request. Type the line again."
    ),
    JoinFault.OTHER_KEY: joined(
        (
            sentence(
                "A machine with another key used this token first. If you do not know "
                "that machine, withdraw the token."
            ),
            _ANOTHER,
        )
    ),
}


@dataclass(eq=False)
class JoinRefused(CodedError):
    """A machine may not join with this token."""

    code = "join-refused"
    title = sentence("This machine cannot join")
    status = HTTPStatus.FORBIDDEN
    fault: JoinFault

    def text(self, zone: tzinfo = UTC) -> str:
        return _WORDS[self.fault]
