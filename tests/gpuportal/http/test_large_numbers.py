"""A number that no row can have, in every address that takes one."""

import asyncio
import re

import pytest
from django.db import transaction
from django.test import Client

from gpuportal.asgi import application
from gpuportal.routing import websocket_urlpatterns
from tests.factories import make_membership, make_user
from tests.gpuportal.http.test_plain_errors import operations, patterns
from tests.sockets import PATIENCE_SECONDS, WebsocketCommunicator

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
    str(one.pattern)
    for one in websocket_urlpatterns
    if NUMBER.search(str(one.pattern))
]


@pytest.fixture
def client(db):
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


def test_a_page_refuses_it(client):
    assert len(PAGES) > 40
    for place in PAGES:
        address = "/" + re.sub(r"<\w+:\w+>", "a", NUMBER.sub(str(LARGE), place))
        for method in ("GET", "POST"):
            assert send(client, method, address) in REFUSED, (method, address)


def test_an_operation_refuses_it(client):
    assert len(OPERATIONS) > 40
    for method, path in OPERATIONS:
        address = re.sub(r"\{\w*name\}", "a", path)
        address = re.sub(r"\{[^}]*\}", str(LARGE), address)
        body = None if method == "get" else "{}"
        assert 400 <= send(client, method.upper(), address, body) < 500, address


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("place", SOCKETS)
def test_a_websocket_is_refused_as_for_an_unknown_number(place):
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
