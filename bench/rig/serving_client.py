"""A light HTTP client of one served model: persistent connections, answers by status.

It shares the machine with the server, so it does as little as possible: the request is
made once, and an answer is read only until its outcome is known. It calls the server at
its Unix socket, or the portal's door with a token.
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

MOST_CONNECTIONS = 120
"""The server's limit of simultaneous requests
(placement.agent.serving.server.MOST_AT_ONCE).
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal of a request, as the door or the server sent it."""

    status: int
    head: bytes
    body: bytes
    seconds: float
    """From the request until it was there."""


class _Line(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.answer: asyncio.Future[tuple[bytes, bytes]] | None = None
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
            self.answer.set_result((head, body))

    def connection_lost(self, error: Exception | None) -> None:
        """Notify the caller that waits for it."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error or ConnectionError("it was closed"))


def _status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


class Client:
    """Sends requests to one model, over a Unix socket or to a port of this machine."""

    def __init__(
        self,
        address: Path | int,
        model: str,
        body: bytes,
        json_bytes: int,
        *,
        prefix: str = "",
        token: str = "",
    ) -> None:
        """Make the request.

        Args:
            address: a Unix socket, or a port on the loopback address.
            model: its name.
            body: of the request, in the binary form.
            json_bytes: of its JSON.
            prefix: of the path, at the portal.
            token: of the portal; "": none.
        """
        self.address, self.model, self.body = address, model, body
        self._path = f"{prefix}/v2/models/{model}"
        self._lines = "host: 127.0.0.1\r\n"
        if token:
            self._lines += f"authorization: Bearer {token}\r\n"
        self._head = (
            f"POST {self._path}/infer HTTP/1.1\r\n{self._lines}"
            "content-type: application/octet-stream\r\n"
            f"content-length: {len(body)}\r\n"
            f"inference-header-content-length: {json_bytes}\r\n"
        )
        self._free: list[_Line] = []
        self._open = 0
        self.refusals: list[Refusal] = []

    async def infer(self, deadline_ms: float | None) -> str:
        """Send one request: "answered", "refused", "dropped", or "full" (no connection,
        or the portal has too many open requests).
        """
        self._drop_closed()
        if not self._free and self._open >= MOST_CONNECTIONS:
            return "full"
        line = self._free.pop() if self._free else await self._new_line()
        line.answer = asyncio.get_running_loop().create_future()
        told = "" if deadline_ms is None else f"x-deadline-ms: {deadline_ms:.2f}\r\n"
        begun = time.perf_counter()
        line.transport.write(f"{self._head}{told}\r\n".encode() + self.body)
        try:
            head, body = await line.answer
        except ConnectionError:
            self._open -= 1
            return "full"
        self._free.append(line)
        status = _status(head)
        if status == 200:
            return "answered"
        if status not in (429, 503):
            raise ConnectionError(f"{status}: {body[:300]!r}")
        seconds = time.perf_counter() - begun
        self.refusals.append(Refusal(status, head, body, seconds))
        if not body.startswith(b"{") or b'"code": "full"' in body or status == 429:
            return "full"
        return "dropped" if b'"code": "late"' in body else "refused"

    async def ready(self) -> bool:
        """Return whether the model is loaded."""
        self._drop_closed()
        try:
            line = self._free.pop() if self._free else await self._new_line()
        except OSError:
            return False
        line.answer = asyncio.get_running_loop().create_future()
        text = f"GET {self._path}/ready HTTP/1.1\r\n{self._lines}\r\n"
        line.transport.write(text.encode())
        head, _ = await line.answer
        self._free.append(line)
        return _status(head) == 200

    def _drop_closed(self) -> None:
        """Forget connections that the server closed because they were idle."""
        there = [line for line in self._free if not line.transport.is_closing()]
        self._open -= len(self._free) - len(there)
        self._free = there

    async def _new_line(self) -> _Line:
        loop = asyncio.get_running_loop()
        self._open += 1
        try:
            if isinstance(self.address, Path):
                _, line = await loop.create_unix_connection(_Line, str(self.address))
            else:
                _, line = await loop.create_connection(_Line, "127.0.0.1", self.address)
        except OSError:
            self._open -= 1
            raise
        return line

    def close(self) -> None:
        """Close the connections."""
        for line in self._free:
            line.transport.close()


async def answers_per_second(client: Client, seconds: float, at_once: int) -> float:
    """Return the answers per second to requests without a deadline.

    Args:
        at_once: how many are always open.
    """
    done, begun = 0, time.perf_counter()

    async def ask_on() -> None:
        nonlocal done
        while time.perf_counter() < begun + seconds:
            fate = await client.infer(None)
            done += fate == "answered"

    await asyncio.gather(*(ask_on() for _ in range(at_once)))
    return done / (time.perf_counter() - begun)
