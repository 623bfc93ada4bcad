"""The websocket of the terminal in the page: who gets in, what passes, what bounds."""

import asyncio
import contextlib
import json
import struct
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async as later
from django.utils import timezone
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gpuportal.http import terminal_door
from placement.access import access_guard
from placement.access.frame_lists import NODE
from placement.models import Job, Workspace
from reservations.models import Allocation, CoUser
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.access.stream_nodes import streams_of
from tests.placement.lab import signed_in
from tests.placement.nodes import PATIENCE_SECONDS, make_settings, until
from tests.placement.serving.kitchen import token_of

pytestmark = pytest.mark.django_db(transaction=True)
SIZE = json.dumps({"size": [80, 24]})
FLOOD_BYTES = 2**20


class Shell:
    """The node's side: repeats the messages of a page, or floods it."""

    def __init__(self):
        self.orders, self.sent_bytes = [], 0

    async def __call__(self, node, order, stream):
        self.orders.append(order)
        while piece := await stream.read():
            await stream.write(piece.data)
            if b"flood" in piece.data:
                while self.sent_bytes < FLOOD_BYTES:
                    await stream.write(bytes(4096))
                    self.sent_bytes += 4096
            if b"exit" in piece.data:
                return


class Lab:
    """Alice's running terminal on a node."""

    def __init__(self, url, alice, row):
        self.url = url
        self.held = make_reservation(alice, make_gpus(1, row), state=State.ACTIVE)
        self.row = row
        self.job = self.make(alice, Job.State.RUNNING)

    def make(self, owner, state):
        job = Job.objects.create(
            reservation=self.held,
            owner=owner,
            name="Terminal",
            kind=Job.Kind.WORKSPACE,
            recipe="workspace",
            node=self.row,
            state=state,
            attempt=int(state == Job.State.RUNNING),
        )
        Workspace.objects.create(job=job, app="terminal", label=f"{job.pk:024}")
        return job

    def socket(self, user=None, origin=None, held=None):
        cookie = signed_in(user).cookies["sessionid"].value if user else ""
        return self.socket_of(cookie, origin, held)

    def socket_of(self, cookie, origin=None, held=None):
        pk = (held or self.held).pk
        return connect(
            self.url.replace("http", "ws") + f"/ws/terminal/{pk}/",
            origin=origin or self.url,
            additional_headers={"Cookie": f"sessionid={cookie}"} if cookie else {},
            compression=None,
            open_timeout=PATIENCE_SECONDS,
            close_timeout=PATIENCE_SECONDS,
            ping_interval=None,
        )


@pytest.fixture
def shell():
    """Return the node's service."""
    return Shell()


@pytest.fixture
def lab(tmp_path, live_asgi, redis_client, valkey_url, alice, shell):
    """Alice's terminal, and the node's streams."""
    row = make_node("node1")
    made = Lab(live_asgi, alice, row)
    here = make_settings(tmp_path, redis_url=valkey_url, web_url=live_asgi)
    token_of(row, here)
    with streams_of(here, {"terminal": shell}):
        until(lambda: redis_client.exists(NODE + "node1"), what="the node")
        yield made


async def end_of(socket):
    """Return code and reason with which a websocket ends."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(ConnectionClosed) as ended:
            while True:
                await socket.recv()
    return ended.value.rcvd.code, ended.value.rcvd.reason


async def refusal(lab, *words, **more):
    async with await later(lab.socket)(*words, **more) as socket:
        return await end_of(socket)


def test_keys_and_sizes_reach_the_terminal_in_order(lab, alice, shell):
    async def work():
        async with await later(lab.socket)(alice) as socket:
            await socket.send(SIZE)
            await socket.send(b"ls\r")
            got = b""
            while len(got) < 13:
                got += await socket.recv()
            await socket.send(b"exit")
            return got, await end_of(socket)

    got, end = asyncio.run(work())
    size = b"s" + struct.pack(">H", 4) + struct.pack(">HH", 80, 24)
    assert got == size + b"d" + struct.pack(">H", 3) + b"ls\r"
    assert end == (1000, "")
    (order,) = shell.orders
    assert order.service == "terminal"
    assert order.options == {"folder": f"{lab.job.pk}-1-{lab.job.key}"}


def test_a_page_that_draws_nothing_gets_64_kib_and_can_still_type(lab, alice, shell):
    async def work():
        async with await later(lab.socket)(alice) as socket:
            await socket.send(SIZE)
            await socket.send(b"flood")
            got = 0
            with contextlib.suppress(TimeoutError):
                while True:
                    got += len(await asyncio.wait_for(socket.recv(), 1))
            assert got <= terminal_door.MOST_UNSHOWN_BYTES, got
            held_back = shell.sent_bytes
            await socket.send(b"\x03")
            await socket.send(json.dumps({"shown": got}))
            while got < FLOOD_BYTES:
                data = await asyncio.wait_for(socket.recv(), PATIENCE_SECONDS)
                got += len(data)
                await socket.send(json.dumps({"shown": len(data)}))
            return held_back

    assert asyncio.run(work()) < FLOOD_BYTES / 2


def test_only_its_owner_reaches_a_terminal(lab, alice, bob, carol, omar, shell):
    CoUser.objects.create(reservation=lab.held, user=bob, added_by=alice)

    async def work():
        for other in (bob, carol, omar):
            code, reason = await refusal(lab, other)
            assert code == 4410 and reason == "There is no terminal.", reason
        assert (await refusal(lab))[0] == 4401
        with pytest.raises(InvalidStatus) as refused:
            async with await later(lab.socket)(alice, origin="http://evil.example"):
                pass
        assert refused.value.response.status_code == 403
        await later(Workspace.objects.update)(app="jupyter-lab")
        assert (await refusal(lab, alice))[1] == "There is no terminal."

    asyncio.run(work())
    assert shell.orders == []


def test_a_terminal_that_does_not_run_or_is_over_gives_the_reason(lab, alice):
    async def work():
        second = timedelta(seconds=1)
        past = timezone.now() - second
        end = (await later(Allocation.objects.get)()).end
        await later(Allocation.objects.update)(start=past - second, end=past)
        over = f"Reservation {lab.held.pk} is over."
        assert (await refusal(lab, alice))[1] == over
        await later(Allocation.objects.update)(end=end)
        await later(Job.objects.update)(state=Job.State.STOPPING)
        assert (await refusal(lab, alice))[1] == "The terminal has ended."
        await later(lab.make)(alice, Job.State.QUEUED)
        assert (await refusal(lab, alice))[1] == "The terminal does not run yet."

    asyncio.run(work())


def test_a_terminal_ends_with_the_session_that_opened_it(lab, alice, monkeypatch):
    monkeypatch.setattr("placement.access.access_guard.RECHECK_SECONDS", 0.2)
    client = signed_in(alice)

    async def work():
        cookie = client.cookies["sessionid"].value
        async with lab.socket_of(cookie) as socket:
            await socket.send(SIZE)
            await socket.recv()
            await later(client.post)("/logout/")
            return await end_of(socket)

    assert asyncio.run(work()) == (4401, "Sign in again.")


def test_an_open_page_learns_of_another_end(lab, alice, monkeypatch):
    monkeypatch.setattr(access_guard, "RECHECK_SECONDS", 0.1)

    async def check():
        async with await later(lab.socket)(alice) as socket:
            await socket.send(SIZE)
            await socket.recv()
            end = lab.held.end + timedelta(hours=1)
            await later(Allocation.objects.filter(reservation=lab.held).update)(end=end)
            await later(type(lab.held).objects.filter(pk=lab.held.pk).update)(end=end)
            async with asyncio.timeout(PATIENCE_SECONDS):
                told = await socket.recv()
            assert json.loads(told) == {"end": end.timestamp()}

    asyncio.run(check())


def test_a_user_has_three_terminals_and_an_idle_one_is_closed(lab, alice, monkeypatch):
    async def work():
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                one = await later(lab.socket)(alice)
                socket = await stack.enter_async_context(one)
                await socket.send(SIZE)
                await socket.recv()
            code, reason = await refusal(lab, alice)
            assert (code, reason) == (
                4410,
                "You have 3 connections of this kind already. Close one.",
            )
        monkeypatch.setattr(terminal_door, "IDLE_SECONDS", 0.5)
        return await refusal(lab, alice)

    assert asyncio.run(work()) == (4410, "Nobody typed here for hours.")


@pytest.mark.once
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"size": [0, 0]}',
        '{"size": [80]}',
        '{"shown": -1}',
        '{"shown": 1e9}',
    ],
)
def test_an_invalid_message_ends_the_connection(lab, alice, text):
    async def work():
        async with await later(lab.socket)(alice) as socket:
            await socket.send(text)
            return await end_of(socket)

    assert asyncio.run(work()) == (
        4410,
        "The page sent an invalid message. Reload it.",
    )


def test_more_than_the_program_reads_ends_the_connection(lab, alice, shell):
    async def work():
        async with await later(lab.socket)(alice) as socket:
            await socket.send(SIZE)
            await socket.send(b"flood")
            with pytest.raises(ConnectionClosed) as ended:
                for _ in range(64):
                    await socket.send(bytes(32 * 1024))
                while True:
                    await socket.recv()
            return ended.value.rcvd.reason

    expected = "The program in the terminal does not read what you paste."
    assert asyncio.run(work()) == expected
