"""The portal's own websockets take shorter messages than those of workspaces."""

import asyncio

import pytest

from gpuportal.http.message_limit import (
    MOST_OWN_BYTES,
    MOST_SERVER_BYTES,
    MessageLimit,
)
from gpuportal.supervisor.process_table import control
from placement.protocol.stream_frames import MESSAGE_BYTES

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("path", "message", "passes"),
    (
        ("/ws/board/", {"bytes": b"x" * MOST_OWN_BYTES}, True),
        ("/ws/board/", {"bytes": b"x" * (MOST_OWN_BYTES + 1)}, False),
        ("/ws/board/", {"text": "ä" * (MOST_OWN_BYTES // 2)}, True),
        ("/ws/board/", {"text": "ä" * (MOST_OWN_BYTES // 2 + 1)}, False),
        ("/ws/terminal/7/", {"bytes": b"x" * (MOST_OWN_BYTES + 1)}, False),
        ("/ws/ssh/7/", {"bytes": b"x" * MESSAGE_BYTES}, True),
        ("/ws/ssh/7/", {"bytes": b"x" * (MESSAGE_BYTES + 1)}, False),
        ("/ws/node/streams/", {"bytes": b"x" * MESSAGE_BYTES}, True),
        ("/ws/node/", {"bytes": b"x" * MESSAGE_BYTES}, False),
    ),
)
def test_a_long_message_closes_a_websocket_of_the_portal(path, message, passes):
    sent, seen = [], []

    async def receive():
        return {"type": "websocket.receive", **message}

    async def send(event):
        sent.append(event)

    async def application(scope, receive, send):
        seen.append(await receive())

    asyncio.run(MessageLimit(application)({"path": path}, receive, send))
    if passes:
        assert seen == [{"type": "websocket.receive", **message}] and sent == []
    else:
        assert seen == [{"type": "websocket.disconnect", "code": 1009}]
        assert sent == [{"type": "websocket.close", "code": 1009}]


def test_the_web_server_takes_what_programs_need():
    words = control(listener_fd=3)[0].argv
    assert words[words.index("--ws-max-size") + 1] == str(MOST_SERVER_BYTES)
