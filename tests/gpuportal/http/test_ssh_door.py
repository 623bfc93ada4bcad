"""A real ssh client through ``gp.py tunnel`` and the portal to a real sshd."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async as later
from django.utils import timezone
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gpuportal.http.ssh_door import _EndWarnings
from gpuportal.pages import client_files
from placement.access import access_guard
from placement.access.access_target import AccessTarget
from placement.access.frame_lists import NODE
from placement.agent.access.services import SERVICES
from placement.protocol.node_http import UNSENT_BYTES
from placement.protocol.stream_frames import WINDOW_BYTES, StreamReport
from reservations.accounts.api_tokens import create_token
from reservations.models import Allocation, CoUser
from reservations.rules.lifecycle import State
from telemetry.protocol.codec import decode
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.access.ssh_servers import ssh_server
from tests.placement.access.stream_nodes import streams_of
from tests.placement.lab import signed_in
from tests.placement.nodes import PATIENCE_SECONDS, make_settings, until
from tests.placement.serving.kitchen import token_of

pytestmark = pytest.mark.django_db(transaction=True)
CLIENT = client_files.folder() / client_files.ONE_FILE


def token(user, *scopes):
    return create_token(
        user=user, label="t", scopes=scopes, days=1, now=timezone.now()
    )[1]


@pytest.fixture
def lab(tmp_path, live_web, live_asgi, redis_client, valkey_url, alice):
    """Return a function that runs a node, and Alice's reservation on it."""

    class Lab:
        url, web = live_asgi, live_web
        row = make_node("node1")
        made = make_reservation(alice, make_gpus(1, row), state=State.ACTIVE)

        def node(self, services=SERVICES, **changes):
            here = make_settings(
                tmp_path, redis_url=valkey_url, web_url=live_asgi, **changes
            )
            token_of(self.row, here)
            return streams_of(here, services)

        def is_connected(self):
            return redis_client.exists(NODE + "node1")

        def until_connected(self):
            until(self.is_connected, what="the node")

        def socket(
            self, shown="", origin=None, number=None, more="", sock=None, **headers
        ):
            named = {"Authorization": f"Bearer {shown}"} if shown else {}
            options = {"sock": sock, "max_queue": 1} if sock else {}
            address = f"/ws/ssh/{number or self.made.pk}/{more}"
            return connect(
                self.url.replace("http", "ws") + address,
                origin=origin or self.url,
                additional_headers=named | headers,
                compression=None,
                open_timeout=PATIENCE_SECONDS,
                close_timeout=PATIENCE_SECONDS,
                ping_interval=None,
                **options,
            )

    return Lab()


def of_portal(lab, shown):
    return os.environ | {"GPUPORTAL_URL": lab.url, "GPUPORTAL_TOKEN": shown}


def run(words, lab, shown, **options):
    return subprocess.run(
        words,
        env=of_portal(lab, shown),
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        **options,
    )


@pytest.mark.once
def test_a_student_runs_ssh_and_scp_through_the_portal(lab, alice, tmp_path):
    shown = token(alice, "job")
    proxy = f"{sys.executable} -S {CLIENT} tunnel %h"
    host = f"r{lab.made.pk}.gpuportal"
    with ssh_server(tmp_path / "sshd") as server, lab.node(sshd_port=server.port):
        lab.until_connected()
        words = server.words(proxy)
        told = run(["ssh", *words, host, "echo", "here"], lab, shown)
        assert (told.returncode, told.stdout) == (0, b"here\n"), told.stderr
        # Standard input ends before the answer comes.
        large = os.urandom(3 * 2**20)
        back = run(["ssh", *words, host, "cat"], lab, shown, input=large)
        assert back.stdout == large, back.stderr
        (tmp_path / "data").write_bytes(large)
        there = f"{host}:{tmp_path}/copy"
        copied = run(["scp", *words, str(tmp_path / "data"), there], lab, shown)
        assert copied.returncode == 0, copied.stderr
        assert (tmp_path / "copy").read_bytes() == large
        own = f"r{lab.made.pk}.node1.gpuportal"
        assert run(["ssh", *words, own, "exit 7"], lab, shown).returncode == 7


@pytest.mark.once
def test_a_session_outlives_the_portal_and_not_its_node(lab, alice, tmp_path):
    shown = token(alice, "job")
    proxy = f"{sys.executable} -S {CLIENT} tunnel %h"
    typed = os.urandom(300_000)
    with ssh_server(tmp_path / "sshd") as server, lab.node(sshd_port=server.port):
        lab.until_connected()
        held = subprocess.Popen(
            ["ssh", *server.words(proxy), f"r{lab.made.pk}.gpuportal", "cat"],
            env=of_portal(lab, shown) | {"GPUPORTAL_LOST_FILE": str(tmp_path / "lost")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        held.stdin.write(b"x")
        assert held.stdout.read(1) == b"x"
        # The portal restarts. The session goes on, and what is typed meanwhile comes.
        lab.web.stop()
        held.stdin.write(typed)
        lab.web.start()
        assert read_exactly(held.stdout, len(typed)) == typed
    # The node is gone, and its connections with it. "gp ssh" prints the reason, and may
    # connect again.
    with lab.node(sshd_port=server.port):
        _, told = held.communicate(timeout=PATIENCE_SECONDS)
    assert held.returncode == 255
    assert (
        told.count(b"gp.py: the portal restarts. Connecting again ... connected.") == 1
    )
    assert told.count(b"gp.py: ") == 2
    lost = (tmp_path / "lost").read_text()
    assert lost == "the connection has ended: node1 no longer has this connection."
    assert (tmp_path / "open").exists()


def read_exactly(file, size):
    found = b""
    while len(found) < size and (data := file.read(size - len(found))):
        found += data
    return found


async def test_the_client_is_warned_where_the_node_cannot_do_it():
    sent = []

    async def send(event):
        sent.append(event["text"])

    def target(left_seconds, unix_user=""):
        until = start + timedelta(seconds=left_seconds)
        return AccessTarget("node1", 17, 1, "alice", unix_user, until)

    start = timezone.now()
    warnings = _EndWarnings(send)
    for left_seconds in (3600, 590, 590, 50, 50):
        await warnings.look(target(left_seconds))
    assert [text.partition(" on node1")[0] for text in sent] == [
        "warning: GPU Portal: reservation 17"
    ] * 2
    assert "ends in 10 min" in sent[0] and "extend it" in sent[1]
    # It was extended: the new end has its own warnings.
    await warnings.look(target(580))
    await warnings.look(target(570, unix_user="al"))
    assert len(sent) == 3


@pytest.mark.once
def test_gp_says_why_there_is_no_connection_and_writes_ssh_settings(
    lab, alice, bob, tmp_path, monkeypatch, capfd
):
    monkeypatch.syspath_prepend(str(client_files.PROJECT))
    from gpuportal_client.command_line import main

    monkeypatch.setattr(sys, "argv", ["gp.py"])
    monkeypatch.setenv("GPUPORTAL_URL", lab.url)

    def gp(*words, shown):
        monkeypatch.setenv("GPUPORTAL_TOKEN", shown)
        return main(list(words)), capfd.readouterr().err

    host = f"r{lab.made.pk}.gpuportal"
    no_ssh = (1, f"gp.py: There is no reservation {lab.made.pk}.\n")
    assert gp("tunnel", host, shown=token(bob, "job")) == no_ssh
    assert gp("tunnel", host, shown="gp_wrong")[1] == (
        "gp.py: Send a token that is valid.\n"
    )
    status, words = gp("tunnel", host, shown=token(alice, "read"))
    assert status == 1 and "lacks the scope" in words
    shown = token(alice, "job")
    status, words = gp("tunnel", host, shown=shown)
    assert status == 3 and "node1 takes no connections now" in words
    status, words = gp("tunnel", f"r{lab.made.pk}.node9.gpuportal", shown=shown)
    assert status == 1 and "has no GPU on node9" in words
    with lab.node():
        lab.until_connected()
        status, words = gp("tunnel", host, shown=shown)
        assert (status, words) == (3, "gp.py: node1 offers no ssh connections.\n")
    assert gp("tunnel", "node-a.example", shown=shown)[0] == 2
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("Host old\n    User me\n")
    env = os.environ | {"HOME": str(home)}
    for _ in range(2):
        words = [sys.executable, "-S", CLIENT, "config-ssh", "--user", "al"]
        made = subprocess.run(words, env=env, capture_output=True, text=True)
        assert (made.returncode, made.stderr) == (0, "")
    text = (home / ".ssh" / "config").read_text()
    assert text == "Include gpuportal.config\n\nHost old\n    User me\n"
    asked = ["ssh", "-G", "-F", str(home / ".ssh" / "config"), host]
    # ssh finds a relative Include in the real home only.
    (home / ".ssh" / "config").write_text(f"Include {home}/.ssh/gpuportal.config\n")
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert f"proxycommand {sys.executable} {CLIENT} tunnel '%h'\n" in found
    assert "\nuser al\n" in found or found.startswith("user al\n")


async def echo(_node, _order, stream):
    while piece := await stream.read():
        await stream.write(piece.data)


@pytest.mark.once
async def test_only_those_of_an_active_reservation_get_in(lab, alice, bob, omar):
    shown = await later(token)(alice, "job")
    theirs, admins = [await later(token)(user, "job") for user in (bob, omar)]
    cookie = (await later(signed_in)(alice)).cookies["sessionid"].value

    async def status(*words, **named):
        try:
            async with lab.socket(*words, **named):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    page = {"Cookie": f"sessionid={cookie}"}
    with await later(lab.node)({"ssh": echo}):
        await asyncio.to_thread(lab.until_connected)
        assert await status(shown) == 101
        assert await status(**page) == 101
        assert await status(origin="http://evil.example", **page) == 403
        assert await status(origin=lab.url.replace("127.0.0.1", "localhost")) == 403
        assert await status() == 401, "neither token nor session"
        assert await status(theirs) == await status(admins) == 404
        assert await status(shown, number=lab.made.pk + 1) == 404
        assert await status(shown, more="?node=node2") == 410
        sharing = {"reservation": lab.made, "user": bob, "added_by": alice}
        shared = await later(CoUser.objects.create)(**sharing)
        assert await status(theirs) == 101
        async with lab.socket(theirs) as socket:
            await socket.send(b"mine")
            assert await socket.recv() == b"mine"
            # The owner takes it back in the middle of a connection.
            await later(CoUser.objects.filter(pk=shared.pk).update)(
                removed_at=timezone.now()
            )
            assert await end_of(socket) == (
                4410,
                f"There is no reservation {lab.made.pk}.",
            )
        early = await later(make_reservation)(
            alice,
            await later(make_gpus)(1, lab.row),
            start=timezone.now() + timedelta(hours=9),
        )
        assert await status(shown, number=early.pk) == 409
        async with lab.socket(shown) as socket:
            ended = timezone.now()
            rows = Allocation.objects.filter(reservation=lab.made)
            await later(rows.update)(end=ended)
            assert await end_of(socket) == (
                4410,
                f"Reservation {lab.made.pk} is over.",
            )
        assert await status(shown) == 410


async def end_of(socket):
    """Return code and reason with which the portal ends a connection."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            await asyncio.wait_for(socket.recv(), PATIENCE_SECONDS)
    return closed.value.rcvd.code, closed.value.rcvd.reason


async def test_only_a_loss_lets_the_node_keep_a_connection(
    lab, alice, bob, monkeypatch
):
    monkeypatch.setattr(access_guard, "RECHECK_SECONDS", 0.1)
    shown = await later(token)(alice, "job")
    orders, told, ends = [], [], []

    async def counting(_node, order, stream):
        orders.append(order.options)
        await stream.write_control({"received": 0})
        try:
            while piece := await stream.read():
                told.append(
                    decode(StreamReport, piece.data) if piece.control else piece.data
                )
        finally:
            ends.append(stream.end_code)

    session = "?session=" + "5" * 32

    async def one_more_end(code):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(ends) < len(orders):
                await asyncio.sleep(0.01)
        assert ends[-1] == code

    with await later(lab.node)({"ssh": counting}):
        await asyncio.to_thread(lab.until_connected)
        with pytest.raises(InvalidStatus) as refused:
            await lab.socket(shown, more="?session=../sshd")
        assert refused.value.response.status_code == 400 and orders == []
        async with lab.socket(shown, more=session) as one:
            assert await one.recv() == "received 0"
            await one.send(b"x")
            await one.send("received 5")
            rows = Allocation.objects.filter(reservation=lab.made)
            end = lab.made.end + timedelta(hours=1)
            await later(rows.update)(end=end)
            await asyncio.to_thread(until, lambda: len(told) == 3)
        await one_more_end("stream-ended")
        assert told == [
            b"x",
            StreamReport(received=5),
            StreamReport(until=end.timestamp()),
        ]
        assert orders[-1] == {
            "session": "5" * 32,
            "holder": f"r{lab.made.pk}-u{alice.pk}-",
            "until": str(lab.made.end.timestamp()),
        }
        lost = await lab.socket(shown, more=f"{session}&again=1")
        assert await lost.recv() == "received 0"
        assert orders[-1]["again"] == 1
        lost.transport.abort()
        await one_more_end("stream-lost")
        # What a client may not say, and the end of access.
        for text in ("received -1", "until 5"):
            async with lab.socket(shown, more=session) as wrong:
                await wrong.recv()
                await wrong.send(text)
                assert (await end_of(wrong))[0] == 4410
            await one_more_end("stream-ended")
        sharing = {"reservation": lab.made, "user": bob, "added_by": alice}
        shared = await later(CoUser.objects.create)(**sharing)
        theirs = await later(token)(bob, "job")
        async with lab.socket(theirs, more=session) as removed:
            await removed.recv()
            await later(CoUser.objects.filter(pk=shared.pk).update)(
                removed_at=timezone.now()
            )
            assert (await end_of(removed))[0] == 4410
        await one_more_end("stream-ended")


async def test_clients_that_never_read_take_little_and_are_few(lab, alice):
    shown, sent = await later(token)(alice, "job"), {}

    async def flood(_node, order, stream):
        while True:
            await stream.write(bytes(16_384))
            sent[order.stream] = sent.get(order.stream, 0) + 16_384

    # As the portal's own server sets it.
    option = (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
    lab.web.listener.setsockopt(*option, UNSENT_BYTES)

    def deaf_socket(more):
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        line.connect(("127.0.0.1", int(lab.url.rpartition(":")[2])))
        return lab.socket(shown, more=more, sock=line)

    with await later(lab.node)({"ssh": flood}):
        await asyncio.to_thread(lab.until_connected)
        opened, refused, known = [], 0, {}
        for number in range(24):
            more = f"?session={number:032x}" if number % 2 else ""
            try:
                opened.append(await deaf_socket(more))
            except InvalidStatus as answer:
                refused += answer.response.status_code == 429
        assert (len(opened), refused) == (16, 8)
        while known != sent or len(sent) < 16:
            known = dict(sent)
            await asyncio.sleep(0.5)
        # A window that the client did not read, and what has left the door: messages
        # of 240 KiB at the web server, in the kernel and in the client.
        assert max(sent.values()) <= 5 * WINDOW_BYTES, sent
        for one in opened:
            one.transport.abort()


async def test_abuse_is_bounded_and_a_node_that_leaves_ends_the_connection(lab, alice):
    shown = await later(token)(alice, "job")
    taken = []

    async def deaf(_node, order, stream):
        """Read once, and then never again."""
        taken.append(len((await stream.read()).data))
        await stream.wait_until_over()

    with await later(lab.node)({"ssh": deaf}):
        await asyncio.to_thread(lab.until_connected)
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(lab.socket(shown)) for _ in range(16)
            ]
            for _ in range(3):
                with pytest.raises(InvalidStatus) as refused:
                    await lab.socket(shown)
                assert refused.value.response.status_code == 429
            # A node that never reads holds up its own client and nobody else.
            for _ in range(2 * WINDOW_BYTES // 32_768):
                await opened[0].send(bytes(32_768))
            other = opened[1]
            await other.send(b"x")
            await asyncio.to_thread(until, lambda: len(taken) == 2)
            assert max(taken) <= WINDOW_BYTES
            await opened[2].send("a text that is no end")
            assert (await end_of(opened[2]))[0] == 4410
        async with lab.socket(shown):
            pass  # those that have ended count no more
    await asyncio.to_thread(
        until, lambda: not lab.is_connected(), what="the portal to notice"
    )
    with await later(lab.node)({"ssh": deaf}) as streams:
        await asyncio.to_thread(lab.until_connected)
        socket = await lab.socket(shown)
        await asyncio.to_thread(until, lambda: streams.streams)
    assert await end_of(socket) == (4502, "The connection to the node was lost.")
