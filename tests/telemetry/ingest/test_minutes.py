"""From streams to minutes, Alerts and `last seen`, whoever falls in between."""

import time
from datetime import UTC, datetime

import pytest
from django.db import OperationalError

from telemetry.alerts.service import open_alert
from telemetry.ingest import writer
from telemetry.ingest.intake import MINUTES_DONE
from telemetry.live import broadcast
from telemetry.models import Alert, Node, SampleMinute
from telemetry.rules.rollup import minute_start
from tests.factories import make_gpu, make_node
from tests.telemetry.ingest.stepped import Stepped
from tests.telemetry.messages import (
    GIB,
    process,
    reading,
    sample,
    send,
)


@pytest.fixture
def node_a(db) -> Node:
    return make_node("node-a", last_seen_at=None)


@pytest.fixture
def stepped(db, redis_client):
    return lambda **parts: Stepped(redis_client, **parts)


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

    @pytest.mark.once
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
        ahead = minute - time.time()
        first, second = (stepped(ahead=lambda: ahead) for _ in range(2))
        for at in range(60):
            message = sample(reading(gpu.uuid))
            send(redis_client, "raw.node-a", message, at=minute + at)
        ahead = 0.0
        assert first.ingest.lease.held
        assert not second.ingest.lease.held
        second.round()
        assert not SampleMinute.objects.exists()
        first.round()
        assert SampleMinute.objects.get().n == 60
        # The first one dies: the second has everything and goes on.
        first.ingest.lease.release()
        redis_client.delete(broadcast.FRAME_LATEST)
        assert second.round() is not None
        assert SampleMinute.objects.get().n == 60

    def test_a_database_that_is_away_loses_no_minute_and_no_frame(
        self, node_a, stepped, redis_client, monkeypatch
    ):
        gpu = make_gpu(node_a)
        minute = minute_start(time.time()) - 60 * 5
        redis_client.set(MINUTES_DONE, minute - 60)
        ahead = minute - time.time()
        ingest = stepped(ahead=lambda: ahead)
        ingest.round()
        for second in range(60):
            message = sample(reading(gpu.uuid))
            send(redis_client, "raw.node-a", message, at=minute + second)
        ahead = 0.0
        send(redis_client, "raw.node-a", sample(reading(gpu.uuid, util_pct=77)))

        def away(**_kwargs):
            raise OperationalError("the database is away")

        with monkeypatch.context() as patch:
            for name in ("record_minutes", "record_roster", "mark_seen"):
                patch.setattr(writer, name, away)
            for _ in range(3):
                (row,) = ingest.round().rows
            assert row.util_pct == 77
            assert not SampleMinute.objects.exists()
            assert int(redis_client.get(MINUTES_DONE)) == minute - 60
        ingest.round()
        assert SampleMinute.objects.first().n == 60


class TestAlertsAndSeen:
    @pytest.mark.once
    def test_a_lost_gpu_is_marked_and_its_return_clears_it(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        skip = 0
        ingest = stepped(steady=lambda: time.monotonic() + skip, ahead=lambda: skip)
        for skip, state in enumerate(["lost"] * 6 + ["ok"] * 20):
            send(
                redis_client,
                "raw.node-a",
                sample(reading(gpu.uuid, state=state), at=time.time() + skip),
                at=time.time() + skip,
            )
            ingest.round()
            gpu.refresh_from_db()
            if skip == 5:
                assert gpu.lost
                assert Alert.objects.open().get().rule == "lost"
        assert not gpu.lost
        assert not Alert.objects.open().exists()

    @pytest.mark.once
    def test_a_finding_of_before_the_restart_closes_when_it_is_over(
        self, node_a, stepped, redis_client
    ):
        gpu = make_gpu(node_a)
        now = datetime.now(UTC)
        open_alert(rule="intruder", gpu_id=gpu.pk, now=now)
        skip = 0
        ingest = stepped(steady=lambda: time.monotonic() + skip, ahead=lambda: skip)
        for skip in range(20):
            message = sample(reading(gpu.uuid), at=time.time() + skip)
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
