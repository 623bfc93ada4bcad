"""What the web tells a node's device gate, and what the gate reports.

An order names the mode and **every** grant of the node, so that one order that arrives
repairs all that were lost. It is signed as the other orders (``signing.py``) and has a
sequence number. A node takes an order only if its number is higher than the last one,
so a replayed order changes nothing. See docs/design/security.md#device-gate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from placement.planner.values.errors import FactRefused, OrderRefused
from placement.protocol.commands import (
    MAX_ORDER_BYTES,
    VERSION,
    Text,
    order_body,
    read_order,
)
from placement.protocol.process_commands import Instant
from telemetry.protocol.codec import Malformed, decode, read, to_plain
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
    """What the operator wants of a node's gate."""

    OPEN = "open"
    """There is no gate."""
    WATCH = "watch"
    """Count who would be refused, and refuse nobody."""
    GATED = "gated"


@dataclass(frozen=True, slots=True)
class HolderGrant:
    """What one reservation opens to its people until its end."""

    users: Annotated[tuple[UnixName, ...], Meta(max_length=MOST_HOLDERS)]
    """Unix names of owner and co-users."""
    gpu_uuids: Annotated[tuple[GpuUuid, ...], Meta(max_length=MOST_GPUS)]
    until: Instant
    """Unix time."""


@dataclass(frozen=True, slots=True)
class GateOrder:
    """The whole state that a node's gate is to have."""

    kind: Literal["gate"]
    node: Text
    sequence: Sequence
    mode: GateMode
    issued_at: Instant
    """Unix time, as ``expires_at``."""
    expires_at: Instant
    """When the order is too old to be taken. What was taken stays in force."""
    grace_seconds: Seconds
    """From TERM to KILL of a process that holds a GPU after the grant's end."""
    grants: Annotated[tuple[HolderGrant, ...], Meta(max_length=MOST_GPUS)] = ()

    def payload(self) -> str:
        """Return the canonical JSON that is signed."""
        body = {"v": VERSION, **asdict(self)}
        return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


class _GateKinded(Struct):
    kind: Literal["gate"]


def is_gate_order(payload: str) -> bool:
    """Return whether a payload names this kind, which says nothing of the rest."""
    try:
        decode(_GateKinded, payload, most_bytes=MAX_ORDER_BYTES)
    except Malformed:
        return False
    return True


def parse_gate_order(payload: str) -> GateOrder:
    """Read an order back; every field is checked.

    Raises:
        OrderRefused: ``malformed`` with the field that is wrong.
    """
    body = order_body(payload)
    if body.pop("v", None) != VERSION:
        raise OrderRefused("malformed", f"not an order of version {VERSION}")
    return read_order(GateOrder, body, VERSION)


class GateState(StrEnum):
    """What a node's gate does."""

    OPEN = "open"
    WATCH = "watch"
    GATED = "gated"
    FAILED = "failed"
    """It does not do what the operator wants; the reason says why."""
    UNAVAILABLE = "unavailable"
    """Kernel or rights are missing, so the node is as without a gate."""


@dataclass(frozen=True, slots=True)
class UserRefusals:
    """How often one user opened a GPU without a grant."""

    uid: Uid
    count: Annotated[int, Meta(ge=1, lt=MOST_COUNT)]
    user: str = ""
    """Unix name; "": the node does not know it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "user", _printable(self.user, MOST_NAME))


@dataclass(frozen=True, slots=True)
class GateFact:
    """What a node reports of its gate."""

    mode: GateMode
    """What the last order wants."""
    state: GateState
    sequence: Sequence
    """Of the last order that was taken."""
    reason: str = ""
    uncovered: Annotated[tuple[str, ...], Meta(max_length=MOST_NAMES)] = ()
    """People that the gate cannot stop: members of ``docker`` or ``sudo``."""
    unknown: Annotated[tuple[str, ...], Meta(max_length=MOST_NAMES)] = ()
    """Unix names of holders that this node does not have."""
    refusals: Annotated[tuple[UserRefusals, ...], Meta(max_length=MOST_NAMES)] = ()
    """The most frequent ones, since the gate was attached."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", _printable(self.reason, MOST_REASON))
        for name in ("uncovered", "unknown"):
            clean = tuple(_printable(one, MOST_NAME) for one in getattr(self, name))
            object.__setattr__(self, name, clean)

    def message(self, at: float) -> dict[str, Any]:
        """Return the message of ``facts.<node>``; ``at`` is Unix time."""
        return {"v": 1, "kind": FACT_KIND, "at": at, **to_plain(self)}


def is_gate_fact(message: Mapping[str, Any]) -> bool:
    """Whether a message of ``facts.<node>`` is of this kind."""
    return message.get("kind") == FACT_KIND


def parse_gate_fact(message: Mapping[str, Any]) -> GateFact:
    """Read one such message: nodes are not trusted.

    Raises:
        FactRefused: which field is wrong.
    """
    if message.get("v") != 1 or not is_gate_fact(message):
        raise FactRefused("kind", "no report of a gate of version 1")
    try:
        return read(GateFact, message)
    except Malformed as error:
        raise FactRefused(error.field, error.why) from None


def _printable(text: str, most: int) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:most]
