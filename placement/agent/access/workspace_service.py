"""The services "workspace", "terminal" and "text": a job's program on this node.

The portal's order names a job. Only a job that runs such a program here now can be
reached, over the socket that its shim opened in root's folder.
"""

from __future__ import annotations

import asyncio

from placement.agent.access.socket_splice import carry
from placement.agent.job_folder import JobFolder, NodeView
from placement.agent.process import serving_socket
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_frames import StreamOrder
from placement.protocol.stream_refusal import StreamRefused

FOLDER = "folder"
"""The option with the name of the job's folder: number, attempt and key."""


async def connect_workspace(
    node: NodeView, order: StreamOrder, stream: ByteStream
) -> None:
    """Carry one connection to a workspace's program.

    Raises:
        StreamRefused: the job runs no workspace here, or it cannot be reached.
    """
    away = f"The workspace does not run on {node.name} now."
    await _connect(node, order, stream, serving_socket.WORKSPACE, away)


async def connect_language_model_server(
    node: NodeView, order: StreamOrder, stream: ByteStream
) -> None:
    """Carry one connection to a server of a language model.

    Raises:
        StreamRefused: the job serves none here, or it cannot be reached.
    """
    away = f"The language model is not served on {node.name} now."
    await _connect(node, order, stream, serving_socket.TEXT, away)


async def _connect(
    node: NodeView, order: StreamOrder, stream: ByteStream, name: str, away: str
) -> None:
    """Carry one connection to a job's socket of this name.

    Raises:
        StreamRefused: it cannot be reached, with the words ``away``.
    """
    folder = _job_folder(node, order, away)
    try:
        connection = await serving_socket.connect(folder, name)
    except OSError:
        raise StreamRefused("no-service", away) from None
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        await carry(reader, writer, stream)
    finally:
        writer.close()


def _job_folder(node: NodeView, order: StreamOrder, away: str) -> JobFolder:
    """Return the folder of the job that an order names.

    Raises:
        StreamRefused: the job does not run here now.
    """
    try:
        folder = JobFolder.at(node.node_dir / "jobs" / str(order.options[FOLDER]))
    except (KeyError, ValueError):
        raise StreamRefused("bad-request", "The order names no job.") from None
    if folder.read("status").get("event") != "started":
        raise StreamRefused("no-service", away)
    return folder
