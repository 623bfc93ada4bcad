"""Both ends of the tunnel against a peer that breaks the protocol."""

import asyncio
import socket
import time
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from websockets.asyncio.server import serve

from placement.agent.job_folder import JobFolder
from placement.agent.portal_socket import portal_socket
from placement.agent.process import serving_socket
from placement.agent.serving.server_client import NoAnswer, ask
from placement.agent.serving.tunnel import ServeTunnels
from placement.protocol.call_refusal import CallRefused
from placement.protocol.node_http import UNSENT_BYTES
from placement.protocol.serving_frames import (
    MOST_ANSWER_BYTES,
    Call,
    FrameInvalid,
    checked_answer,
    checked_call,
    pack,
    unpack,
)
from placement.serving.call_access import CallTarget
from placement.serving.call_broker import ANSWERS, CALLS, TUNNEL, call_broker
from tests.factories import make_node
from tests.placement.nodes import make_settings
from tests.sockets import WebsocketCommunicator

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """A Job's folder whose path is longer than a socket's address may be."""
    path = tmp_path / ("long" * 30) / "7-1"
    path.mkdir(parents=True)
    return JobFolder(path, 7, 1)


async def test_what_a_job_answers_is_bounded_and_must_be_http(folder):
    said = b""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        writer.close()

    with pytest.raises(NoAnswer):
        await ask(folder, "GET", "/v2", within_seconds=1)
    listener = serving_socket.listen(folder)
    assert serving_socket.path_of(folder).stat().st_mode & 0o777 == 0o600
    server = await asyncio.start_unix_server(answer, sock=listener)
    said = OK
    found = await ask(folder, "GET", "/v2", within_seconds=5)
    assert (found.status, found.body) == (200, b"ok")
    said = b"HTTP/1.1 302 Found\r\nLocation: http://evil/\r\nContent-Length: 0\r\n\r\n"
    moved = await ask(folder, "GET", "/v2", within_seconds=5)
    with pytest.raises(FrameInvalid, match="302"):
        checked_answer({"status": moved.status, "headers": {}}, b"")
    for bad in (
        b"",
        b"hello\r\n\r\n",
        OK[:-1],
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 40_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MOST_ANSWER_BYTES + 1),
    ):
        said = bad
        with pytest.raises(NoAnswer):
            await ask(folder, "GET", "/v2", within_seconds=5)
    server.close()


async def test_a_stopped_job_with_a_full_queue_does_not_block_the_event_loop(
    folder, monkeypatch
):
    monkeypatch.setattr(serving_socket, "BACKLOG", 0)
    listener = serving_socket.listen(folder)
    first = await serving_socket.connect(folder)
    waiting = asyncio.create_task(serving_socket.connect(folder))
    await asyncio.sleep(0)
    assert not waiting.done(), "the loop runs on"
    monkeypatch.setattr(serving_socket, "CONNECT_SECONDS", 0.1)
    with pytest.raises(NoAnswer, match="accepts no connections"):
        await ask(folder, "GET", "/v2", within_seconds=60)
    waiting.cancel()
    monkeypatch.setattr(serving_socket, "CONNECT_SECONDS", 60)
    waiting = asyncio.create_task(serving_socket.connect(folder))
    await asyncio.sleep(0)
    assert not waiting.done()
    accepted, _ = listener.accept()
    for one in (first, await waiting, accepted, listener):
        one.close()


async def test_what_a_node_cannot_send_yet_does_not_pile_up_in_the_kernel(tmp_path):
    async with serve(lambda opened: opened.wait_closed(), "127.0.0.1", 0) as portal:
        port = portal.sockets[0].getsockname()[1]
        here = make_settings(tmp_path, web_url=f"http://127.0.0.1:{port}")
        async with portal_socket(here, "/ws/node/streams/", most_bytes=1) as opened:
            own = opened.transport.get_extra_info("socket")
            option = (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            assert own.getsockopt(*option) == UNSENT_BYTES


def node_socket(shown):
    from gpuportal.asgi import application

    headers = [
        (b"host", b"127.0.0.1"),
        (b"origin", b"http://127.0.0.1"),
        (b"authorization", f"Node {shown}".encode()),
    ]
    return WebsocketCommunicator(application, "/ws/node/serve/", headers)


@pytest.mark.django_db(transaction=True)
async def test_a_node_answers_only_what_it_was_asked_over_this_very_tunnel(
    redis_client,
):
    node = await sync_to_async(make_node)("node1")
    token = node.new_token()
    await sync_to_async(node.save)()
    for shown in ("node1:wrong", "other:" + token, ""):
        assert await node_socket(shown).connect() == (False, 4401)
    socket = node_socket(f"node1:{token}")
    assert (await socket.connect())[0]

    def call(number, seconds=20):
        name = f"{number:032x}"
        made = Call(name, 7, 1, "POST", "/v2", {}, 10.0, time.time() + seconds, b"body")
        redis_client.rpush(CALLS + "node1", made.frame(reply=ANSWERS + "desk"))
        return name

    call(1, seconds=-1)
    name = call(2)
    sent = await socket.receive_output(60)
    head, body = unpack(sent["bytes"])
    assert (head["call"], body) == (name, b"body"), "the one that is over is not sent"
    assert "reply" not in head
    assert redis_client.exists(TUNNEL + "node1")

    async def send(data):
        await socket.send_input({"type": "websocket.receive", "bytes": data})

    good = {"kind": "answer", "call": name, "status": 200, "headers": {}}
    await send(pack({**good, "call": "f" * 32}, b"for somebody else"))
    await send(b"\0\0")
    await send(pack({**good, "more": True}, b"first, "))
    await send(pack({**good, "more": False}, b"second"))
    _, data = await sync_to_async(redis_client.blpop)([ANSWERS + "desk"], 60)
    assert unpack(data)[1] == b"first, second"
    await send(pack(good, b"once more"))

    name = call(3)
    await socket.receive_output(60)
    await socket.disconnect()
    _, data = await sync_to_async(redis_client.blpop)([ANSWERS + "desk"], 60)
    head, _ = unpack(data)
    assert (head["call"], head["status"]) == (name, 502), "a tunnel that closed"
    assert redis_client.llen(ANSWERS + "desk") == 0


@pytest.mark.django_db(transaction=True)
async def test_calls_of_the_process_with_the_tunnel_do_not_go_through_the_broker(
    redis_client,
):
    node = await sync_to_async(make_node)("node1")
    token = node.new_token()
    await sync_to_async(node.save)()
    socket, broker = node_socket(f"node1:{token}"), call_broker()
    assert (await socket.connect())[0]
    while not broker.tunnels["node1"]:
        await asyncio.sleep(0)
    target = CallTarget("node1", 7, 1, 1, "")
    names = iter(f"{number:032x}" for number in range(9))

    def asked():
        made = Call(next(names), 7, 1, "POST", "/v2", {}, 10.0, 0.0, b"body")
        return asyncio.create_task(broker.ask(target, made))

    async def received():
        head, body = unpack((await socket.receive_output(60))["bytes"])
        return head["kind"], head["call"], body

    async def send(call, status, body):
        head = {"kind": "answer", "call": call, "status": status, "headers": {}}
        data = pack(head, body)
        await socket.send_input({"type": "websocket.receive", "bytes": data})

    answered = asked()
    kind, name, body = await received()
    assert (kind, body) == ("call", b"body")
    await send(name, 200, b"good")
    assert (await answered).body == b"good"

    refused = asked()
    await send((await received())[1], 302, b"")
    with pytest.raises(CallRefused) as error:
        await refused
    assert error.value.code == "bad-answer"

    left = asked()
    _, name, _ = await received()
    left.cancel()
    assert (await received())[:2] == ("cancel", name)

    last = asked()
    await received()
    await socket.disconnect()
    assert (await last).status == 502, "a tunnel that closed"
    assert broker.tunnels["node1"] == []
    lists = [*redis_client.keys(CALLS + "*"), *redis_client.keys(ANSWERS + "*")]
    assert lists == []


async def test_a_call_reaches_the_job_of_its_key_and_no_other_of_that_number(tmp_path):
    """After a restore a number can be given again while the old Job still serves."""
    tunnels = ServeTunnels(make_settings(tmp_path))
    servers, letters = [], {"": b"n", "aa11": b"a", "bb22": b"b"}
    for key, letter in letters.items():
        folder = JobFolder.of(tunnels.jobs, 7, 1, key)
        folder.path.mkdir(parents=True)
        folder.write("status", {"event": "started"})

        async def answer(reader, writer, said=letter):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + said)
            await writer.drain()
            writer.close()

        path = serving_socket.path_of(folder)
        servers.append(await asyncio.start_unix_server(answer, path))
    tunnels._find()
    assert len(tunnels.serving) == 3

    async def said(key):
        made = Call("c" * 32, 7, 1, "GET", "/v2", {}, 5.0, 0.0, key=key)
        return await tunnels._ask_job(checked_call(*unpack(made.frame())))

    for key, letter in letters.items():
        assert (await said(key)).body == letter
    assert (await said("cc33")).status == 503, "that one does not serve here"
    assert (await said(None)).status == 200, "an older portal sends no key"
    for server in servers:
        server.close()
