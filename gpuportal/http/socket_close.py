"""How a websocket that carries a stream is closed: with a code and a sentence."""

import contextlib
from typing import Any

NORMAL, TOO_LONG, SIGNED_OUT, OVER, LOST = 1000, 1009, 4401, 4410, 4502
MOST_REASON_BYTES = 123
"""Of a close frame (RFC 6455)."""


async def close_socket(send: Any, code: int, reason: str) -> None:
    """Close a websocket, unless the client has left already."""
    text = reason.encode()[:MOST_REASON_BYTES].decode(errors="ignore")
    with contextlib.suppress(OSError, RuntimeError):
        await send({"type": "websocket.close", "code": code, "reason": text})
