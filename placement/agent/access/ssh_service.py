"""The service "ssh": this node's own ssh server, over its loopback address.

The ssh server signs people in, as it does for everybody. The node never sees what is
sent, because it is encrypted between client and server.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from placement.agent.access import ssh_principals
from placement.agent.job_folder import NodeView
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_frames import PIECE_BYTES, StreamOrder
from placement.protocol.stream_refusal import StreamRefused

HOST = "127.0.0.1"
CONNECT_SECONDS = 5.0
COPY_BYTES = 16 * 1024
"""If so much was read and written since the last piece, it is a copy."""
REST_SECONDS = 0.001
"""In a copy small pieces are awaited so long, to be sent as one."""


async def connect_sshd(node: NodeView, order: StreamOrder, stream: ByteStream) -> None:
    """Carry one connection to the ssh server.

    Raises:
        StreamRefused: this node offers no ssh, or its server cannot be reached.
    """
    if not node.sshd_port:
        raise StreamRefused("no-service", f"{node.name} offers no ssh connections.")
    # The certificate that the user just got may be newer than the last list.
    fresh = asyncio.ensure_future(asyncio.to_thread(ssh_principals.refresh, node))
    await asyncio.wait({fresh}, timeout=CONNECT_SECONDS)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                HOST, node.sshd_port, limit=PIECE_BYTES // 2
            )
    except (OSError, TimeoutError):
        raise StreamRefused(
            "service-failed",
            f"The ssh server of {node.name} cannot be reached (port {node.sshd_port}).",
        ) from None
    try:
        await carry(reader, writer, stream)
    finally:
        writer.close()


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
        await asyncio.wait({down}, timeout=CONNECT_SECONDS)
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
    moved_bytes: int = 0
    """In both directions, since the last piece that the socket sent."""

    async def write_socket(self) -> None:
        """Copy from the stream to the socket."""
        with contextlib.suppress(OSError, StreamRefused):
            while piece := await self.stream.read():
                self.moved_bytes += len(piece.data)
                self.writer.write(piece.data)
                await self.writer.drain()
            self.writer.write_eof()

    async def read_socket(self) -> None:
        """Copy from the socket to the stream.

        In a copy an ssh server answers each 32 KiB with a few bytes. Each answer by
        itself would cost the portal and the client as much as a large piece.
        """
        with contextlib.suppress(OSError):
            while data := await self.reader.read(PIECE_BYTES):
                await self.stream.write(data)
                moved_bytes, self.moved_bytes = self.moved_bytes + len(data), 0
                if moved_bytes >= COPY_BYTES and len(data) < PIECE_BYTES // 2:
                    await _rest()
        self.stream.finish()


async def _rest() -> None:
    await asyncio.sleep(REST_SECONDS)
