"""From streams to frames, rows and Alerts."""

import json
import logging
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
import redis
from django.db import OperationalError

from telemetry import live, services
from telemetry.domain import frame
from telemetry.domain.rollup import minute_start
from telemetry.domain.state import GpuState
from telemetry.ingest import Ingest
from telemetry.ingest.intake import MINUTES_DONE
from telemetry.ingest.streams import GroupReader
from telemetry.models import Alert, Gpu, Node, SampleMinute
from tests.factories import make_gpu, make_node
from tests.telemetry.messages import (
    GIB,
    gpu_info,
    process,
    reading,
    roster,
    sample,
    send,
)


class Stepped:
    """An ingest whose rounds a test takes one by one, in one thread."""

    def __init__(self, client: redis.Redis, **parts: object) -> None:
        self.client = client
        self.ingest = Ingest(client, **parts)
        self.round()

    def round(self) -> frame.Frame | None:
        """Write, read, tick; the frame that is published now."""
        self.ingest.writer._loaded = float("-inf")
        self.ingest.writer.work(may_write=self.ingest.lease.held)
        self.ingest.read(0.01)
        while self.ingest.intake.behind:
            self.ingest.read(0.01)
        self.ingest.tick()
        self.ingest.writer.work(may_write=self.ingest.lease.held)
        return self.frame

    @property
    def frame(self) -> frame.Frame | None:
        data = self.client.get(live.FRAME_LATEST)
        return frame.decode(data) if data else None


@pytest.fixture
def node_a(db) -> Node:
    return make_node("node-a", last_seen_at=None)


@pytest.fixture
def stepped(db, redis_client):
    return lambda **parts: Stepped(redis_client, **parts)


class TestFrame:
    def test_a_roster_and_a_sample_become_a_row(self, node_a, stepped, redis_client):
        ingest = stepped()
        send(redis_client, "raw.node-a", roster(gpu_info("GPU-1")))
        ingest.round()
        send(redis_client, "raw.node-a", sample(reading("GPU-1")))
        (row,) = ingest.round().rows
        assert (row.util_pct, row.memory_used_mib) == (50, 10 * 1024)
        assert (row.temperature_celsius, row.power_watts) == (60, 250)
        assert row.state is GpuState.FREE
        assert row.age_seconds < 1

    def test_a_roster_that_came_before_the_lease_is_not_forgotten(
        self, node_a, stepped, redis_client
    ):
        other = Ingest(redis_client)
        assert other.lease.take()
        waiting = stepped()
        send(redis_client, "raw.node-a", roster(gpu_info("GPU-1")))
        waiting.round()
        assert not Gpu.objects.exists()
        other.lease.give()
        waiting.round()
        assert Gpu.objects.get().uuid == "GPU-1"

    def test_rows_stand_in_the_rosters_order(self, node_a, stepped, redis_client):
        other = make_node("a-node")
        gpus = [make_gpu(node_a), make_gpu(other), make_gpu(node_a)]
        for util, gpu in enumerate(gpus):
            send(
                redis_client,
                f"raw.{gpu.node.name}",
                sample(reading(gpu.uuid, util_pct=util)),
            )
        ingest = stepped()
        rows = ingest.round()
        told = json.loads(redis_client.get(live.ROSTER))
        assert told["roster_id"] == rows.roster_id
        by_id = {g["id"]: row for g, row in zip(told["gpus"], rows.rows, strict=True)}
        assert [by_id[gpu.pk].util_pct for gpu in gpus] == [0, 1, 2]
        assert [node["name"] for node in told["nodes"]] == ["a-node", "node-a"]

    def test_what_the_card_cannot_say_is_unknown_and_not_zero(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        silent = reading(
            gpu.uuid, util_pct=None, memory_used_bytes=None, power_watts=None
        )
        send(redis_client, "raw.node-a", sample(silent))
        (row,) = stepped().round().rows
        assert (row.util_pct, row.memory_used_mib, row.power_watts) == (None,) * 3

    def test_a_gpu_never_heard_of_is_unknown(self, node_a, stepped):
        make_gpu(node_a)
        (row,) = stepped().round().rows
        assert (row.state, row.age_seconds) == (GpuState.UNKNOWN, None)

    def test_a_gpu_without_samples_turns_stale_and_keeps_what_was_seen(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        send(
            redis_client,
            "raw.node-a",
            sample(reading(gpu.uuid)),
            at=time.time() - 3.6,
        )
        (row,) = stepped().round().rows
        assert (row.state, row.util_pct) == (GpuState.STALE, 50)
        assert row.age_seconds >= 3.5

    def test_a_clock_that_is_wrong_on_the_node_changes_nothing(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        send(redis_client, "raw.node-a", sample(reading(gpu.uuid), at=12.0))
        (row,) = stepped().round().rows
        assert row.state is GpuState.FREE

    def test_the_operators_word_and_the_roster_go_first(
        self, node_a, stepped, redis_client
    ):
        gpus = [make_gpu(node_a) for _ in range(3)]
        Gpu.objects.filter(pk=gpus[0].pk).update(maintenance=True)
        Gpu.objects.filter(pk=gpus[1].pk).update(present=False)
        Gpu.objects.filter(pk=gpus[2].pk).update(mig=True)
        send(redis_client, "raw.node-a", sample(*(reading(g.uuid) for g in gpus)))
        states = [row.state for row in stepped().round().rows]
        assert states == [GpuState.MAINTENANCE, GpuState.LOST, GpuState.MIG]

    def test_the_judge_is_asked_and_its_crash_costs_one_row(
        self, node_a, stepped, redis_client
    ):
        first, second = make_gpu(node_a), make_gpu(node_a)

        def judge(gpu_id, reading, age_seconds, now):
            if gpu_id == first.pk:
                raise ZeroDivisionError("odd")
            return GpuState.INTRUDER

        send(
            redis_client,
            "raw.node-a",
            sample(reading(first.uuid), reading(second.uuid)),
        )
        rows = stepped(judge=judge).round().rows
        assert [row.state for row in rows] == [GpuState.UNKNOWN, GpuState.INTRUDER]

    def test_details_name_the_processes(self, node_a, stepped, redis_client):
        gpu = make_gpu(node_a)
        send(
            redis_client,
            "raw.node-a",
            sample(
                reading(gpu.uuid, processes=[process(job=7)], throttle=["hw_thermal"])
            ),
        )
        stepped().round()
        detail = json.loads(redis_client.get("telemetry.detail.node-a"))
        told = detail["gpus"][gpu.uuid]
        assert (detail["node"], detail["load1"]) == ("node-a", 0.4)
        assert told["throttle"] == ["hw_thermal"]
        assert told["processes"][0]["user"] == "alice"
        assert told["processes"][0]["job"] == 7

    def test_a_node_that_is_deleted_disappears(self, node_a, stepped):
        make_gpu(make_node("node-b"))
        ingest = stepped()
        assert len(ingest.round().rows) == 1
        Gpu.objects.all().delete()
        Node.objects.all().delete()
        assert len(ingest.round().rows) == 0
        assert not ingest.ingest.intake.inboxes


class TestTrust:
    @pytest.mark.parametrize(
        "garbage",
        [
            b"",
            b"\xff\xfe",
            b"[]",
            b"{",
            b"[" * 100_000,
            b'{"v":1,"kind":"sample","at":NaN,"seq":1,"gpus":[]}',
            b'{"v":9,"kind":"sample"}',
            b"x" * 300_000,
            json.dumps(sample(reading("GPU-node-a-0", util_pct=4294967295))).encode(),
            json.dumps(sample(reading("GPU-node-a-0", util_pct="1"))).encode(),
        ],
        ids=range(10),
    )
    def test_garbage_is_refused_counted_and_said_once(
        self, node_a, stepped, redis_client, caplog, garbage
    ):
        make_gpu(node_a)
        ingest = stepped()
        for _ in range(3):
            send(redis_client, "raw.node-a", garbage)
        with caplog.at_level(logging.WARNING, "telemetry.ingest"):
            (row,) = ingest.round().rows
        assert row.state is GpuState.UNKNOWN
        assert ingest.ingest.complaints.counts["node-a"] == 3
        assert len(caplog.records) == 1
        assert len(caplog.records[0].getMessage()) < 400

    def test_an_entry_without_a_message_is_refused(self, node_a, stepped, redis_client):
        ingest = stepped()
        redis_client.xadd("raw.node-a", {"other": "x"})
        ingest.round()
        assert ingest.ingest.complaints.counts["node-a"] == 1

    def test_a_node_does_not_speak_for_anothers_gpu(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(make_node("node-b"))
        send(redis_client, "raw.node-a", sample(reading(gpu.uuid)))
        ingest = stepped()
        (row,) = ingest.round().rows
        assert row.state is GpuState.UNKNOWN
        assert ingest.ingest.complaints.counts["node-a"] >= 1

    def test_a_flood_is_not_looked_at_and_others_are_heard(
        self, node_a, stepped, redis_client
    ):
        mine, other = make_gpu(node_a), make_gpu(make_node("node-b"))
        ingest = stepped()
        for _ in range(500):
            send(redis_client, "raw.node-a", sample(reading(mine.uuid)))
        send(redis_client, "raw.node-b", sample(reading(other.uuid)))
        rows = ingest.round().rows
        assert rows[1].state is GpuState.FREE
        assert ingest.ingest.intake.samples <= 30
        assert ingest.ingest.complaints.counts["node-a"] > 400

    def test_entry_ids_of_the_future_do_not_silence_or_pile_up(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        ingest = stepped()
        far = time.time() + 10**8
        for step in range(5):
            send(
                redis_client,
                "raw.node-a",
                sample(reading(gpu.uuid)),
                at=far + 3600 * step,
            )
        (row,) = ingest.round().rows
        assert row.state is GpuState.FREE
        assert len(ingest.ingest.intake.minutes._totals) == 1

    def test_a_node_that_is_not_enrolled_is_not_read(self, stepped, redis_client):
        send(redis_client, "raw.stranger", roster(gpu_info("GPU-1")))
        stepped().round()
        assert not Gpu.objects.exists()

    def test_streams_of_a_careless_node_are_trimmed(
        self, node_a, stepped, redis_client
    ):
        ingest = stepped()
        with redis_client.pipeline() as pipe:
            for _ in range(9000):
                pipe.xadd("raw.node-a", {"m": b"{}"})
            pipe.execute()
        ingest.ingest._tidied = float("-inf")
        ingest.round()
        assert redis_client.xlen("raw.node-a") < 4200


class TestMinutes:
    def test_minutes_that_are_over_are_stored_and_equal_the_samples(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        minute = minute_start(time.time()) - 60
        for second in range(60):
            used = [process()] if second < 20 else []
            message = sample(reading(gpu.uuid, util_pct=second, processes=used))
            send(redis_client, "raw.node-a", message, at=minute + second)
        ingest = stepped()
        ingest.round()
        time.sleep(max(0.0, minute + 63.1 - time.time()))
        ingest.round()
        row = SampleMinute.objects.get()
        assert row.minute_at == datetime.fromtimestamp(minute, UTC)
        assert (row.n, row.util_n, row.util_sum_pct) == (60, 60, sum(range(60)))
        assert (row.util_min_pct, row.util_max_pct, row.idle_n) == (0, 59, 3)
        assert (row.process_n, row.power_sum_watts) == (20, 60 * 250)
        assert row.memory_max_bytes == 10 * GIB
        assert int(redis_client.get(MINUTES_DONE)) == minute

    def test_a_restart_reads_what_was_not_stored_and_counts_nothing_twice(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        minute = minute_start(time.time()) - 60 * 10
        redis_client.set(MINUTES_DONE, minute - 60)
        for second in range(240):
            message = sample(reading(gpu.uuid), seq=second)
            send(redis_client, "raw.node-a", message, at=minute + second)
        stepped().round()
        redis_client.delete("telemetry.ingest.lease")
        redis_client.set(MINUTES_DONE, minute + 60)  # it fell after two minutes
        stepped().round()
        stored = SampleMinute.objects.values_list("n", flat=True)
        assert list(stored) == [60, 60, 60, 60]

    def test_a_hole_stays_a_hole(self, node_a, stepped, redis_client):
        gpu = make_gpu(node_a)
        minute = minute_start(time.time()) - 60 * 10
        redis_client.set(MINUTES_DONE, minute - 60)
        for second in (1, 2, 185):
            message = sample(reading(gpu.uuid))
            send(redis_client, "raw.node-a", message, at=minute + second)
        stepped().round()
        stored = SampleMinute.objects.values_list("minute_at", "n")
        assert [((at.timestamp() - minute) / 60, n) for at, n in stored] == [
            (0, 2),
            (3, 1),
        ]

    def test_a_second_ingest_reads_along_and_writes_nothing(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        minute = minute_start(time.time()) - 60 * 5
        redis_client.set(MINUTES_DONE, minute - 60)
        first, second = stepped(), stepped()
        for at in range(60):
            message = sample(reading(gpu.uuid))
            send(redis_client, "raw.node-a", message, at=minute + at)
        assert first.ingest.lease.held
        assert not second.ingest.lease.held
        second.round()
        assert not SampleMinute.objects.exists()
        first.round()
        assert SampleMinute.objects.get().n == 60
        # The first one dies: the second has everything and goes on.
        first.ingest.lease.give()
        redis_client.delete(live.FRAME_LATEST)
        assert second.round() is not None
        assert SampleMinute.objects.get().n == 60

    def test_a_database_that_is_away_loses_no_minute_and_no_frame(
        self, node_a, stepped, redis_client, monkeypatch
    ):
        gpu = make_gpu(node_a)
        minute = minute_start(time.time()) - 60 * 5
        redis_client.set(MINUTES_DONE, minute - 60)
        ingest = stepped()
        ingest.round()
        for second in range(60):
            message = sample(reading(gpu.uuid))
            send(redis_client, "raw.node-a", message, at=minute + second)
        send(redis_client, "raw.node-a", sample(reading(gpu.uuid, util_pct=77)))

        def away(**_kwargs):
            raise OperationalError("the database is away")

        with monkeypatch.context() as patch:
            for name in ("record_minutes", "record_roster", "mark_seen"):
                patch.setattr(services, name, away)
            for _ in range(3):
                (row,) = ingest.round().rows
            assert row.util_pct == 77
            assert not SampleMinute.objects.exists()
            assert int(redis_client.get(MINUTES_DONE)) == minute - 60
        ingest.round()
        assert SampleMinute.objects.first().n == 60


class TestAlertsAndSeen:
    def test_a_lost_gpu_is_marked_and_its_return_clears_it(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        skip = 0
        ingest = stepped(steady=lambda: time.monotonic() + skip)
        for skip, state in enumerate(["lost"] * 6 + ["ok"] * 10):
            send(
                redis_client,
                "raw.node-a",
                sample(reading(gpu.uuid, state=state)),
                at=time.time() + skip,
            )
            ingest.round()
            gpu.refresh_from_db()
            if skip == 5:
                assert gpu.lost
                assert Alert.objects.open().get().rule == "lost"
        assert not gpu.lost
        assert not Alert.objects.open().exists()

    def test_a_finding_of_before_the_restart_closes_when_it_is_over(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        now = datetime.now(UTC)
        services.open_alert(rule="intruder", gpu_id=gpu.pk, now=now)
        skip = 0
        ingest = stepped(steady=lambda: time.monotonic() + skip)
        for skip in range(20):
            message = sample(reading(gpu.uuid))
            send(redis_client, "raw.node-a", message, at=time.time() + skip)
            ingest.round()
        assert not Alert.objects.open().exists()

    def test_a_node_is_seen(self, node_a, stepped, redis_client):
        gpu = make_gpu(node_a)
        send(redis_client, "raw.node-a", sample(reading(gpu.uuid)))
        ingest = stepped()
        ingest.ingest.writer._seen_written = float("-inf")
        ingest.round()
        node_a.refresh_from_db()
        assert abs(node_a.last_seen_at.timestamp() - time.time()) < 2


class TestGroupReader:
    def reader(self, client, handler) -> GroupReader:
        ingest = Ingest(client, on_fact=handler)
        return ingest.readers[0]

    def test_each_fact_is_handled_once_in_order_and_by_its_stream(self, redis_client):
        seen = []
        reader = self.reader(redis_client, lambda *call: seen.append(call))
        for job in range(5):
            send(redis_client, "facts.node-a", {"job": job, "node": "node-z"})
        while reader.step(["node-a"], block_seconds=0.01) or len(seen) < 5:
            pass
        assert [call[1]["job"] for call in seen] == list(range(5))
        assert {call[0] for call in seen} == {"node-a"}
        assert seen[0][2].tzinfo is UTC
        again = self.reader(redis_client, lambda *call: seen.append(call))
        for _ in range(3):
            again.step(["node-a"], block_seconds=0.01)
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
        deadline = time.monotonic() + 5
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
        first.step(["node-a"], block_seconds=0.01)  # nothing unfinished yet
        with pytest.raises(OperationalError):
            first.step(["node-a"], block_seconds=0.01)
        seen = []
        second = self.reader(redis_client, lambda *call: seen.append(call))
        second.step(["node-a"], block_seconds=0.01)
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
            reader.step(["node-a"], block_seconds=0.01)
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
        thread.join(10)
        assert not thread.is_alive()


def wait_for(condition, seconds: float = 8.0):
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
        wait_for(lambda: redis_client.get(live.ROSTER))
        redis_client.flushall()
        redis_client.client_kill_filter(_type="normal", skipme=True)
        send(redis_client, "raw.node-a", sample(reading(gpu.uuid, util_pct=33)))
        wait_for(lambda: redis_client.get(live.FRAME_LATEST))
        wait_for(
            lambda: (
                frame.decode(redis_client.get(live.FRAME_LATEST)).rows[0].util_pct == 33
            )
        )
        wait_for(lambda: redis_client.get(live.ROSTER), 14)
        send(redis_client, "facts.node-a", {"job": 1})
        wait_for(lambda: facts)


@pytest.mark.django_db(transaction=True)
def test_the_lease_moves_within_four_seconds_when_its_holder_dies(
    redis_client, valkey_url
):
    make_gpu(make_node("node-a"))
    dead = Ingest(redis.Redis.from_url(valkey_url))
    assert dead.lease.take()
    with running(redis.Redis.from_url(valkey_url)) as alive:
        wait_for(lambda: alive.lease.held, 4.5)
        wait_for(lambda: redis_client.get(live.FRAME_LATEST), 3)
