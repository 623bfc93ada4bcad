"""The web's end of a node's tunnel: ``/ws/node/serve/``, an ASGI application.

A node presents its token as in the HTTPS channel. Its calls come from this process or
are read from the broker (see ``call_broker.py``), and are sent to it. A frame from the
node is accepted only as the answer to a call sent over the same websocket. The token is
checked again each minute. A socket whose token has ended takes no new calls.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio
from django.conf import settings

from placement.jobs.nodes.node_socket import (
    NodeSocket,
    Receive,
    Scope,
    Send,
    accepted_socket,
)
from placement.protocol.serving_frames import (
    MOST_ANSWER_BYTES,
    Call,
    FrameInvalid,
    pack,
    unpack,
)
from placement.serving.call_broker import (
    CALLS,
    OUTAGES,
    TUNNEL,
    WAIT_SECONDS,
    call_broker,
    give,
)

TUNNEL_SECONDS = 15
FORGET_SECONDS = 60.0
"""After its time limit a call without an answer is forgotten."""
LOOK_SECONDS = 0.5
"""Between two looks whether the calls of an ended token are answered."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    """A call that was sent here and has no complete answer yet."""

    reply: str
    expires_at: float
    parts: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


async def serve_tunnel(scope: Scope, receive: Receive, send: Send) -> None:
    """Carry one websocket of a node until it closes."""
    socket = await accepted_socket(scope, receive, send)
    if socket is not None:
        async with redis.asyncio.Redis.from_url(settings.REDIS_URL) as client:
            await _Tunnel(socket, client).run()


class _Tunnel:
    def __init__(self, socket: NodeSocket, client: Any) -> None:
        self.socket, self.node, self.redis = socket, socket.node, client
        self.open: dict[str, _Open] = {}
        self.unsent_bytes = 0

    @property
    def takes_calls(self) -> bool:
        """Whether its token is still accepted."""
        return not self.socket.ended.is_set()

    async def run(self) -> None:
        """Serve until the node leaves, its token is invalid, or the broker is
        unreachable.
        """
        await self.socket.run(
            self._receive_answers(),
            self._send_calls(),
            self._take_calls_of_this_process(),
        )
        await self._fail_waiting_calls()

    async def _take_calls_of_this_process(self) -> None:
        """Be known to the broker of this process until cancelled."""
        here = call_broker().tunnels[self.node]
        here.append(self)
        try:
            await asyncio.Event().wait()
        finally:
            here.remove(self)

    async def send_call(self, call: Call, reply: str) -> None:
        """Send a call of this process. If the node has left, `run` fails it."""
        self._forget_expired()
        self.open[call.call] = _Open(reply, call.expires_at)
        with contextlib.suppress(*OUTAGES):
            await self._send(call.frame())

    async def cancel_call(self, call: str) -> None:
        """Cancel a call of this process whose client has disconnected."""
        if self.open.pop(call, None) is not None:
            await self._send(pack({"kind": "cancel", "call": call}))

    async def _send_calls(self) -> None:
        key = CALLS + self.node
        while not self.socket.ended.is_set():
            await self.redis.set(TUNNEL + self.node, "1", ex=TUNNEL_SECONDS)
            found = await self.redis.blpop([key], WAIT_SECONDS)
            if found and self.socket.ended.is_set():
                await self.redis.lpush(key, found[1])
            elif found:
                await self._send_down(found[1])
        while any(call.expires_at > time.time() for call in self.open.values()):
            await asyncio.sleep(LOOK_SECONDS)

    async def _send_down(self, data: bytes) -> None:
        head, body = unpack(data)
        self._forget_expired()
        if head["kind"] == "call":
            if float(head["expires_at"]) <= time.time():
                return
            reply = str(head.pop("reply"))
            self.open[head["call"]] = _Open(reply, float(head["expires_at"]))
            data = pack(head, body)
        else:
            self.open.pop(head["call"], None)
        await self._send(data)

    def _forget_expired(self) -> None:
        old = time.time() - FORGET_SECONDS
        for call in [one for one, it in self.open.items() if it.expires_at < old]:
            del self.open[call]

    async def _send(self, data: bytes) -> None:
        self.unsent_bytes += len(data)
        try:
            await self.socket.send({"type": "websocket.send", "bytes": data})
        finally:
            self.unsent_bytes -= len(data)

    async def _receive_answers(self) -> None:
        while True:
            message = await self.socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            try:
                await self._add_piece(message.get("bytes") or b"")
            except FrameInvalid as error:
                logger.warning("%s sent what is no answer: %s", self.node, error)

    async def _add_piece(self, data: bytes) -> None:
        """Add one piece of an answer. Deliver it once complete. Raises FrameInvalid."""
        head, body = unpack(data)
        call = self.open.get(head["call"])
        if call is None or head["kind"] != "answer":
            return
        call.size_bytes += len(body)
        call.parts.append(body)
        if call.size_bytes > MOST_ANSWER_BYTES:
            head = _failed(head["call"], 502)
            call.parts = []
        elif head.get("more") is True:
            return
        del self.open[head["call"]]
        await give(self.redis, call.reply, head, b"".join(call.parts))

    async def _fail_waiting_calls(self) -> None:
        """Fail the calls that wait for an answer over this tunnel."""
        for name, call in self.open.items():
            try:
                await give(self.redis, call.reply, _failed(name, 502), b"")
            except OUTAGES as error:
                logger.warning("a waiting call could not be told: %s", error)
                return


def _failed(call: str, status: int) -> dict[str, Any]:
    return {"kind": "answer", "call": call, "status": status, "headers": {}}
