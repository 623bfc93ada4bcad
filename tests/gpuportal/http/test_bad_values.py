"""Values that no database can hold, in every place of a request: never a crash."""

import asyncio
import json
import re

import pytest
from django.db import transaction
from django.test import Client

from gpuportal.asgi import application
from gpuportal.routing import websocket_urlpatterns
from reservations.models import Reservation
from tests.factories import make_gpu, make_membership, make_node, make_user
from tests.gpuportal.http.test_plain_errors import operations, patterns
from tests.reservations.calling import Caller
from tests.sockets import PATIENCE_SECONDS, WebsocketCommunicator

pytestmark = pytest.mark.django_db


@pytest.fixture
def student(alice) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(alice, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.mark.once
@pytest.mark.parametrize("path", ["/waiting", "/jobs", "/jobs/arrays", "/plans"])
def test_a_body_nested_without_end_is_refused(alice, path):
    deep = "[" * 50_000 + "]" * 50_000
    for body in (deep, '{"job": ' + deep + "}", '{"a": ' * 80 + "1" + "}" * 80):
        client = Caller(alice).client
        client.raise_request_exception = False
        answer = client.post(f"/api/v1{path}", body, content_type="application/json")
        assert answer.status_code == 422, body[:20]
        assert "levels deep" in answer.json()["detail"]


@pytest.mark.once
@pytest.mark.parametrize("body", [False, 0, 5, "x", [], [{}]])
def test_a_body_that_is_no_object_is_refused(alice, body):
    for path in ("/jobs/1/stop", "/reservations/1/cancel", "/reservations", "/jobs"):
        answer = Caller(alice)("POST", path, body)
        assert answer.status_code == 422, path
        assert answer.body["detail"] == "It must be a JSON object."


@pytest.mark.once
@pytest.mark.parametrize("body", ["", "null"])
def test_a_body_that_is_missing_is_named_a_body(alice, body):
    client = Caller(alice).client
    paths = ["/reservations", "/series"]
    if not body:
        paths += ["/jobs", "/plans", "/offers"]
    for path in paths:
        answer = client.post(f"/api/v1{path}", body, content_type="application/json")
        assert answer.status_code == 422, path
        told = answer.json()["fields"]
        assert told == {"body": "Send a JSON object."}, path


@pytest.mark.once
def test_the_kind_of_a_job_is_that_of_its_program(alice):
    for program, faulty in (
        ({"script": "echo 1"}, set()),
        ({"script": "echo 1", "recipe": "burn-in"}, {"script"}),
        ({}, {"recipe"}),
        ({"script": "echo 1", "kind": "script"}, set()),
        ({"kind": "other"}, {"kind"}),
    ):
        body = {"name": "one", "reservation": 1, **program}
        answer = Caller(alice)("POST", "/jobs", body)
        assert set(answer.body.get("fields", ())) == faulty, (program, answer.body)


@pytest.mark.once
@pytest.mark.parametrize("wish", [False, 0, 5, "x", []])
def test_a_wish_for_gaps_that_is_no_object_is_refused(alice, wish):
    answer = Caller(alice)("POST", "/jobs", {"name": "x", "backfill": wish})
    assert answer.status_code == 422
    assert "backfill" in answer.body["fields"]


def test_a_null_character_in_a_body_is_named(alice):
    for body, field in (
        ({"name": "x", "recipe_settings": {"a": ["\0"]}}, "recipe_settings.a.0"),
        ({"name": "x", "recipe_settings": {"a": "\ud800"}}, "recipe_settings.a"),
        ({"name": "x", "recipe_settings": {"a": float("inf")}}, "recipe_settings.a"),
    ):
        answer = Caller(alice)("POST", "/jobs", body)
        assert answer.status_code == 422
        assert field in answer.body["fields"]


@pytest.mark.once
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nodes/%00/history", 404),
        ("DELETE", "/api/v1/serve/1/models/%00", 404),
        ("GET", "/search?q=%00", 200),
        ("GET", "/search?q=a%00b", 200),
        ("GET", "/static/%00", 404),
        ("GET", "/%00", 404),
        ("GET", "/login/?next=%00", 302),
        ("GET", "/board/minute?gpu=%00", 200),
    ],
)
def test_a_null_character_in_an_address_finds_nothing(student, method, path, status):
    assert student.generic(method, path).status_code == status


def test_a_null_character_in_a_desks_search_finds_nothing(omar):
    client = Client()
    client.force_login(omar, backend="django.contrib.auth.backends.ModelBackend")
    for path in ("/manage/courses/?q=%00", "/manage/people/?q=%00", "/admin/?q=%00"):
        assert client.get(path).status_code == 200, path


@pytest.mark.once
def test_a_null_character_that_reaches_the_database_is_the_visitors_fault(student):
    answer = student.post("/search", {"q": "\0"})
    assert answer.status_code == 405
    answer = student.post(
        "/me/tokens/", {"label": "a\0b", "scopes": "read", "days": "1"}
    )
    assert answer.status_code == 422


@pytest.mark.once
@pytest.mark.parametrize("offset", ["+23:59", "-23:59", "+15:59", "+14:00"])
def test_an_offset_beyond_the_databases_is_turned_to_utc(alice, offset):
    gpu = make_gpu(make_node("atlas"))
    body = {
        "gpu_ids": [gpu.pk],
        "start": f"2031-03-05T12:00:00{offset}",
        "end": f"2031-03-05T13:00:00{offset}",
    }
    call = Caller(alice)
    assert call("POST", "/reservations/preview", body).status_code == 200
    assert call("POST", "/reservations", body).status_code in (201, 409)
    change = {"end": body["end"], "version": 1}
    assert call("PATCH", "/reservations/1", change).status_code == 404
    plan = {"model": "gpt2", "at": body["start"]}
    assert call("POST", "/plans", plan).status_code == 422
    assert Reservation.objects.count() <= 1


@pytest.mark.once
def test_a_year_at_the_end_of_time_is_refused(alice):
    for at in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "0001-01-01"):
        body = {"gpu_ids": [1], "start": at, "end": at}
        assert Caller(alice)("POST", "/reservations", body).status_code == 422
        answer = Caller(alice)("POST", "/plans", {"model": "gpt2", "at": at})
        assert answer.status_code == 422, at


def test_no_constant_of_javascript_is_json(alice):
    client = Caller(alice).client
    for text in ("NaN", "Infinity", "1e999"):
        body = '{"name": "x", "recipe_settings": {"a": ' + text + "}}"
        answer = client.post("/api/v1/jobs", body, content_type="application/json")
        assert answer.status_code == 422
        assert json.loads(answer.content)["fields"]


REFUSED = (302, 400, 401, 404, 405, 422)
"""302: the page that a form belongs to. 401: only nodes may call it."""
LARGE = 2**63
"""One more than the largest number of a row, on both databases."""
NUMBER = re.compile(r"<int:\w+>")
PAGES = sorted({place for place in patterns() if NUMBER.search(place)})
OPERATIONS = sorted(
    (method, path) for method, path, _, _ in operations() if "_id}" in path
)
SOCKETS = [
    str(one.pattern) for one in websocket_urlpatterns if NUMBER.search(str(one.pattern))
]


@pytest.fixture
def boss_client(db):
    boss = make_user("boss", is_staff=True, is_superuser=True)
    make_membership(boss, "vision", is_head=True)
    made = Client(raise_request_exception=True)
    made.force_login(boss, backend="django.contrib.auth.backends.ModelBackend")
    return made


def send(client, method, address, body=None):
    """Return the status. What a database refuses does not reach the next request."""
    data = {} if body is None else {"data": body, "content_type": "application/json"}
    before = transaction.savepoint()
    answer = client.generic(method, address, **data)
    transaction.savepoint_rollback(before)
    return answer.status_code


def test_a_page_refuses_a_large_number(boss_client):
    assert len(PAGES) > 40
    for place in PAGES:
        address = "/" + re.sub(r"<\w+:\w+>", "a", NUMBER.sub(str(LARGE), place))
        for method in ("GET", "POST"):
            assert send(boss_client, method, address) in REFUSED, (method, address)


def test_an_operation_refuses_a_large_number(boss_client):
    assert len(OPERATIONS) > 40
    for method, path in OPERATIONS:
        address = re.sub(r"\{\w*name\}", "a", path)
        address = re.sub(r"\{[^}]*\}", str(LARGE), address)
        body = None if method == "get" else "{}"
        assert 400 <= send(boss_client, method.upper(), address, body) < 500, address


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("place", SOCKETS)
def test_a_websocket_refuses_a_large_number_as_an_unknown_one(place):
    client = Client()
    client.force_login(make_user("alice"))
    key = client.cookies["sessionid"].value

    async def answers(number):
        socket = WebsocketCommunicator(
            application,
            f"/{NUMBER.sub(str(number), place)}",
            headers=[
                (b"host", b"127.0.0.1"),
                (b"origin", b"http://127.0.0.1"),
                (b"cookie", f"sessionid={key}".encode()),
            ],
        )
        await socket.send_input({"type": "websocket.connect"})
        found = []
        while not found or found[-1]["type"] == "websocket.accept":
            found.append(await socket.receive_output(PATIENCE_SECONDS))
        await socket.disconnect()
        return found

    assert asyncio.run(answers(LARGE)) == asyncio.run(answers(404))
