"""`/ws/board/`: allowed listeners, and the order of messages."""

import asyncio
import json
import time
from collections import Counter
from datetime import timedelta

import pytest
from django.contrib.auth import (
    BACKEND_SESSION_KEY,
    HASH_SESSION_KEY,
    SESSION_KEY,
)
from django.contrib.sessions.backends.db import SessionStore
from django.utils import timezone

from gpuportal.asgi import application
from gpuportal.board.consumers import BoardConsumer
from reservations.models import SitePolicy, User
from telemetry.live import broadcast
from tests.factories import make_gpu, make_membership, make_reservation, make_user
from tests.sockets import PATIENCE_SECONDS, WebsocketCommunicator
from tests.telemetry.messages import process

pytestmark = pytest.mark.django_db(transaction=True)

ROSTER = json.dumps({"roster_id": 1, "gpus": [], "nodes": []}).encode()


def sign_in(user: User) -> str:
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return session.session_key


def socket(
    key: str = "", origin: str = "http://localhost", proto: str = ""
) -> WebsocketCommunicator:
    headers = [(b"origin", origin.encode()), (b"host", b"localhost")]
    if proto:
        headers.append((b"x-forwarded-proto", proto.encode()))
    if key:
        headers.append((b"cookie", f"sessionid={key}".encode()))
    return WebsocketCommunicator(application, "/ws/board/", headers=headers)


def detail(*processes: dict, node: str = "node-a") -> bytes:
    gpu = {"processes": list(processes), "throttle": [], "memory_reserved_bytes": 0}
    told = {"node": node, "at": 1.0, "load1": 0.1, "gpus": {"GPU-1": gpu}}
    return json.dumps(told).encode()


def publish(client, *, frame=b"", roster=b"", details=()) -> None:
    with client.pipeline() as pipe:
        if roster:
            broadcast.publish_roster(pipe, roster)
        if frame:
            broadcast.publish_frame(pipe, frame)
        for node, data in details:
            broadcast.publish_detail(pipe, node, data)
        pipe.execute()


async def next_of(
    page: WebsocketCommunicator, kind: str, seconds: float = PATIENCE_SECONDS
):
    """The next message of a type ("frame": binary), others passed over."""
    deadline = time.monotonic() + seconds
    while True:
        message = await page.receive_output(max(0.01, deadline - time.monotonic()))
        if message["type"] == "websocket.close":
            raise AssertionError(f"closed with {message['code']}")
        if message.get("bytes") is not None:
            if kind == "frame":
                return message["bytes"]
        elif (found := json.loads(message["text"]))["type"] == kind:
            return found


async def close_code(
    page: WebsocketCommunicator, seconds: float = PATIENCE_SECONDS
) -> int:
    deadline = time.monotonic() + seconds
    while True:
        message = await page.receive_output(max(0.01, deadline - time.monotonic()))
        if message["type"] == "websocket.close":
            return message["code"]


@pytest.fixture
def people(transactional_db):
    users = {name: make_user(name) for name in ("alice", "carol")}
    for name, group in (("alice", "vision"), ("carol", "nlp")):
        make_membership(users[name], group)
    users["omar"] = make_user("omar", is_staff=True, is_superuser=True)
    return users


@pytest.fixture
def keys(people):
    return {name: sign_in(user) for name, user in people.items()}


@pytest.fixture
def quick_recheck(monkeypatch):
    monkeypatch.setattr(BoardConsumer, "recheck_seconds", 0.2)


async def test_a_stranger_is_told_to_sign_in():
    for key in ("", "x" * 32):
        page = socket(key)
        assert (await page.connect())[0]
        assert await close_code(page) == 4401


async def test_another_sites_page_is_not_let_in(keys):
    for origin in (
        "http://evil.example",
        # Cookies have no port and no scheme: a job's web page on the portal's host.
        "http://localhost:9999",
        "https://localhost",
        "http://localhost.evil.example",
        "http://evil@localhost:81",
        "http://localhost:port",
        "null",
        "",
    ):
        page = socket(keys["alice"], origin=origin)
        assert not (await page.connect())[0], origin


async def test_a_page_behind_the_proxys_tls_is_let_in(keys, settings):
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.CSRF_TRUSTED_ORIGINS = ["https://*.lab.example:8443"]
    for origin, opens in (
        ("https://localhost", True),
        ("https://localhost:443", True),
        ("http://localhost", False),
        ("https://gpus.lab.example:8443", True),
        ("https://gpus.lab.example", False),
    ):
        page = socket(keys["alice"], origin=origin, proto="https")
        assert (await page.connect())[0] is opens, origin
        if opens:
            await page.disconnect()


async def test_roster_then_holders_then_frames(people, keys, redis_client):
    publish(redis_client, roster=ROSTER, frame=b"G1")
    page = socket(keys["alice"])
    await page.connect()
    kinds = []
    while len(kinds) < 3:
        message = await page.receive_output(PATIENCE_SECONDS)
        kinds.append(
            "frame"
            if message.get("bytes") is not None
            else json.loads(message["text"])["type"]
        )
    assert sorted(kinds) == ["frame", "holders", "roster"]
    assert kinds.index("roster") < kinds.index("frame")
    publish(redis_client, frame=b"G2")
    assert await next_of(page, "frame") == b"G2"
    await page.disconnect()


async def test_a_change_of_the_calendar_reaches_the_page(people, keys, redis_client):
    page = socket(keys["carol"])
    await page.connect()
    assert (await next_of(page, "holders"))["holders"] == {}
    gpu = await asyncio.to_thread(make_gpu)
    await asyncio.to_thread(make_reservation, people["alice"], [gpu])
    redis_client.publish(broadcast.CALENDAR_CHANGED, "1")
    told = await next_of(page, "holders")
    assert told["holders"][str(gpu.pk)]["user"] == "Alice"
    await page.disconnect()


async def test_a_booking_that_begins_is_told_without_a_message(people, keys):
    gpu = await asyncio.to_thread(make_gpu)
    start = timezone.now() + timedelta(seconds=1)
    await asyncio.to_thread(make_reservation, people["alice"], [gpu], start)
    page = socket(keys["alice"])
    await page.connect()
    before = (await next_of(page, "holders"))["holders"][str(gpu.pk)]
    assert (before["user"], before["next"]["user"]) == (None, "Alice")
    after = (await next_of(page, "holders"))["holders"][str(gpu.pk)]
    assert (after["user"], after["mine"]) == ("Alice", True)
    await page.disconnect()


async def test_details_come_after_asking_and_stop_after_asking(keys, redis_client):
    page = socket(keys["alice"])
    await page.connect()
    publish(redis_client, details=[("node-a", detail(process()))], frame=b"G1")
    assert await next_of(page, "frame") == b"G1"
    await page.send_json_to({"watch": "node-a"})
    told = await next_of(page, "detail")
    assert told["gpus"]["GPU-1"]["processes"][0]["mine"] is True
    await page.send_json_to({"watch": None})
    async with asyncio.timeout(PATIENCE_SECONDS):
        while redis_client.pubsub_numsub(f"{broadcast.DETAIL}node-a")[0][1]:
            await asyncio.sleep(0.01)
    publish(redis_client, details=[("node-a", detail())], frame=b"G2")
    message = await page.receive_output(PATIENCE_SECONDS)
    assert message["bytes"] == b"G2"
    await page.disconnect()


async def test_each_reads_own_commands_in_full_and_others_shortened(
    people, keys, redis_client
):
    publish(redis_client, details=[("node-a", detail(process()))])
    seen = {}
    for name in ("alice", "carol", "omar"):
        page = socket(keys[name])
        await page.connect()
        await page.send_json_to({"watch": "node-a"})
        told = await next_of(page, "detail")
        seen[name] = told["gpus"]["GPU-1"]["processes"][0]["command"]
        await page.disconnect()
    assert "--lr" in seen["alice"]
    assert "--lr" in seen["omar"]
    assert seen["carol"] == "python3 train.py"


async def test_a_large_site_takes_turns_and_every_node_is_told(keys, redis_client):
    nodes = [f"node-{number}" for number in range(40)]
    publish(redis_client, details=[(node, detail(node=node)) for node in nodes])
    page = socket(keys["alice"])
    await page.connect()
    await page.send_json_to({"watch": "*"})
    first = {(await next_of(page, "detail"))["node"] for _ in nodes}
    assert first == set(nodes)
    told: list[str] = []
    for turn in range(5):
        publish(redis_client, details=[(n, detail(node=n)) for n in nodes])
        await asyncio.sleep(0.1)
        publish(redis_client, frame=b"G%d" % turn)
        while True:
            message = await page.receive_output(PATIENCE_SECONDS)
            if message.get("bytes") == b"G%d" % turn:
                break
            told.append(json.loads(message["text"])["node"])
        await asyncio.sleep(0.1)
    while not await page.receive_nothing(0.2):
        told.append(json.loads((await page.receive_output())["text"])["node"])
    assert len(told) <= 6 * 8
    assert set(told) == set(nodes)
    await page.disconnect()


@pytest.mark.once
@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "{}", '{"watch": 1}', '{"watch": "../x"}', "[" * 150, "x" * 999],
)
async def test_what_is_no_wish_closes_the_socket(keys, text):
    page = socket(keys["alice"])
    await page.connect()
    await page.send_to(text_data=text)
    assert await close_code(page) == 4400


async def test_a_sign_out_closes_the_page_within_the_recheck(keys, quick_recheck):
    page = socket(keys["alice"])
    await page.connect()
    await asyncio.to_thread(SessionStore(keys["alice"]).delete)
    assert await close_code(page) == 4401


async def test_a_switched_off_user_is_closed_out(people, keys, quick_recheck):
    page = socket(keys["alice"])
    await page.connect()
    await next_of(page, "holders")
    await User.objects.filter(pk=people["alice"].pk).aupdate(is_active=False)
    assert await close_code(page) == 4401


async def test_hiding_names_reaches_open_pages(people, keys, quick_recheck):
    gpu = await asyncio.to_thread(make_gpu)
    await asyncio.to_thread(make_reservation, people["alice"], [gpu])
    page = socket(keys["carol"])
    await page.connect()
    shown = (await next_of(page, "holders"))["holders"][str(gpu.pk)]
    assert shown["user"] == "Alice"
    await asyncio.to_thread(SitePolicy.current)
    await SitePolicy.objects.aupdate(names_visible=False)
    hidden = (await next_of(page, "holders"))["holders"][str(gpu.pk)]
    assert (hidden["user"], hidden["account"]) == (None, "Vision")
    await page.disconnect()


async def test_one_user_cannot_take_all_sockets(people, keys, monkeypatch):
    monkeypatch.setattr("gpuportal.board.consumers.SOCKETS_PER_USER", 2)
    pages = [socket(keys["alice"]) for _ in range(3)]
    for page in pages:
        await page.connect()
    assert await close_code(pages[2]) == 4429
    for page in pages:
        await page.disconnect()
    again = socket(keys["alice"])
    await again.connect()
    await next_of(again, "holders")
    await again.disconnect()
    assert people["alice"].pk not in BoardConsumer.open_sockets


async def test_the_database_is_asked_once_for_many_pages(
    people, keys, redis_client, monkeypatch
):
    asked = []

    def counted(now):
        asked.append(now)
        return load_board(now)

    from gpuportal.board.board_snapshot import load_board

    monkeypatch.setattr("gpuportal.board.shared_state.load_board", counted)
    pages = [socket(keys["carol"]) for _ in range(10)]
    for page in pages:
        await page.connect()
    for page in pages:
        await next_of(page, "holders")
    for page in pages:
        await page.disconnect()
    assert len(asked) <= 2


async def test_a_socket_that_the_server_closed_itself_leaves_nothing(
    redis_client, caplog, monkeypatch
):
    """uvicorn closes after a message that is too long, and then accepts no more."""
    user = await asyncio.to_thread(make_user, "alice")
    key = await asyncio.to_thread(sign_in, user)
    # Other tests' sockets may still exist under the same number.
    monkeypatch.setattr(BoardConsumer, "open_sockets", Counter())
    closed = False

    async def served(scope, receive, send):
        async def strict(message):
            if closed:
                raise RuntimeError(
                    f"Unexpected ASGI message '{message['type']}', after sending "
                    "'websocket.close'."
                )
            await send(message)

        await application(scope, receive, strict)

    headers = [(b"origin", b"http://localhost"), (b"host", b"localhost")]
    headers.append((b"cookie", f"sessionid={key}".encode()))
    page = WebsocketCommunicator(served, "/ws/board/", headers=headers)
    assert (await page.connect())[0]
    while not BoardConsumer.open_sockets[user.pk]:
        await asyncio.sleep(0.01)
    closed = True
    await asyncio.to_thread(publish, redis_client, frame=b"F")
    await asyncio.sleep(0.3)
    await page.send_input({"type": "websocket.disconnect", "code": 1009})
    await page.wait(PATIENCE_SECONDS)
    assert not BoardConsumer.open_sockets
    assert "a board socket failed" not in caplog.text
