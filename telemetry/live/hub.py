"""One Redis subscription per web process, however many browsers it serves.

A frame goes to every open page each second. Through the channel layer it would cost 280
us of CPU a page, most of it for copies in Redis. The hub receives it once and puts the
same bytes into each page's Mailbox.

The latest message wins: a Mailbox keeps one message per channel, so a slow browser
skips frames and memory does not grow.
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
from telemetry.protocol.back_off import BackOff
from telemetry.protocol.broker_keys import WATCHED

BACK_OFF_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
PING_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Mailbox:
    """Messages that wait for one browser: the newest one of each channel."""

    __slots__ = ("_arrived", "_messages")

    def __init__(self) -> None:
        self._messages: dict[str, bytes] = {}
        self._arrived = asyncio.Event()

    def put(self, channel: str, message: bytes) -> None:
        """Keep a message in place of the previous one, without waiting."""
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
        # No socket_timeout, because a quiet channel is not broken. Instead the
        # connection is pinged and given up if no answer comes.
        self._redis = Redis.from_url(url, socket_timeout=None)
        self._url = url
        self._boxes: dict[str, set[Mailbox]] = {}
        self._latest: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._subscribed: set[str] = set()

    def subscribe(self, box: Mailbox, channels: Iterable[str]) -> None:
        """Deliver these channels' messages to a Mailbox, beginning with the latest
        known ones.

        `DETAIL_ALL` stands for every node's details.
        """
        for channel in channels:
            self._boxes.setdefault(channel, set()).add(box)
            for known in self._stored_names(channel):
                box.put(known, self._latest[known])
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def unsubscribe(self, box: Mailbox, channels: Iterable[str] | None = None) -> None:
        """Stop the delivery, by default of all channels."""
        for channel in list(self._boxes) if channels is None else list(channels):
            boxes = self._boxes.get(channel, set())
            boxes.discard(box)
            if not boxes:
                self._boxes.pop(channel, None)
                for known in self._stored_names(channel):
                    # Messages of channels without listeners would be outdated the next
                    # time.
                    if not self._listeners(known):
                        del self._latest[known]
        self._changed.set()

    async def watch_gpu(self, uuid: str) -> None:
        """Tell a Gpu's node, for `WATCHED_SECONDS`, that a page of the Gpu is open.

        The node then reads rates that are too expensive to read all the time (PCIe,
        NVLink). A broker that is away is ignored, because the hub reports it.
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

    def _stored_names(self, channel: str) -> list[str]:
        if channel == DETAIL_ALL:
            return [name for name in self._latest if name.startswith(DETAIL)]
        return [channel] if channel in self._latest else []

    def _listeners(self, channel: str) -> set[Mailbox]:
        boxes = self._boxes.get(channel, set())
        if channel.startswith(DETAIL):
            return boxes | self._boxes.get(DETAIL_ALL, set())
        return boxes

    async def _run(self) -> None:
        """Listen while there is a Mailbox. Connect again after every failure."""
        # Jitter keeps web processes from connecting all at once.
        back_off = BackOff(BACK_OFF_SECONDS, jitter=(0.5, 1.0), between=random.uniform)
        while self._boxes:
            try:
                async with self._redis.pubsub() as pubsub:
                    self._subscribed = set()
                    await self._read_messages(pubsub)
                    back_off.succeeded()
            except (RedisError, OSError) as error:
                if not back_off.failures:
                    logger.warning("live data are late: %s", error)
                await asyncio.sleep(back_off.failed())

    async def _read_messages(self, pubsub: PubSub) -> None:
        """Read messages until there is no Mailbox left."""
        await self._update_subscription(pubsub)
        reading: asyncio.Task[Any] | None = None
        changing: asyncio.Task[Any] | None = None
        pinged = False
        try:
            while self._boxes:
                # A read is never cancelled halfway, because it would lose its place.
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
                    await self._update_subscription(pubsub)
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

    async def _update_subscription(self, pubsub: PubSub) -> None:
        """Subscribe to the wanted channels. Subscribe first, then fetch the latest
        messages."""
        self._changed.clear()
        wanted = set(self._boxes)
        # In reverse order of names, so that a roster comes before its frames.
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
        """Deliver the latest messages, for Mailboxes that join between two messages."""
        if channel == CALENDAR_CHANGED:
            # Messages from before the subscription are lost, so fetch again.
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
    """Return the hub of the running event loop. The first call makes it."""
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
