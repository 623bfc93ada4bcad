"""The frames of the tunnel between the web and a node: calls and answers.

A frame is four bytes (big-endian) with the length of its JSON head, the head, and the
body. Heads:

    {"kind": "call", "call", "job", "attempt", "method", "path", "headers",
     "within_seconds", "expires_at"}          web -> node, one frame
    {"kind": "cancel", "call"}                web -> node: the client has left
    {"kind": "answer", "call", "status", "headers", "more"}
                                              node -> web, pieces in order

Nodes are not trusted: an answer's status and headers are taken from a short list.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from placement.protocol.commands import Count
from telemetry.protocol.codec import Malformed, decode, encode, read

MOST_HEAD_BYTES = 8 * 1024
PIECE_BYTES = 48 * 1024
"""Bytes of an answer's body in one frame. The web accepts websocket messages up to 64
KiB.
"""
MOST_REQUEST_BYTES = 8 * 2**20
MOST_ANSWER_BYTES = 8 * 2**20
CONTENT_TYPES = (
    "application/json",
    "application/problem+json",
    "application/octet-stream",
)
LENGTH_HEADER = "inference-header-content-length"
REQUEST_HEADERS = ("content-type", LENGTH_HEADER, "x-deadline-ms", "x-way-ms")
"""Only these headers of a client reach a node, so no cookie and no token does."""
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
NAME_RULE = (
    "must be 1 to 63 letters, digits, points, dashes or underscores, "
    "and begin with a letter or digit"
)
_PATH = re.compile(
    r"v2/?|v2/health/(?:live|ready)|v2/repository/index"
    r"|v2/models/[A-Za-z0-9][A-Za-z0-9_.-]{0,62}(?:/versions/1)?"
    r"(?:/ready|/infer|/stats)?"
)
_CALL = re.compile(r"[0-9a-f]{32}")
HeaderValue = Annotated[str, Meta(pattern=r"\A[ -~]*\Z")]


class FrameInvalid(Exception):
    """A message of the tunnel is not a valid frame."""


def allowed_path(path: str) -> str | None:
    """Return the node's address for a path below /serve/N/, or None.

    >>> allowed_path("v2/models/mlp/infer")
    '/v2/models/mlp/infer'
    >>> allowed_path("v2/../repository/models/mlp/load") is None
    True
    """
    return f"/{path.rstrip('/')}" if _PATH.fullmatch(path) else None


def pack(head: object, body: bytes = b"") -> bytes:
    """Return one frame. The head is a mapping or a Struct."""
    text = encode(head)
    return b"".join((struct.pack(">I", len(text)), text, body))


def head_and_body(data: bytes) -> tuple[bytes, bytes]:
    """Return a frame's head in JSON, and its body.

    Raises:
        FrameInvalid: it is cut off, or its head is too long.
    """
    if len(data) < 4:
        raise FrameInvalid("shorter than its length")
    (length,) = struct.unpack_from(">I", data)
    if length > MOST_HEAD_BYTES or len(data) < 4 + length:
        raise FrameInvalid(f"a head of {length} bytes in {len(data)}")
    return data[4 : 4 + length], data[4 + length :]


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the head and body of a call's or an answer's frame.

    Raises:
        FrameInvalid: it is cut off, or its head is no object with a kind and a call.
    """
    text, body = head_and_body(data)
    try:
        head = decode(dict[str, Any], text)
    except Malformed as error:
        raise FrameInvalid(f"the head: {error}") from None
    if not isinstance(head.get("kind"), str):
        raise FrameInvalid("the head names no kind")
    call = head.get("call")
    if not isinstance(call, str) or not _CALL.fullmatch(call):
        raise FrameInvalid("the head names no call")
    return head, body


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """An answer of a node, reduced to its allowed fields."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def checked_answer(head: Mapping[str, Any], body: bytes) -> NodeAnswer:
    """Return an answer with only the fields that a client may see.

    Raises:
        FrameInvalid: the status is not allowed, such as a redirect.
    """
    status = head.get("status")
    if type(status) is not int or not (200 <= status < 300 or 400 <= status < 600):
        raise FrameInvalid(f"the status {status!r:.20} is no answer")
    said = head.get("headers")
    said = said if isinstance(said, dict) else {}
    kind = said.get("content-type")
    headers = {
        "content-type": kind if kind in CONTENT_TYPES else "application/octet-stream"
    }
    for name in (LENGTH_HEADER, "retry-after"):
        value = said.get(name)
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
            headers[name] = value
    served = said.get("x-served-ms")
    if isinstance(served, str) and re.fullmatch(r"[0-9]{1,9}\.[0-9]{3}", served):
        headers["x-served-ms"] = served
    return NodeAnswer(status, headers, body)


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way to a Job's server."""

    call: str
    job: Count
    attempt: Count
    method: Literal["GET", "POST"]
    path: Annotated[str, Meta(pattern=r"\A/[ -~]*\Z")]
    headers: Mapping[str, HeaderValue]
    within_seconds: Annotated[float, Meta(gt=0, le=3600)]
    """Time limit from the arrival at the node. The web waits a little longer."""
    expires_at: float
    """Unix time by the web's clock. A call that has waited longer is not sent."""
    body: bytes = b""
    key: str | None = None
    """The Job's key; None: the portal does not send it."""

    def frame(self, reply: str = "") -> bytes:
        """Return its frame. ``reply``: the web process's own address for the answer."""
        head = {
            "kind": "call",
            "call": self.call,
            "job": self.job,
            "attempt": self.attempt,
            "method": self.method,
            "path": self.path,
            "headers": dict(self.headers),
            "within_seconds": self.within_seconds,
            "expires_at": self.expires_at,
        }
        if self.key is not None:
            head["key"] = self.key
        return pack(head | ({"reply": reply} if reply else {}), self.body)


def checked_call(head: Mapping[str, Any], body: bytes) -> Call:
    """Parse a call at the node. Raises FrameInvalid for an invalid field."""
    given = head.get("headers")
    if isinstance(given, dict):
        given = {name: given[name] for name in REQUEST_HEADERS if name in given}
    try:
        return replace(read(Call, {**head, "headers": given, "body": ""}), body=body)
    except Malformed as error:
        raise FrameInvalid(f"no call: {error}") from None
