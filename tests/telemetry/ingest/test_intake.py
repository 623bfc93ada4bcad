"""From streams to frames: what is shown, and what is not believed."""

import json
import logging
import time

import pytest

from telemetry.ingest import Ingest
from telemetry.live import broadcast
from telemetry.models import Alert, Gpu, Node
from telemetry.protocol.gpu_state import GpuState
from telemetry.rules.alert_rules import MISUSE
from tests.factories import make_gpu, make_node
from tests.telemetry.ingest.stepped import Stepped
from tests.telemetry.messages import (
    GIB,
    gpu_info,
    process,
    reading,
    roster,
    sample,
    send,
)


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

    def test_free_memory_follows_without_a_new_roster(
        self, node_a, stepped, redis_client
    ):
        ingest = stepped()
        for gib in (10, 7):
            host = {"memory_total_bytes": 16 * GIB, "memory_free_bytes": gib * GIB}
            send(redis_client, "raw.node-a", roster(gpu_info("GPU-1"), host=host))
            ingest.round()
            node_a.refresh_from_db()
            assert node_a.ram_free_bytes == gib * GIB

    def test_a_roster_that_came_before_the_lease_is_not_forgotten(
        self, node_a, stepped, redis_client
    ):
        other = Ingest(redis_client)
        assert other.lease.acquire()
        waiting = stepped()
        send(redis_client, "raw.node-a", roster(gpu_info("GPU-1")))
        waiting.round()
        assert not Gpu.objects.exists()
        other.lease.release()
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
        told = json.loads(redis_client.get(broadcast.ROSTER))
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
    @pytest.mark.once
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
        # What is left of it is passed over unread, and an alert names the node.
        assert ingest.ingest.intake.inboxes["node-a"].passed_over_until is not None
        (alert,) = Alert.objects.open()
        assert (alert.rule, alert.place) == (MISUSE, "node-a")

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

    def test_a_machine_that_is_not_enrolled_is_named_in_the_log(
        self, node_a, stepped, redis_client, caplog
    ):
        ingest = stepped()
        send(redis_client, "raw.ghost", roster(gpu_info("GPU-1")))
        send(redis_client, "raw.long-gone", sample(), at=time.time() - 3600)
        send(redis_client, "raw.node-a", sample())
        ingest.ingest._tidied = float("-inf")
        with caplog.at_level(logging.WARNING, "telemetry.ingest"):
            ingest.round()
        (record,) = caplog.records
        assert "ghost sends samples" in record.getMessage()
        assert "enroll_node ghost" in record.getMessage()

    @pytest.mark.once
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
