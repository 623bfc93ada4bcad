"""One end of a stream, and the check of its credit between the ends.

Pure state machines: frames go in, and frames and pieces come out. They know no socket,
no loop and no clock. See docs/design/placement.md#streams.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from itertools import count

from placement.protocol.stream_frames import (
    PIECE_BYTES,
    WINDOW_BYTES,
    CloseFrame,
    DataFrame,
    Frame,
    WindowFrame,
)

RETURN_SHARE = 2
"""Credit is given back in steps of at least a window divided by this. The sender can
then always wait for half a window.
"""
FRAME_COST_BYTES = 256
"""Cost of a frame in a `FrameQueue`, in addition to its body."""


class StreamViolation(Exception):
    """The other end broke the protocol."""


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Bytes that arrived in this order."""

    data: bytes
    control: bool = False
    cost_bytes: int = 0


class StreamEnd:
    """One end of one stream.

    ``outgoing`` has the frames to send, in order. Memory is bounded: at most
    `WINDOW_BYTES` wait in ``outgoing``, and one window for the reader.
    """

    def __init__(self, stream: str, window_bytes: int = WINDOW_BYTES) -> None:
        """Make an end that lets the other one send a window, at most `WINDOW_BYTES`."""
        self.stream, self.window_bytes = stream, window_bytes
        self.outgoing: deque[Frame] = deque()
        self.credit_bytes = 0
        """Bytes that may be sent now."""
        self.other_window_bytes = 0
        """First credit of the other end: how much it lets this one send at once."""
        self.ended: CloseFrame | None = None
        """The close that ended both directions at once, by whichever end."""
        self.sent_all = False
        self.received_all = False
        self.granted = False
        """Whether the other end got its first window."""
        self._expected_bytes = 0
        """Bytes that the other end may still send."""
        self._read_bytes = 0
        """Bytes that were read, and whose credit was not given back yet."""
        self._pieces: deque[tuple[bytes | bytearray, bool, int]] = deque()

    # --- this side ----------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether no frame will be sent or accepted any more."""
        return self.ended is not None or (self.sent_all and self.received_all)

    @property
    def readable(self) -> bool:
        """Whether `take` has something to return or to report."""
        return bool(self._pieces) or self.received_all or self.ended is not None

    def grant(self) -> None:
        """Give the other end its first window. Later calls do nothing."""
        if not self.granted and not self.over:
            self.granted = True
            self._give(self.window_bytes)

    def write(self, data: bytes, *, control: bool = False) -> None:
        """Send one piece.

        Raises:
            ValueError: there is not enough credit, or this direction has ended.
        """
        frame = DataFrame(self.stream, control, data)
        if self.sent_all or self.over or not data or len(data) > PIECE_BYTES:
            raise ValueError("nothing can be sent here")
        if frame.cost_bytes > self.credit_bytes:
            raise ValueError(f"{frame.cost_bytes} bytes of {self.credit_bytes}")
        self.credit_bytes -= frame.cost_bytes
        self.outgoing.append(frame)

    def finish(self) -> None:
        """End this direction. The other one goes on."""
        if not self.sent_all and not self.over:
            self.sent_all = True
            self.outgoing.append(CloseFrame(self.stream))

    def abort(self, code: str, detail: str = "") -> None:
        """End both directions with a reason, and drop unread data of this end."""
        if not self.over:
            self.ended = CloseFrame(self.stream, code, detail)
            self.outgoing.append(self.ended)
        self._pieces.clear()

    def take(self) -> StreamPiece | None:
        """Return what arrived next, or None. Gives credit back."""
        if not self._pieces:
            return None
        data, control, cost_bytes = self._pieces.popleft()
        self._read_bytes += cost_bytes
        enough = self._read_bytes * RETURN_SHARE >= self.window_bytes
        if enough and not self.received_all and not self.over:
            self._give(self._read_bytes)
            self._read_bytes = 0
        return StreamPiece(bytes(data), control, cost_bytes)

    def _give(self, credit_bytes: int) -> None:
        self._expected_bytes += credit_bytes
        self.outgoing.append(WindowFrame(self.stream, credit_bytes))

    # --- the other side --------------------------------------------------------------

    def receive(self, frame: Frame) -> None:
        """Accept one frame of the other end. Frames after the end are ignored.

        Raises:
            StreamViolation: the other end broke the protocol.
        """
        if self.over:
            return
        if isinstance(frame, DataFrame):
            self._receive_data(frame)
        elif isinstance(frame, WindowFrame):
            self.credit_bytes += frame.credit
            self.other_window_bytes = self.other_window_bytes or frame.credit
            if self.credit_bytes > WINDOW_BYTES:
                raise StreamViolation("more credit than a window")
        elif isinstance(frame, CloseFrame):
            if frame.code:
                self.ended = frame
            elif self.received_all:
                raise StreamViolation("ended twice")
            else:
                self.received_all = True
        else:
            raise StreamViolation("opened twice")

    def _receive_data(self, frame: DataFrame) -> None:
        self._expected_bytes -= frame.cost_bytes
        if self.received_all or self._expected_bytes < 0:
            raise StreamViolation("data without credit")
        # Small pieces become one, so that a window of single bytes takes no more
        # memory than one of large pieces.
        if self._pieces and not frame.control and not self._pieces[-1][1]:
            data, _, cost_bytes = self._pieces.pop()
            joined = data if isinstance(data, bytearray) else bytearray(data)
            joined += frame.body
            self._pieces.append((joined, False, cost_bytes + frame.cost_bytes))
        else:
            self._pieces.append((frame.body, frame.control, frame.cost_bytes))


class CreditCheck:
    """The credit of one stream as the portal sees it between its two ends.

    A node is not trusted. Without this check it could give credit without reading, or
    send without credit, and fill the broker.
    """

    def __init__(self) -> None:
        self._to_node_bytes = 0
        self._from_node_bytes = 0

    def passed_to_node(self, frame: Frame) -> None:
        """Count a frame that was sent to the node."""
        if isinstance(frame, DataFrame):
            self._to_node_bytes -= frame.cost_bytes
        elif isinstance(frame, WindowFrame):
            self._from_node_bytes += frame.credit

    def came_from_node(self, frame: Frame) -> None:
        """Count a frame of the node.

        Raises:
            StreamViolation: the node broke the protocol.
        """
        if isinstance(frame, DataFrame):
            self._from_node_bytes -= frame.cost_bytes
        elif isinstance(frame, WindowFrame):
            self._to_node_bytes += frame.credit
        elif isinstance(frame, CloseFrame):
            return
        else:
            raise StreamViolation("a node opens no stream")
        if self._from_node_bytes < 0 or self._to_node_bytes > WINDOW_BYTES:
            raise StreamViolation("the credit is used up, or more than a window")


@dataclass(slots=True)
class _Turn:
    """A frame that waits for its turn."""

    finish: int
    """The round in which it is complete."""
    frame: Frame
    body: bytearray | None = None
    """Data that joined it, with those of the frame."""

    def joined(self, frame: Frame) -> bool:
        """Add the data of the next frame, if both are data. Return whether it did."""
        here = self.frame
        if not (isinstance(frame, DataFrame) and isinstance(here, DataFrame)):
            return False
        size_bytes = len(here.body if self.body is None else self.body)
        if here.control or frame.control or size_bytes + len(frame.body) > PIECE_BYTES:
            return False
        if self.body is None:
            self.body = bytearray(here.body)
        self.body += frame.body
        self.finish += len(frame.body)
        return True

    def whole(self) -> Frame:
        """Return the frame with what joined it."""
        if self.body is None:
            return self.frame
        return DataFrame(self.frame.stream, body=bytes(self.body))


class FrameQueue:
    """Frames of many streams that wait for one websocket.

    Each stream gets the same share of its bytes, and its frames keep their order. So a
    key that is typed does not wait behind the windows of all copies. It waits for the
    frames that are on their way already.

    This is fair queueing (A. Demers, S. Keshav and S. Shenker, "Analysis and Simulation
    of a Fair Queueing Algorithm", SIGCOMM 1989): the next frame is the one that would
    be complete first if all streams sent at once, each at the same rate.

    Small frames of data become larger ones while they wait, so the credit of the
    streams bounds the memory.
    """

    def __init__(self) -> None:
        self._frames: dict[str, deque[_Turn]] = {}
        self._heads: list[tuple[int, int, str]] = []
        """A heap with the first frame of each stream."""
        self._finished: dict[str, int] = {}
        """The round in which the last frame of a stream is complete."""
        self._round = 0
        """Bytes that each stream with frames could send until now."""
        self._number = count()

    def put(self, frame: Frame) -> None:
        """Let a frame wait for its turn."""
        waiting = self._frames.setdefault(frame.stream, deque())
        # The first one has its place in the heap.
        if len(waiting) > 1 and waiting[-1].joined(frame):
            self._finished[frame.stream] = waiting[-1].finish
            return
        start = max(self._round, self._finished.get(frame.stream, 0))
        finish = self._finished[frame.stream] = start + _cost_bytes(frame)
        waiting.append(_Turn(finish, frame))
        if len(waiting) == 1:
            heapq.heappush(self._heads, (finish, next(self._number), frame.stream))

    def take(self) -> Frame | None:
        """Return the frame whose turn it is, or None."""
        if not self._heads:
            return None
        streams = len(self._heads)
        _, _, stream = heapq.heappop(self._heads)
        waiting = self._frames[stream]
        frame = waiting.popleft().whole()
        self._round += _cost_bytes(frame) // streams
        if waiting:
            head = (waiting[0].finish, next(self._number), stream)
            heapq.heappush(self._heads, head)
        else:
            del self._frames[stream]
            if isinstance(frame, CloseFrame):
                self._finished.pop(stream, None)
        if not self._heads:
            self._finished.clear()
            self._round = 0
        return frame


def _cost_bytes(frame: Frame) -> int:
    body_bytes = len(frame.body) if isinstance(frame, DataFrame) else 0
    return FRAME_COST_BYTES + body_bytes
