"""A limit on what a websocket keeps of a message that never ends.

uvicorn bounds the bytes of a message (``--ws-max-size``) and not the number of its
fragments. It keeps an entry for each fragment until the last one, also for empty ones,
and reads on meanwhile. So a client that sends empty fragments for ever would fill the
memory. This class counts the bytes that come between two whole messages, and ends the
connection when they are too many. uvicorn pauses reading at each whole message.

It is given to uvicorn as ``--ws`` and puts the usual implementation behind itself.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

MOST_UNFINISHED_BYTES = 2 * 2**20
"""Bytes that a client may send between two whole messages, with frame heads, pings and
answers to pings. A message may have 1 MiB. An idle page sends 10 bytes every 20 s, and
so reaches this after 48 days.
"""

logger = logging.getLogger(__name__)


class BoundedWebsocket(asyncio.Protocol):
    """uvicorn's implementation of a websocket, with the limit."""

    def __init__(self, **options: Any) -> None:
        assert AutoWebSocketsProtocol is not None, "requirements.in has websockets"
        self._inner: Any = AutoWebSocketsProtocol(**options)
        self._transport: Any = None
        self._unfinished_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin. The implementation gets a transport that tells of whole messages."""
        self._transport = transport
        self._inner.connection_made(_WatchedTransport(transport, self._message_came))

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, or end the connection."""
        self._unfinished_bytes += len(data)
        if self._unfinished_bytes <= MOST_UNFINISHED_BYTES:
            self._inner.data_received(data)
        elif not self._transport.is_closing():
            logger.warning("a websocket ends: its message never does")
            self._transport.abort()

    def _message_came(self) -> None:
        self._unfinished_bytes = 0

    def eof_received(self) -> bool | None:
        """Pass the end of the client's direction on."""
        return bool(self._inner.eof_received())

    def pause_writing(self) -> None:
        """Pass on that the client reads too slowly."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client reads again."""
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Pass the end of the connection on."""
        self._inner.connection_lost(error)


class _WatchedTransport:
    """A transport that calls a function when reading is paused."""

    def __init__(self, transport: Any, paused: Callable[[], None]) -> None:
        self._transport, self._paused = transport, paused

    def pause_reading(self) -> None:
        self._paused()
        self._transport.pause_reading()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
