"""Frames of streams on their way through the broker, between two web processes.

A node's websocket is held by one web process, and a user's by another. Keys:

    stream.node.<node>       the newest websocket of a node           (expires in 15 s)
    stream.seen.<node>       it had one a moment ago                  (expires in 30 s)
    stream.down.<socket>     list of frames for that websocket        (expires in 60 s)
    stream.up.<process>      list of frames for one web process       (expires in 60 s)
    stream.alive.<either>    it still reads its list                  (expires in 15 s)
    stream.seats.<service>.<user>   sorted set: open streams of a user

Only web processes use these keys. The credit of the streams bounds the lists.

Where one process holds both websockets, frames do not go through the broker. All frames
of a stream go the same way, so they keep their order.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any
from weakref import WeakKeyDictionary

from placement.protocol.stream_frames import Frame, pack_frame

NODE = "stream.node."
SEEN = "stream.seen."
DOWN = "stream.down."
UP = "stream.up."
ALIVE = "stream.alive."
SEATS = "stream.seats."
ALIVE_SECONDS = 15
SEEN_SECONDS = 30
LIST_SECONDS = 60
WAIT_SECONDS = 5
RETURN_SECONDS = 10.0
"""How long a stream waits for a node that was there a moment ago. After a restart of
the portal nodes connect again within about 7 s.
"""
LOOK_SECONDS = 0.2
MOST_AT_ONCE = 64
"""Frames that are taken from a list at once."""
Readers = dict[str, Callable[[Frame], None]]
_readers: WeakKeyDictionary[asyncio.AbstractEventLoop, Readers] = WeakKeyDictionary()
"""Readers of lists in the process that reads them, by key."""


def read_here(key: str, take: Callable[[Frame], None]) -> None:
    """Give the frames that this loop appends to a list to `take`, without the broker.

    To keep the order, it begins before anybody knows the key. `take` must not wait.
    """
    _readers.setdefault(asyncio.get_running_loop(), {})[key] = take


def forget_reader(key: str) -> None:
    """End what `read_here` began."""
    _readers[asyncio.get_running_loop()].pop(key, None)


class FrameLists:
    """Appends frames to lists of the broker, in order and many at a time."""

    def __init__(self, client: Any) -> None:
        self._redis = client
        self._waiting: defaultdict[str, list[bytes]] = defaultdict(list)
        self._filled = asyncio.Event()
        self._readers = _readers.setdefault(asyncio.get_running_loop(), {})

    def put(self, key: str, frames: list[Frame]) -> None:
        """Append frames soon, without waiting."""
        if (take := self._readers.get(key)) is not None:
            for frame in frames:
                take(frame)
            return
        self._waiting[key] += map(pack_frame, frames)
        self._filled.set()

    async def run(self) -> None:
        """Append what `put` collects until cancelled. Raises errors of an outage."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            await self.flush()

    async def flush(self) -> None:
        """Append everything that waits."""
        while self._waiting:
            waiting, self._waiting = self._waiting, defaultdict(list)
            async with self._redis.pipeline(transaction=False) as pipe:
                for key, frames in waiting.items():
                    pipe.rpush(key, *frames)
                    pipe.expire(key, LIST_SECONDS)
                await pipe.execute()


async def frames_of(client: Any, key: str) -> AsyncIterator[bytes]:
    """Yield the frames of a list, oldest first, for ever. An error ends it."""
    while True:
        found = await client.blpop([key], WAIT_SECONDS)
        if found is None:
            continue
        yield found[1]
        for data in await client.lpop(key, MOST_AT_ONCE) or ():
            yield data


async def stay_alive(client: Any, name: str) -> None:
    """Mark a list as read, for the next `ALIVE_SECONDS`."""
    await client.set(ALIVE + name, "1", ex=ALIVE_SECONDS)


async def note_node(client: Any, node: str, socket: str) -> None:
    """Note a node's newest websocket, for the next `ALIVE_SECONDS`."""
    await client.set(NODE + node, socket, ex=ALIVE_SECONDS)
    await client.set(SEEN + node, "1", ex=SEEN_SECONDS)


async def socket_of(client: Any, node: str) -> str | None:
    """Return a node's newest websocket. Wait for a node that has just lost its own."""
    until = time.monotonic() + RETURN_SECONDS
    while (found := await newest_socket(client, node)) is None:
        if time.monotonic() > until or not await client.exists(SEEN + node):
            return None
        await asyncio.sleep(LOOK_SECONDS)
    return found


async def newest_socket(client: Any, node: str) -> str | None:
    """Return a node's newest websocket, if it has one."""
    found = await client.get(NODE + node)
    return None if found is None else str(found.decode())


_FORGET = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""


async def forget_node(client: Any, node: str, socket: str) -> None:
    """Forget a node's websocket, unless there is a newer one."""
    with contextlib.suppress(Exception):
        await client.eval(_FORGET, 1, NODE + node, socket)


async def leave(client: Any, name: str) -> None:
    """Mark a list as no longer read, if the broker can be reached."""
    with contextlib.suppress(Exception):
        await client.delete(ALIVE + name)


async def dead(client: Any, names: set[str]) -> set[str]:
    """Return those of the lists that nobody reads any more."""
    ordered = sorted(names)
    if not ordered:
        return set()
    found = await client.mget([ALIVE + name for name in ordered])
    return {name for name, value in zip(ordered, found, strict=True) if value is None}
