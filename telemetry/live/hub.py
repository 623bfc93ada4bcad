"""One Redis subscription per web process, however many browsers it serves.

A frame goes out each second to every open page. Handing it through the channel
layer costs 280 us of CPU a page, most of it for copies in Redis; the hub takes
it once and puts the same bytes into each page's Mailbox.

Latest wins: a Mailbox keeps one message per channel, so a browser that reads
slowly skips frames and nothing grows, whatever it does.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from django.conf import settings
from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from telemetry.live.broadcast import (
    CALENDAR_CHANGED,
    DETAIL,
    DETAIL_ALL,
    FRAME,
    FRAME_LATEST,
    ROSTER,
    WATCHED_SECONDS,
)
from telemetry.protocol.broker_keys import WATCHED

BACK_OFF_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
PING_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Mailbox:
    """What one browser has still to be told: the newest message per channel."""

    __slots__ = ("_arrived", "_messages")

    def __init__(self) -> None:
        self._messages: dict[str, bytes] = {}
        self._arrived = asyncio.Event()

    def put(self, channel: str, message: bytes) -> None:
        """Keep a message in the place of the one before. Never waits."""
        self._messages[channel] = message
        self._arrived.set()

    async def get(self) -> dict[str, bytes]:
        """Wait for messages and take them all."""
        await self._arrived.wait()
        self._arrived.clear()
        messages, self._messages = self._messages, {}
        return messages

    def __len__(self) -> int:
        return len(self._messages)


class Hub:
    """The subscription of one event loop. `hub()` gives the running loop's."""

    def __init__(self, url: str) -> None:
        # No socket_timeout: a quiet channel is no broken one. Instead the
        # connection is pinged, and given up when the answer does not come.
        self._redis = Redis.from_url(url, socket_timeout=None)
        self._url = url
        self._boxes: dict[str, set[Mailbox]] = {}
        self._latest: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._subscribed: set[str] = set()

    def subscribe(self, box: Mailbox, channels: Iterable[str]) -> None:
        """Let a Mailbox have these channels' messages, and what is known of now.

        `DETAIL_ALL` stands for every node's details.
        """
        for channel in channels:
            self._boxes.setdefault(channel, set()).add(box)
            for known in self._known(channel):
                box.put(known, self._latest[known])
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def unsubscribe(self, box: Mailbox, channels: Iterable[str] | None = None) -> None:
        """Stop that; all channels by default."""
        for channel in list(self._boxes) if channels is None else list(channels):
            boxes = self._boxes.get(channel, set())
            boxes.discard(box)
            if not boxes:
                self._boxes.pop(channel, None)
                for known in self._known(channel):
                    # What is not listened to any more would be old next time.
                    if not self._listeners(known):
                        del self._latest[known]
        self._changed.set()

    async def look_at(self, uuid: str) -> None:
        """Tell the Gpu's node that a page of it is open, for `WATCHED_SECONDS`.

        The node then reads what is too dear for every second (PCIe, NVLink). A
        broker that is away is no reason to close a page: the hub says it already.
        """
        with contextlib.suppress(RedisError, OSError):
            await self._redis.set(WATCHED + uuid, b"1", ex=WATCHED_SECONDS)

    async def close(self) -> None:
        """End the subscription."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._redis.aclose()

    def _known(self, channel: str) -> list[str]:
        if channel == DETAIL_ALL:
            return [name for name in self._latest if name.startswith(DETAIL)]
        return [channel] if channel in self._latest else []

    def _listeners(self, channel: str) -> set[Mailbox]:
        boxes = self._boxes.get(channel, set())
        if channel.startswith(DETAIL):
            return boxes | self._boxes.get(DETAIL_ALL, set())
        return boxes

    async def _run(self) -> None:
        """Listen while anybody does; come back after every failure."""
        failures = 0
        while self._boxes:
            try:
                async with self._redis.pubsub() as pubsub:
                    self._subscribed = set()
                    await self._listen(pubsub)
                    failures = 0
            except (RedisError, OSError) as error:
                wait_seconds = BACK_OFF_SECONDS[
                    min(failures, len(BACK_OFF_SECONDS) - 1)
                ]
                if failures == 0:
                    logger.warning("live data are late: %s", error)
                failures += 1
                # Jitter: several web processes must not come back as one.
                await asyncio.sleep(wait_seconds * random.uniform(0.5, 1.0))

    async def _listen(self, pubsub: PubSub) -> None:
        """Read messages until nobody listens any more."""
        await self._follow(pubsub)
        reading: asyncio.Task[Any] | None = None
        changing: asyncio.Task[Any] | None = None
        pinged = False
        try:
            while self._boxes:
                # A read is never cancelled half way: it would lose its place.
                reading = reading or asyncio.create_task(
                    pubsub.get_message(ignore_subscribe_messages=True, timeout=None)
                )
                changing = changing or asyncio.create_task(self._changed.wait())
                done, _pending = await asyncio.wait(
                    {reading, changing},
                    timeout=PING_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if changing in done:
                    changing = None
                    await self._follow(pubsub)
                if reading in done:
                    message, reading = reading.result(), None
                    if message and message["type"] in ("message", "pmessage"):
                        self._deliver(message["channel"].decode(), message["data"])
                if not done:
                    if pinged:
                        raise ConnectionError("the broker does not answer")
                    await pubsub.ping()
                pinged = not done
        finally:
            for task in (reading, changing):
                if task is not None:
                    task.cancel()

    async def _follow(self, pubsub: PubSub) -> None:
        """Make the server's list of channels ours; join first, then fetch."""
        self._changed.clear()
        wanted = set(self._boxes)
        # Backwards by name, so that a roster comes before the frames it names.
        for channel in sorted(wanted - self._subscribed, reverse=True):
            if channel == DETAIL_ALL:
                await pubsub.psubscribe(channel)
            else:
                await pubsub.subscribe(channel)
            await self._fetch(channel)
        for channel in self._subscribed - wanted:
            if channel == DETAIL_ALL:
                await pubsub.punsubscribe(channel)
            else:
                await pubsub.unsubscribe(channel)
        self._subscribed = wanted

    async def _fetch(self, channel: str) -> None:
        """Deliver what was published last, for those who come between two."""
        if channel == CALENDAR_CHANGED:
            # What was said before we listened is lost: look again.
            self._deliver(channel, b"")
            return
        if channel == DETAIL_ALL:
            names = [key async for key in self._redis.scan_iter(DETAIL_ALL, count=500)]
            values = await self._redis.mget(names) if names else []
            found = {
                name.decode(): value for name, value in zip(names, values, strict=True)
            }
        else:
            key = FRAME_LATEST if channel == FRAME else channel
            found = {channel: await self._redis.get(key)}
        for name, value in found.items():
            if value is not None and name not in self._latest:
                self._deliver(name, value)

    def _deliver(self, channel: str, message: bytes) -> None:
        if channel != CALENDAR_CHANGED:
            self._latest[channel] = message
        for box in self._listeners(channel):
            box.put(channel, message)


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop, made when it is first asked for."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None or found._url != settings.REDIS_URL:
        found = _hubs[loop] = Hub(settings.REDIS_URL)
    return found


__all__ = [
    "CALENDAR_CHANGED",
    "DETAIL",
    "DETAIL_ALL",
    "FRAME",
    "ROSTER",
    "Hub",
    "Mailbox",
    "hub",
]
