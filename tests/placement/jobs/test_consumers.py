"""The Job's socket: who may listen, and what they hear."""

import asyncio
import json
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.test import Client
from django.utils import timezone

from placement.jobs import job_broadcast
from placement.jobs import service as jobs
from placement.jobs.consumers import JobConsumer
from placement.jobs.nodes import log_store
from placement.models import Job
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.sockets import WebsocketCommunicator

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job(alice):
    node = make_node("red")
    reservation = make_reservation(alice, make_gpus(1, node), state=State.ACTIVE)
    made = jobs.launch(
        user=alice,
        reservation_id=reservation.pk,
        name="try",
        kind="recipe",
        recipe="burn-in",
        now=timezone.now(),
    )
    Job.objects.filter(pk=made.pk).update(attempt=1, state="running")
    made.refresh_from_db()
    return made


async def open_socket(user, job, path=""):
    """Open the Job's socket with a real session, as the site routes it."""
    from gpuportal.asgi import application

    headers = [(b"host", b"127.0.0.1"), (b"origin", b"http://127.0.0.1")]
    if user is not None:
        client = Client()
        await sync_to_async(client.force_login)(
            user, backend="django.contrib.auth.backends.ModelBackend"
        )
        key = client.cookies["sessionid"].value
        headers.append((b"cookie", f"sessionid={key}".encode()))
    socket = WebsocketCommunicator(
        application, path or f"/ws/jobs/{job.pk}/", headers=headers
    )
    connected, _ = await socket.connect()
    assert connected
    return socket


async def hear(socket):
    """Return the next message of the socket."""
    message = await socket.receive_output(60)
    assert message["type"] == "websocket.send", message
    return json.loads(message["text"])


async def close_code(socket):
    message = await socket.receive_output(60)
    assert message["type"] == "websocket.close", message
    return message["code"]


async def test_the_owner_hears_where_it_stands_then_its_log(alice, job):
    await sync_to_async(log_store.append)(job, attempt=1, offset=0, data=b"before\n")
    socket = await open_socket(alice, job)
    changed = await hear(socket)
    assert (changed["type"], changed["job"]["state"]) == ("job.changed", "running")
    tail = await hear(socket)
    assert (tail["type"], tail["offset"], tail["data"]) == ("job.log", 0, "before\n")
    message = {
        "job": job.pk,
        "attempt": 1,
        "offset": 7,
        "bytes": 6,
        "data": "\x1b[2Jnow\n",
    }
    assert await sync_to_async(job_broadcast.publish_log)("red", message)
    piece = await hear(socket)
    assert (piece["offset"], piece["bytes"], piece["data"]) == (7, 6, "now\n")
    await socket.disconnect()


async def test_every_move_is_heard(alice, job):
    socket = await open_socket(alice, job)
    await hear(socket)
    await sync_to_async(jobs.stop)(job_id=job.pk, user=alice, now=timezone.now())
    changed = await hear(socket)
    assert changed["job"]["state"] == "stopping"
    await socket.disconnect()


async def test_bob_and_carol_are_refused(bob, carol, job):
    for other in (bob, carol):
        assert await close_code(await open_socket(other, job)) == 4403


async def test_who_is_signed_out_is_told_so(job):
    assert await close_code(await open_socket(None, job)) == 4401


async def test_the_groups_head_and_the_operator_may_listen(bob, omar, job):
    await sync_to_async(bob.memberships.update)(is_head=True)
    for user in (bob, omar):
        socket = await open_socket(user, job)
        assert (await hear(socket))["type"] == "job.changed"
        await socket.disconnect()


async def test_a_job_that_is_not_there_is_refused_like_anothers(alice, job):
    missing = Job(pk=job.pk + 1000)
    assert await close_code(await open_socket(alice, missing)) == 4403


async def test_a_right_that_is_taken_away_closes_the_socket(bob, job, monkeypatch):
    monkeypatch.setattr(JobConsumer, "recheck_seconds", 0.1)
    await sync_to_async(bob.memberships.update)(is_head=True)
    socket = await open_socket(bob, job)
    await hear(socket)
    await sync_to_async(bob.memberships.update)(is_head=False)
    assert await close_code(socket) == 4403


@pytest.mark.once
@pytest.mark.parametrize(
    "message",
    [
        {},
        {"job": "x"},
        {"job": -1, "attempt": 1, "offset": 0, "bytes": 1, "data": ""},
        {"attempt": 1, "offset": 0, "bytes": 10**9, "data": "x"},
        {"attempt": 2, "offset": 0, "bytes": 1, "data": "x"},
        {"attempt": 1, "offset": 0, "bytes": 1, "data": 5},
    ],
)
def test_log_messages_that_are_none_are_not_passed_on(job, message):
    assert not job_broadcast.LogGate().publish("red", {"job": job.pk, **message})


@pytest.mark.once
def test_a_node_cannot_write_into_another_nodes_log(job):
    make_node("blue")
    message = {"job": job.pk, "attempt": 1, "offset": 0, "bytes": 2, "data": "hi"}
    gate = job_broadcast.LogGate()
    assert not gate.publish("blue", message)
    assert gate.publish("red", message)


async def test_a_browser_that_takes_nothing_is_let_go(alice, job, monkeypatch):
    from placement.jobs import consumers

    monkeypatch.setattr(consumers, "SEND_SECONDS", 0.05)
    closed = asyncio.Event()

    class Slow(JobConsumer):
        async def send_json(self, content, close=False):
            await asyncio.sleep(60)

        async def close(self, code=None, reason=None):
            assert code == consumers.TOO_SLOW
            closed.set()

    slow = Slow()
    await slow.pass_on({"type": "job.log"})
    assert closed.is_set()


async def test_the_list_hears_of_its_own_jobs_alone(alice, bob, omar, job):
    mine, others, all_of_them = [
        await open_socket(user, job, path="/ws/jobs/") for user in (alice, bob, omar)
    ]
    now = timezone.now()
    await sync_to_async(Job.objects.update)(
        progress_done=3,
        progress_total=9,
        progress_at=now,
        progress_from=0,
        progress_from_at=now - timedelta(seconds=6),
    )
    rows = Job.objects.select_related("reservation__membership")
    row = await sync_to_async(rows.get)(pk=job.pk)
    await sync_to_async(job_broadcast.publish_progress)(row)
    await sync_to_async(jobs.stop)(job_id=job.pk, user=alice, now=now)
    for socket in (mine, all_of_them):
        told = await hear(socket)
        assert (told["type"], told["job"]) == ("job.progress", job.pk)
        assert told["progress"]["left_seconds"] == pytest.approx(12)
        moved = await hear(socket)
        assert (moved["type"], moved["state"]) == ("jobs.changed", "stopping")
    assert await others.receive_nothing(0.2)
    for socket in (mine, others, all_of_them):
        await socket.disconnect()
