"""One subscription, many readers, latest wins."""

import asyncio
import contextlib
import time

import pytest
import redis

from telemetry.live.broadcast import publish_detail, publish_frame, publish_roster
from telemetry.live.hub import (
    CALENDAR_CHANGED,
    DETAIL_ALL,
    FRAME,
    ROSTER,
    Hub,
    Mailbox,
)

pytestmark = pytest.mark.pure


@contextlib.asynccontextmanager
async def running(url: str):
    hub = Hub(url)
    try:
        yield hub
    finally:
        await hub.close()


async def take(box: Mailbox, seconds: float = 60.0) -> dict[str, bytes]:
    return await asyncio.wait_for(box.get(), seconds)


def publish(client: redis.Redis, *, frame=b"", roster=b"", detail=b"", node="node-a"):
    with client.pipeline() as pipe:
        if frame:
            publish_frame(pipe, frame)
        if roster:
            publish_roster(pipe, roster)
        if detail:
            publish_detail(pipe, node, detail)
        pipe.execute()


async def settled(client: redis.Redis, channel: str, count: int = 1) -> None:
    """Wait until the server knows the subscription."""
    deadline = time.monotonic() + 60
    while client.pubsub_numsub(channel)[0][1] != count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_late_reader_gets_the_present_state_at_once(valkey_url, redis_client):
    publish(redis_client, frame=b"f1", roster=b"r1")
    async with running(valkey_url) as hub:
        box = Mailbox()
        hub.subscribe(box, [FRAME, ROSTER])
        got: dict[str, bytes] = {}
        while len(got) < 2:
            got |= await take(box)
        assert got == {FRAME: b"f1", ROSTER: b"r1"}
        second = Mailbox()
        hub.subscribe(second, [FRAME, ROSTER])
        assert len(second) == 2  # no round trip: the hub knows it


async def test_many_readers_share_one_subscription(valkey_url, redis_client):
    async with running(valkey_url) as hub:
        boxes = [Mailbox() for _ in range(50)]
        for box in boxes:
            hub.subscribe(box, [FRAME])
        await settled(redis_client, FRAME)
        publish(redis_client, frame=b"f1")
        for box in boxes:
            assert await take(box) == {FRAME: b"f1"}
        assert redis_client.pubsub_numsub(FRAME)[0][1] == 1


async def test_a_slow_reader_skips_frames_and_keeps_only_the_newest(
    valkey_url, redis_client
):
    async with running(valkey_url) as hub:
        box = Mailbox()
        hub.subscribe(box, [FRAME])
        await settled(redis_client, FRAME)
        for number in range(500):
            publish(redis_client, frame=b"f%d" % number)
        await asyncio.sleep(0.5)
        assert len(box) == 1
        got = [(await take(box))[FRAME]]
        while got[-1] != b"f499":  # on a busy machine it is not the first one taken
            got.append((await take(box))[FRAME])
        assert len(got) < 250


async def test_details_come_only_while_somebody_watches(valkey_url, redis_client):
    channel = "telemetry.detail.node-a"
    async with running(valkey_url) as hub:
        box = Mailbox()
        hub.subscribe(box, [FRAME])
        await settled(redis_client, FRAME)
        publish(redis_client, detail=b"d1")
        hub.subscribe(box, [channel])
        assert await take(box) == {channel: b"d1"}
        publish(redis_client, detail=b"d2")
        assert await take(box) == {channel: b"d2"}
        hub.unsubscribe(box, [channel])
        await settled(redis_client, channel, 0)
        publish(redis_client, detail=b"d3", frame=b"f1")
        assert await take(box) == {FRAME: b"f1"}


async def test_all_nodes_can_be_watched_at_once(valkey_url, redis_client):
    publish(redis_client, detail=b"a1")
    publish(redis_client, detail=b"b1", node="node-b")
    async with running(valkey_url) as hub:
        box = Mailbox()
        hub.subscribe(box, [DETAIL_ALL])
        got: dict[str, bytes] = {}
        while len(got) < 2:
            got |= await take(box)
        publish(redis_client, detail=b"b2", node="node-b")
        assert await take(box) == {"telemetry.detail.node-b": b"b2"}
        assert got["telemetry.detail.node-a"] == b"a1"


async def test_a_cut_connection_comes_back_with_the_present_state(
    valkey_url, redis_client
):
    async with running(valkey_url) as hub:
        box = Mailbox()
        hub.subscribe(box, [FRAME, ROSTER])
        await settled(redis_client, FRAME)
        redis_client.client_kill_filter(_type="pubsub", skipme=True)
        deadline = time.monotonic() + 60
        got: dict[str, bytes] = {}
        while got.get(FRAME) != b"f2":
            assert time.monotonic() < deadline
            publish(redis_client, frame=b"f2")
            with contextlib.suppress(TimeoutError):
                got |= await take(box, 0.1)


async def test_who_begins_to_listen_for_changes_is_told_to_look_once(
    valkey_url, redis_client
):
    async with running(valkey_url) as hub:
        box = Mailbox()
        hub.subscribe(box, [CALENDAR_CHANGED])
        assert await take(box) == {CALENDAR_CHANGED: b""}
        with pytest.raises(TimeoutError):
            await take(box, 0.2)
        redis_client.publish(CALENDAR_CHANGED, b"2")
        assert await take(box) == {CALENDAR_CHANGED: b"2"}


async def test_the_subscription_ends_with_the_last_reader(valkey_url, redis_client):
    async with running(valkey_url) as hub:
        for _ in range(3):
            box = Mailbox()
            hub.subscribe(box, [FRAME])
            await settled(redis_client, FRAME)
            hub.unsubscribe(box)
            await settled(redis_client, FRAME, 0)
