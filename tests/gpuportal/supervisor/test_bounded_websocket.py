"""A websocket whose message never ends is ended, and others go on."""

import asyncio
import socket
import struct
import threading
import time

import pytest
import uvicorn
from websockets.sync.client import connect

from gpuportal.supervisor import bounded_websocket
from gpuportal.supervisor.bounded_websocket import BoundedWebsocket
from gpuportal.supervisor.process_table import control
from tests.placement.nodes import PATIENCE_SECONDS

pytestmark = pytest.mark.pure
MOST = 64 * 1024
EMPTY_FRAGMENT = struct.pack(">BB", 0, 0x80) + bytes(4)
"""A continuation frame without data, with its mask (RFC 6455, 5.2)."""


@pytest.fixture
def url(monkeypatch):
    """Serve an application that repeats messages, and return its address."""
    monkeypatch.setattr(bounded_websocket, "MOST_UNFINISHED_BYTES", MOST)

    async def repeat(_scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({**message, "type": "websocket.send"})

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        repeat, ws=BoundedWebsocket, lifespan="off", log_level="error"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener]))
    )
    thread.start()
    yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(PATIENCE_SECONDS)
    listener.close()


def test_empty_fragments_without_end_close_the_connection(url):
    with connect(url, compression=None) as flooding, connect(url) as other:
        flooding.send("hello")
        assert flooding.recv() == "hello"
        begin = struct.pack(">BB", 0x01, 0x81) + bytes(4) + b"x"
        flooding.socket.sendall(begin)
        sent, end = 0, time.monotonic() + PATIENCE_SECONDS
        with pytest.raises(OSError):  # reset by the server
            while time.monotonic() < end:
                flooding.socket.sendall(EMPTY_FRAGMENT * 512)
                sent += 512 * len(EMPTY_FRAGMENT)
                time.sleep(0.002)
        assert sent >= MOST and time.monotonic() < end
        other.send("still")
        assert other.recv() == "still"


def test_whole_messages_pass_without_end_in_fragments_too(url):
    piece = b"x" * 1000
    with connect(url, compression=None) as one:
        for number in range(3 * MOST // 20_000):
            data = [piece] * 19 + [b"%d" % number]
            one.send(iter(data))
            assert one.recv() == b"".join(data)


def test_the_portal_uses_it():
    words = control(listener_fd=3)[0].argv
    config = uvicorn.Config("x:y", ws=words[words.index("--ws") + 1])
    config.load_app = lambda: None
    config.load()
    assert config.ws_protocol_class is BoundedWebsocket
