"""The longest message of the portal's own websockets.

The web server takes messages up to `MOST_SERVER_BYTES`, because programs of workspaces
need them: VS Code saves a file in pieces of 256 KiB. The portal's own websockets take
less.
"""

from collections.abc import Mapping
from typing import Any

from gpuportal.http.bodies import Receive, Scope
from gpuportal.http.socket_close import TOO_LONG

MOST_SERVER_BYTES = 2**20
"""``--ws-max-size`` of the web server."""
MOST_OWN_BYTES = 64 * 1024


class MessageLimit:
    """Closes a websocket (code 1009) whose client sends a message that is too long."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        """Carry one websocket."""
        over = False

        async def bounded() -> Mapping[str, Any]:
            nonlocal over
            message = await receive()
            if over or message["type"] != "websocket.receive":
                return message
            if _size(message) <= MOST_OWN_BYTES:
                return message
            over = True
            await send({"type": "websocket.close", "code": TOO_LONG})
            return {"type": "websocket.disconnect", "code": TOO_LONG}

        await self.application(scope, bounded, send)


def _size(message: Mapping[str, Any]) -> int:
    """Return the bytes of a message."""
    text = message.get("text")
    return len(text.encode()) if text else len(message.get("bytes") or b"")
