"""A node's websocket to the portal. Nodes only connect outwards."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from placement.agent.job_folder import NodeView
from placement.protocol.node_http import UNSENT_BYTES

OPEN_SECONDS = 10
RENEWAL_SECONDS = 5.0
"""Between two looks whether the node shows another token."""

logger = logging.getLogger(__name__)


class _PromptConnection(ClientConnection):
    """A connection whose messages wait in this process, not in the kernel."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Limit what the kernel takes."""
        super().connection_made(transport)
        own = transport.get_extra_info("socket")
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


class _NoRedirectConnect(connect):
    """The node's token must not travel: a redirect is an error."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Follow none."""
        return exc


def portal_socket(node: NodeView, address: str, *, most_bytes: int) -> connect:
    """Return a websocket to be opened, with the node's token.

    Args:
        node: whose token and portal.
        address: path at the portal, with a slash at its beginning and end.
        most_bytes: size of the largest message that is accepted.

    Raises:
        ValueError: the node's token cannot be read.
    """
    web = urlsplit(node.web_url)
    scheme = {"http": "ws", "https": "wss"}[web.scheme]
    return _NoRedirectConnect(
        f"{scheme}://{web.netloc}{web.path}{address}",
        additional_headers={"Authorization": f"Node {node.name}:{node.token()}"},
        origin=f"{web.scheme}://{web.netloc}",  # type: ignore[arg-type]
        max_size=most_bytes,
        compression=None,
        create_connection=_PromptConnection,
        proxy=None,
        open_timeout=OPEN_SECONDS,
    )


class OlderSockets:
    """Websockets that were opened with an earlier token of the node.

    What is under way on them goes on. The portal sends nothing new over them, and
    closes them.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Let a websocket run until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Close all."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, OSError | TimeoutError | WebSocketException):
            logger.info("an earlier websocket is closed: %s", error)
        else:
            logger.error("an earlier websocket failed", exc_info=error)


async def serve_until_renewal(
    node: NodeView,
    address: str,
    serve: Callable[[ClientConnection], Awaitable[None]],
    *,
    most_bytes: int,
    older: OlderSockets,
) -> None:
    """Open a websocket and serve it until it closes, or the node shows another token.

    In the second case it goes on in `older`, and the caller opens the next one.

    Raises:
        OSError, TimeoutError, WebSocketException: it cannot be opened, or broke.
        ValueError: the node's token cannot be read.
    """
    token = node.token()

    async def carry() -> None:
        async with portal_socket(node, address, most_bytes=most_bytes) as socket:
            await serve(socket)

    work = asyncio.create_task(carry())
    try:
        while not work.done():
            await asyncio.wait({work}, timeout=RENEWAL_SECONDS)
            if not work.done() and _shows_another(node, token):
                older.keep(work)
                return
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        raise
    work.result()


def _shows_another(node: NodeView, token: str) -> bool:
    try:
        return node.token() != token
    except ValueError:
        return False  # The check of the channel reports it.
