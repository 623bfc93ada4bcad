"""A light HTTP client of one served model: persistent connections, answers by status.

It shares the machine with the server, so it does as little as possible: the request is
made once, and an answer is read only until its outcome is known.
"""

import asyncio
from pathlib import Path
from typing import cast

MOST_CONNECTIONS = 120
"""The server's limit of simultaneous requests
(placement.agent.serving.server.MOST_AT_ONCE).
"""


class _Line(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read until the answer is complete."""
        self._held += data
        head, found, body = self._held.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) < length:
            return
        self._held = b""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result((int(head.split(b" ", 2)[1]), body))

    def connection_lost(self, error: Exception | None) -> None:
        """Notify the caller that waits for it."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error or ConnectionError("it was closed"))


class Client:
    """Sends requests to one model over one Unix socket."""

    def __init__(self, socket: Path, model: str, body: bytes, json_bytes: int) -> None:
        self.socket, self.model, self.body = socket, model, body
        self._head = (
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: job\r\n"
            f"content-length: {len(body)}\r\n"
            f"inference-header-content-length: {json_bytes}\r\n"
        )
        self._free: list[_Line] = []
        self._open = 0

    async def infer(self, deadline_ms: float | None) -> str:
        """Send one request: "answered", "refused", "dropped", or "full" (no
        connection).
        """
        if not self._free and self._open >= MOST_CONNECTIONS:
            return "full"
        line = self._free.pop() if self._free else await self._new_line()
        line.answer = asyncio.get_running_loop().create_future()
        told = "" if deadline_ms is None else f"x-deadline-ms: {deadline_ms:.2f}\r\n"
        line.transport.write(f"{self._head}{told}\r\n".encode() + self.body)
        try:
            status, body = await line.answer
        except ConnectionError:
            self._open -= 1
            return "full"
        self._free.append(line)
        if status == 200:
            return "answered"
        if status != 503:
            raise ConnectionError(f"{status}: {body[:300]!r}")
        if not body.startswith(b"{"):
            return "full"
        return "dropped" if b'"code": "late"' in body else "refused"

    async def ready(self) -> bool:
        """Return whether the model is loaded."""
        try:
            line = self._free.pop() if self._free else await self._new_line()
        except OSError:
            return False
        line.answer = asyncio.get_running_loop().create_future()
        path = f"/v2/models/{self.model}/ready"
        line.transport.write(f"GET {path} HTTP/1.1\r\nhost: job\r\n\r\n".encode())
        status, _ = await line.answer
        self._free.append(line)
        return status == 200

    async def _new_line(self) -> _Line:
        loop = asyncio.get_running_loop()
        self._open += 1
        try:
            _, line = await loop.create_unix_connection(_Line, str(self.socket))
        except OSError:
            self._open -= 1
            raise
        return line

    def close(self) -> None:
        """Close the connections."""
        for line in self._free:
            line.transport.close()
