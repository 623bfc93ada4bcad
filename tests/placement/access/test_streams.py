"""Streams through a live portal and its broker to a node's thread, and their abuse."""

import asyncio
import time
from contextlib import AsyncExitStack
from unittest import mock

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from placement.access import stream_broker, stream_relay
from placement.access.frame_lists import ALIVE, NODE, SEATS
from placement.access.stream_broker import StreamBroker
from placement.agent import portal_socket
from placement.agent.access import node_streams
from placement.agent.access.node_streams import NodeStreams
from placement.jobs.nodes import node_socket
from placement.protocol import signing
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.stream_frames import (
    PIECE_BYTES,
    WINDOW_BYTES,
    CloseFrame,
    DataFrame,
    OpenFrame,
    StreamOrder,
    WindowFrame,
    pack_frame,
    unpack_frame,
)
from placement.protocol.stream_refusal import StreamRefused
from telemetry.inventory.short_tokens import OVERLAP
from telemetry.models import NodeIdentity
from telemetry.protocol.node_token import start_of, token_hash
from telemetry.token_files import TokenFiles
from tests.factories import make_node
from tests.placement.access.stream_nodes import streams_of, target_at
from tests.placement.nodes import PATIENCE_SECONDS, make_settings
from tests.placement.serving.kitchen import token_of
from tests.sockets import WebsocketCommunicator

pytestmark = pytest.mark.django_db(transaction=True)


async def echo(_node, _order, stream):
    while piece := await stream.read():
        if piece.control:
            await stream.write_control({"got": piece.data.decode()})
        else:
            await stream.write(piece.data)


async def until(reached):
    end = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def read_bytes(stream, size):
    found = b""
    while len(found) < size:
        piece = await stream.read()
        assert piece is not None
        found += piece.data
    return found


async def test_streams_carry_bytes_and_one_that_nobody_reads_delays_no_other(
    node, live_asgi, redis_client
):
    sent = {"flood": 0}

    async def flood(_node, order, stream):
        assert order.options == {"rows": 24, "term": "xterm"}
        while True:
            await stream.write(bytes(1024))
            sent["flood"] += 1024

    async def grumpy(_node, _order, _stream):
        raise StreamRefused("service-failed", "The cellar is closed.")

    async def clumsy(_node, _order, _stream):
        raise ZeroDivisionError

    row = await sync_to_async(make_node)("node1")
    here = make_settings(
        node.node_dir.parent, redis_url=node.redis_url, web_url=live_asgi
    )
    await sync_to_async(token_of)(row, here)
    broker, target = StreamBroker(), target_at()

    async def refused(service, code, most=9):
        with pytest.raises(StreamRefused) as found:
            async with broker.open(target, service, most=most):
                pass
        assert found.value.code == code, found.value
        return str(found.value)

    words = await refused("echo", "no-streams")
    assert words.startswith("node1 takes no connections now"), "an older node"
    services = {"echo": echo, "flood": flood, "grumpy": grumpy, "clumsy": clumsy}
    with streams_of(here, services) as streams:
        await until(lambda: redis_client.exists(NODE + "node1"))
        more = {"rows": 24, "term": "xterm"}
        async with (
            broker.open(target, "flood", most=1, options=more) as unread,
            broker.open(target, "echo", most=1) as stream,
        ):
            await until(lambda: sent["flood"] == WINDOW_BYTES)
            large = bytes(range(256)) * 2048
            writing = asyncio.create_task(stream.write(large))
            assert await read_bytes(stream, len(large)) == large
            await writing
            await stream.write_control({"rows": 40})
            piece = await stream.read()
            assert piece.control and piece.data == b'{"got":"{\\"rows\\":40}"}'
            await refused("echo", "too-many", most=1)
            assert sent["flood"] == WINDOW_BYTES, "it waits for its reader"
            assert len(await read_bytes(unread, 1)) > 0
            await until(lambda: sent["flood"] > WINDOW_BYTES)
            stream.finish()
            assert await stream.read() is None, "the echo ends with what it copies"
        await until(lambda: not streams.streams)
        assert await refused("grumpy", "service-failed") == "The cellar is closed."
        await refused("clumsy", "service-failed")
        assert "does not offer teapot" in await refused("teapot", "no-service")
        await refused_at_the_node(here)
    with pytest.raises(StreamRefused) as lost:
        await away_in_the_middle(here, broker, redis_client)
    assert lost.value.code == "stream-lost"


async def away_in_the_middle(here, broker, redis_client):
    """Read from a stream whose node stops."""
    redis_client.delete(NODE + "node1")
    async with AsyncExitStack() as stack:
        with streams_of(here, {"echo": echo}):
            await until(lambda: redis_client.exists(NODE + "node1"))
            opening = broker.open(target_at(), "echo", most=1)
            stream = await stack.enter_async_context(opening)
        await stream.read()


async def refused_at_the_node(here):
    """The node obeys each order of its portal once, and nobody else's."""
    streams = NodeStreams(here, {"echo": echo})
    name, now = "b" * 32, time.time()

    def made(**changes):
        known = {
            "kind": "stream",
            "node": "node1",
            "stream": name,
            "service": "echo",
            "reservation": 7,
            "user": "alice",
            "unix_user": "",
            "issued_at": now,
            "expires_at": now + 60,
        }
        return StreamOrder(**(known | changes)).payload()

    def code(payload, signature=None, stream=name):
        frame = OpenFrame(stream, payload, signature or signing.sign(payload))
        with pytest.raises(OrderRefused) as found:
            streams._checked_order(frame)
        return found.value.code

    assert code(made(), signing.sign(made(user="root"))) == "signature"
    assert code(made(node="node2")) == "other-node"
    assert code(made(issued_at=now - 99, expires_at=now - 1)) == "expired"
    assert code(made(), stream="c" * 32) == "malformed"
    assert code(made(service="../sshd")) == "malformed"
    assert code(made(options={"host": ["10.0.0.1"]})) == "malformed"
    good = OpenFrame(name, made(), signing.sign(made()))
    assert streams._checked_order(good).service == "echo"
    assert code(made()) == "replayed"
    assert streams._used == {name}
    # What is remembered ends with the orders.
    later, other = now + 60, "d" * 32
    payload = made(stream=other, issued_at=later, expires_at=later + 60)
    with mock.patch.object(node_streams, "time", mock.Mock(time=lambda: later)):
        streams._checked_order(OpenFrame(other, payload, signing.sign(payload)))
    assert streams._used == {other} and len(streams._expiries) == 1


@pytest.mark.once
async def test_a_node_that_breaks_the_protocol_ends_its_own_stream_only(redis_client):
    row = await sync_to_async(make_node)("node1")
    token = row.new_token()
    await sync_to_async(row.save)()

    assert await token_socket("node1:wrong").connect() == (False, 4401)
    node = token_socket(f"node1:{token}")
    assert (await node.connect())[0]
    await until(lambda: redis_client.exists(NODE + "node1"))
    broker = StreamBroker()

    async def received():
        sent = await node.receive_output(PATIENCE_SECONDS)
        return unpack_frame(sent["bytes"])

    async def send(*frames):
        for frame in frames:
            data = frame if isinstance(frame, bytes) else pack_frame(frame)
            await node.send_input({"type": "websocket.receive", "bytes": data})

    async def opened(user_pk):
        """Open a stream and accept it as a node does."""
        block = broker.open(target_at(user_pk=user_pk), "ssh", most=1)
        opening = asyncio.create_task(block.__aenter__())
        frame = await received()
        while isinstance(frame, CloseFrame):  # of an earlier stream
            frame = await received()
        assert isinstance(frame, OpenFrame) and frame.reply == "", "not for a node"
        assert await received() == WindowFrame(frame.stream, WINDOW_BYTES)
        await send(WindowFrame(frame.stream, WINDOW_BYTES))
        return block, await opening, frame.stream

    good, stream, name = await opened(1)
    bad, other, other_name = await opened(2)
    await send(
        b"\0\0", DataFrame("f" * 32, False, b"not open"), OpenFrame(name, "", "")
    )
    with pytest.raises(StreamRefused) as found:
        await stream.read()
    assert found.value.code == "stream-broken", "a node opens nothing"
    assert (await received()).code == "stream-broken"
    # More than the credit: the rest is dropped at the portal.
    pieces = WINDOW_BYTES // PIECE_BYTES + 1
    await send(*[DataFrame(other_name, False, bytes(PIECE_BYTES))] * pieces)
    with pytest.raises(StreamRefused) as found:
        await read_bytes(other, WINDOW_BYTES + 1)
    assert found.value.code == "stream-broken"
    await good.__aexit__(None, None, None)
    await bad.__aexit__(None, None, None)
    third, stream, name = await opened(1)
    await send(DataFrame(name, False, b"hello"), CloseFrame(name))
    assert await read_bytes(stream, 5) == b"hello"
    assert await stream.read() is None
    await third.__aexit__(None, None, None)
    while (await received()).stream != name:
        pass
    # A node that ends a direction twice is stopped at the portal.
    fourth, stream, name = await opened(1)
    await send(CloseFrame(name), CloseFrame(name), *[CloseFrame(name)] * 9)
    assert (await received()) == CloseFrame(name, "stream-broken")
    await until(lambda: stream.over)
    await fourth.__aexit__(None, None, None)
    await node.disconnect()


async def test_a_socket_whose_token_has_ended_takes_no_new_streams(
    node, live_asgi, redis_client, monkeypatch
):
    """The node opens another socket, and what is under way on the first one goes on."""
    monkeypatch.setattr(node_socket, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(stream_relay, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(portal_socket, "RENEWAL_SECONDS", 0.05)
    row = await sync_to_async(make_node)("node1", release="0.2.0")
    here = make_settings(
        node.node_dir.parent, redis_url=node.redis_url, web_url=live_asgi
    )
    await sync_to_async(token_of)(row, here)
    texts = [f"gpn1.{start_of(here.token())}.{n}.{n:043}" for n in (1, 2)]
    known = await NodeIdentity.objects.acreate(
        node=row,
        enrolment_hash=row.token_hash,
        token_number=1,
        token_hash=token_hash(texts[0]),
        token_issued_at=timezone.now(),
    )
    TokenFiles(here.token_file).short.write_text(texts[0])
    broker = StreamBroker()
    with streams_of(here, {"echo": echo}) as streams:
        await until(lambda: redis_client.exists(NODE + "node1"))
        first_socket = redis_client.get(NODE + "node1")
        async with broker.open(target_at(), "echo", most=3) as first:
            # A thief of the first token keeps a socket open.
            thief = token_socket(f"node1:{texts[0]}")
            assert (await thief.connect())[0]
            await until(lambda: redis_client.get(NODE + "node1") != first_socket)
            thiefs_socket = redis_client.get(NODE + "node1")
            # The node renews. The overlap of the first token is over.
            known.token_number = 2
            known.token_hash = token_hash(texts[1])
            known.token_before_hash = token_hash(texts[0])
            known.token_issued_at = timezone.now() - OVERLAP
            await known.asave()
            TokenFiles(here.token_file).short.write_text(texts[1])
            closed = await thief.receive_output(PATIENCE_SECONDS)
            assert closed == {"type": "websocket.close", "code": 1013}
            old = {first_socket, thiefs_socket, None}
            await until(lambda: redis_client.get(NODE + "node1") not in old)
            async with broker.open(target_at(), "echo", most=3) as second:
                await second.write(b"new")
                assert await read_bytes(second, 3) == b"new"
            await first.write(b"old")
            assert await read_bytes(first, 3) == b"old"
        await until(lambda: not redis_client.exists(ALIVE + first_socket.decode()))
        assert not streams.streams
        third = broker.open(target_at(), "echo", most=3)
        async with third as stream:
            await stream.write(b"still")
            assert await read_bytes(stream, 5) == b"still"


def token_socket(shown):
    """A websocket for streams, as a node opens it with a token."""
    from gpuportal.asgi import application

    headers = [
        (b"host", b"127.0.0.1"),
        (b"origin", b"http://127.0.0.1"),
        (b"authorization", f"Node {shown}".encode()),
    ]
    return WebsocketCommunicator(application, "/ws/node/streams/", headers)


async def test_a_stream_that_is_cancelled_while_it_takes_its_seat_keeps_none(
    redis_client, monkeypatch
):
    broker, target = StreamBroker(), target_at()
    redis_client.set(NODE + "node1", "a-socket")
    seated, go_on = asyncio.Event(), asyncio.Event()
    sit_down = StreamBroker._sit_down

    async def slow(*args):
        word = await sit_down(*args)
        seated.set()
        await go_on.wait()
        return word

    monkeypatch.setattr(StreamBroker, "_sit_down", slow)

    async def open_one():
        async with broker.open(target, "echo", most=1):
            raise AssertionError("it was cancelled")

    opening = asyncio.create_task(open_one())
    await asyncio.wait_for(seated.wait(), PATIENCE_SECONDS)
    seats = f"{SEATS}echo.{target.user_pk}"
    assert redis_client.zcard(seats) == 1
    opening.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert redis_client.zcard(seats) == 0
    await broker.redis.aclose()


async def test_a_stream_does_not_wait_for_a_websocket_of_a_killed_web_process(
    node, live_asgi, redis_client
):
    row = await sync_to_async(make_node)("node1")
    here = make_settings(
        node.node_dir.parent, redis_url=node.redis_url, web_url=live_asgi
    )
    await sync_to_async(token_of)(row, here)
    # So a process that was killed leaves the broker, for 15 s.
    for key in (NODE + "node1", ALIVE + "killed"):
        redis_client.set(key, "killed", ex=60)
    broker = StreamBroker()

    async def send():
        async with broker.open(target_at(), "echo", most=1) as stream:
            await stream.write(b"key")
            return await read_bytes(stream, 3)

    sending = asyncio.create_task(send())
    await until(lambda: redis_client.exists("stream.down.killed"))
    assert not sending.done()
    since = time.monotonic()
    with streams_of(here, {"echo": echo}):
        assert await sending == b"key"
        assert time.monotonic() - since < stream_broker.OPEN_SECONDS / 2
    assert redis_client.zcard(f"{SEATS}echo.1") == 0
