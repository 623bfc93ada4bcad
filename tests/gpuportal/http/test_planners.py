"""Plans in a separate process: a fair order, and words if there is no slot."""

import asyncio
import json
import socket
import tempfile
import threading
import time

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.test import Client

from gpuportal.http import planner_process, planners
from gpuportal.http.handler import OneHopHandler
from gpuportal.http.planners import PlannerBusy, PlannerLost, Planners, PlannerTooLong
from placement.plans import site_slots
from reservations.accounts.api_tokens import create_token
from tests.placement.lab import make_lab, send_frame, signed_in


@pytest.fixture
def slow(monkeypatch):
    """A planner whose answers take the requested time."""
    monkeypatch.setattr(planners, "CHILD", "tests.gpuportal.slow_child")
    made = Planners()
    yield made
    made.close()


@pytest.fixture
def gate(tmp_path):
    """A request that names it is answered when the file is there."""
    return tmp_path / "gate"


@pytest.fixture
def at_site(redis_client):
    """Wait until so many requests of the site run, and so many wait for a turn."""

    async def until(running: int, waiting: int) -> None:
        deadline = time.monotonic() + 60
        wanted = {"running": running, "waiting": waiting}
        while wanted != {
            state: redis_client.zcard(f"slots.planner.{state}") for state in wanted
        }:
            assert time.monotonic() < deadline, wanted
            await asyncio.sleep(0.01)

    return until


def request(milliseconds: object = 0, body: bytes = b"") -> ASGIRequest:
    stream = tempfile.SpooledTemporaryFile(max_size=10)  # noqa: SIM115
    stream.write(body)
    stream.seek(0)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/plan/",
        "headers": [],
        "query_string": str(milliseconds).encode(),
    }
    return ASGIRequest(scope, stream)


async def test_an_answer_comes_back_as_it_was_made(slow):
    answer = await slow.answer(request(0, "ä body of some bytes".encode()), 1)
    assert (answer.status_code, answer.content.decode()) == (
        207,
        "ä body of some bytes",
    )
    assert answer["X-Pid"].isdigit()
    assert answer.cookies["seen"].value == "a b"
    assert answer.cookies["seen"]["path"] == "/"


async def test_one_student_who_asks_for_much_does_not_keep_another_waiting(
    slow, gate, at_site
):
    await slow.answer(request(), 99)  # it has started
    done: list[int] = []

    async def ask(user: int, query: object) -> None:
        await slow.answer(request(query), user)
        done.append(user)

    first = [asyncio.ensure_future(ask(1, gate)) for _ in range(4)]
    await at_site(running=2, waiting=2)
    await ask(2, 0)
    assert done == [2]
    gate.touch()
    await asyncio.gather(*first)
    assert done == [2, 1, 1, 1, 1]


async def test_turns_go_to_those_served_longest_ago(slow, monkeypatch, gate, at_site):
    monkeypatch.setattr(planners, "SLOTS", 1)
    await slow.answer(request(), 99)
    begun: list[int] = []

    async def ask(user: int) -> None:
        await slow.answer(request(gate), user)
        begun.append(user)

    tasks = [asyncio.ensure_future(ask(1))]
    await at_site(running=1, waiting=0)
    tasks += [asyncio.ensure_future(ask(user)) for user in (1, 1, 2, 2, 3)]
    await at_site(running=1, waiting=5)
    gate.touch()
    await asyncio.gather(*tasks)
    assert begun == [1, 2, 3, 1, 2, 1]


async def test_too_many_of_one_student_are_refused_in_words(slow, gate, at_site):
    tasks = [asyncio.ensure_future(slow.answer(request(gate), 1)) for _ in range(4)]
    await at_site(running=2, waiting=2)
    with pytest.raises(PlannerBusy, match="4 of your plans") as busy:
        await slow.answer(request(), 1)
    assert 2 <= busy.value.retry_seconds <= 60
    assert (await slow.answer(request(), 2)).status_code == 207
    gate.touch()
    await asyncio.gather(*tasks)
    assert (await slow.answer(request(), 1)).status_code == 207


async def test_a_turn_that_does_not_come_in_time_is_refused_and_forgotten(
    slow, monkeypatch, gate
):
    monkeypatch.setattr(planners, "MOST_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(planners, "SLOTS", 1)
    first = asyncio.ensure_future(slow.answer(request(gate), 1))
    while not slow._running[1]:
        await asyncio.sleep(0.01)
    with pytest.raises(PlannerBusy, match=r"Try again in \d+ seconds"):
        await slow.answer(request(), 2)
    gate.touch()
    await first
    assert not slow._waiting and not slow._running
    assert (await slow.answer(request(), 2)).status_code == 207


async def test_who_leaves_keeps_no_turn(slow, monkeypatch):
    monkeypatch.setattr(planners, "SLOTS", 1)
    running = asyncio.ensure_future(slow.answer(request(300), 1))
    waiting = asyncio.ensure_future(slow.answer(request(300), 2))
    await asyncio.sleep(0.05)
    waiting.cancel()
    running.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    assert (await slow.answer(request(), 3)).status_code == 207
    assert not slow._waiting and not slow._running


async def test_a_child_that_ends_is_replaced(slow):
    before = (await slow.answer(request(), 1))["X-Group"]
    with pytest.raises(PlannerLost):
        await slow.answer(request("end"), 1)
    assert (await slow.answer(request(), 1))["X-Group"] != before


async def test_a_worker_that_ends_is_replaced_and_the_child_stays(slow):
    before = await slow.answer(request(), 1)
    for _ in range(2):
        with pytest.raises(PlannerLost):
            await slow.answer(request("die"), 1)
        after = await slow.answer(request(), 1)
        assert after["X-Group"] == before["X-Group"]
        assert after["X-Pid"] != before["X-Pid"]


@pytest.mark.parametrize("query", [60_000, "busy"])
async def test_a_plan_over_its_time_ends_only_for_its_owner(
    slow, monkeypatch, query, gate
):
    """``busy`` is C code that holds the interpreter's lock all the time."""
    await slow.answer(request(), 99)
    monkeypatch.setattr(planners, "MOST_ANSWER_SECONDS", 1.0)
    long_ = [asyncio.ensure_future(slow.answer(request(query), 1)) for _ in range(2)]
    while slow._running[1] < 2:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(planners, "MOST_ANSWER_SECONDS", 90.0)
    others = [
        asyncio.ensure_future(slow.answer(request(gate), user)) for user in (2, 3, 4)
    ]
    for one in long_:
        with pytest.raises(PlannerTooLong):
            await one
    assert not any(other.done() for other in others)
    gate.touch()
    for answer in await asyncio.gather(*others):
        assert answer.status_code == 207
    assert (await slow.answer(request(), 1)).status_code == 207


async def test_a_worker_that_is_ended_leaves_no_files(slow, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    gone = tmp_path / f"{planner_process.FOLDER}999999999-killed"
    gone.mkdir()
    (gone / "a").write_text("of a planner that was killed")
    await slow.answer(request(), 1)
    assert not gone.exists()
    monkeypatch.setattr(planners, "MOST_ANSWER_SECONDS", 0.5)
    with pytest.raises(PlannerTooLong):
        await slow.answer(request("file"), 1)
    assert not [*tmp_path.rglob("*.upload")]


def test_a_plan_over_its_time_is_refused_in_words(portal, alice, monkeypatch):
    async def none(*_args) -> None:
        raise PlannerTooLong

    monkeypatch.setattr(portal.planners, "answer", none)
    cookie = f"sessionid={signed_in(alice).cookies['sessionid'].value}"

    async def both():
        return [
            await ask(portal, "POST", "/plan/", cookie=cookie, accept="text/html"),
            await ask(portal, "POST", "/api/v1/plans", b"{}", cookie=cookie),
        ]

    page, program = asyncio.run(both())
    for status, _, content in (page, program):
        assert status == 503
        assert b"took longer than 150 seconds" in content
    assert json.loads(program[2])["code"] == "planner-too-long"


# --- several web processes -----------------------------------------------------------


@pytest.fixture
def two(monkeypatch):
    """Planners as two web processes have them."""
    monkeypatch.setattr(planners, "CHILD", "tests.gpuportal.slow_child")
    made = Planners(), Planners()
    yield made
    for one in made:
        one.close()


async def test_the_limits_of_plans_are_those_of_the_site(two, gate, at_site):
    here, there = two
    tasks = [
        asyncio.ensure_future(one.answer(request(gate), 1)) for one in (*two, *two)
    ]
    await at_site(running=2, waiting=2)
    with pytest.raises(PlannerBusy, match="4 of your plans"):
        await there.answer(request(), 1)
    assert here._running[1] + there._running[1] == 2
    assert (await there.answer(request(), 2)).status_code == 207
    gate.touch()
    await asyncio.gather(*tasks)
    assert (await there.answer(request(), 1)).status_code == 207


async def test_slots_and_turns_are_those_of_the_site(two, monkeypatch, gate, at_site):
    monkeypatch.setattr(planners, "SLOTS", 1)
    for one in two:
        await one.answer(request(), 99)
    done: list[int] = []

    async def ask_at(place: Planners, user: int) -> None:
        await place.answer(request(gate), user)
        done.append(user)

    here, there = two
    tasks = [asyncio.ensure_future(ask_at(here, 1)) for _ in range(3)]
    tasks += [asyncio.ensure_future(ask_at(there, 2)) for _ in range(2)]
    await at_site(running=1, waiting=4)
    gate.touch()
    await asyncio.gather(*tasks)
    assert sorted(done[:2]) == [1, 2] and done[-1] == 1


async def test_what_a_web_process_held_is_free_soon_after_it_was_killed(
    two, monkeypatch, redis_client
):
    monkeypatch.setattr(site_slots, "LEASE_SECONDS", 1.5)
    monkeypatch.setattr(planners, "SLOTS", 2)
    here, there = two
    killed = site_slots.SiteSlots("planner")
    bounds = site_slots.SlotLimits(slots=2, waiting=9)
    for user in (1, 2, 3):
        await killed.enter(site_slots.SlotTicket(user), bounds)
    killed._renewal.cancel()  # its event loop is no more
    assert redis_client.zcard("slots.planner.running") == 2
    assert (await here.answer(request(), 4)).status_code == 207
    assert redis_client.zcard("slots.planner.running") < 2, "a lease is over"
    assert (await there.answer(request(), 5)).status_code == 207


async def test_a_plan_that_runs_keeps_its_slot_for_as_long_as_it_takes(
    two, monkeypatch
):
    monkeypatch.setattr(site_slots, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(site_slots, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(planners, "SLOTS", 1)
    here, there = two
    first = asyncio.ensure_future(here.answer(request(2000), 1))
    while not here._running[1]:
        await asyncio.sleep(0.01)
    assert (await there.answer(request(), 2)).status_code == 207
    assert first.done()


async def test_without_the_broker_each_web_process_counts_its_own(slow, settings, gate):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    tasks = [asyncio.ensure_future(slow.answer(request(gate), 1)) for _ in range(4)]
    while slow._running[1] < 2:
        await asyncio.sleep(0.01)
    # Several late requests, so that waiting ones are judged beside them.
    late = [slow.answer(request(), 1) for _ in range(5)]
    refused = await asyncio.gather(*late, return_exceptions=True)
    assert [type(one) for one in refused] == [PlannerBusy] * 5
    assert all("4 of your plans" in str(one) for one in refused)
    assert slow._running[1] == 2
    assert (await slow.answer(request(), 2)).status_code == 207
    gate.touch()
    await asyncio.gather(*tasks)


async def test_a_request_that_fails_oddly_costs_nobody_else_their_plan(caplog):
    """The thread of the child continues, so the child is not ended."""
    here, there = socket.socketpair()
    here.setblocking(False)

    class Odd:
        def create_request(self, scope, body):
            raise MemoryError(scope["path"])

    served = threading.Thread(target=planner_process.serve, args=(there, Odd()))
    served.start()
    for _ in range(2):
        planners._ask(here, request())
        assert (await asyncio.wait_for(planners._receive(here), 60)).status_code == 500
    here.close()
    served.join(60)
    assert not served.is_alive()
    assert "could not be answered" in caplog.text


# --- the real child -----------------------------------------------------------------


@pytest.fixture
def portal(transactional_db, settings, monkeypatch):
    """Answer like the web, with a child that reads this test's database."""
    settings.PLANNER_PROCESS = True
    known = connection.settings_dict
    address = f"sqlite:///{known['NAME']}"
    if connection.vendor == "postgresql":
        where = f"{known['USER']}@{known['HOST']}:{known['PORT']}"
        address = f"postgres://{where}/{known['NAME']}"
    monkeypatch.setenv("DATABASE_URL", address)
    handler = OneHopHandler()
    yield handler
    handler.planners.close()
    handler.pool.shutdown()


async def ask(handler, method, path, body=b"", **headers):
    """Return (status, headers, content) of one request."""
    sent: list[dict] = []
    pieces = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict:
        if pieces:
            return pieces.pop()
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: dict) -> None:
        sent.append(message)

    told = {"host": "127.0.0.1", "content-length": str(len(body)), **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "client": ["127.0.0.1", 1],
        "server": ["127.0.0.1", 80],
        "headers": [
            (k.replace("_", "-").encode(), v.encode()) for k, v in told.items()
        ],
    }
    await asyncio.wait_for(handler(scope, receive, send), 120)
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), content


@pytest.mark.once
def test_a_plan_a_page_and_a_refusal_come_from_the_child(
    portal, alice, redis_client, django_db_blocker
):
    make_lab()
    send_frame(redis_client)
    from django.utils import timezone

    _, token = create_token(
        user=alice, label="t", scopes=["job"], days=1, now=timezone.now()
    )
    client = signed_in(alice)
    cookie = f"sessionid={client.cookies['sessionid'].value}"
    known = {"authorization": f"Bearer {token}", "content_type": "application/json"}

    async def all_of_them():
        plan = json.dumps({"model": "gpt2-small"}).encode()
        return [
            await ask(portal, "POST", "/api/v1/plans", plan, **known),
            await ask(portal, "POST", "/api/v1/plans", b'{"model": 5}', **known),
            await ask(portal, "GET", "/plan/", cookie=cookie, accept="text/html"),
            await ask(portal, "GET", "/plan/", accept="text/html"),
            await ask(portal, "GET", "/healthz"),
        ]

    made, wrong, page, stranger, health = asyncio.run(all_of_them())
    assert portal.planners._child is not None
    assert made[0] in (200, 422), made
    assert wrong[0] == 422
    assert wrong[1][b"Content-Type"] == b"application/problem+json"
    assert page[0] == 200 and b'id="plan-form"' in page[2]
    assert b"script-src 'self'" in page[1][b"Content-Security-Policy"]
    assert stranger[0] == 302 and b"/login/" in stranger[1][b"Location"]
    assert health[0] in (200, 503)


def test_too_many_plans_are_refused_in_words_on_the_page_and_over_the_api(
    portal, alice, monkeypatch
):
    async def none(*_args) -> None:
        raise PlannerBusy(
            "The planner is busy with other plans. Try again in 7 seconds.", 7
        )

    monkeypatch.setattr(portal.planners, "answer", none)
    client = signed_in(alice)
    cookie = f"sessionid={client.cookies['sessionid'].value}"

    async def all_of_them():
        return [
            await ask(
                portal,
                "POST",
                "/plan/",
                cookie=cookie,
                accept="text/html",
                x_fragment="plan-result",
            ),
            await ask(
                portal,
                "POST",
                "/plan/now/",
                cookie=cookie,
                accept="text/html",
                x_fragment="plan-now",
            ),
            await ask(portal, "GET", "/plan/", cookie=cookie, accept="text/html"),
            await ask(portal, "POST", "/api/v1/plans", b"{}", cookie=cookie),
        ]

    part, typed, page, program = asyncio.run(all_of_them())
    for status, headers, content in (part, typed, page, program):
        assert status == 429
        assert headers[b"Retry-After"] == b"7"
        assert b"Try again in 7 seconds." in content
        assert b"default-src 'self'" in headers[b"Content-Security-Policy"]
    assert b'id="plan-result"' in part[2]
    assert json.loads(program[2])["code"] == "planner-busy"
    assert Client().get("/plan/").status_code == 302
