"""The frames of streams between the web and a node, and the order that opens one.

A stream carries bytes in both directions between a websocket at the portal and a
service of a node, such as its ssh server. A frame is four bytes (big-endian) with the
length of its JSON head, the head, and the body. Only data have a body. Heads:

    {"kind": "open", "stream", "order", "signature", "reply"}      web -> node
    {"kind": "data", "stream", "control"}                          both ways
    {"kind": "window", "stream", "credit"}                         both ways
    {"kind": "close", "stream", "code", "detail"}                  both ways

The order is signed, because a service runs as the student. It names a service and
never an address: the node decides what the service is. ``reply`` names a web process,
and a node does not get it.

Both ends begin without credit. A window gives the other end the right to send so many
more bytes. A close without a code ends one direction. A close with a code ends both.

``gp`` and the node can resume an ssh connection on another stream. Each keeps the bytes
that it sent until the other one reports them as received. After a loss both report how
much they have, and send the rest. The reports are control messages (`StreamReport`),
and texts on the client's websocket:

    received 131072     so many bytes of the other end have come since the beginning
    ended 204800        the sender's direction ends after so many bytes

Rules: docs/design/placement.md#streams.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from placement.protocol.commands import Count, PlainOrder, Text, parse_plain_order
from placement.protocol.process_commands import Instant
from placement.protocol.serving_frames import FrameInvalid, head_and_body, pack
from telemetry.protocol.codec import Line, Malformed, decode

WINDOW_BYTES = 512 * 1024
"""Bytes that one end may send before the other end has read any. An end can give less.

A copy by ssh sends one window for each way there and back, so a smaller one makes it
slower (docs/measurements.md#ssh-through-the-portal).
"""
PIECE_BYTES = 240 * 1024
"""Bytes of the largest piece. A copy in large pieces takes less CPU time. With its head
it fits into `MESSAGE_BYTES`.
"""
MESSAGE_BYTES = 256 * 1024
"""Bytes of the longest websocket message that the web accepts for a stream."""
CONTROL_BYTES = 1024
"""Bytes of the largest control message."""
CONTROL_COST_BYTES = 256
"""Least credit that a control message takes."""
MOST_OPTIONS = 16
SESSION, AGAIN, HOLDER, UNTIL = "session", "again", "holder", "until"
"""Options of a connection that can be resumed: the client's secret number, whether it
exists already, the beginning of the user's principals (``r17-u5-``), and the end of
access (Unix time).
"""
SESSION_ID = re.compile(r"\A[0-9a-f]{32}\Z")
_REPORT = re.compile(r"\A(received|ended) (0|[1-9][0-9]{0,17})\Z")
ByteCount = Annotated[int, Meta(ge=0, lt=10**18)]
StreamId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
ServiceName = Annotated[str, Meta(pattern=r"\A[a-z][a-z-]{0,30}\Z")]
OptionName = Annotated[str, Meta(pattern=r"\A[a-z_]{1,30}\Z")]
OptionText = Annotated[Text, Meta(max_length=200)]
OptionNumber = Annotated[int, Meta(ge=-(2**31), lt=2**31)]


class OpenFrame(Struct, frozen=True, tag="open", tag_field="kind"):
    """The web opens a stream."""

    stream: StreamId
    order: Annotated[str, Meta(max_length=6144)]
    """Payload of a `StreamOrder`."""
    signature: Annotated[Line, Meta(max_length=200)]
    reply: Annotated[Line, Meta(max_length=80)] = ""
    """The web process to which the node's frames go. Never sent to a node."""


class DataFrame(Struct, frozen=True, tag="data", tag_field="kind"):
    """A piece of one direction."""

    stream: StreamId
    control: bool = False
    """Whether it is a control message in JSON, such as a terminal's new size."""
    body: bytes = b""
    """Not in the head."""

    @property
    def cost_bytes(self) -> int:
        """Credit that it takes."""
        size_bytes = len(self.body)
        return max(size_bytes, CONTROL_COST_BYTES) if self.control else size_bytes


class WindowFrame(Struct, frozen=True, tag="window", tag_field="kind"):
    """The sender has read so many bytes and can take as many more."""

    stream: StreamId
    credit: Annotated[int, Meta(ge=1, le=WINDOW_BYTES)]


class CloseFrame(Struct, frozen=True, tag="close", tag_field="kind"):
    """The end of the sender's direction. With a code: the end of both."""

    stream: StreamId
    code: Annotated[str, Meta(pattern=r"\A[a-z-]{0,40}\Z")] = ""
    detail: Annotated[Line, Meta(max_length=300)] = ""


Frame = OpenFrame | DataFrame | WindowFrame | CloseFrame


def pack_frame(frame: Frame) -> bytes:
    """Return a frame's bytes."""
    if isinstance(frame, DataFrame):
        head: dict[str, Any] = {"kind": "data", "stream": frame.stream}
        return pack(head | ({"control": True} if frame.control else {}), frame.body)
    return pack(frame)


def unpack_frame(data: bytes) -> Frame:
    """Read a frame.

    Raises:
        FrameInvalid: it is cut off or too long, or its head is not of a known kind.
    """
    head, body = head_and_body(data)
    try:
        frame = cast(Frame, decode(cast(Any, Frame), head))
    except Malformed as error:
        raise FrameInvalid(f"the head: {error}") from None
    if not isinstance(frame, DataFrame):
        if body:
            raise FrameInvalid("only data have a body")
        return frame
    most_bytes = CONTROL_BYTES if frame.control else PIECE_BYTES
    if not 1 <= len(body) <= most_bytes or frame.body:
        raise FrameInvalid(f"a piece of {len(body)} bytes, not 1 to {most_bytes}")
    return DataFrame(frame.stream, frame.control, body)


@dataclass(frozen=True, slots=True)
class StreamOrder(PlainOrder):
    """The web's order to connect a stream to a service of a node."""

    kind: Literal["stream"]
    node: Text
    stream: StreamId
    service: ServiceName
    reservation: Count
    user: Text
    """Login name in the portal."""
    unix_user: Text
    """Name on the node; "": the portal knows none."""
    issued_at: Instant
    """Unix time, as ``expires_at``."""
    expires_at: Instant
    options: Annotated[
        Mapping[OptionName, OptionText | OptionNumber], Meta(max_length=MOST_OPTIONS)
    ] = field(default_factory=dict)
    """Parameters of the service, such as a terminal's rows and columns."""


parse_stream_order = partial(parse_plain_order, StreamOrder)


class StreamReport(Struct, frozen=True, omit_defaults=True):
    """One control message. It has one of the fields."""

    received: ByteCount | None = None
    ended: ByteCount | None = None
    until: Annotated[float, Meta(ge=0, lt=2**40)] | None = None
    """End of access, which an extension moves (Unix time). Only the portal sends it."""


def report_of(text: str) -> dict[str, int] | None:
    """Return the control message of a client's text, or None.

    >>> report_of("received 131072")
    {'received': 131072}
    >>> report_of("received -1")
    """
    found = _REPORT.match(text)
    return {found[1]: int(found[2])} if found else None


def text_of(report: StreamReport) -> str:
    """Return a node's report as a text for the client; "": there is nothing to tell.

    >>> text_of(StreamReport(ended=5))
    'ended 5'
    """
    if report.received is not None:
        return f"received {report.received}"
    return "" if report.ended is None else f"ended {report.ended}"
