"""What the web tells a node to do about one process that is an intruder.

Two kinds beside those of Jobs (`commands.py`), signed and sent alike: `warn` writes
to the terminals of the process's user, `stop_process` ends the process, with TERM
and after a grace with KILL. An order names the process by pid, uid and start time
and the Gpu it is on; the node checks all four again just before it acts, and never
touches root. What came of it returns as one fact of kind `response`.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from placement.planner.values.errors import FactRefused, OrderRefused
from placement.protocol.commands import MAX_ORDER_BYTES, VERSION

LOWEST_UID = 1000
"""Accounts of people begin here (Debian policy manual, 9.2.2)."""
NOBODY_UID = 65_534
MOST_PID = 2**22
"""Linux' ceiling of pid_max on 64 bits (proc(5))."""
LATEST_AT = 2**40
"""Unix time of the year 36812: a clock beyond it is broken."""
MOST_TEXT = 600
"""Characters of a warning."""
LINE_CHARACTERS = 76
MOST_REASON = 300


class ProcessOrderKind(StrEnum):
    """What to do."""

    WARN = "warn"
    STOP = "stop_process"


KINDS = frozenset(kind.value for kind in ProcessOrderKind)


@dataclass(frozen=True)
class ProcessOrder:
    """One order of the web to one node about one process."""

    kind: ProcessOrderKind
    node: str
    nonce: str
    issued_at: float
    """Unix time, as the two other instants here."""
    expires_at: float
    pid: int
    uid: int
    started_at: float
    """When the process started, by the node's clock."""
    gpu_uuid: str
    grace_seconds: float = 30.0
    """From TERM to KILL."""
    text: str = ""
    """What the terminals are to show."""

    def __post_init__(self) -> None:
        if not 1 < self.pid < MOST_PID:
            raise OrderRefused("malformed", f"pid {self.pid} is no process of a user")
        if self.uid < LOWEST_UID or self.uid == NOBODY_UID:
            raise OrderRefused(
                "protected", f"uid {self.uid} is root or a system account"
            )

    def payload(self) -> str:
        """Return the canonical JSON that is signed."""
        body = {"v": VERSION, **asdict(self)}
        return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def kind_of(payload: str) -> str | None:
    """Return the kind that a payload names; None: it is no order of this file.

    Says nothing about whether the rest of it is in order.
    """
    try:
        body = json.loads(payload[:MAX_ORDER_BYTES])
    except (ValueError, RecursionError):
        return None
    kind = body.get("kind") if isinstance(body, dict) else None
    return kind if isinstance(kind, str) and kind in KINDS else None


def parse_process_order(payload: str) -> ProcessOrder:
    """Read an order back; every field is checked.

    Raises:
        OrderRefused: ``malformed`` with the field that is wrong, ``protected``.
    """
    if len(payload.encode()) > MAX_ORDER_BYTES:
        raise OrderRefused("malformed", f"larger than {MAX_ORDER_BYTES} bytes")
    try:
        body = json.loads(payload)
    except ValueError as error:
        raise OrderRefused("malformed", "not JSON") from error
    if not isinstance(body, dict) or body.pop("v", None) != VERSION:
        raise OrderRefused("malformed", f"not an order of version {VERSION}")
    known = {item.name for item in fields(ProcessOrder)}
    if set(body) != known:
        wrong = sorted(set(body) ^ known)
        raise OrderRefused("malformed", f"unknown or missing fields {wrong}")
    for name in ("issued_at", "expires_at", "started_at", "grace_seconds"):
        value = body[name]
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not 0 <= value < LATEST_AT:  # NaN too
            raise OrderRefused("malformed", f"{name} is no time")
    for name in ("node", "nonce", "gpu_uuid", "text"):
        if not isinstance(body[name], str) or "\0" in body[name]:
            raise OrderRefused("malformed", f"{name} is no text")
    for name in ("pid", "uid"):
        if type(body[name]) is not int:
            raise OrderRefused("malformed", f"{name} is no number")
    try:
        kind = ProcessOrderKind(body["kind"])
    except ValueError as error:
        raise OrderRefused("malformed", "unknown kind") from error
    return ProcessOrder(**{**body, "kind": kind})


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


# --- what came of it ------------------------------------------------------------


class ResponseOutcome(StrEnum):
    """How a response ended on its node."""

    WARNED = "warned"
    NO_TERMINAL = "no terminal"
    """The user has none on this node."""
    STOPPED = "stopped"
    """The process ended by itself after TERM."""
    KILLED = "killed"
    GONE = "gone"
    """It had ended before anything was done."""
    REFUSED = "refused"
    """The node found something else than the order said, or may not act."""
    FAILED = "failed"
    """The process outlived KILL: it sits in the driver."""


@dataclass(frozen=True)
class ProcessFact:
    """What a node says came of one order of this file."""

    nonce: str
    outcome: ResponseOutcome
    at: float
    """Unix time by the node's clock."""
    reason: str = ""

    def message(self) -> dict[str, Any]:
        """Return it as a message of ``facts.<node>``."""
        return {"v": 1, "kind": "response", **asdict(self)}


def is_process_fact(message: Mapping[str, Any]) -> bool:
    """Whether a message of ``facts.<node>`` is one of these."""
    return message.get("kind") == "response"


def parse_process_fact(message: Mapping[str, Any]) -> ProcessFact:
    """Read one such message: nodes are not trusted.

    Raises:
        FactRefused: which field is wrong.
    """
    if message.get("v") != 1 or not is_process_fact(message):
        raise FactRefused("kind", "no response of version 1")
    nonce, reason = message.get("nonce"), message.get("reason", "")
    if not isinstance(nonce, str) or not nonce.isalnum() or len(nonce) > 64:
        raise FactRefused("nonce", "no word of letters and digits")
    if not isinstance(reason, str):
        raise FactRefused("reason", "no text")
    at = message.get("at")
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise FactRefused("at", "no time")
    if not 0 <= at < LATEST_AT:  # NaN too
        raise FactRefused("at", "no time")
    try:
        outcome = ResponseOutcome(message.get("outcome"))  # type: ignore[arg-type]
    except ValueError as error:
        raise FactRefused("outcome", "unknown") from error
    clean = "".join(c if c.isprintable() else " " for c in reason)[:MOST_REASON]
    return ProcessFact(nonce=nonce, outcome=outcome, at=float(at), reason=clean)
