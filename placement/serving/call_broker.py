"""The web's side of calls to served models, through Redis to the node's tunnel.

A node's websocket is held by one web process, and a client's request may reach another.
Both use the broker:

    serve.calls.<node>      list of frames for a node, oldest first   (expires in 60 s)
    serve.answers.<desk>    list of frames for one web process        (expires in 60 s)
    serve.tunnel.<node>     the node has a tunnel                     (expires in 15 s)
    serve.flight            sorted set: calls in flight, with their bytes, job and user

Only web processes use these keys. The bytes and calls of the whole site, of a Job and
of a person are bounded. The entry of a lost call expires.

Where one process holds both, a call and its answer do not go through the lists.

A `CallBroker` belongs to one event loop. One connection waits for its answers.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from django.conf import settings

from placement.jobs.nodes.node_socket import OUTAGES
from placement.protocol.call_refusal import CallRefused
from placement.protocol.serving_frames import (
    Call,
    FrameInvalid,
    NodeAnswer,
    checked_answer,
    pack,
    unpack,
)
from placement.serving.call_access import CallTarget
from telemetry.protocol.sentences import sentence

CALLS = "serve.calls."
ANSWERS = "serve.answers."
TUNNEL = "serve.tunnel."
FLIGHT = "serve.flight"
LIST_SECONDS = 60
WAIT_SECONDS = 5
GRACE_SECONDS = 2.0
"""How much longer the web waits than the node."""
MOST_BYTES = 64 * 2**20
MOST_OF_JOB = 64
MOST_OF_USER = 32
_TAKE = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
local bytes, of_job, of_user = tonumber(ARGV[4]), 0, 0
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local size, job, user = string.match(member, '^%x+|(%d+)|(%d+)|(%d+)$')
  bytes = bytes + tonumber(size)
  if job == ARGV[5] then of_job = of_job + 1 end
  if user == ARGV[6] then of_user = of_user + 1 end
end
if bytes > tonumber(ARGV[7]) then return 'bytes' end
if of_job >= tonumber(ARGV[8]) then return 'job' end
if of_user >= tonumber(ARGV[9]) then return 'user' end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[3]..'|'..ARGV[4]..'|'..ARGV[5]..'|'..ARGV[6])
return 'in'
"""

logger = logging.getLogger(__name__)
_desks: "WeakKeyDictionary[asyncio.AbstractEventLoop, CallBroker]" = WeakKeyDictionary()


def call_broker() -> "CallBroker":
    """Return the running loop's broker."""
    loop = asyncio.get_running_loop()
    if loop not in _desks:
        _desks[loop] = CallBroker()
    return _desks[loop]


class LocalTunnel(Protocol):
    """A node's tunnel whose websocket this process holds."""

    @property
    def takes_calls(self) -> bool:
        """Whether its token is still accepted."""

    @property
    def unsent_bytes(self) -> int:
        """Of calls that wait until the node reads."""

    async def send_call(self, call: Call, reply: str) -> None:
        """Send a call to the node. The answer is given to `reply`."""

    async def cancel_call(self, call: str) -> None:
        """Cancel a call whose client has disconnected."""


class CallBroker:
    """Sends calls and hands out their answers, in one event loop."""

    def __init__(self) -> None:
        self.address = ANSWERS + secrets.token_hex(8)
        self.redis = redis.asyncio.Redis.from_url(settings.REDIS_URL)
        self.tunnels: defaultdict[str, list[LocalTunnel]] = defaultdict(list)
        """Those of this process, by node."""
        self._waiting: dict[str, asyncio.Future[NodeAnswer]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def place(
        self, job: int, user: int, size_bytes: int, seconds: float
    ) -> AsyncIterator[str]:
        """Hold a place for one call of this many bytes. Yields the call's name.

        Args:
            job: primary key of the called Job.
            user: primary key of the caller.
            size_bytes: of its body.
            seconds: after which a lost call leaves its place.

        Raises:
            CallRefused: 429 if the person has too many in flight, 503 if the Job or the
                site has, or the broker is unreachable.
        """
        call, now = secrets.token_hex(16), time.time()
        try:
            word = await self.redis.eval(  # type: ignore[misc]
                _TAKE,
                1,
                FLIGHT,
                now,
                now + seconds + 2 * GRACE_SECONDS,
                call,
                size_bytes,
                job,
                user,
                MOST_BYTES,
                MOST_OF_JOB,
                MOST_OF_USER,
            )
        except OUTAGES as error:
            raise _broker_unavailable(error) from None
        if word != b"in":
            raise _too_many_requests(word.decode())
        try:
            yield call
        finally:
            # The answer does not wait until the broker has forgotten the call.
            member = f"{call}|{size_bytes}|{job}|{user}"
            leaving = asyncio.create_task(self._leave_place(member))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _leave_place(self, member: str) -> None:
        with contextlib.suppress(*OUTAGES):
            await self.redis.zrem(FLIGHT, member)

    async def ask(self, target: CallTarget, call: Call) -> NodeAnswer:
        """Send one call and wait for its answer.

        Raises:
            CallRefused: no tunnel, no answer in time, or an invalid one.
        """
        call = replace(call, expires_at=time.time() + call.within_seconds)
        future: asyncio.Future[NodeAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[call.call] = future
        tunnel = self._tunnel_here(target.node)
        try:
            async with asyncio.timeout(call.within_seconds + GRACE_SECONDS):
                if tunnel is None:
                    await self._send(target.node, call.frame(reply=self.address))
                else:
                    await tunnel.send_call(call, self.address)
                return await future
        except TimeoutError:
            await self._cancel(target.node, call.call, tunnel)
            raise CallRefused(
                "no-answer", sentence("The model gave no answer in time.")
            ) from None
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel(target.node, call.call, tunnel))
            raise
        except OUTAGES as error:
            raise _broker_unavailable(error) from None
        finally:
            self._waiting.pop(call.call, None)

    def _tunnel_here(self, node: str) -> LocalTunnel | None:
        """Return the tunnel of this process with the least to send, if it has one."""
        there = [one for one in self.tunnels.get(node, ()) if one.takes_calls]
        return min(there, key=lambda one: one.unsent_bytes, default=None)

    async def _send(self, node: str, frame: bytes) -> None:
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        if not await self.redis.exists(TUNNEL + node):
            raise CallRefused(
                "no-tunnel",
                sentence(
                    "{node} is not connected now. Try again in a moment.", node=node
                ),
            )
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.rpush(CALLS + node, frame)
            pipe.expire(CALLS + node, LIST_SECONDS)
            await pipe.execute()

    async def _cancel(self, node: str, call: str, tunnel: LocalTunnel | None) -> None:
        with contextlib.suppress(*OUTAGES):
            if tunnel is not None:
                await tunnel.cancel_call(call)
                return
            await self.redis.rpush(  # type: ignore[misc]
                CALLS + node, pack({"kind": "cancel", "call": call})
            )

    async def _read(self) -> None:
        """Deliver answers while calls wait for them."""
        while self._waiting:
            try:
                found = await self.redis.blpop([self.address], WAIT_SECONDS)  # type: ignore[misc]
            except OUTAGES as error:
                logger.warning("answers of served models: %s", error)
                await asyncio.sleep(0.5)
                continue
            if found:
                try:
                    self.deliver(*unpack(found[1]))
                except FrameInvalid as error:
                    logger.warning("invalid answer of a served model: %s", error)

    def deliver(self, head: Mapping[str, Any], body: bytes) -> None:
        """Give an answer to the call that waits for it. Without one, do nothing."""
        future = self._waiting.get(str(head["call"]))
        if future is None or future.done():
            return
        try:
            future.set_result(checked_answer(head, body))
        except FrameInvalid as error:
            logger.warning("invalid answer of a served model: %s", error)
            words = sentence("The model's answer is not valid.")
            future.set_exception(CallRefused("bad-answer", words))


def _broker_unavailable(error: BaseException) -> CallRefused:
    logger.warning("served models cannot be reached: %s", error)
    return CallRefused(
        "unavailable",
        sentence("The portal cannot reach its broker. Try again in a moment."),
    )


def _too_many_requests(word: str) -> CallRefused:
    if word == "user":
        detail = sentence(
            "You have {most_of_user} open requests. Wait until one is answered.",
            most_of_user=MOST_OF_USER,
        )
        return CallRefused("too-many", detail)
    if word == "job":
        detail = sentence(
            "{most_of_job} requests to this endpoint are open already.",
            most_of_job=MOST_OF_JOB,
        )
        return CallRefused("full", detail)
    return CallRefused(
        "full",
        sentence("The portal has too many open requests now. Try again in a moment."),
    )


async def give(client: Any, reply: str, head: dict[str, Any], body: bytes) -> None:
    """Give an answer to its web process: this one, or another one through its list."""
    broker = call_broker()
    if reply == broker.address:
        broker.deliver(head, body)
        return
    async with client.pipeline(transaction=False) as pipe:
        pipe.rpush(reply, pack(head, body))
        pipe.expire(reply, LIST_SECONDS)
        await pipe.execute()
