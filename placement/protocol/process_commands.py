"""The web's commands to a node about the process of an intruder.

There are two kinds, signed and sent like those of Jobs (`commands.py`). `warn` writes
to the terminals of the process's user. `stop_process` ends the process with TERM and,
after a grace period, with KILL. A command names the process by pid, uid, start time and
Gpu. The node checks all four again just before it acts, and never touches root. It
reports the result as one fact of kind `response`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from placement.protocol.commands import (
    MAX_ORDER_BYTES,
    PlainOrder,
    Text,
    parse_plain_order,
)
from placement.protocol.events import read_fact
from placement.protocol.node_refusals import OrderRefused
from telemetry.protocol.codec import Malformed, decode, to_plain

LOWEST_UID = 1000
"""Accounts of people begin here (Debian policy manual, 9.2.2)."""
NOBODY_UID = 65_534
MOST_PID = 2**22
"""Linux' highest pid_max on 64 bits (proc(5))."""
LATEST_AT = 2**40
"""Unix time of the year 36812. A later clock is broken."""
MOST_TEXT = 600
"""Characters of a warning."""
LINE_CHARACTERS = 76
MOST_REASON = 300
Instant = Annotated[float, Meta(ge=0, lt=LATEST_AT)]
"""Unix seconds."""


class ProcessOrderKind(StrEnum):
    """Kind of command."""

    WARN = "warn"
    STOP = "stop_process"


@dataclass(frozen=True, slots=True)
class ProcessOrder(PlainOrder):
    """One command of the web to one node about one process."""

    kind: ProcessOrderKind
    node: Text
    nonce: Text
    issued_at: Instant
    """Unix time, like the two other instants here."""
    expires_at: Instant
    pid: int
    uid: int
    started_at: Instant
    """Start of the process, by the node's clock."""
    gpu_uuid: Text
    grace_seconds: Instant = 30.0
    """Seconds from TERM to KILL."""
    text: Text = ""
    """Text for the terminals."""

    def __post_init__(self) -> None:
        if not 1 < self.pid < MOST_PID:
            raise OrderRefused("malformed", f"pid {self.pid} is no process of a user")
        if self.uid < LOWEST_UID or self.uid == NOBODY_UID:
            raise OrderRefused(
                "protected", f"uid {self.uid} is root or a system account"
            )


class _Kinded(Struct):
    kind: ProcessOrderKind


def kind_of(payload: str) -> ProcessOrderKind | None:
    """Return the kind that a payload names; None if it is no command of this module.

    The rest of the payload may be invalid.
    """
    try:
        return decode(_Kinded, payload, most_bytes=MAX_ORDER_BYTES).kind
    except Malformed:
        return None


parse_process_order = partial(parse_plain_order, ProcessOrder)


def terminal_text(text: str) -> str:
    """A text as a terminal may be shown it: nothing that it would obey.

    >>> terminal_text("stop\\x1b[2J now\\nor else")
    'stop [2J now\\nor else'
    """
    lines = []
    for line in text[:MOST_TEXT].splitlines():
        clean = "".join(c if c.isprintable() else " " for c in line)
        lines += textwrap.wrap(clean, LINE_CHARACTERS) or [""]
    return "\n".join(lines)


# --- the result -----------------------------------------------------------------


class ResponseOutcome(StrEnum):
    """How a response ended on its node."""

    WARNED = "warned"
    NO_TERMINAL = "no terminal"
    """The user has none on this node."""
    STOPPED = "stopped"
    """The process ended after TERM."""
    KILLED = "killed"
    GONE = "gone"
    """It had ended before."""
    REFUSED = "refused"
    """The process differs from that of the command, or the node may not act."""
    FAILED = "failed"
    """The process survived KILL, because it is in a call of the driver."""


@dataclass(frozen=True, slots=True)
class ProcessFact:
    """A node's report of the result of one command of this module."""

    nonce: Annotated[str, Meta(min_length=1, max_length=64)]
    outcome: ResponseOutcome
    at: Instant
    """By the node's clock."""
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.nonce.isalnum():
            raise Malformed("nonce", "not a word of letters and digits")
        clean = "".join(c if c.isprintable() else " " for c in self.reason)
        object.__setattr__(self, "reason", clean[:MOST_REASON])

    def message(self) -> dict[str, Any]:
        """Return it as a message of ``facts.<node>``."""
        return {"v": 1, "kind": "response", **to_plain(self)}


def is_process_fact(message: Mapping[str, Any]) -> bool:
    """Return whether a message of ``facts.<node>`` is of this kind."""
    return message.get("kind") == "response"


parse_process_fact = partial(read_fact, {"response": ProcessFact})
