"""The service "ssh": this node's own ssh server, over its loopback address.

The ssh server signs people in, as it does for everybody. The node never sees what is
sent, because it is encrypted between client and server.
"""

from __future__ import annotations

import asyncio
import contextlib

from placement.agent.access import ssh_principals
from placement.agent.job_folder import NodeView
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_frames import PIECE_BYTES, StreamOrder
from placement.protocol.stream_refusal import StreamRefused

HOST = "127.0.0.1"
CONNECT_SECONDS = 5.0


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
            reader, writer = await asyncio.open_connection(HOST, node.sshd_port)
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
    down = asyncio.create_task(_to_socket(stream, writer))
    up = asyncio.create_task(_from_socket(reader, stream))
    try:
        # A server that has closed its side reads no more.
        await up
        await asyncio.wait({down}, timeout=CONNECT_SECONDS)
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def _to_socket(stream: ByteStream, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, StreamRefused):
        while piece := await stream.read():
            writer.write(piece.data)
            await writer.drain()
        writer.write_eof()


async def _from_socket(reader: asyncio.StreamReader, stream: ByteStream) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE_BYTES):
            await stream.write(data)
    stream.finish()
