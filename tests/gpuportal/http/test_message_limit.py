"""The portal's own websockets take shorter messages than those of workspaces."""

import asyncio

import pytest

from gpuportal.http.message_limit import (
    MOST_OWN_BYTES,
    MOST_SERVER_BYTES,
    MessageLimit,
)
from gpuportal.supervisor.process_table import control

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("message", "passes"),
    (
        ({"bytes": b"x" * MOST_OWN_BYTES}, True),
        ({"bytes": b"x" * (MOST_OWN_BYTES + 1)}, False),
        ({"text": "ä" * (MOST_OWN_BYTES // 2)}, True),
        ({"text": "ä" * (MOST_OWN_BYTES // 2 + 1)}, False),
    ),
)
def test_a_long_message_closes_a_websocket_of_the_portal(message, passes):
    sent, seen = [], []

    async def receive():
        return {"type": "websocket.receive", **message}

    async def send(event):
        sent.append(event)

    async def application(scope, receive, send):
        seen.append(await receive())

    asyncio.run(MessageLimit(application)({}, receive, send))
    if passes:
        assert seen == [{"type": "websocket.receive", **message}] and sent == []
    else:
        assert seen == [{"type": "websocket.disconnect", "code": 1009}]
        assert sent == [{"type": "websocket.close", "code": 1009}]


def test_the_web_server_takes_what_programs_need():
    words = control(listener_fd=3)[0].argv
    assert words[words.index("--ws-max-size") + 1] == str(MOST_SERVER_BYTES)
