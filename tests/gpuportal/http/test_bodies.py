"""Bodies that are too long or no form: refused before they are stored, never a
crash.
"""

import asyncio
import secrets
import shutil
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import cycle

import pytest
from django.test import Client
from django.utils import timezone

from gpuportal.http import bodies
from gpuportal.http.bodies import UPLOAD_PATHS
from gpuportal.http.handler import OneHopHandler
from placement.plans import site_slots
from placement.plans.model_registry import MOST_UPLOAD_BYTES
from reservations.accounts.api_tokens import create_token
from reservations.models import User
from telemetry.protocol.request_refusal import RequestRefused
from tests.placement.lab import signed_in

MIB = 2**20


def ask(
    path: str, *, headers=(), pieces: int = 0, wait_seconds: float = 60.0, handler=None
):
    """Send ``pieces`` and then nothing. Return (status, pieces that were read)."""
    read = 0
    sent: list[dict] = []

    async def receive() -> dict:
        nonlocal read
        if read == pieces:
            # Nothing more arrives: a handler that waits for it hangs the test.
            await asyncio.sleep(300)
        read += 1
        return {"type": "http.request", "body": b"x" * MIB, "more_body": True}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), *headers],
    }
    handler = handler or OneHopHandler()
    asyncio.run(asyncio.wait_for(handler(scope, receive, send), wait_seconds))
    handler.pool.shutdown()
    return sent[0], read


def test_a_declared_length_is_refused_before_a_byte_is_read():
    for path in ("/login/", "/plan/", "/api/v1/models", "/nope"):
        answer, read = ask(path, headers=[(b"content-length", b"100000000000")])
        assert (answer["status"], read) == (413, 0), path
        assert b"content-security-policy" in {n.lower() for n, _ in answer["headers"]}


def test_an_endless_body_is_refused_after_a_few_pieces():
    answer, read = ask("/login/", pieces=6)
    assert (answer["status"], read) == (413, 5)


INSIDE = (b"content-length", str(150 * MIB).encode())


@pytest.fixture
def session(alice, transactional_db) -> tuple[bytes, bytes]:
    key = signed_in(alice).cookies["sessionid"].value
    return b"cookie", f"sessionid={key}".encode()


@pytest.mark.once
def test_a_file_of_somebody_who_is_not_signed_in_is_never_read(transactional_db):
    for path in UPLOAD_PATHS:
        assert ask(path, headers=[INSIDE])[0]["status"] == 413
        for name, value in (
            (b"cookie", b"a=b"),
            (b"cookie", b"sessionid=" + b"x" * 32),
            (b"authorization", b"Bearer gp_wrong"),
            (b"authorization", b"Node red:token"),
        ):
            # Six at once, as an attacker would: not a byte of them is read.
            for _ in range(6):
                answer, read = ask(path, headers=[INSIDE, (name, value)], pieces=6)
                refused = 401 if path.startswith("/api/") else 302
                assert (answer["status"], read) == (refused, 0), (path, value)
    page = [INSIDE, (b"cookie", b"a=b"), (b"accept", b"text/html")]
    answer, read = ask("/plan/", headers=page)
    assert (answer["status"], read) == (302, 0)
    assert (b"Location", b"/login/") in answer["headers"]
    # Without a length, too.
    open_end = [(b"transfer-encoding", b"chunked"), (b"cookie", b"a=b")]
    assert ask("/plan/", headers=open_end, pieces=6)[1] == 0


def test_a_file_of_a_user_is_read(session, alice):
    with pytest.raises(TimeoutError):
        ask("/plan/", headers=[INSIDE, session], wait_seconds=2)
    token = create_token(
        user=alice, label="t", scopes=["job"], days=1, now=timezone.now()
    )[1]
    known = (b"authorization", f"Bearer {token}".encode())
    with pytest.raises(TimeoutError):
        ask("/api/v1/models", headers=[INSIDE, known], wait_seconds=2)
    too_large = (b"content-length", str(MOST_UPLOAD_BYTES + 2 * MIB).encode())
    assert ask("/plan/", headers=[too_large, session])[0]["status"] == 413


def test_a_switched_off_user_sends_no_file(session, alice):
    type(alice).objects.filter(pk=alice.pk).update(is_active=False)
    answer, read = ask("/api/v1/models", headers=[INSIDE, session], pieces=6)
    assert (answer["status"], read) == (401, 0)


async def hold(stack: AsyncExitStack, uploads, user_pk: int, size_bytes=MIB):
    """Begin an upload that ends with the stack."""
    await stack.enter_async_context(uploads.counted_upload(user_pk, size_bytes))


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("broker", [True, False])
async def test_files_at_once_are_bounded_for_each_user_and_in_all(
    processes, broker, settings
):
    """Limits for all web processes together, if the broker is there to count them."""
    if not broker:
        settings.REDIS_URL, processes = "redis://127.0.0.1:1/0", 1
    webs = cycle([bodies.Uploads() for _ in range(processes)])
    async with AsyncExitStack() as stack:
        for _ in range(bodies.MOST_UPLOADS_PER_USER):
            await hold(stack, next(webs), 1)
        with pytest.raises(RequestRefused, match="You are uploading") as refused:
            await hold(stack, next(webs), 1)
        assert (refused.value.status, refused.value.retry_seconds) == (429, 10)
        first = AsyncExitStack()
        await hold(first, next(webs), 2)
        for number in range(bodies.MOST_UPLOADS - bodies.MOST_UPLOADS_PER_USER - 1):
            await hold(stack, next(webs), 3 + number)
        with pytest.raises(RequestRefused, match="as many files as it can"):
            await hold(stack, next(webs), 99)
        await first.aclose()
        await hold(stack, next(webs), 99)


async def test_an_upload_of_a_web_process_that_was_killed_counts_for_a_moment(
    monkeypatch,
):
    monkeypatch.setattr(site_slots, "LEASE_SECONDS", 0.4)
    killed, lives = bodies.Uploads(), bodies.Uploads()
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await hold(stack, killed, 1)
        killed._site._renewal.cancel()  # its event loop is no more
        with pytest.raises(RequestRefused):
            await hold(stack, lives, 1)
        await asyncio.sleep(0.5)
        await hold(stack, lives, 1)


async def test_a_file_that_would_fill_the_disk_is_refused(monkeypatch):
    free = shutil.disk_usage("/")._replace(free=bodies.SPARE_BYTES + 10 * MIB)
    monkeypatch.setattr(bodies.shutil, "disk_usage", lambda _folder: free)
    async with AsyncExitStack() as stack:
        await hold(stack, bodies.Uploads(), 1, 3 * MIB)
        with pytest.raises(RequestRefused, match="no space") as refused:
            # Simultaneous uploads count, in whichever web process.
            await hold(stack, bodies.Uploads(), 1, 3 * MIB)
        assert refused.value.status == 507
    async with AsyncExitStack() as stack:
        await hold(stack, bodies.Uploads(), 1, 3 * MIB)


def test_the_third_file_at_once_gets_429_over_the_wire(session, redis_client):
    ticket = site_slots.SlotTicket(User.objects.get().pk)
    for _ in range(2):
        member = str(replace(ticket, key=secrets.token_hex(8)))
        redis_client.zadd("slots.uploads.running", {member: 10**14})
    answer, read = ask("/plan/", headers=[INSIDE, session])
    assert (answer["status"], read) == (429, 0)
    assert (b"Retry-After", b"10") in answer["headers"]


def test_a_slow_body_is_given_up(monkeypatch):
    monkeypatch.setattr(bodies, "GRACE_SECONDS", 0.2)
    assert ask("/login/")[0]["status"] == 408
    # A piece extends the time: at 64 KiB a second.
    monkeypatch.setattr(bodies, "LEAST_BYTES_PER_SECOND", MIB / 0.3)
    begun = time.monotonic()
    answer, read = ask("/login/", pieces=2)
    assert (answer["status"], read) == (408, 2)
    assert time.monotonic() - begun > 0.7


@pytest.mark.once
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "body", "kind", "status"),
    [
        ("/api/v1/reservations", b"x" * (5 * MIB), "application/json", 413),
        ("/api/v1/models", b"x" * (5 * MIB), "text/plain", 422),
        ("/api/v1/models", b"nonsense", "multipart/form-data", 400),
        ("/api/v1/models", b"nonsense", "multipart/form-data; boundary=\xff", 400),
        ("/api/v1/models", b"--b\r\n\r\n", "multipart/form-data; boundary=b", 422),
    ],
)
def test_the_api_names_bodies_it_cannot_read(alice, path, body, kind, status):
    client = Client(raise_request_exception=False)
    client.force_login(alice, backend="django.contrib.auth.backends.ModelBackend")
    answer = client.post(path, body, content_type=kind)
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
