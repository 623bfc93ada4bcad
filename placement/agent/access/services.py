"""The services of a node that the portal can open a stream to, by name.

The portal names a service and never an address. A service checks that it may serve the
order, and refuses with a `StreamRefused`. Its coroutine is cancelled when the stream is
over or the portal is away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from placement.agent.access.ssh_service import connect_sshd
from placement.agent.access.workspace_service import (
    connect_language_model_server,
    connect_workspace,
)
from placement.agent.job_folder import NodeView
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_frames import StreamOrder

Service = Callable[[NodeView, StreamOrder, ByteStream], Awaitable[None]]

SERVICES: Mapping[str, Service] = {
    "ssh": connect_sshd,
    "terminal": connect_workspace,
    "text": connect_language_model_server,
    "workspace": connect_workspace,
}
