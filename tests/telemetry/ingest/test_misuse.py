"""One node does its worst on the broker; no other node loses a second.

The attacker here has every right on the broker: what its user may not do is a matter
of deploy/acl.sh (tests/gpuportal/test_broker_users.py).
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import redis

from telemetry.ingest import Ingest, bounds
from telemetry.live import broadcast
from telemetry.models import Alert
from telemetry.protocol import frame
from telemetry.protocol.gpu_state import GpuState
from telemetry.rules.alert_rules import MISUSE
from tests.factories import make_gpu, make_node
from tests.telemetry.ingest.test_streams import running, wait_for
from tests.telemetry.messages import reading, sample, send

# It attacks the broker. Other tests run on both databases what ingest writes.
pytestmark = pytest.mark.once
WATCHED_SECONDS = 5.0
MIB = 2**20


@contextmanager
def repeated(work: Callable[[], object], every_seconds: float) -> Iterator[None]:
    """Do something again and again, on a thread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(every_seconds):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(90)


def wrong_type(key: str) -> Callable[[redis.Redis], None]:
    def attack(client: redis.Redis) -> None:
        client.delete(key)
        client.set(key, "x")

    attack.__name__ = f"SET {key}"
    return attack


def large_hash(client: redis.Redis) -> None:
    client.hset("unacked.node-a", f"{time.monotonic()}", "x" * 4 * MIB)


def forged_ids(client: redis.Redis) -> None:
    """45 messages of 80 kB each 50 ms, a quarter of a second apart by their ids."""
    with client.pipeline(transaction=False) as pipe:
        for _ in range(45):
            forged_ids.at += 250
            pipe.xadd("raw.node-a", {"m": b"x" * 80_000}, id=f"{forged_ids.at}-0")
        pipe.execute(raise_on_error=False)


def last_id(client: redis.Redis) -> None:
    most = 2**64 - 1
    for key in ("raw.node-a", "facts.node-a", "log.node-a"):
        # From the second time on it holds that one already.
        with suppress(redis.ResponseError):
            client.xadd(key, {"m": b"{}"}, id=f"{most}-{most}")


ATTACKS = [
    (wrong_type("raw.node-a"), 0.01),
    (wrong_type("facts.node-a"), 0.01),
    (wrong_type("log.node-a"), 0.01),
    (large_hash, 0.05),
    (forged_ids, 0.05),
    (last_id, 0.05),
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("attack", "every_seconds"), ATTACKS, ids=[x.__name__ for x, _ in ATTACKS]
)
def test_no_other_node_loses_a_second(redis_client, valkey_url, attack, every_seconds):
    make_gpu(make_node("node-a"))
    gpu = make_gpu(make_node("node-b"))
    facts: list[int] = []
    logs: list[int] = []
    sent = 0
    forged_ids.at = int(time.time() * 1000)
    attacker = redis.Redis.from_url(valkey_url)
    used = redis_client.info("memory")["used_memory"]

    def tell() -> None:
        nonlocal sent
        send(redis_client, "raw.node-b", sample(reading(gpu.uuid)))
        send(redis_client, "facts.node-b", {"number": sent})
        send(redis_client, "log.node-b", {"number": sent})
        sent += 1

    with running(
        redis.Redis.from_url(valkey_url),
        on_fact=lambda node, fact, _at: facts.append(fact.get("number", -1)),
        on_log=lambda node, part, _at: logs.append(part.get("number", -1)),
    ):
        wait_for(lambda: redis_client.get(broadcast.ROSTER))
        with repeated(tell, 1.0):
            wait_for(lambda: seen(redis_client) == [GpuState.FREE])
            redis_client.config_set("maxmemory", used + 300 * MIB)
            try:
                with repeated(lambda: attack(attacker), every_seconds):
                    frames, late_seconds = watch(redis_client)
                # A moment for what was sent last.
                wait_for(lambda: len(facts) >= sent - 1 and len(logs) >= sent - 1)
            finally:
                redis_client.config_set("maxmemory", 0)
    assert len(frames) >= WATCHED_SECONDS - 1 - late_seconds
    assert {states for states, _age in frames.values()} == {GpuState.FREE}
    assert max(age for _state, age in frames.values()) < 2.5 + late_seconds
    assert [x for x in facts if x >= 0] == list(
        range(len([x for x in facts if x >= 0]))
    )
    assert len([x for x in logs if x >= 0]) >= sent - 1
    (alert,) = Alert.objects.filter(rule=MISUSE)
    assert alert.place == "node-a"
    assert "node-a" in alert.detail["broker"]


def seen(client: redis.Redis) -> list[GpuState]:
    """State of node-b's Gpu in the newest frame."""
    data = client.get(broadcast.FRAME_LATEST)
    return [frame.decode(data).rows[1].state] if data else []


def watch(
    client: redis.Redis,
) -> tuple[dict[float, tuple[GpuState, float]], float]:
    """Return node-b's Gpu in each frame that comes: state and age of its reading.

    Also for how many seconds a busy machine did not let this process run.
    """
    frames: dict[float, tuple[GpuState, float]] = {}
    late_seconds = 0.0
    looked_at = time.monotonic()
    ends_at = looked_at + WATCHED_SECONDS
    while (now := time.monotonic()) < ends_at:
        late_seconds += max(0.0, now - looked_at - 0.2)
        looked_at = now
        newest = frame.decode(client.get(broadcast.FRAME_LATEST))
        row = newest.rows[1]
        frames[newest.server_at] = (row.state, row.age_seconds or 0.0)
        time.sleep(0.1)
    return frames, late_seconds


def test_a_stream_that_a_node_made_useless_is_begun_again(db, redis_client):
    """After the largest id there is none that the server could give."""
    gpu = make_gpu(make_node("node-a"))
    ingest = Ingest(redis_client, on_fact=lambda *_: None)
    ingest.writer.work(may_write=False)
    ingest.read(0.01)
    last_id(redis_client)
    ingest.read(0.01)
    for _ in range(2):
        ingest.readers[0].handle_messages(["node-a"], block_seconds=0.01)
    send(redis_client, "raw.node-a", sample(reading(gpu.uuid)))
    send(redis_client, "facts.node-a", {"job": 1})
    ingest.read(0.01)
    assert ingest.intake.samples == 1


def test_all_keys_of_a_node_count_together(redis_client, monkeypatch):
    monkeypatch.setattr(bounds, "NODE_MOST_BYTES", 2 * MIB)
    monkeypatch.setattr(bounds, "STREAM_MOST_BYTES", 2 * MIB)
    for key in ("raw.node-a", "facts.node-a", "log.node-a"):
        redis_client.xadd(key, {"m": b"x" * (MIB - 50_000)})
    redis_client.lpush("node.node-a", b"x" * 10 * MIB)
    redis_client.sadd("_kombu.binding.node.node-a", b"x" * 3 * MIB)
    redis_client.xadd("raw.node-b", {"m": b"x"})
    found = bounds.StreamBounds(redis_client).enforce(["node-a", "node-b"])
    assert {misuse.node for misuse in found} == {"node-a"}
    left = [key for key in redis_client.scan_iter() if b"node-a" in key]
    size = sum(redis_client.memory_usage(key, samples=0) for key in left)
    assert size <= 2 * MIB
    assert redis_client.xlen("raw.node-b") == 1


def test_a_node_that_keeps_its_bounds_is_left_alone(redis_client):
    send(redis_client, "raw.node-a", sample())
    redis_client.lpush("node.node-a", "order")
    redis_client.sadd("_kombu.binding.node.node-a", "x")
    keys = bounds.StreamBounds(redis_client)
    assert keys.enforce(["node-a"]) == []
    assert not keys.grown()
