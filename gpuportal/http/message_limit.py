"""The longest message of the portal's own websockets.

The web server takes messages up to `MOST_SERVER_BYTES`, because programs of workspaces
need them: VS Code saves a file in pieces of 256 KiB. The portal's own websockets take
less. Those that carry streams, such as ssh, take `MESSAGE_BYTES`.
"""

from collections.abc import Mapping
from typing import Any

from gpuportal.http.bodies import Receive, Scope
from gpuportal.http.socket_close import TOO_LONG
from placement.protocol.stream_frames import MESSAGE_BYTES

MOST_SERVER_BYTES = 2**20
"""``--ws-max-size`` of the web server."""
MOST_OWN_BYTES = 64 * 1024
STREAM_PATHS = ("/ws/ssh/", "/ws/node/streams/")
"""Addresses of websockets whose messages may have `MESSAGE_BYTES`."""


class MessageLimit:
    """Closes a websocket (code 1009) whose client sends a message that is too long."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        """Carry one websocket."""
        over = False
        stream = str(scope.get("path", "")).startswith(STREAM_PATHS)
        most_bytes = MESSAGE_BYTES if stream else MOST_OWN_BYTES

        async def bounded() -> Mapping[str, Any]:
            nonlocal over
            message = await receive()
            if over or message["type"] != "websocket.receive":
                return message
            if _size(message) <= most_bytes:
                return message
            over = True
            await send({"type": "websocket.close", "code": TOO_LONG})
            return {"type": "websocket.disconnect", "code": TOO_LONG}

        await self.application(scope, bounded, send)


def _size(message: Mapping[str, Any]) -> int:
    """Return the bytes of a message."""
    text = message.get("text")
    return len(text.encode()) if text else len(message.get("bytes") or b"")
