"""A node keeps a connection while its client is away, and for nobody else."""

import asyncio
import random
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from placement.agent.access import kept_connections
from placement.agent.access.kept_bytes import KEPT_BYTES, SMALL_BYTES, KeptBytes
from placement.agent.access.kept_connections import REPORT_BYTES, KeptConnections
from placement.agent.access.ssh_principals import FOLDER, PRINCIPALS
from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_frames import (
    AGAIN,
    HOLDER,
    SESSION,
    UNTIL,
    StreamOrder,
    StreamReport,
    report_of,
    text_of,
)
from placement.protocol.stream_refusal import LOST, StreamRefused, refusal_of
from placement.protocol.stream_state import StreamViolation
from telemetry.protocol.codec import decode, encode
from tests.placement.nodes import PATIENCE_SECONDS

pytestmark = pytest.mark.pure
NUMBER = "5" * 32


def order_of(user="alice", number=NUMBER, *, again=False, until=None, reservation=7):
    options = {SESSION: number, HOLDER: "r7-u5-"}
    options |= {AGAIN: 1} if again else {}
    options |= {} if until is None else {UNTIL: str(until)}
    known = {"kind": "stream", "node": "node1", "stream": "a" * 32, "service": "ssh"}
    known |= {"reservation": reservation, "user": user, "unix_user": "al"}
    return StreamOrder(**known, issued_at=1.0, expires_at=2.0, options=options)


class Service:
    """A service on the loopback address, with what it took and whether it is open."""

    def __init__(self, answer):
        self.answer, self.opened, self.closed = answer, 0, 0

    async def __call__(self, reader, writer):
        self.opened += 1
        try:
            await self.answer(reader, writer)
        except ConnectionError:
            pass
        finally:
            self.closed += 1
            writer.close()

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def service_of(answer):
    service = Service(answer)
    server = await asyncio.start_server(service, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    async with server:
        yield service


async def echo(reader, writer):
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


class Line:
    """A stream between a client and a node. What is on its way is lost with it."""

    def __init__(self, kept, order, service, node):
        self.cut = False
        self.client = ByteStream(order.stream, lambda frames: self.pass_on(frames, 1))
        self.node = ByteStream(order.stream, lambda frames: self.pass_on(frames, 0))
        self.work = asyncio.create_task(self.serve(kept, order, service, node))

    async def serve(self, kept, order, service, node):
        """As `NodeStreams` does it."""
        serving = asyncio.create_task(
            kept.carry(node, order, self.node, service.connect)
        )
        over = asyncio.create_task(self.node.wait_until_over())
        await asyncio.wait({serving, over}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        over.cancel()
        if not serving.cancelled() and isinstance(serving.exception(), StreamRefused):
            self.node.abort(serving.exception().code, str(serving.exception()))
        self.node.finish()
        return None if serving.cancelled() else serving.exception()

    def pass_on(self, frames, to_node):
        def arrive():
            for frame in frames:
                if not self.cut:
                    (self.node if to_node else self.client).deliver(frame)

        asyncio.get_running_loop().call_soon(arrive)

    async def lose(self):
        self.cut = True
        for end in (self.node, self.client):
            end.lose(refusal_of(LOST, ""))
        return await self.work


class Client:
    """What ``gp`` does, over one line after the other."""

    def __init__(self, data):
        self.data, self.got, self.sent = data, bytearray(), KeptBytes()
        self.done = False

    @property
    def moved_bytes(self):
        return len(self.got) + self.sent.total_bytes

    async def use(self, stream, *, again):
        told = asyncio.Event()

        async def write():
            await told.wait()
            if again:
                await stream.write_control({"received": len(self.got)})
                if rest := self.sent.rest():
                    await stream.write(rest)
            while self.sent.total_bytes < len(self.data):
                size = min(random.randrange(1, 30_000), self.sent.room_bytes)
                start = self.sent.total_bytes
                if piece := self.data[start : start + size]:
                    self.sent.append(piece)
                    await stream.write(piece)
                await asyncio.sleep(0)
            await stream.write_control({"ended": len(self.data)})
            await asyncio.Event().wait()

        async def read():
            reported = 0
            while piece := await stream.read():
                if not piece.control:
                    self.got += piece.data
                    if len(self.got) - reported >= REPORT_BYTES:
                        reported = len(self.got)
                        await stream.write_control({"received": reported})
                    continue
                report = decode(StreamReport, piece.data)
                if report.received is not None:
                    self.sent.received(report.received)
                    told.set()
                else:
                    assert report.ended == len(self.got)
                    self.done = True
                    await stream.write_control({"received": len(self.got)})

        tasks = [asyncio.create_task(one()) for one in (write, read)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def here(tmp_path):
    """Return what a node's settings give."""
    return SimpleNamespace(name="node1", node_dir=tmp_path)


@pytest.mark.parametrize("seed", range(4))
async def test_no_byte_is_lost_or_comes_twice_over_random_losses(here, seed):
    random.seed(seed)
    kept, losses = KeptConnections(), 0
    client = Client(random.randbytes(1_500_000))
    async with service_of(echo) as service:
        while not client.done:
            order = order_of(again=losses > 0)
            line = Line(kept, order, service, here)
            using = asyncio.create_task(client.use(line.client, again=losses > 0))
            lost_at = client.moved_bytes + random.choice((0, 1, 9_000, 400_000))
            while not client.done and client.moved_bytes <= lost_at:
                await asyncio.sleep(0)
            if not client.done:
                await line.lose()
                losses += 1
            await using
            for one in kept.connections.values():
                assert one.sent.room_bytes >= 0 and one.away
        await line.work
        assert bytes(client.got) == client.data
        assert losses > 5 and service.opened == 1
        assert not kept.connections


async def opened(kept, service, here, **more):
    """Open a connection, and wait until the node has answered."""
    line = Line(kept, order_of(**more), service, here)
    assert (await line.client.read()).control
    return line


async def until(reached):
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reached():
            await asyncio.sleep(0.005)


async def test_another_user_or_reservation_finds_nothing_under_the_number(here):
    kept = KeptConnections()
    async with service_of(echo) as service:
        await (await opened(kept, service, here)).lose()
        for other in (
            {"user": "bob"},
            {"reservation": 8},
            {"number": "6" * 32},
        ):
            refused = await Line(
                kept, order_of(again=True, **other), service, here
            ).work
            assert refused.code == "stream-ended", other
        (one,) = kept.connections.values()
        assert one.away
        # The number is taken, and an invalid one is refused.
        for number, code in ((NUMBER, "bad-request"), ("../x", "bad-request")):
            refused = await Line(kept, order_of(number=number), service, here).work
            assert refused.code == code
        assert service.opened == 1
        # Its owner finds it, also while the portal has not noticed the loss.
        first = await opened(kept, service, here, again=True)
        second = await opened(kept, service, here, again=True)
        await first.work
        assert first.node.end_code == LOST
        await second.client.write_control({"received": 0})
        await second.client.write(b"hello")
        assert (await second.client.read()).data == b"hello"
        second.client.abort()
        await second.work
        await until(lambda: service.closed)
        assert not kept.connections


@pytest.mark.parametrize("reason", ["time", "end", "earlier end", "revoked", "left"])
async def test_a_connection_without_a_client_is_dropped(here, monkeypatch, reason):
    monkeypatch.setattr(kept_connections, "LOOK_SECONDS", 0.02)
    if reason == "time":
        monkeypatch.setattr(kept_connections, "HOLD_SECONDS", 0.1)
    listed = here.node_dir / FOLDER / PRINCIPALS / "al"
    listed.parent.mkdir(parents=True)
    listed.write_text("r7-u5-k9\nr8-u5-k9\n")
    kept = KeptConnections()
    until_at = time.time() + (0.1 if reason == "end" else 900)
    async with service_of(echo) as service:
        line = await opened(kept, service, here, until=until_at)
        if reason == "earlier end":
            await line.client.write_control({"until": time.time()})
            await until(lambda: line.client.takes_now(1))
            await asyncio.sleep(0.01)
        if reason == "left":
            line.client.abort()
            await line.work
        else:
            await line.lose()
        if reason == "revoked":
            await asyncio.sleep(0.1)
            assert kept.connections and not service.closed
            listed.write_text("r8-u5-k9\nr7-u55-k1\n")
        await until(lambda: service.closed)
        assert not kept.connections
        gone = await Line(kept, order_of(again=True), service, here).work
        assert gone.code == "stream-ended"


async def test_memory_is_bounded_for_a_client_that_reports_nothing(here):
    async def flood(_reader, writer):
        while True:
            writer.write(bytes(65_536))
            await writer.drain()

    kept, got = KeptConnections(), 0
    async with service_of(flood) as service:
        line = Line(kept, order_of(), service, here)
        while got < KEPT_BYTES:
            piece = await line.client.read()
            got += 0 if piece.control else len(piece.data)
        await asyncio.sleep(0.05)
        (one,) = kept.connections.values()
        assert (got, one.sent.total_bytes) == (KEPT_BYTES, KEPT_BYTES)
        await line.client.write_control({"received": 1000})
        assert len((await line.client.read()).data) == 1000
        # More than was sent: it is no client of ours.
        await line.client.write_control({"received": KEPT_BYTES + 1001})
        await line.work
        assert line.node.end_code == "stream-broken"
        assert not kept.connections


async def test_a_user_fills_neither_the_node_nor_anothers_place(here, monkeypatch):
    monkeypatch.setattr(kept_connections, "MOST_OF_USER", 2)
    monkeypatch.setattr(kept_connections, "MOST_KEPT", 3)
    kept = KeptConnections()
    async with service_of(echo) as service:
        bobs = await opened(kept, service, here, user="bob")
        lines = [
            await opened(kept, service, here, number=f"{number:032}")
            for number in range(2)
        ]
        third = {"number": "3" * 32}
        refused = await Line(kept, order_of(**third), service, here).work
        assert refused.code == "streams-full"
        await lines[0].lose()
        await opened(kept, service, here, **third)
        await until(lambda: service.opened == 4)
        assert len(kept.connections) == 3
        refused = await Line(kept, order_of(user="cy"), service, here).work
        assert refused.code == "streams-full"
        await bobs.client.write(b"x")
        assert (await bobs.client.read()).data == b"x"
        kept.close()


async def test_a_client_that_counts_nothing_still_ends_its_input(here):
    """``gp`` whose input ended before the node had answered."""

    async def count(reader, writer):
        size = len(await reader.read())
        writer.write(b"%d " % size + bytes(KEPT_BYTES * 2))
        await writer.drain()

    kept, got = KeptConnections(), b""
    async with service_of(count) as service:
        line = Line(kept, order_of(), service, here)
        await line.client.write(b"12345")
        line.client.finish()
        while piece := await line.client.read():
            got += b"" if piece.control else piece.data
        await line.work
    assert got == b"5 " + bytes(KEPT_BYTES * 2)
    assert not kept.connections


def test_reports_have_one_text():
    assert report_of("received 0") == {"received": 0}
    for bad in ("received -1", "received 01", "until 5", "received 1 ", "received"):
        assert report_of(bad) is None
    assert text_of(decode(StreamReport, encode({"until": 5.0}))) == ""
    assert replace(order_of(), options={}).options == {}
    with pytest.raises(StreamViolation):
        KeptBytes().received(1)
    with pytest.raises(ValueError, match="at most"):
        KeptBytes().append(bytes(KEPT_BYTES + 1))


@pytest.mark.parametrize("seed", range(3))
def test_kept_bytes_are_those_after_the_last_report(seed):
    random.seed(seed)
    kept, plain, start = KeptBytes(), bytearray(), 0
    for _ in range(300):
        size = random.choice((1, 3, SMALL_BYTES - 1, SMALL_BYTES, 50_000))
        data = random.randbytes(min(size, kept.room_bytes))
        kept.append(data)
        plain += data
        start = random.randint(start, min(len(plain), start + 60_000))
        kept.received(start)
        assert kept.rest() == plain[start:]
        assert kept.room_bytes == KEPT_BYTES - (len(plain) - start)


def test_many_small_pieces_take_no_more_memory_than_one():
    kept = KeptBytes()
    for _ in range(2_000):
        kept.append(b"ab")
    assert len(kept._kept) == 1
