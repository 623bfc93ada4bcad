"""What a node says of Jobs, checked field by field: nodes are not trusted.

Which node speaks is not in the message: it is the stream that it came in on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from placement.planner.values.errors import FactRefused
from placement.protocol.commands import KEY
from placement.protocol.rendezvous import address_problem

MOST_TEXT = 400
MOST_DETAIL = 200
MOST_LINES = 20
MOST_LINE = 500
MOST_RUNNING = 1000
MOST_ENDED = 50
MOST_INTEGER = 2**53


class JobEventKind(StrEnum):
    """What happened to a Job on its node."""

    STARTED = "started"
    EXITED = "exited"
    REFUSED = "refused"
    LOST = "lost"


@dataclass(frozen=True)
class JobFact:
    """One thing that happened to one attempt of one Job."""

    job: int
    attempt: int
    event: JobEventKind
    at: float
    """Unix time by the node's clock."""
    started_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False
    """Ended because somebody or the Reservation's end said so."""
    code: str = ""
    """Why an order was refused at the door; empty for all else."""
    nonce: str = ""
    reason: str = ""
    log_bytes: int = 0
    last_lines: tuple[str, ...] = ()
    pid: int | None = None
    meeting_address: str = ""
    """Where the ranks of other nodes are to come; "": nowhere."""
    meeting_port: int = 0
    key: str | None = None
    """The Job's own key; None: a node whose worker knows of none."""


@dataclass(frozen=True)
class Running:
    """One attempt that the node believes to run."""

    job: int
    attempt: int
    started_at: float | None
    deadline_at: float | None
    """The Reservation's end as the shim knows it."""
    meeting_address: str = ""
    meeting_port: int = 0
    key: str | None = None


@dataclass(frozen=True)
class Belief:
    """What a node believes runs, and what ended there lately."""

    at: float
    running: tuple[Running, ...]
    ended: tuple[JobFact, ...]


class ChannelState(StrEnum):
    """How a node's HTTPS channel to the portal is."""

    OK = "ok"
    REFUSED = "refused"
    """The portal does not know the node, or the token is not the node's."""
    DOWN = "down"
    """The portal cannot be reached."""
    TOKEN = "token"
    """The node cannot read its token."""
    ORDER_KEY = "order_key"
    """The node has no order key, or not the portal's: it would refuse every order."""


@dataclass(frozen=True)
class ChannelFact:
    """What a node found when it tried its channel."""

    state: ChannelState
    detail: str = ""

    def message(self, at: float) -> dict[str, Any]:
        """Return the message of ``facts.<node>``; ``at`` is Unix time."""
        told = {"state": self.state.value, "detail": self.detail[:MOST_DETAIL]}
        return {"v": 1, "kind": "channel", "at": at, **told}


def parse_fact(message: Mapping[str, Any]) -> JobFact | Belief | ChannelFact:
    """Read one message of ``facts.<node>``.

    Raises:
        FactRefused: it is none, and which field is wrong.
    """
    if message.get("v") != 1:
        raise FactRefused("v", "not 1")
    if message.get("kind") == "job":
        return _job_fact(message)
    if message.get("kind") == "channel":
        return _channel_fact(message)
    if message.get("kind") != "jobs":
        raise FactRefused("kind", "none of job, jobs and channel")
    return Belief(
        at=_time(message, "at"),
        running=tuple(
            Running(
                job=_count(item, "job"),
                attempt=_count(item, "attempt"),
                started_at=_maybe_time(item, "started_at"),
                deadline_at=_maybe_time(item, "deadline_at"),
                meeting_address=_address(item),
                meeting_port=_port(item),
                key=_key(item),
            )
            for item in _objects(message, "running", MOST_RUNNING)
        ),
        ended=tuple(_job_fact(item) for item in _objects(message, "ended", MOST_ENDED)),
    )


def _channel_fact(body: Mapping[str, Any]) -> ChannelFact:
    try:
        state = ChannelState(body.get("state"))  # type: ignore[arg-type]
    except ValueError as error:
        raise FactRefused("state", "unknown") from error
    return ChannelFact(state, _text(body, "detail")[:MOST_DETAIL])


def _job_fact(body: Mapping[str, Any]) -> JobFact:
    try:
        event = JobEventKind(body.get("event"))  # type: ignore[arg-type]
    except ValueError as error:
        raise FactRefused("event", "unknown") from error
    lines = body.get("last_lines") or []
    if not isinstance(lines, list) or not all(isinstance(x, str) for x in lines):
        raise FactRefused("last_lines", "no list of lines")
    return JobFact(
        job=_count(body, "job"),
        attempt=_count(body, "attempt"),
        event=event,
        at=_time(body, "at"),
        started_at=_maybe_time(body, "started_at"),
        exit_code=_maybe_code(body, "exit_code"),
        signal=_maybe_code(body, "signal"),
        stopped=body.get("stopped") is True,
        code=_text(body, "code"),
        nonce=_text(body, "nonce"),
        reason=_text(body, "reason"),
        log_bytes=_count(body, "log_bytes") if body.get("log_bytes") else 0,
        last_lines=tuple(_storable(line)[:MOST_LINE] for line in lines[-MOST_LINES:]),
        pid=_count(body, "pid") if body.get("pid") else None,
        meeting_address=_address(body),
        meeting_port=_port(body),
        key=_key(body),
    )


def _objects(body: Mapping[str, Any], name: str, most: int) -> list[Mapping[str, Any]]:
    items = body.get(name, [])
    if not isinstance(items, list) or not all(isinstance(x, dict) for x in items):
        raise FactRefused(name, "no list of objects")
    if len(items) > most:
        raise FactRefused(name, f"more than {most}")
    return items


def _count(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if type(value) is not int or not 0 <= value < MOST_INTEGER:
        raise FactRefused(name, "no count")
    return value


def _time(body: Mapping[str, Any], name: str) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FactRefused(name, "no time")
    if not 0 <= value < 2**40:  # NaN too
        raise FactRefused(name, "no time")
    return float(value)


def _maybe_time(body: Mapping[str, Any], name: str) -> float | None:
    return None if body.get(name) is None else _time(body, name)


def _maybe_code(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 256:
        raise FactRefused(name, "neither exit code nor signal")
    return value


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise FactRefused(name, "no text")
    return _storable(value)[:MOST_TEXT]


def _key(body: Mapping[str, Any]) -> str | None:
    value = body.get("key")
    if value is not None and not (isinstance(value, str) and KEY.fullmatch(value)):
        raise FactRefused("key", "no key")
    return value


def _address(body: Mapping[str, Any]) -> str:
    address = body.get("meeting_address", "")
    if address and (not isinstance(address, str) or address_problem(address)):
        raise FactRefused("meeting_address", "neither a host name nor an IP address")
    return str(address or "")


def _port(body: Mapping[str, Any]) -> int:
    port = body.get("meeting_port", 0)
    if type(port) is not int or not 0 <= port < 2**16:
        raise FactRefused("meeting_port", "is none")
    return port


def _storable(text: str) -> str:
    """Return text that PostgreSQL takes: no nulls, no halves of surrogate pairs."""
    return text.replace("\0", "").encode(errors="replace").decode()
