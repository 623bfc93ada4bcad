"""The browser's side of a websocket, directly into the ASGI application.

Like channels.testing.WebsocketCommunicator, which cannot be imported without daphne.
"""

import json
from typing import Any

from asgiref.testing import ApplicationCommunicator

PATIENCE_SECONDS = 60.0
"""What a busy machine may take for a message. Only a test that fails waits so long."""


class WebsocketCommunicator(ApplicationCommunicator):
    """Opens one websocket of the site."""

    def __init__(
        self, application: Any, path: str, headers: list[tuple[bytes, bytes]]
    ) -> None:
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": b"",
            "headers": headers,
            "subprotocols": [],
        }
        super().__init__(application, scope)

    async def connect(
        self, seconds: float = PATIENCE_SECONDS
    ) -> tuple[bool, int | None]:
        """Open it. Return (accepted, close code if it was refused)."""
        await self.send_input({"type": "websocket.connect"})
        answer = await self.receive_output(PATIENCE_SECONDS)
        if answer["type"] == "websocket.close":
            return False, answer.get("code", 1000)
        return True, None

    async def send_to(self, *, text_data: str) -> None:
        """Send text."""
        await self.send_input({"type": "websocket.receive", "text": text_data})

    async def send_json_to(self, value: Any) -> None:
        """Send JSON."""
        await self.send_to(text_data=json.dumps(value))

    async def disconnect(
        self, code: int = 1000, seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Close it and wait until the consumer is done."""
        await self.send_input({"type": "websocket.disconnect", "code": code})
        await self.wait(PATIENCE_SECONDS)
