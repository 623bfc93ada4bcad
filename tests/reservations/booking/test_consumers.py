"""The calendar's socket: its listeners, its messages, and its end."""

import asyncio
import json

import pytest
from asgiref.sync import sync_to_async
from django.test import Client

from gpuportal.asgi import application
from reservations.booking.consumers import CalendarConsumer
from reservations.models import SitePolicy
from reservations.notifications import live
from reservations.store.booking_facts import site_policy
from reservations.web import session_consumer
from tests import factories
from tests.sockets import PATIENCE_SECONDS, WebsocketCommunicator

pytestmark = pytest.mark.django_db(transaction=True)

HOST = b"127.0.0.1"


def signed_in(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


def socket_of(
    client: Client | None,
    *,
    origin: bytes = b"http://" + HOST,
    path: str = "/ws/calendar/",
) -> WebsocketCommunicator:
    headers = [(b"host", HOST), (b"origin", origin)]
    if client is not None:
        cookie = f"sessionid={client.cookies['sessionid'].value}"
        headers.append((b"cookie", cookie.encode()))
    return WebsocketCommunicator(application, path, headers=headers)


async def opened(user) -> tuple[WebsocketCommunicator, Client]:
    client = await sync_to_async(signed_in)(user)
    socket = socket_of(client)
    before = CalendarConsumer.open_sockets[user.pk]
    connected, _ = await socket.connect()
    assert connected
    # Joining goes on after the handshake: wait until it has its groups or is refused.
    async with asyncio.timeout(PATIENCE_SECONDS):
        while socket.output_queue.empty():
            if CalendarConsumer.open_sockets[user.pk] > before:
                break
            await asyncio.sleep(0.01)
    return socket, client


def publish(reservation, *, gone: bool = False) -> None:
    gpu_ids = list(reservation.allocations.values_list("gpu_id", flat=True))
    live.publish_reservation(
        reservation, gpu_ids=gpu_ids, policy=site_policy(), gone=gone
    )


async def heard_by(socket: WebsocketCommunicator) -> dict:
    message = await socket.receive_output(timeout=PATIENCE_SECONDS)
    assert message["type"] == "websocket.send"
    return json.loads(message["text"])


async def closing_code(socket: WebsocketCommunicator) -> int:
    message = await socket.receive_output(timeout=PATIENCE_SECONDS)
    assert message["type"] == "websocket.close"
    return message["code"]


async def test_a_new_reservation_reaches_everybody_who_looks(alice, carol):
    carols, _ = await opened(carol)
    made = await sync_to_async(factories.make_reservation)(alice)
    await sync_to_async(publish)(made)
    message = await heard_by(carols)
    assert message["type"] == "reservation.changed"
    assert message["reservation"]["id"] == made.pk
    assert message["reservation"]["user"] == "Alice"
    assert message["reservation"]["mine"] is False
    await carols.disconnect()


@pytest.mark.once
async def test_a_cancelled_reservation_is_told_as_gone(alice, bob):
    bobs, _ = await opened(bob)
    made = await sync_to_async(factories.make_reservation)(alice)
    await sync_to_async(publish)(made, gone=True)
    message = await heard_by(bobs)
    assert message["reservation"] == {"id": made.pk, "gone": True}
    await bobs.disconnect()


@pytest.mark.once
async def test_where_names_are_hidden_only_the_operator_hears_them(alice, carol, omar):
    await SitePolicy.objects.aupdate_or_create(pk=1, defaults={"names_visible": False})
    carols, _ = await opened(carol)
    omars, _ = await opened(omar)
    made = await sync_to_async(factories.make_reservation)(alice, purpose="secret plan")
    await sync_to_async(publish)(made)
    heard = await heard_by(carols)
    assert heard["reservation"]["user"] is None
    assert "secret plan" not in str(heard)
    assert "Alice" not in str(heard)
    named = await heard_by(omars)
    assert named["reservation"]["user"] == "Alice"
    assert await carols.receive_nothing(timeout=0.2)
    await carols.disconnect()
    await omars.disconnect()


@pytest.mark.once
async def test_a_socket_without_a_session_is_closed_with_4401(db):
    socket = socket_of(None)
    connected, _ = await socket.connect()
    assert connected
    assert await closing_code(socket) == 4401


@pytest.mark.once
async def test_a_socket_from_another_site_is_refused(alice):
    client = await sync_to_async(signed_in)(alice)
    socket = socket_of(client, origin=b"http://evil.example")
    connected, _ = await socket.connect()
    assert not connected


@pytest.mark.once
async def test_a_socket_of_no_address_is_refused_and_no_crash():
    for path in ("/ws/nothing/", "/", "/ws/jobs/x/"):
        connected, _ = await socket_of(None, path=path).connect()
        assert not connected


@pytest.mark.once
async def test_signing_out_closes_the_socket_at_the_next_check(alice, monkeypatch):
    monkeypatch.setattr(CalendarConsumer, "recheck_seconds", 0.2)
    socket, client = await opened(alice)
    assert await socket.receive_nothing(timeout=0.4)
    await sync_to_async(client.logout)()
    assert await closing_code(socket) == 4401


@pytest.mark.once
async def test_switching_a_user_off_closes_the_socket(alice, monkeypatch):
    monkeypatch.setattr(CalendarConsumer, "recheck_seconds", 0.2)
    socket, _ = await opened(alice)
    alice.is_active = False
    await alice.asave()
    assert await closing_code(socket) == 4401


async def test_hiding_names_moves_open_sockets_to_the_other_audience(
    alice, carol, monkeypatch, redis_client
):
    monkeypatch.setattr(CalendarConsumer, "recheck_seconds", 0.2)
    socket, _ = await opened(carol)
    await SitePolicy.objects.aupdate_or_create(pk=1, defaults={"names_visible": False})
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await sync_to_async(redis_client.keys)(f"*group:{live.NAMED}"):
            await asyncio.sleep(0.05)
    made = await sync_to_async(factories.make_reservation)(alice)
    await sync_to_async(publish)(made)
    heard = await heard_by(socket)
    assert heard["reservation"]["user"] is None
    assert await socket.receive_nothing(timeout=0.2)
    await socket.disconnect()


@pytest.mark.once
@pytest.mark.parametrize("text", ["{oops", "[" * 50_000])
async def test_text_that_is_not_json_closes_the_socket_and_nothing_else(alice, text):
    socket, _ = await opened(alice)
    await socket.send_to(text_data=text)
    assert await closing_code(socket) == 4400


@pytest.mark.once
async def test_what_a_browser_says_is_ignored(alice):
    socket, _ = await opened(alice)
    await socket.send_json_to({"type": "reservation.changed", "reservation": {"id": 1}})
    assert await socket.receive_nothing(timeout=0.3)
    await socket.disconnect()


@pytest.mark.once
async def test_one_user_cannot_take_all_sockets(alice, bob, monkeypatch):
    monkeypatch.setattr(session_consumer, "SOCKETS_PER_USER", 2)
    first, _ = await opened(alice)
    second, _ = await opened(alice)
    third, _ = await opened(alice)
    assert (await third.receive_output(timeout=PATIENCE_SECONDS))[
        "code"
    ] == session_consumer.TOO_MANY
    other, _ = await opened(bob)
    await second.disconnect()
    again, _ = await opened(alice)
    assert await again.receive_nothing(timeout=0.2)
    for socket in (first, other, again):
        await socket.disconnect()
    assert not CalendarConsumer.open_sockets


@pytest.mark.once
async def test_a_socket_whose_consumer_crashed_has_left_its_groups(
    alice, monkeypatch, redis_client
):
    async def crash(self, event):
        raise RuntimeError("a bug")

    monkeypatch.setattr(CalendarConsumer, "reservation_changed", crash)
    gpu = await sync_to_async(factories.make_gpu)()
    socket, _ = await opened(alice)
    assert await sync_to_async(redis_client.keys)("*reservations.calendar*")
    held = await sync_to_async(factories.make_reservation)(alice, [gpu])
    await sync_to_async(publish)(held)
    with pytest.raises(RuntimeError, match="a bug"):
        await socket.receive_output(timeout=PATIENCE_SECONDS)
    assert not CalendarConsumer.open_sockets
    assert not await sync_to_async(redis_client.keys)("*reservations.calendar*")
