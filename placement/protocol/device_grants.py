"""The web's commands to a node's device gate, and the gate's reports.

A command names the mode and **every** grant of the node, so that one command that
arrives repairs all that were lost. It is signed like the other commands
(``signing.py``) and has a sequence number. A node accepts a command only if its number
is higher than the last one, so a replayed command changes nothing. See
docs/design/security.md#device-gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from placement.protocol.commands import (
    MAX_ORDER_BYTES,
    PlainOrder,
    Text,
    parse_plain_order,
)
from placement.protocol.events import read_fact
from placement.protocol.process_commands import Instant
from telemetry.protocol.codec import Malformed, decode, to_plain
from telemetry.protocol.hardware import MOST_GPUS, GpuUuid

FACT_KIND = "gate"
MOST_HOLDERS = 64
"""Owner and co-users of one reservation."""
MOST_NAMES = 64
MOST_REASON = 300
MOST_NAME = 64
MOST_COUNT = 2**53
Sequence = Annotated[int, Meta(ge=0, lt=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=3600)]
UnixName = Annotated[Text, Meta(min_length=1, max_length=150)]
Uid = Annotated[int, Meta(ge=0, lt=2**32)]


class GateMode(StrEnum):
    """The mode that the operator chose for a node's gate."""

    OPEN = "open"
    """There is no gate."""
    WATCH = "watch"
    """Count the refusals that would happen, and refuse nobody."""
    GATED = "gated"


@dataclass(frozen=True, slots=True)
class HolderGrant:
    """The Gpus that one reservation opens to its people until its end."""

    users: Annotated[tuple[UnixName, ...], Meta(max_length=MOST_HOLDERS)]
    """Unix names of owner and co-users."""
    gpu_uuids: Annotated[tuple[GpuUuid, ...], Meta(max_length=MOST_GPUS)]
    until: Instant
    """Unix time."""


@dataclass(frozen=True, slots=True)
class GateOrder(PlainOrder):
    """The complete intended state of a node's gate."""

    kind: Literal["gate"]
    node: Text
    sequence: Sequence
    mode: GateMode
    issued_at: Instant
    """Unix time, as ``expires_at``."""
    expires_at: Instant
    """Time after which the command is not accepted. An accepted command stays in
    force.
    """
    grace_seconds: Seconds
    """Seconds from TERM to KILL of a process that holds a GPU after the grant's end."""
    grants: Annotated[tuple[HolderGrant, ...], Meta(max_length=MOST_GPUS)] = ()


class _GateKinded(Struct):
    kind: Literal["gate"]


def is_gate_order(payload: str) -> bool:
    """Return whether a payload names this kind. The rest of it may be invalid."""
    try:
        decode(_GateKinded, payload, most_bytes=MAX_ORDER_BYTES)
    except Malformed:
        return False
    return True


parse_gate_order = partial(parse_plain_order, GateOrder)


class GateState(StrEnum):
    """State of a node's gate."""

    OPEN = "open"
    WATCH = "watch"
    GATED = "gated"
    FAILED = "failed"
    """It does not do what the operator wants. The reason explains why."""
    UNAVAILABLE = "unavailable"
    """Kernel or rights are missing, so the node has no gate."""


@dataclass(frozen=True, slots=True)
class UserRefusals:
    """How often one user opened a GPU without a grant."""

    uid: Uid
    count: Annotated[int, Meta(ge=1, lt=MOST_COUNT)]
    user: str = ""
    """Unix name; "": unknown to the node."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "user", _printable(self.user, MOST_NAME))


@dataclass(frozen=True, slots=True)
class GateFact:
    """A node's report of its gate."""

    mode: GateMode
    """Mode of the last command."""
    state: GateState
    sequence: Sequence
    """Sequence number of the last accepted command."""
    reason: str = ""
    uncovered: Annotated[tuple[str, ...], Meta(max_length=MOST_NAMES)] = ()
    """People whom the gate cannot stop: members of ``docker`` or ``sudo``."""
    unknown: Annotated[tuple[str, ...], Meta(max_length=MOST_NAMES)] = ()
    """Unix names of holders that this node does not have."""
    refusals: Annotated[tuple[UserRefusals, ...], Meta(max_length=MOST_NAMES)] = ()
    """The most frequent ones since the gate was attached."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", _printable(self.reason, MOST_REASON))
        for name in ("uncovered", "unknown"):
            clean = tuple(_printable(one, MOST_NAME) for one in getattr(self, name))
            object.__setattr__(self, name, clean)

    def message(self, at: float) -> dict[str, Any]:
        """Return the message of ``facts.<node>``; ``at`` is Unix time."""
        return {"v": 1, "kind": FACT_KIND, "at": at, **to_plain(self)}


def is_gate_fact(message: Mapping[str, Any]) -> bool:
    """Return whether a message of ``facts.<node>`` is of this kind."""
    return message.get("kind") == FACT_KIND


parse_gate_fact = partial(read_fact, {FACT_KIND: GateFact})


def _printable(text: str, most: int) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:most]
