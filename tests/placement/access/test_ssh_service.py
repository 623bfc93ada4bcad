"""The node's end of ssh, where its ssh server does not do what it should."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from placement.agent.access import socket_splice, ssh_principals
from placement.agent.access.socket_splice import COPY_BYTES
from placement.agent.access.ssh_service import connect_sshd
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_frames import CloseFrame
from placement.protocol.stream_refusal import StreamRefused

NAME = "a" * 32


@pytest.fixture(autouse=True)
def no_list(monkeypatch):
    monkeypatch.setattr(ssh_principals, "refresh", lambda node: None)


async def connect(port, frames):
    """Connect a client that sends nothing."""
    node = SimpleNamespace(name="node1", sshd_port=port)
    stream = ByteStream(NAME, frames.extend)
    stream.deliver(CloseFrame(NAME))
    await connect_sshd(node, SimpleNamespace(options={}), stream)


async def test_a_node_without_an_ssh_server_says_so():
    with pytest.raises(StreamRefused, match="node1 offers no ssh") as refused:
        await connect(0, [])
    assert refused.value.code == "no-service"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(StreamRefused, match=rf"cannot be reached \(port {port}\)"):
            await connect(port, [])


async def test_a_server_that_hangs_up_at_once_ends_the_connection():
    async def hang_up(_reader, writer):
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    frames = []
    async with server:
        port = server.sockets[0].getsockname()[1]
        await connect(port, frames)
    assert frames[-1] == CloseFrame(NAME)


async def test_answers_in_a_copy_go_together_and_keys_at_once(monkeypatch):
    rests, sent = [], []

    async def rest(seconds):
        rests.append((len(sent), seconds))
        reader.feed_data(b"second")
        reader.feed_data(b"third")

    async def write(data):
        sent.append(bytes(data))
        if data == b"secondthird":
            reader.feed_data(b"key")
        elif data == b"key":
            reader.feed_eof()

    monkeypatch.setattr(socket_splice, "_rest", rest)
    reader = asyncio.StreamReader()
    stream = SimpleNamespace(write=write, finish=lambda: None)
    splice = socket_splice._Splice(reader, None, stream)
    splice.pace.moved_bytes = COPY_BYTES
    reader.feed_data(b"first")
    await splice.read_socket()
    assert sent == [b"first", b"secondthird", b"key"]
    only = [(1, socket_splice.ANSWERS_SECONDS)]
    assert rests == only, "only after the piece that followed many bytes"
