"""Give each request and each websocket its id, and return it in the answer's header.
Count the requests.

It is the outermost application, so that a line of any part has the id, and so that
every answer has the header: those of the doors and refusals of a body, too.
"""

import time
from typing import Any

from gpuportal import work_counters
from telemetry import request_id

NOT_COUNTED = frozenset(("/healthz", "/readyz", "/metrics"))
"""Programs ask for them all the time."""
REFUSALS = frozenset((401, 403, 429))
"""Not signed in, not allowed, too many requests."""
_NAME = request_id.HEADER.lower().encode()


class RequestScope:
    """Runs ``application`` with the id of the request that it handles."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Take the id of the header if its form is safe, otherwise make one."""
        given = [value for name, value in scope.get("headers", []) if name == _NAME]
        text = given[0].decode("latin1") if len(given) == 1 else None
        found = request_id.accepted(text)
        began, status = time.monotonic(), 0

        async def send_with_id(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                kept = [one for one in message.get("headers", []) if one[0] != _NAME]
                message = message | {"headers": [*kept, (_NAME, found.encode())]}
            await send(message)

        with request_id.set_for(found):
            await self.application(scope, receive, send_with_id)
        if status and scope.get("path") not in NOT_COUNTED:
            took_seconds = time.monotonic() - began
            work_counters.count("request", f"{status // 100}xx", took_seconds)
            if status in REFUSALS:
                work_counters.count("refused", str(status), took_seconds)
