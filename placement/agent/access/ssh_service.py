"""The service "ssh": this node's own ssh server, over its loopback address.

The ssh server signs people in, as it does for everybody. The node never sees what is
sent, because it is encrypted between client and server.
"""

from __future__ import annotations

import asyncio
from functools import partial

from placement.agent.access import ssh_principals
from placement.agent.access.kept_connections import Ends, kept_connections
from placement.agent.access.socket_splice import carry
from placement.agent.job_folder import NodeView
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_frames import PIECE_BYTES, SESSION, StreamOrder
from placement.protocol.stream_refusal import StreamRefused

HOST = "127.0.0.1"
CONNECT_SECONDS = 5.0


async def connect_sshd(node: NodeView, order: StreamOrder, stream: ByteStream) -> None:
    """Carry one connection to the ssh server.

    A client that asked for it can resume it (``kept_connections.py``).

    Raises:
        StreamRefused: this node offers no ssh, its server cannot be reached, or the
            connection to resume is not here.
    """
    if not node.sshd_port:
        raise StreamRefused("no-service", f"{node.name} offers no ssh connections.")
    if SESSION in order.options:
        await kept_connections().carry(node, order, stream, partial(_connected, node))
        return
    reader, writer = await _connected(node)
    try:
        await carry(reader, writer, stream)
    finally:
        writer.close()


async def _connected(node: NodeView) -> Ends:
    """Return a connection to the ssh server.

    Raises:
        StreamRefused: it cannot be reached.
    """
    # The certificate that the user just got may be newer than the last list.
    fresh = asyncio.ensure_future(asyncio.to_thread(ssh_principals.refresh, node))
    await asyncio.wait({fresh}, timeout=CONNECT_SECONDS)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncio.open_connection(
                HOST, node.sshd_port, limit=PIECE_BYTES // 2
            )
    except (OSError, TimeoutError):
        raise StreamRefused(
            "service-failed",
            f"The ssh server of {node.name} cannot be reached (port {node.sshd_port}).",
        ) from None
