"""Facts handled once and in order; brokers that forget; leases that move."""

import threading
import time
from contextlib import contextmanager
from datetime import UTC

import pytest
import redis
from django.db import OperationalError

from telemetry.ingest import Ingest, bounds
from telemetry.ingest.lease import LEASE_KEY
from telemetry.ingest.streams import GroupReader
from telemetry.live import broadcast
from telemetry.protocol import frame
from tests.factories import make_gpu, make_node
from tests.telemetry.messages import (
    reading,
    sample,
    send,
)


class TestGroupReader:
    def reader(self, client, handler) -> GroupReader:
        ingest = Ingest(client, on_fact=handler)
        return ingest.readers[0]

    def test_each_fact_is_handled_once_in_order_and_by_its_stream(self, redis_client):
        seen = []
        reader = self.reader(redis_client, lambda *call: seen.append(call))
        for job in range(5):
            send(redis_client, "facts.node-a", {"job": job, "node": "node-z"})
        while reader.handle_messages(["node-a"], block_seconds=0.01) or len(seen) < 5:
            pass
        assert [call[1]["job"] for call in seen] == list(range(5))
        assert {call[0] for call in seen} == {"node-a"}
        assert seen[0][2].tzinfo is UTC
        again = self.reader(redis_client, lambda *call: seen.append(call))
        for _ in range(3):
            again.handle_messages(["node-a"], block_seconds=0.01)
        assert len(seen) == 5

    def test_a_database_that_is_away_keeps_facts_and_their_order(self, redis_client):
        seen, away = [], [True]

        def handler(_node, fact, _now):
            if away[0]:
                raise OperationalError("away")
            seen.append(fact["job"])

        reader = self.reader(redis_client, handler)
        stop = threading.Event()
        runner = threading.Thread(
            target=reader.run, args=(stop, lambda: True, lambda: ["node-a"])
        )
        runner.start()
        for job in range(3):
            send(redis_client, "facts.node-a", {"job": job})
        time.sleep(0.5)
        assert seen == []
        away[0] = False
        send(redis_client, "facts.node-a", {"job": 3})
        deadline = time.monotonic() + 60
        while len(seen) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        stop.set()
        runner.join()
        assert seen == [0, 1, 2, 3]

    def test_a_fact_taken_and_not_finished_is_found_by_the_next(self, redis_client):
        def dies(*_call):
            raise OperationalError("away")

        send(redis_client, "facts.node-a", {"job": 1})
        first = self.reader(redis_client, dies)
        first.handle_messages(["node-a"], block_seconds=0.01)  # nothing unfinished yet
        with pytest.raises(OperationalError):
            first.handle_messages(["node-a"], block_seconds=0.01)
        seen = []
        second = self.reader(redis_client, lambda *call: seen.append(call))
        second.handle_messages(["node-a"], block_seconds=0.01)
        assert len(seen) == 1

    @pytest.mark.parametrize("garbage", [b"", b"[]", b"\xff", b"x" * 600_000])
    def test_a_bad_fact_does_not_block_the_next(self, redis_client, garbage):
        seen = []

        def handler(_node, fact, _now):
            if fact["job"] == 1:
                raise KeyError("bad row")
            seen.append(fact["job"])

        reader = self.reader(redis_client, handler)
        send(redis_client, "facts.node-a", garbage)
        send(redis_client, "facts.node-a", {"job": 1})
        send(redis_client, "facts.node-a", {"job": 2})
        for _ in range(4):
            reader.handle_messages(["node-a"], block_seconds=0.01)
        assert seen == [2]
        assert redis_client.xpending("facts.node-a", "ingest")["pending"] == 0


@contextmanager
def running(client: redis.Redis, **parts: object):
    """An ingest with all its threads."""
    ingest, stop = Ingest(client, **parts), threading.Event()
    thread = threading.Thread(target=ingest.run, args=(stop,))
    thread.start()
    try:
        yield ingest
    finally:
        stop.set()
        thread.join(90)
        assert not thread.is_alive()


def wait_for(condition, seconds: float = 90.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_forgets_everything_is_told_again(redis_client, valkey_url):
    gpu = make_gpu(make_node("node-a"))
    facts = []
    with running(
        redis.Redis.from_url(valkey_url), on_fact=lambda *call: facts.append(call)
    ):
        wait_for(lambda: redis_client.get(broadcast.ROSTER))
        redis_client.flushall()
        redis_client.client_kill_filter(_type="normal", skipme=True)
        send(redis_client, "raw.node-a", sample(reading(gpu.uuid, util_pct=33)))
        wait_for(lambda: redis_client.get(broadcast.FRAME_LATEST))
        wait_for(
            lambda: (
                frame.decode(redis_client.get(broadcast.FRAME_LATEST)).rows[0].util_pct
                == 33
            )
        )
        wait_for(lambda: redis_client.get(broadcast.ROSTER))
        send(redis_client, "facts.node-a", {"job": 1})
        wait_for(lambda: facts)


@pytest.mark.parametrize(("size_bytes", "left"), [(1_000, 200), (100_000, 10)])
def test_a_stream_with_too_many_bytes_is_cut(
    redis_client, monkeypatch, size_bytes, left
):
    monkeypatch.setattr(bounds, "STREAM_MOST_BYTES", 2 * 2**20)
    for number in range(4 * 2**20 // size_bytes):
        redis_client.xadd("raw.node-a", {"m": b"x" * size_bytes, "n": number})
    redis_client.xadd("raw.node-b", {"m": b"x"})
    found = bounds.StreamBounds(redis_client).enforce(["node-a", "node-b", "node-c"])
    assert [(x.node, x.what.split()[0]) for x in found] == [("node-a", "raw.node-a")]
    assert redis_client.xlen("raw.node-a") == left
    assert redis_client.xlen("raw.node-b") == 1


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_a_node_filled_has_room_again(redis_client, valkey_url):
    make_gpu(make_node("node-a"))
    used = redis_client.info("memory")["used_memory"]
    with running(redis.Redis.from_url(valkey_url)):
        wait_for(lambda: redis_client.get(broadcast.ROSTER))
        for _ in range(24 * 10):
            redis_client.xadd("raw.node-a", {"m": b"x" * 100_000})
        try:
            # From now on it is full: nobody else can write.
            redis_client.config_set("maxmemory", used + 20 * 2**20)
            wait_for(
                lambda: redis_client.xlen("raw.node-a") <= bounds.LEFT_OF_A_FLOOD[0]
            )
        finally:
            redis_client.config_set("maxmemory", 0)


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["raw.", "facts."])
def test_a_message_that_is_too_large_does_not_stay(redis_client, kind):
    make_gpu(make_node("node-a"))
    ingest = Ingest(redis_client, on_fact=lambda *_: None)
    ingest.writer.work(may_write=False)
    redis_client.xadd(kind + "node-a", {"m": b"x" * 2**20})
    for _ in range(2):
        ingest.read(0.01)
        ingest.readers[0].handle_messages(["node-a"], block_seconds=0.01)
    assert redis_client.xlen(kind + "node-a") == 0


@pytest.mark.django_db(transaction=True)
def test_the_lease_moves_within_four_seconds_when_its_holder_dies(
    redis_client, valkey_url
):
    make_gpu(make_node("node-a"))
    dead = Ingest(redis.Redis.from_url(valkey_url))
    assert dead.lease.acquire()
    # Until it expires, and one look of the other.
    assert redis_client.pttl(LEASE_KEY) / 1000 + broadcast.FRAME_SECONDS <= 4
    with running(redis.Redis.from_url(valkey_url)) as alive:
        wait_for(lambda: alive.lease.held)
        wait_for(lambda: redis_client.get(broadcast.FRAME_LATEST))
