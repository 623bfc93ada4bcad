"""Both directions between a socket of this node and a stream."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_frames import PIECE_BYTES
from placement.protocol.stream_refusal import StreamRefused

LAST_SECONDS = 5.0
"""How long the client may send when the socket's other end has closed."""
COPY_BYTES = 16 * 1024
"""If so much was read and written since the last piece, it is a copy."""
REST_SECONDS = 0.001
"""In a copy small pieces are awaited so long, to be sent as one."""
ANSWERS_BYTES, ANSWERS_SECONDS = 4 * 1024, 0.003
"""A smaller piece has answers to what was copied. They are awaited longer."""


class CopyPace:
    """How long the input of a copy is left alone.

    During a copy, an ssh server sends a short answer for each 32 KiB. If each answer
    were a message, it would cost the portal and the client as much as a large one.
    """

    def __init__(self) -> None:
        self.moved_bytes = 0
        """In both directions, since the last piece that the socket sent."""

    async def rest_after(self, size_bytes: int) -> None:
        """Wait a moment after a piece of the socket, if it belongs to a copy."""
        moved_bytes, self.moved_bytes = self.moved_bytes + size_bytes, 0
        if moved_bytes >= COPY_BYTES and size_bytes < PIECE_BYTES // 2:
            small = size_bytes < ANSWERS_BYTES
            await _rest(ANSWERS_SECONDS if small else REST_SECONDS)


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: ByteStream
) -> None:
    """Copy both directions between a socket and a stream until both have ended.

    Raises:
        StreamRefused: the stream was ended with a reason.
    """
    splice = _Splice(reader, writer, stream)
    down = asyncio.create_task(splice.write_socket())
    up = asyncio.create_task(splice.read_socket())
    try:
        # A server that has closed its side reads no more.
        await up
        await asyncio.wait({down}, timeout=LAST_SECONDS)
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


@dataclass(slots=True)
class _Splice:
    """Both directions between a socket and a stream."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    stream: ByteStream
    pace: CopyPace = field(default_factory=CopyPace)

    async def write_socket(self) -> None:
        """Copy from the stream to the socket."""
        with contextlib.suppress(OSError, StreamRefused):
            while piece := await self.stream.read():
                self.pace.moved_bytes += len(piece.data)
                self.writer.write(piece.data)
                await self.writer.drain()
            self.writer.write_eof()

    async def read_socket(self) -> None:
        """Copy from the socket to the stream."""
        with contextlib.suppress(OSError):
            while data := await self.reader.read(PIECE_BYTES):
                await self.stream.write(data)
                await self.pace.rest_after(len(data))
        self.stream.finish()


async def _rest(seconds: float) -> None:
    await asyncio.sleep(seconds)
