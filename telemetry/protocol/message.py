"""The common part of all messages of a node's raw stream.

A message is one JSON object with a version ``v``, a ``kind`` and the instant ``at`` by
the node's clock. The classes of messages are Structs, distinguished by ``kind``.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct

from telemetry.protocol.codec import Malformed, decode
from telemetry.protocol.errors import MessageRefused

MESSAGE_MOST_BYTES = 256 * 1024
"""Largest message a node may send."""
LATEST_AT = 32_503_680_000.0
"""The year 3000. A later clock is broken."""
Instant = Annotated[float, Meta(ge=0, le=LATEST_AT)]
"""Unix seconds."""

_Message = TypeVar("_Message")


class NodeMessage(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The fields that every message has."""

    v: Literal[1]
    """Version of the message. Others are refused."""
    at: Instant


def read_as(
    kind: type[_Message], data: bytes | str, *, most_bytes: int = MESSAGE_MOST_BYTES
) -> _Message:
    """Return a value that an untrusted node wrote.

    Raises:
        MessageRefused: the invalid field and the reason.
    """
    try:
        return decode(kind, data, most_bytes=most_bytes)
    except Malformed as error:
        raise MessageRefused(field=error.field, why=error.why) from None
