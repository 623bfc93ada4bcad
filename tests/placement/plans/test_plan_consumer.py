"""The plan page's socket: requests symbolic estimates, receives its own."""

import json

import pytest
from asgiref.sync import sync_to_async
from django.test import Client
from django.utils import timezone

from placement.models import Refinement
from placement.planner.symbolic.child_process import ChildAnswers
from placement.plans import refinement
from placement.plans import refinement as refining_service
from tests.sockets import WebsocketCommunicator

pytestmark = pytest.mark.django_db(transaction=True)
ANSWER = {"peak_bytes": 7}
QUESTION = {"refine": {"known": "gpt2", "workload": {"batch": 2}}}


async def open_socket(user):
    """Open the page's socket with a real session, as the site routes it."""
    from gpuportal.asgi import application

    headers = [(b"host", b"127.0.0.1"), (b"origin", b"http://127.0.0.1")]
    if user is not None:
        client = Client()
        await sync_to_async(client.force_login)(
            user, backend="django.contrib.auth.backends.ModelBackend"
        )
        key = client.cookies["sessionid"].value
        headers.append((b"cookie", f"sessionid={key}".encode()))
    socket = WebsocketCommunicator(application, "/ws/plans/", headers=headers)
    assert (await socket.connect())[0]
    return socket


async def hear(socket):
    message = await socket.receive_output(60)
    assert message["type"] == "websocket.send", message
    return json.loads(message["text"])


@pytest.fixture
def child(monkeypatch):
    def run(cases, *, listener, cancelled, seconds):
        listener(0, "backward", 0.5)
        return ChildAnswers([ANSWER], 1.0)

    monkeypatch.setattr(refinement.child_process, "run", run)


@sync_to_async
def follow_all():
    """Do the worker's task."""
    for row in Refinement.objects.filter(state="waiting"):
        refining_service.compute_refinement(refinement_id=row.pk, clock=timezone.now)


async def test_somebody_signed_out_is_turned_away():
    socket = await open_socket(None)
    message = await socket.receive_output(60)
    assert (message["type"], message["code"]) == ("websocket.close", 4401)


async def test_a_page_hears_how_its_estimate_comes_along(alice, child):
    socket = await open_socket(alice)
    await socket.send_json_to(QUESTION)
    first = await hear(socket)
    assert first["type"] == "refinement.changed"
    assert first["refinement"]["state"] == "waiting"
    await follow_all()
    heard = [await hear(socket), await hear(socket)]
    assert heard[0]["refinement"]["doing"] == "backward"
    assert heard[0]["refinement"]["done_ratio"] == 0.5
    assert heard[1]["refinement"]["state"] == "done"
    assert heard[1]["refinement"]["answer"] == ANSWER
    await socket.disconnect()


async def test_the_task_is_sent_to_the_refining_worker(alice, redis_client):
    socket = await open_socket(alice)
    await socket.send_json_to(QUESTION)
    await hear(socket)
    sent = json.loads(await sync_to_async(redis_client.lindex)("refine", 0))
    assert sent["headers"]["task"] == "placement.tasks.refine"
    await socket.disconnect()


async def test_a_known_answer_comes_at_once_and_to_nobody_else(alice, carol, child):
    one, other = await open_socket(alice), await open_socket(carol)
    await one.send_json_to(QUESTION)
    await hear(one)
    await follow_all()
    await one.disconnect()
    await other.send_json_to(QUESTION)
    assert (await hear(other))["refinement"]["state"] == "done"
    await other.disconnect()


async def test_a_page_hears_only_what_it_asked_for_last(alice, child):
    socket = await open_socket(alice)
    await socket.send_json_to(QUESTION)
    old = (await hear(socket))["refinement"]["key"]
    await socket.send_json_to({"refine": {"known": "gpt2", "workload": {"batch": 3}}})
    new = (await hear(socket))["refinement"]["key"]
    assert new != old
    await follow_all()
    assert {(await hear(socket))["refinement"]["key"] for _ in range(2)} == {new}
    await socket.disconnect()


@pytest.mark.once
@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"refine": 3}, "refine"),
        ({"refine": {"known": "nope"}}, "known"),
        ({"refine": {"model": "1"}}, "model"),
        ({"refine": {"model": 10**9}}, "upload"),
        ({"refine": {"known": "gpt2", "replicas": 0}}, "replicas"),
        ({"refine": {"known": "gpt2", "workload": {"batch": -1}}}, "batch"),
        ({"refine": {"known": "gpt2", "workload": {"smell": 1}}}, "smell"),
        ({"cancel": "somebody else's"}, "refine"),
    ],
)
async def test_what_cannot_be_asked_is_said_by_field(alice, asked, field):
    socket = await open_socket(alice)
    await socket.send_json_to(asked)
    message = await hear(socket)
    assert message["type"] == "refinement.refused"
    assert field in message["problems"]
    await socket.disconnect()


async def test_a_cancel_is_told(alice, child):
    socket = await open_socket(alice)
    await socket.send_json_to(QUESTION)
    key = (await hear(socket))["refinement"]["key"]
    await socket.send_json_to({"cancel": key})
    assert (await hear(socket))["refinement"]["state"] == "cancelled"
    await socket.disconnect()
