"""The events of Jobs that a node reports, checked field by field, because nodes are not
trusted.

The message does not name its node. The stream in which it arrived does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from placement.protocol.commands import JobKey
from placement.protocol.node_refusals import FactRefused
from placement.protocol.rendezvous import address_problem
from telemetry.protocol.codec import Malformed, read, to_plain

MOST_TEXT = 400
MOST_DETAIL = 200
MOST_LINES = 60
MOST_LINE = 500
MOST_RUNNING = 1000
MOST_ENDED = 50
MOST_INTEGER = 2**53
MOST_INSTANT = 2**40

Count = Annotated[int, Meta(ge=0, lt=MOST_INTEGER)]
Instant = Annotated[float, Meta(ge=0, lt=MOST_INSTANT)]
"""Unix seconds by the node's clock."""
ExitNumber = Annotated[int, Meta(ge=0, lt=256)]
"""An exit code or a signal."""
Port = Annotated[int, Meta(ge=0, lt=2**16)]


class JobEventKind(StrEnum):
    """An event of a Job on its node."""

    STARTED = "started"
    EXITED = "exited"
    REFUSED = "refused"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class JobFact:
    """One event of one attempt of one Job."""

    job: Count
    attempt: Count
    event: JobEventKind
    at: Instant
    started_at: Instant | None = None
    exit_code: ExitNumber | None = None
    signal: ExitNumber | None = None
    stopped: bool = False
    """It was ended by a person or by the Reservation's end."""
    code: str = ""
    """Reason why the node refused a command; empty for all other events."""
    nonce: str = ""
    reason: str = ""
    log_bytes: Count = 0
    last_lines: tuple[str, ...] = ()
    pid: Count | None = None
    meeting_address: str = ""
    """Address of the rendezvous for the ranks of other nodes; "": none."""
    meeting_port: Port = 0
    key: JobKey | None = None
    """The Job's key; None: the node's worker has no keys yet."""

    def __post_init__(self) -> None:
        """Cut texts to their length, and remove characters that PostgreSQL does not
        store.
        """
        for name in ("code", "nonce", "reason"):
            text = _storable(getattr(self, name))[:MOST_TEXT]
            object.__setattr__(self, name, text)
        lines = (_storable(line)[:MOST_LINE] for line in self.last_lines[-MOST_LINES:])
        object.__setattr__(self, "last_lines", tuple(lines))
        _check_address(self.meeting_address)


@dataclass(frozen=True, slots=True)
class Running:
    """One attempt that the node believes to be running."""

    job: Count
    attempt: Count
    started_at: Instant | None = None
    deadline_at: Instant | None = None
    """The Reservation's end, as the shim knows it."""
    worked_at: Any = None
    """When a kernel of a notebook worked last, as an `Instant`; None: not known. A
    student's program says it, so an invalid one is ignored.
    """
    meeting_address: str = ""
    meeting_port: Port = 0
    key: JobKey | None = None

    def __post_init__(self) -> None:
        """Ignore a ``worked_at`` that is no instant."""
        if type(self.worked_at) not in (int, float) or not (
            0 <= self.worked_at < MOST_INSTANT
        ):
            object.__setattr__(self, "worked_at", None)
        _check_address(self.meeting_address)


@dataclass(frozen=True, slots=True)
class Belief:
    """The Jobs that run on a node or ended there recently, as the node knows them."""

    at: Instant
    running: Annotated[tuple[Running, ...], Meta(max_length=MOST_RUNNING)] = ()
    ended: Annotated[tuple[JobFact, ...], Meta(max_length=MOST_ENDED)] = ()


class ChannelState(StrEnum):
    """State of a node's HTTPS channel to the portal."""

    OK = "ok"
    REFUSED = "refused"
    """The portal does not know the node, or the token is not the node's."""
    DOWN = "down"
    """The portal cannot be reached."""
    TOKEN = "token"
    """The node cannot read its token."""
    ORDER_KEY = "order_key"
    """The node has no order key or a wrong one, so it would refuse every command."""


@dataclass(frozen=True, slots=True)
class ChannelFact:
    """Result of a node's test of its channel."""

    state: ChannelState
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", _storable(self.detail)[:MOST_DETAIL])

    def message(self, at: float) -> dict[str, Any]:
        """Return the message of ``facts.<node>``; ``at`` is Unix time."""
        return {"v": 1, "kind": "channel", "at": at, **to_plain(self)}


KINDS: Mapping[str, type[JobFact | Belief | ChannelFact]] = {
    "job": JobFact,
    "jobs": Belief,
    "channel": ChannelFact,
}


def parse_fact(message: Mapping[str, Any]) -> JobFact | Belief | ChannelFact:
    """Read one message about Jobs or the channel. See ``read_fact``."""
    return read_fact(KINDS, message)


_AFact = TypeVar("_AFact")


def read_fact(kinds: Mapping[str, type[_AFact]], message: Mapping[str, Any]) -> _AFact:
    """Read one message of ``facts.<node>``. Nodes are not trusted.

    Raises:
        FactRefused: the message is invalid or of another kind, with its field.
    """
    kind = message.get("kind")
    if message.get("v") != 1:
        raise FactRefused("v", "not 1")
    if not isinstance(kind, str) or kind not in kinds:
        raise FactRefused("kind", f"none of {', '.join(kinds)}")
    try:
        return read(kinds[kind], message)
    except Malformed as error:
        raise FactRefused(error.field, error.why) from None


def _check_address(address: str) -> None:
    if address and (why := address_problem(address)):
        raise Malformed("meeting_address", why)


def _storable(text: str) -> str:
    """Return text that PostgreSQL accepts: without nulls and halves of surrogate
    pairs.
    """
    return text.replace("\0", "").encode(errors="replace").decode()
