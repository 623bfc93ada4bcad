"""Open streams to nodes, from any web process.

A `StreamBroker` belongs to one event loop. It reads one list of the broker for all its
streams, and only while there are some. See ``frame_lists.py``.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import redis.asyncio
from django.conf import settings

from placement.access.access_target import AccessTarget
from placement.access.frame_lists import (
    ALIVE_SECONDS,
    DOWN,
    LOOK_SECONDS,
    SEATS,
    UP,
    WAIT_SECONDS,
    FrameLists,
    dead,
    frames_of,
    leave,
    newest_socket,
    read_here,
    socket_of,
    stay_alive,
)
from placement.jobs.nodes.node_socket import OUTAGES
from placement.protocol import signing
from placement.protocol.byte_stream import ByteStream
from placement.protocol.serving_frames import FrameInvalid
from placement.protocol.stream_frames import (
    WINDOW_BYTES,
    Frame,
    OpenFrame,
    StreamOrder,
    unpack_frame,
)
from placement.protocol.stream_refusal import LOST, StreamRefused, refusal_of
from telemetry.protocol.sentences import sentence

OPEN_SECONDS = 15.0
"""How long a node may take to connect its service."""
ORDER_SECONDS = 60.0
MOST_TRIES = 3
"""Websockets of a node that are tried before it counts as silent."""
_SIT = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
"""

logger = logging.getLogger(__name__)
_brokers: "WeakKeyDictionary[asyncio.AbstractEventLoop, StreamBroker]" = (
    WeakKeyDictionary()
)


def stream_broker() -> "StreamBroker":
    """Return the running loop's broker."""
    loop = asyncio.get_running_loop()
    if loop not in _brokers:
        _brokers[loop] = StreamBroker()
    return _brokers[loop]


@dataclass(frozen=True, slots=True)
class _OpenStream:
    stream: ByteStream
    socket: str
    """The node's websocket that carries it."""
    seats: str
    """The list of its user's streams."""


class _NodeMoved(Exception):
    """A node has connected again and does not answer over its earlier websocket."""


class StreamBroker:
    """The streams of one event loop."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.redis = redis.asyncio.Redis.from_url(settings.REDIS_URL)
        self.lists = FrameLists(self.redis)
        self._open: dict[str, _OpenStream] = {}
        self._work: asyncio.Task[None] | None = None
        read_here(UP + self.id, self._deliver)

    @asynccontextmanager
    async def open(
        self,
        target: AccessTarget,
        service: str,
        *,
        most: int,
        options: Mapping[str, str | int] | None = None,
        window_bytes: int = WINDOW_BYTES,
    ) -> AsyncIterator[ByteStream]:
        """Open a stream to a service. It ends with the block.

        The broker knows a node's websocket for some seconds after its web process was
        killed. If the node connects again meanwhile, the stream is opened over its
        newer websocket.

        Args:
            target: the node, and the user whom the service is for.
            service: its name on the node.
            most: streams to this service that the user may have at once.
            options: what the service needs to begin.
            window_bytes: what the node may send before it is read.

        Raises:
            StreamRefused: the user has too many, or the node is away, knows no streams
                or refuses this one.
        """
        async with AsyncExitStack() as stack:
            for left in reversed(range(MOST_TRIES)):
                opening = self._opened(target, service, most, options, window_bytes)
                try:
                    stream = await stack.enter_async_context(opening)
                except _NodeMoved:
                    if not left:
                        raise _no_answer(target.node) from None
                else:
                    break
            yield stream

    @asynccontextmanager
    async def _opened(
        self,
        target: AccessTarget,
        service: str,
        most: int,
        options: Mapping[str, str | int] | None,
        window_bytes: int,
    ) -> AsyncIterator[ByteStream]:
        """Open a stream over the newest websocket of the node, as `open` does.

        Raises:
            _NodeMoved: the node has a newer one, and gave no answer over this one.
        """
        name = secrets.token_hex(16)
        seats = f"{SEATS}{service}.{target.user_pk}"
        try:
            socket = await socket_of(self.redis, target.node)
            if socket is None:
                raise StreamRefused(
                    "no-streams",
                    sentence(
                        "{node} takes no connections now. It is away, or its worker "
                        "must be updated.",
                        node=target.node,
                    ),
                )
            if not await self._take_seat(seats, name, most):
                raise StreamRefused(
                    "too-many",
                    sentence(
                        "You have {most} connections of this kind already. Close one.",
                        most=most,
                    ),
                )
        except OUTAGES as error:
            raise _outage(error) from None
        down = DOWN + socket

        def send(frames: list[Frame]) -> None:
            self.lists.put(down, frames)

        stream = ByteStream(name, send, window_bytes)
        self._open[name] = _OpenStream(stream, socket, seats)
        try:
            if self._work is None or self._work.done():
                self._work = asyncio.create_task(self._carry())
            # It takes 0.1 ms, less than to wake a thread.
            send([_signed_frame(target, name, service, options or {}, UP + self.id)])
            stream.grant()
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    await self._wait_until_accepted(stream, target.node, socket)
            except TimeoutError:
                raise _no_answer(target.node) from None
            except OUTAGES as error:
                raise _outage(error) from None
            yield stream
        finally:
            stream.abort()
            del self._open[name]
            with contextlib.suppress(*OUTAGES):
                await asyncio.shield(self.redis.zrem(seats, name))

    async def _wait_until_accepted(
        self, stream: ByteStream, node: str, socket: str
    ) -> None:
        """Wait for the first frame of a node.

        Raises:
            StreamRefused: it refuses the stream.
            _NodeMoved: it has a newer websocket.
        """
        accepted = asyncio.ensure_future(stream.wait_until_accepted())
        try:
            while not (await asyncio.wait({accepted}, timeout=LOOK_SECONDS))[0]:
                if await newest_socket(self.redis, node) not in (None, socket):
                    raise _NodeMoved
            await accepted
        finally:
            accepted.cancel()

    async def _take_seat(self, seats: str, name: str, most: int) -> bool:
        """Return whether there was a seat. A cancelled caller leaves none taken."""
        sitting = asyncio.ensure_future(self._sit_down(seats, name, most))
        try:
            return await asyncio.shield(sitting)
        except asyncio.CancelledError:
            await asyncio.shield(self._stand_up(seats, name, sitting))
            raise

    async def _stand_up(
        self, seats: str, name: str, sitting: asyncio.Future[bool]
    ) -> None:
        await asyncio.gather(sitting, return_exceptions=True)
        with contextlib.suppress(*OUTAGES):
            await self.redis.zrem(seats, name)

    async def _sit_down(self, seats: str, name: str, most: int) -> bool:
        now = time.time()
        word = await self.redis.eval(  # type: ignore[misc]
            _SIT, 1, seats, now, now + ALIVE_SECONDS, name, most, ALIVE_SECONDS
        )
        return bool(word)

    async def _carry(self) -> None:
        """Carry frames while there are streams. An outage of the broker loses them."""
        work = [
            asyncio.create_task(self._receive()),
            asyncio.create_task(self.lists.run()),
            asyncio.create_task(self._keep_alive()),
        ]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in work:
                task.cancel()
            results = await asyncio.gather(*work, return_exceptions=True)
        for error in results:
            if isinstance(error, asyncio.CancelledError | None):
                continue
            if not isinstance(error, OUTAGES):
                logger.error("streams failed", exc_info=error)
            for one in list(self._open.values()):
                one.stream.lose(_outage(error))
        with contextlib.suppress(*OUTAGES):
            await self.lists.flush()
        await leave(self.redis, self.id)
        self._work = None
        if any(not one.stream.over for one in self._open.values()):
            # It was opened while the work for the earlier ones ended.
            self._work = asyncio.create_task(self._carry())

    async def _receive(self) -> None:
        async for data in frames_of(self.redis, UP + self.id):
            try:
                frame = unpack_frame(data)
            except FrameInvalid as error:
                logger.warning("a frame of a stream is invalid: %s", error)
                continue
            self._deliver(frame)

    def _deliver(self, frame: Frame) -> None:
        if one := self._open.get(frame.stream):
            one.stream.deliver(frame)

    async def _keep_alive(self) -> None:
        """Mark this process as alive, and end the streams of dead websockets.

        Returns when there are no more streams.
        """
        await stay_alive(self.redis, self.id)
        while self._open:
            await asyncio.sleep(WAIT_SECONDS)
            await stay_alive(self.redis, self.id)
            until = time.time() + ALIVE_SECONDS
            async with self.redis.pipeline(transaction=False) as pipe:
                for name, one in self._open.items():
                    pipe.zadd(one.seats, {name: until})
                    pipe.expire(one.seats, ALIVE_SECONDS)
                await pipe.execute()
            sockets = {one.socket for one in self._open.values()}
            gone = await dead(self.redis, sockets)
            for one in list(self._open.values()):
                if one.socket in gone:
                    one.stream.lose(refusal_of(LOST, ""))


def _signed_frame(
    target: AccessTarget,
    name: str,
    service: str,
    options: Mapping[str, str | int],
    reply: str,
) -> OpenFrame:
    now = time.time()
    payload = StreamOrder(
        kind="stream",
        node=target.node,
        stream=name,
        service=service,
        reservation=target.reservation,
        user=target.login,
        unix_user=target.unix_user,
        issued_at=now,
        expires_at=now + ORDER_SECONDS,
        options=dict(options),
    ).payload()
    return OpenFrame(name, payload, signing.sign(payload), reply.removeprefix(UP))


def _outage(error: BaseException) -> StreamRefused:
    logger.warning("streams cannot be carried: %s", error)
    return StreamRefused(
        "unavailable",
        sentence("The portal cannot reach its broker. Try again in a moment."),
    )


def _no_answer(node: str) -> StreamRefused:
    return StreamRefused(
        "no-answer", sentence("{node} gave no answer in time.", node=node)
    )
