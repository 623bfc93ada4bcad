"""A stream for asyncio code at either end: read, write, control messages, close.

It has no socket. Frames of the other end come in through `deliver`, and ``send`` takes
the frames for the other end and never waits: the credit bounds how many can wait there.
One task reads at a time, and one task writes data at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from placement.protocol.stream_frames import (
    CONTROL_BYTES,
    CONTROL_COST_BYTES,
    PIECE_BYTES,
    WINDOW_BYTES,
    CloseFrame,
    Frame,
)
from placement.protocol.stream_refusal import (
    BROKEN,
    ENDED,
    StreamRefused,
    refusal_of,
)
from placement.protocol.stream_state import StreamEnd, StreamPiece, StreamViolation
from telemetry.protocol.codec import encode

SendFrames = Callable[[list[Frame]], None]


class ByteStream:
    """One end of a stream, for coroutines of one event loop."""

    def __init__(
        self, stream: str, send: SendFrames, window_bytes: int = WINDOW_BYTES
    ) -> None:
        self._state = StreamEnd(stream, window_bytes)
        self._send = send
        self._changed: asyncio.Event | None = None
        """Set at the next change, if a task waits for one."""
        self._answered = False
        self._lost: StreamRefused | None = None

    @property
    def stream(self) -> str:
        """Its number, in 32 hexadecimal digits."""
        return self._state.stream

    @property
    def over(self) -> bool:
        """Whether both directions have ended."""
        return self._state.over

    @property
    def end_code(self) -> str | None:
        """Code with which both directions were ended at once; None: they were not."""
        return self._state.ended.code if self._state.ended else None

    # --- for its user ---------------------------------------------------------------

    def takes_now(self, size_bytes: int) -> bool:
        """Return whether `write` sends so many bytes without waiting."""
        return self._state.credit_bytes >= size_bytes

    async def write(self, data: bytes) -> None:
        """Send bytes. Wait while the other end has not read the earlier ones.

        Raises:
            StreamRefused: the stream has ended.
        """
        self._accept()
        start = 0
        await self._wait_for_credit(1)
        # Whole pieces: crumbs of credit would make many small frames.
        piece_bytes = min(PIECE_BYTES, max(1, self._state.other_window_bytes // 2))
        while start < len(data):
            size_bytes = min(len(data) - start, piece_bytes)
            await self._wait_for_credit(size_bytes)
            self._state.write(data[start : start + size_bytes])
            start += size_bytes
            self._flush()

    async def write_control(self, value: Mapping[str, Any]) -> None:
        """Send a small message in JSON. It keeps its place among the data.

        Raises:
            StreamRefused: the stream has ended.
            ValueError: the message is too long.
        """
        data = encode(value)
        if len(data) > CONTROL_BYTES:
            raise ValueError(f"a control message of {len(data)} bytes")
        self._accept()
        await self._wait_for_credit(max(len(data), CONTROL_COST_BYTES))
        self._state.write(data, control=True)
        self._flush()

    async def read(self) -> StreamPiece | None:
        """Return what arrived next, or None if the other end sends no more.

        Raises:
            StreamRefused: the stream was ended with a reason. What arrived before is
                returned first.
        """
        self._accept()
        await self._wait_until(lambda: self._state.readable)
        piece = self._state.take()
        self._flush()
        if piece is None and not self._state.received_all:
            raise self._refusal()
        return piece

    def finish(self) -> None:
        """Send no more. Reading goes on."""
        self._state.finish()
        self._flush()

    def abort(self, code: str = ENDED, detail: str = "") -> None:
        """End both directions. The other end gets the reason, cut at 300 characters."""
        plain = "".join(c if c.isprintable() else " " for c in str(detail)[:300])
        self._state.abort(code, plain)
        self._flush()

    async def wait_until_over(self) -> None:
        """Wait until both directions have ended."""
        await self._wait_until(lambda: self._state.over)

    # --- for the transport -----------------------------------------------------------

    def deliver(self, frame: Frame) -> None:
        """Accept a frame of the other end. One that breaks the protocol ends the
        stream.
        """
        self._answered = True
        try:
            self._state.receive(frame)
        except StreamViolation as violation:
            self._state.abort(BROKEN, f"The other end broke the protocol: {violation}.")
        self._flush()

    def lose(self, refusal: StreamRefused) -> None:
        """End it because its connection is lost: the other end hears nothing."""
        if not self.over:
            self._lost = refusal
            self._state.receive(CloseFrame(self.stream, refusal.code))
            self._flush()

    def grant(self) -> None:
        """Let the other end begin to send. The first read or write does it, too."""
        self._accept()

    async def wait_until_accepted(self) -> None:
        """Wait for the first frame of the other end.

        Raises:
            StreamRefused: it refuses the stream.
        """
        await self._wait_until(lambda: self._answered or self._state.over)
        if self._state.ended is not None:
            raise self._refusal()

    # --- inside -------------------------------------------------------------------

    def _accept(self) -> None:
        if not self._state.granted:
            self._state.grant()
            self._flush()

    async def _wait_for_credit(self, needed_bytes: int) -> None:
        await self._wait_until(
            lambda: (
                self._state.credit_bytes >= needed_bytes
                or self._state.sent_all
                or self._state.over
            )
        )
        if self._state.sent_all or self._state.over:
            raise self._refusal()

    async def _wait_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            # The next change sets this event and forgets it, so every task that waits
            # is woken and looks again.
            if self._changed is None:
                self._changed = asyncio.Event()
            await self._changed.wait()

    def _refusal(self) -> StreamRefused:
        if self._lost is not None:
            return self._lost
        ended = self._state.ended
        return refusal_of(ended.code, ended.detail) if ended else refusal_of(ENDED, "")

    def _flush(self) -> None:
        """Pass on the frames to send, and wake every task that waits for a change."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        if self._state.outgoing:
            frames = list(self._state.outgoing)
            self._state.outgoing.clear()
            self._send(frames)
