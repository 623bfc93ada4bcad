"""The reasons why a stream is refused or ends, at the portal or on its node."""

from __future__ import annotations

from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence

ENDED = "stream-ended"
LOST = "stream-lost"
BROKEN = "stream-broken"


SENTENCES = {
    ENDED: sentence("The connection has ended."),
    LOST: sentence("The connection to the node was lost."),
    BROKEN: sentence("The connection was broken off."),
}


class StreamRefused(RequestRefused):
    """A stream that cannot be opened, or that has ended."""


def refusal_of(code: str, detail: str) -> StreamRefused:
    """Return the refusal that the other end sent. It may send anything."""
    known = code if code in RequestRefused.statuses else BROKEN
    if not detail or known != code:
        known = known if known in SENTENCES else BROKEN
        return StreamRefused(known, SENTENCES[known])
    return StreamRefused(code, detail)
