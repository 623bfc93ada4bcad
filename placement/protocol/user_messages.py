"""The web's messages to the terminals of one Unix user of a node.

A message is signed and sent like an order. The node writes it to the terminals that the
user owns, and to no other. It gives no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, Struct

from placement.protocol.commands import (
    MAX_ORDER_BYTES,
    PlainOrder,
    Text,
    parse_plain_order,
)
from placement.protocol.process_commands import MOST_TEXT, Instant
from placement.protocol.ssh_access import AccountName
from telemetry.protocol.codec import Malformed, decode

KIND = "tell_user"


@dataclass(frozen=True, slots=True)
class UserMessage(PlainOrder):
    """One text for the terminals of a Unix user."""

    kind: Literal["tell_user"]
    node: Text
    nonce: Text
    issued_at: Instant
    """Unix time, as ``expires_at``."""
    expires_at: Instant
    unix_user: AccountName
    text: Annotated[str, Meta(min_length=1, max_length=MOST_TEXT)]


class _Kinded(Struct):
    kind: str


def is_user_message(payload: str) -> bool:
    """Return whether a payload is named a message. The rest may be invalid."""
    try:
        return decode(_Kinded, payload, most_bytes=MAX_ORDER_BYTES).kind == KIND
    except Malformed:
        return False


parse_user_message = partial(parse_plain_order, UserMessage)
