"""A websocket that a node opened with its token, at the portal's end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis
from channels.db import database_sync_to_async
from django.utils import timezone

from placement.jobs.nodes.node_channel import name_and_token, node_with
from telemetry.inventory.short_tokens import accepts_hash, is_enrolled
from telemetry.protocol.node_token import token_hash

RECHECK_SECONDS = 60.0
REFUSED = 4401
AWAY = 1013
OUTAGES = (redis.ConnectionError, redis.TimeoutError, OSError)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeSocket:
    """An accepted websocket of a node."""

    node: str
    enrolment: str
    """The hash of its enrolment token."""
    token: str
    """The hash of the token with which it was opened."""
    receive: Receive
    send: Send
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when that token is no longer accepted. Then the socket takes nothing new, and
    it is closed when nothing is under way on it. The node opens another one."""

    async def run(
        self, reading: Coroutine[Any, Any, None], *others: Coroutine[Any, Any, None]
    ) -> None:
        """Run the work of the socket until one part of it ends, or the enrolment is no
        longer valid. Log what failed.

        Args:
            reading: ends when the node has left.
            others: what runs beside it.
        """
        first = asyncio.create_task(reading)
        tasks = {first, asyncio.create_task(self._end_with_enrolment())}
        tasks |= {asyncio.create_task(one) for one in others}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks - done:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        if first not in done:
            await self.send({"type": "websocket.close", "code": AWAY})
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OUTAGES):
                logger.error("a websocket of %s failed", self.node, exc_info=result)

    async def _end_with_enrolment(self) -> None:
        """End when the node is retired or joined again. Note the end of the token."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            if not await database_sync_to_async(is_enrolled)(self.node, self.enrolment):
                return
            accepted = database_sync_to_async(accepts_hash)
            if not await accepted(self.node, self.token, timezone.now()):
                self.ended.set()


async def accepted_socket(
    scope: Scope, receive: Receive, send: Send
) -> NodeSocket | None:
    """Accept the websocket of a node that shows its token. None: it was refused."""
    await receive()
    shown = _authorization(scope)
    node = await database_sync_to_async(node_with)(shown)
    if node is None:
        await send({"type": "websocket.close", "code": REFUSED})
        return None
    await send({"type": "websocket.accept"})
    opened_with = token_hash(name_and_token(shown)[1])
    return NodeSocket(node.name, node.token_hash, opened_with, receive, send)


def _authorization(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return str(value.decode("latin-1"))
    return ""
