"""What keeps a whole node from being read, told in one word and one line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from telemetry.protocol.fields import (
    LATEST_AT,
    MESSAGE_VERSION,
    Fields,
    dump_object,
)

REASON_LENGTH = 300


class TroubleState(StrEnum):
    """How a node's driver is doing."""

    OK = "ok"
    NO_RIGHTS = "no_rights"
    """It answers and refuses a part to this node's worker; the reason says which."""
    HUNG = "hung"
    """The driver does not answer; the sampling child is killed and replaced."""
    WEDGED = "wedged"
    """The child survives SIGKILL (state D): only a reboot ends it."""
    NO_DRIVER = "no_driver"
    """Nothing to read: no driver, or one that does not start."""
    NO_GPU = "no_gpu"
    """There is a driver that answers, and no Gpu."""
    RELOADING = "reloading"
    """The driver was reloaded and is being started anew."""


@dataclass(frozen=True, slots=True)
class NodeTrouble:
    """The newest word of a node about its driver."""

    node: str
    """Whose it is. Not part of the message: the stream's name says it."""
    state: TroubleState
    reason: str = ""
    at: float = 0.0
    """Unix seconds, the node's clock."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "v": MESSAGE_VERSION,
            "kind": "trouble",
            "at": self.at,
            "state": self.state.value,
            "reason": self.reason,
        }

    def to_message(self) -> bytes:
        """As compact JSON; a reason that is too long is cut."""
        line = "".join(c if c.isprintable() else " " for c in self.reason)
        return dump_object({**self.to_dict(), "reason": line[:REASON_LENGTH]})

    @classmethod
    def from_fields(cls, fields: Fields, *, node: str = "") -> NodeTrouble:
        """Read it from its JSON object. Raises MessageRefused."""
        return cls(
            node=node,
            at=fields.number("at", most=LATEST_AT),
            state=fields.one_of("state", TroubleState),
            reason=fields.text_or_none("reason", most=REASON_LENGTH) or "",
        )
