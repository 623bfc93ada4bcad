"""Websockets of hostile programs: what they keep in memory, and for how long."""

import asyncio
import struct

import pytest
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from gpuportal.http.workspace_socket import PARSED_BYTES, WorkspaceSocket
from placement.access import message_turns
from placement.access.message_turns import FREE_BYTES, TURNS_OF_NODE, TURNS_OF_USER
from placement.protocol.stream_refusal import StreamRefused
from placement.protocol.stream_state import StreamPiece
from tests.placement.access.stream_nodes import target_at
from tests.placement.nodes import PATIENCE_SECONDS

pytestmark = pytest.mark.once
TEXT, CONTINUED = 0x01, 0x00
LAST = 0x80


def frame(data, kind=LAST | TEXT):
    """A program's frame, as RFC 6455 defines it: without a mask."""
    size = len(data)
    if size < 126:
        return bytes([kind, size]) + data
    if size < 2**16:
        return bytes([kind, 126]) + struct.pack(">H", size) + data
    return bytes([kind, 127]) + struct.pack(">Q", size) + data


class Half:
    """A websocket whose program sends what the test gives."""

    def __init__(self, target):
        self.pieces, self.read_pieces = asyncio.Queue(), 0
        self.sent, self.over = [], False
        self.socket = WorkspaceSocket(target, self, None, self.send)
        self.socket.there = ClientProtocol(parse_uri("ws://w/"), max_size=2**20)
        self.socket.there.state = self.socket.there.state.OPEN
        self.socket.there.parser = self.socket.there.parse()
        next(self.socket.there.parser)
        self.work = asyncio.create_task(self.socket._from_program())

    async def read(self):
        data = await self.pieces.get()
        self.read_pieces += 1
        return StreamPiece(data) if data else None

    async def write(self, data):
        pass

    async def send(self, message):
        self.sent.append(message)

    def give(self, data, piece_bytes=200_000):
        for start in range(0, len(data), piece_bytes):
            self.pieces.put_nowait(data[start : start + piece_bytes])

    async def idle(self):
        """Wait until nothing happens any more."""
        for _ in range(200):
            await asyncio.sleep(0)
        return self.read_pieces

    async def ended(self):
        return await asyncio.wait_for(self.work, PATIENCE_SECONDS)


LONG = frame(b"x" * (FREE_BYTES + 200_000))


async def test_a_user_and_a_node_keep_few_long_messages():
    mine = [Half(target_at()) for _ in range(TURNS_OF_USER + 1)]
    for half in mine:
        half.give(LONG[:-1])
    for half in mine:
        await half.idle()
    waiting = mine.pop()
    # The piece by which it had more than it may keep is the last that it read.
    assert waiting.socket._kept_bytes <= FREE_BYTES + 200_000
    assert not waiting.pieces.empty()
    assert all(half.pieces.empty() for half in mine), "they have a turn"
    short = Half(target_at())
    short.give(frame(b"key"))
    await short.idle()
    assert [one["text"] for one in short.sent] == ["key"], "it needs no turn"
    others = [Half(target_at(user_pk=2 + n)) for n in range(TURNS_OF_NODE - 1)]
    for half in others:
        half.give(LONG[:-1])
        await half.idle()
    full = TURNS_OF_NODE - TURNS_OF_USER
    assert [half.pieces.empty() for half in others] == (
        [True] * full + [False] * (len(others) - full)
    )
    elsewhere = Half(target_at("node2", user_pk=2))
    elsewhere.give(LONG)
    await elsewhere.idle()
    assert len(elsewhere.sent) == 1
    # The turns go round: first to the user who waits for the node, then to the first.
    for half in (mine[0], others[0], others[-1], waiting):
        half.give(LONG[-1:])
        await half.idle()
        assert len(half.sent[0]["text"]) == FREE_BYTES + 200_000
    for half in [*mine, waiting, short, elsewhere, *others]:
        half.work.cancel()
        await asyncio.gather(half.work, return_exceptions=True)


async def test_a_message_that_does_not_end_loses_its_turn(monkeypatch):
    monkeypatch.setattr(message_turns, "TURN_SECONDS", 0.0)
    half = Half(target_at())
    half.give(LONG[:-1])
    with pytest.raises(StreamRefused) as refused:
        await half.ended()
    assert refused.value.code == "stream-lost"


async def test_empty_fragments_take_no_memory_and_leave_others_their_turn():
    """Each costs a program two bytes."""
    half, turns = Half(target_at()), 0
    half.give(frame(b"", TEXT) + frame(b"", CONTINUED) * 20_000)

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not half.pieces.empty() or not half.read_pieces:
            await asyncio.sleep(0)
    await half.idle()
    counting.cancel()
    assert turns >= 40_000 // PARSED_BYTES
    assert half.socket._kept_bytes <= PARSED_BYTES and not half.sent
    half.give(frame(b"end", LAST | CONTINUED))
    await half.idle()
    assert [one["text"] for one in half.sent] == ["end"]
    half.work.cancel()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"x", TEXT) * 2, 1002),
        (b"\x81\x7f" + struct.pack(">Q", 2**40), 1009),
        (b"\x81\x7f" + struct.pack(">Q", 2**63), 1009),
        (b"\xff\xff", 1002),
    ],
)
async def test_a_program_that_breaks_the_protocol_is_closed(data, code):
    half = Half(target_at())
    half.give(data + b"more" * 1000)
    await half.ended()
    assert half.sent == [{"type": "websocket.close", "code": code}]
