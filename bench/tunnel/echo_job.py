"""A job's program that returns what it gets, by calls and over streams.

    python -m bench.tunnel.echo_job FOLDER

It listens on the two sockets of the job's folder, as a shim does. Over
``serve.sock`` it answers a POST with its body. Over ``workspace.sock`` a connection
begins each exchange with a line: ``echo N``, and N bytes that it returns, or
``bulk SECONDS``. Then it sends without end, and rests so long after each read.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from placement.agent.job_folder import JobFolder
from placement.agent.process import serving_socket
from placement.agent.serving.server import run_in_loop

READ_BYTES = 64 * 1024
NOTHING_SERVED = b'{"models": []}'
"""The answer to the node, which asks for the states of the models."""


async def answer_call(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer one request over HTTP."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    body = NOTHING_SERVED
    if head.startswith(b"post "):
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
    kind = b"content-type: application/octet-stream\r\nconnection: close\r\n"
    writer.write(b"HTTP/1.1 200 OK\r\n" + kind)
    writer.write(b"content-length: %d\r\n\r\n" % len(body))
    writer.write(body)
    await writer.drain()
    writer.close()


async def answer_stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the exchanges of one connection until it ends."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while line := await reader.readline():
            kind, number = line.split()
            if kind == b"bulk":
                await asyncio.gather(_send_zeros(writer), _read(reader, float(number)))
                return
            writer.write(await reader.readexactly(int(number)))
            await writer.drain()
    writer.close()


async def _send_zeros(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(bytes(READ_BYTES))
        await writer.drain()


async def _read(reader: asyncio.StreamReader, rest_seconds: float) -> None:
    while await reader.read(READ_BYTES):
        await asyncio.sleep(rest_seconds)
    raise ConnectionError


async def main(path: str) -> None:
    """Serve until SIGTERM."""
    folder = JobFolder.at(Path(path))
    calls = serving_socket.listen(folder, serving_socket.SERVE)
    streams = serving_socket.listen(folder, serving_socket.WORKSPACE)
    async with (
        await asyncio.start_unix_server(answer_call, sock=calls),
        await asyncio.start_unix_server(answer_stream, sock=streams),
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    run_in_loop(main(*sys.argv[1:]))
