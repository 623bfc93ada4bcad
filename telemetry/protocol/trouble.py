"""The reason why a whole node cannot be read, in one word and one line."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from telemetry.protocol.codec import Line, encode
from telemetry.protocol.message import Instant, NodeMessage, read_as

REASON_LENGTH = 300


class TroubleState(StrEnum):
    """State of a node's driver."""

    OK = "ok"
    NO_RIGHTS = "no_rights"
    """It answers but refuses a part to this node's worker. The reason names the
    part.
    """
    HUNG = "hung"
    """The driver does not answer; the sampling child is killed and replaced."""
    WEDGED = "wedged"
    """The child survives SIGKILL (state D). Only a reboot ends it."""
    NO_DRIVER = "no_driver"
    """Nothing to read: no driver, or one that does not start."""
    NO_GPU = "no_gpu"
    """The driver answers, but there is no Gpu."""
    RELOADING = "reloading"
    """The driver was reloaded and is being started again."""


class NodeTrouble(Struct, frozen=True):
    """The newest report of a node about its driver."""

    node: str
    """Name of the node. Not part of the message, because the stream's name has it."""
    state: TroubleState
    reason: str = ""
    at: float = 0.0
    """Unix seconds, the node's clock."""

    def to_message(self) -> bytes:
        """Return it as compact JSON. A reason that is too long is cut."""
        line = "".join(c if c.isprintable() else " " for c in self.reason)
        return encode(
            TroubleMessage(
                v=1, at=self.at, state=self.state, reason=line[:REASON_LENGTH]
            )
        )


Reason = Annotated[Line, Meta(max_length=REASON_LENGTH)]


class KeptTrouble(Struct, frozen=True):
    """A trouble as it is kept for an ingest that starts later, and for pages."""

    state: TroubleState
    at: Instant
    reason: Reason = ""

    @classmethod
    def read(cls, data: bytes, *, node: str) -> NodeTrouble:
        """Return the trouble of a node. Raises MessageRefused."""
        kept = read_as(cls, data)
        return NodeTrouble(node, kept.state, kept.reason, kept.at)


class TroubleMessage(NodeMessage, frozen=True, kw_only=True, tag="trouble"):
    """A trouble as it is sent."""

    state: TroubleState
    reason: Reason = ""

    def value(self, node: str) -> NodeTrouble:
        """Return the trouble of a node."""
        return NodeTrouble(node, self.state, self.reason, self.at)
