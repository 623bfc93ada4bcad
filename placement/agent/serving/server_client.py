"""The node's own HTTP client of a Job's server: one request over its Unix socket.

What the Job answers is bounded and read by h11; it runs a student's model, so nothing
of it is believed but a status, a few headers and bytes.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import h11

from placement.agent.job_folder import JobFolder
from placement.agent.process import serving_socket
from placement.protocol.serving_frames import MOST_ANSWER_BYTES

READ_BYTES = 64 * 1024
MOST_HEADER_BYTES = 16 * 1024


class NoAnswer(Exception):
    """The server does not listen, or its answer is invalid."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """A Job's answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def ask(
    folder: JobFolder,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    within_seconds: float,
) -> ServerAnswer:
    """Ask a Job's server once.

    Raises:
        NoAnswer: it does not listen, breaks off, takes too long or says too much.
    """
    try:
        async with asyncio.timeout(within_seconds):
            return await _ask(folder, method, path, headers or {}, body)
    except TimeoutError:
        raise NoAnswer(f"no answer within {within_seconds:.1f} s") from None
    except (OSError, h11.RemoteProtocolError) as error:
        raise NoAnswer(f"no answer: {error}") from None


async def _ask(
    folder: JobFolder, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> ServerAnswer:
    reader, writer = await asyncio.open_unix_connection(
        sock=await serving_socket.connect(folder), limit=READ_BYTES
    )
    try:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEADER_BYTES)
        lines = [("host", "job"), ("connection", "close"), *headers.items()]
        lines.append(("content-length", str(len(body))))
        request = h11.Request(method=method, target=path, headers=lines)
        writer.write((http.send(request) or b"") + (http.send(h11.Data(body)) or b""))
        writer.write(http.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        return await _read(http, reader)
    finally:
        writer.close()


async def _read(http: h11.Connection, reader: asyncio.StreamReader) -> ServerAnswer:
    status, headers, parts, size = 0, {}, [], 0
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {
                name.decode("latin-1"): value.decode("latin-1")
                for name, value in event.headers
            }
        elif isinstance(event, h11.Data):
            size += len(event.data)
            if size > MOST_ANSWER_BYTES:
                raise NoAnswer(f"an answer of more than {MOST_ANSWER_BYTES} bytes")
            parts.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            return ServerAnswer(status, headers, b"".join(parts))
        elif isinstance(event, h11.ConnectionClosed):
            raise NoAnswer("it broke off")
