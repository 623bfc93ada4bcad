"""Nodes, rosters, minutes and Alerts as rows."""

import json
import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, connections
from django.utils import timezone

from telemetry.alerts.service import (
    close_alert,
    close_unseen_alerts,
    mark_silent_nodes,
    open_alert,
)
from telemetry.history.hourly_rollup import roll_account_hours, roll_hours
from telemetry.history.minute_store import prune_minutes, record_minutes
from telemetry.inventory.enrollment import enroll_node, mark_seen, renew_token, set_lost
from telemetry.inventory.roster import record_roster
from telemetry.models import Alert, Gpu, Node, Pool, SampleMinute
from telemetry.protocol.errors import NodeExists, NodeUnknown, RosterRefused
from telemetry.protocol.hardware import NodeInfo
from telemetry.rules.alert_rules import CLAIMED_ELSEWHERE, MISSING, SILENT
from telemetry.rules.rollup import MinuteTotals
from tests.factories import make_gpu, make_gpus, make_node
from tests.telemetry.messages import GIB, gpu_info, roster

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE = int(NOW.timestamp())


def tell(node: str, *gpus: dict, now: datetime = NOW, **fields: object):
    """Take over a roster as ingest does."""
    info = NodeInfo.from_message(json.dumps(roster(*gpus, **fields)), node=node)
    return record_roster(info=info, now=now)


@pytest.fixture
def node_a(db) -> Node:
    return enroll_node(name="node-a", simulated=True, now=NOW)[0]


@pytest.fixture
def node_b(db) -> Node:
    return enroll_node(name="node-b", simulated=True, now=NOW)[0]


class TestEnrolling:
    def test_a_token_opens_and_only_its_hash_is_stored(self, db):
        node, token = enroll_node(name="node-a", simulated=False, now=NOW)
        stored = Node.objects.get()
        assert stored.accepts(token)
        assert not stored.accepts(token + "x")
        assert token not in json.dumps(list(Node.objects.values()), default=str)
        assert node.enrolled_at == NOW

    def test_a_name_is_enrolled_once(self, node_a):
        with pytest.raises(NodeExists):
            enroll_node(name="node-a", simulated=True, now=NOW)

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "../x", "-x", "x" * 64, "ä"])
    def test_a_name_that_cannot_be_part_of_a_path_is_refused(self, db, name):
        with pytest.raises(ValidationError):
            enroll_node(name=name, simulated=True, now=NOW)

    def test_a_renewed_token_voids_the_old_one(self, db):
        _node, old = enroll_node(name="node-a", simulated=True, now=NOW)
        node, new = renew_token(name="node-a")
        assert node.accepts(new)
        assert not node.accepts(old)
        with pytest.raises(NodeUnknown):
            renew_token(name="node-z")


class TestRoster:
    def test_gpus_and_their_pool_appear(self, node_a):
        report = tell("node-a", gpu_info("GPU-1"), gpu_info("GPU-2", 1))
        assert report.added == ["GPU-1", "GPU-2"]
        gpu = Gpu.objects.get(uuid="GPU-2")
        assert (gpu.node, gpu.index, gpu.sm_clock_max_mhz) == (node_a, 1, 1410)
        pool = Pool.objects.get()
        assert (pool.gpu_class, pool.weight) == ("A100-SXM4-80GB", 10)
        assert pool.peak_flops == 312e12

    def test_the_same_roster_again_changes_nothing(self, node_a):
        tell("node-a", gpu_info("GPU-1"))
        assert not tell("node-a", gpu_info("GPU-1"))

    def test_a_gpu_keeps_its_row_when_its_index_moves(self, node_a):
        tell("node-a", gpu_info("GPU-1", 0), gpu_info("GPU-2", 1))
        before = set(Gpu.objects.values_list("pk", "uuid"))
        tell("node-a", gpu_info("GPU-2", 0), gpu_info("GPU-1", 1))
        assert set(Gpu.objects.values_list("pk", "uuid")) == before
        assert Gpu.objects.get(uuid="GPU-2").index == 0

    def test_a_gpu_missing_from_the_roster_is_told_and_comes_back(self, node_a):
        tell("node-a", gpu_info("GPU-1"), gpu_info("GPU-2", 1))
        report = tell("node-a", gpu_info("GPU-1"), boot_id="boot-2")
        assert report.missing == ["GPU-2"]
        assert not Gpu.objects.get(uuid="GPU-2").present
        alert = Alert.objects.open().get()
        assert alert.rule == MISSING
        assert alert.detail["rebooted"] is True
        tell("node-a", gpu_info("GPU-1"), gpu_info("GPU-2", 1), boot_id="boot-2")
        assert Gpu.objects.get(uuid="GPU-2").present
        assert not Alert.objects.open().exists()

    def test_a_uuid_of_another_node_is_refused_and_told(self, node_a, node_b):
        tell("node-a", gpu_info("GPU-1"))
        report = tell("node-b", gpu_info("GPU-1"), gpu_info("GPU-9", 1))
        assert (report.claimed, report.added) == (["GPU-1"], ["GPU-9"])
        assert Gpu.objects.get(uuid="GPU-1").node == node_a
        alert = Alert.objects.open().get()
        assert (alert.rule, alert.gpu.uuid) == (CLAIMED_ELSEWHERE, "GPU-1")
        assert alert.detail["claimed_by"] == "node-b"

    def test_a_node_cannot_change_what_its_gpus_cost(self, node_a):
        tell("node-a", gpu_info("GPU-1"))
        tell("node-a", gpu_info("GPU-1", gpu_class="T4", name="T4"))
        gpu = Gpu.objects.get()
        assert gpu.name == "T4"
        assert gpu.pool.gpu_class == "A100-SXM4-80GB"

    @pytest.mark.once
    def test_a_node_cannot_make_gpus_without_end(self, node_a):
        for turn in range(4):
            uuids = [f"GPU-{turn}-{n}" for n in range(50)]
            report = tell("node-a", *(gpu_info(u, n) for n, u in enumerate(uuids)))
        assert Gpu.objects.count() == 128
        assert len(report.refused) == 50

    def test_simulated_gpus_are_refused_where_the_site_takes_none(
        self, node_a, settings
    ):
        settings.ALLOW_SIMULATED_GPUS = False
        with pytest.raises(RosterRefused, match="no simulated"):
            tell("node-a", gpu_info("GPU-1"))
        assert not Gpu.objects.exists()

    @pytest.mark.parametrize(
        ("enrolled_simulated", "backend"), [(True, "nvml"), (False, "simulated")]
    )
    def test_a_node_is_what_it_was_enrolled_as(self, db, enrolled_simulated, backend):
        enroll_node(name="node-c", simulated=enrolled_simulated, now=NOW)
        with pytest.raises(RosterRefused):
            tell("node-c", gpu_info("GPU-1"), backend=backend)

    def test_an_unknown_node_is_refused(self, db):
        with pytest.raises(NodeUnknown):
            tell("node-z", gpu_info("GPU-1"))

    def test_the_nodes_own_facts_follow(self, node_a):
        gpus = [gpu_info("GPU-1"), gpu_info("GPU-2", 1)]
        tell("node-a", *gpus, fast_links=[["GPU-1", "GPU-2"]], isolation="watched")
        node_a.refresh_from_db()
        assert node_a.fast_links == [["GPU-1", "GPU-2"]]
        assert (node_a.isolation, node_a.driver_version) == ("watched", "570.00")

    def test_its_memory_and_disk_follow_too(self, node_a):
        host = {"memory_total_bytes": 64 * GIB, "memory_free_bytes": 32 * GIB}
        tell("node-a", gpu_info("GPU-1"), host={**host, "disk_free_bytes": 5 * GIB})
        tell("node-a", gpu_info("GPU-1"))  # an older worker says nothing of them
        node_a.refresh_from_db()
        assert node_a.ram_total_bytes == 64 * GIB
        assert node_a.ram_free_bytes == 32 * GIB
        assert node_a.disk_free_bytes == 5 * GIB

    def test_a_split_or_retired_gpu_cannot_be_booked(self, node_a):
        tell("node-a", gpu_info("GPU-1", mig=True), gpu_info("GPU-2", 1))
        Gpu.objects.filter(uuid="GPU-2").update(retired=True)
        assert not Gpu.objects.bookable().exists()

    @pytest.mark.once
    @pytest.mark.parametrize(
        ("gib", "weight"), [(4, 1), (8, 1), (16, 2), (24, 3), (80, 10), (141, 18)]
    )
    def test_a_pool_weighs_its_memory_in_8_gib_units(self, node_a, gib, weight):
        tell("node-a", gpu_info("GPU-1", memory_total_bytes=gib * GIB))
        assert Pool.objects.get().weight == weight


def totals(n: int = 60, **fields: object) -> MinuteTotals:
    return MinuteTotals(
        n=n, util_n=n, util_sum_pct=50.0 * n, util_min_pct=40, util_max_pct=60, **fields
    )


class TestMinutes:
    def test_a_minute_is_stored_with_its_sums(self, db):
        gpu = make_gpu()
        assert record_minutes(totals={(gpu.pk, MINUTE): totals()}) == 1
        row = SampleMinute.objects.get()
        assert (row.minute_at, row.n, row.util_sum_pct) == (NOW, 60, 3000.0)
        assert (row.util_min_pct, row.memory_max_bytes) == (40, None)

    def test_the_same_minute_twice_is_counted_once(self, db):
        gpu = make_gpu()
        record_minutes(totals={(gpu.pk, MINUTE): totals()})
        assert record_minutes(totals={(gpu.pk, MINUTE): totals()}) == 0
        assert SampleMinute.objects.get().n == 60

    def test_the_fuller_count_of_a_minute_wins_in_either_order(self, db):
        first, second = make_gpus(2)
        record_minutes(totals={(first.pk, MINUTE): totals(20)})
        record_minutes(totals={(first.pk, MINUTE): totals(60)})
        record_minutes(totals={(second.pk, MINUTE): totals(60)})
        record_minutes(totals={(second.pk, MINUTE): totals(20)})
        assert list(SampleMinute.objects.values_list("n", flat=True)) == [60, 60]

    def test_a_minute_without_samples_and_of_a_deleted_gpu_is_left_out(self, db):
        gpu = make_gpu()
        found = {(gpu.pk, MINUTE): MinuteTotals(), (gpu.pk + 99, MINUTE): totals()}
        assert record_minutes(totals=found) == 0

    @pytest.mark.once
    def test_a_thousand_gpus_are_a_handful_of_queries(
        self, db, django_assert_max_num_queries
    ):
        gpus = make_gpus(200)
        with django_assert_max_num_queries(9):
            record_minutes(totals={(g.pk, MINUTE): totals() for g in gpus})
        assert SampleMinute.objects.count() == 200

    def test_old_minutes_are_pruned_and_young_ones_stay(self, db):
        gpu = make_gpu()
        day = 24 * 3600
        ages = [0, 29 * day, 31 * day, 40 * day]
        record_minutes(totals={(gpu.pk, MINUTE - a): totals() for a in ages})
        assert prune_minutes(now=NOW, keep_days=30) == 1
        assert roll_hours(now=NOW) == 3
        assert prune_minutes(now=NOW, keep_days=30) == 0
        assert roll_account_hours(now=NOW, held=lambda hour: {}) == 3
        assert prune_minutes(now=NOW, keep_days=30) == 1
        assert prune_minutes(now=NOW, keep_days=30) == 0
        assert SampleMinute.objects.count() == 2


class TestAlerts:
    def test_one_finding_is_open_once_and_seen_again(self, db):
        gpu = make_gpu()
        later = NOW + timedelta(minutes=5)
        assert open_alert(rule="intruder", gpu_id=gpu.pk, now=NOW)
        assert not open_alert(rule="intruder", gpu_id=gpu.pk, now=later)
        alert = Alert.objects.get()
        assert (alert.opened_at, alert.last_seen_at) == (NOW, later)
        assert alert.lasted == timedelta(minutes=5)

    def test_a_closed_finding_can_open_anew(self, db):
        gpu = make_gpu()
        open_alert(rule="intruder", gpu_id=gpu.pk, now=NOW)
        assert close_alert(rule="intruder", gpu_id=gpu.pk, now=NOW)
        assert not close_alert(rule="intruder", gpu_id=gpu.pk, now=NOW)
        later = NOW + timedelta(minutes=6)
        assert open_alert(rule="intruder", gpu_id=gpu.pk, now=later)
        assert Alert.objects.count() == 2

    def test_an_unseen_finding_closes_and_a_standing_one_stays(self, db):
        gpu = make_gpu()
        open_alert(rule="intruder", gpu_id=gpu.pk, now=NOW)
        open_alert(rule=MISSING, gpu_id=gpu.pk, now=NOW)
        soon, late = NOW + timedelta(seconds=60), NOW + timedelta(seconds=600)
        assert close_unseen_alerts(now=soon, unseen_seconds=240) == 0
        assert close_unseen_alerts(now=late, unseen_seconds=240) == 1
        assert Alert.objects.open().get().rule == MISSING

    def test_a_silent_node_is_told_and_its_return_closes_it(self, db):
        node = make_node("node-a", last_seen_at=NOW)
        make_gpus(3, node)
        make_gpu(make_node("node-b", last_seen_at=NOW + timedelta(minutes=11)))
        late = NOW + timedelta(minutes=12)
        assert mark_silent_nodes(now=late) == (1, 0)
        assert mark_silent_nodes(now=late) == (0, 0)
        told = Alert.objects.open().get(rule=SILENT)
        assert (told.node, told.gpu, told.place) == (node, None, "node-a")
        mark_seen(seen={"node-a": late})
        assert mark_silent_nodes(now=late) == (0, 1)

    def test_last_seen_never_goes_backwards(self, db):
        node = make_node("node-a", last_seen_at=NOW)
        mark_seen(seen={"node-a": NOW - timedelta(hours=1), "gone": NOW})
        node.refresh_from_db()
        assert node.last_seen_at == NOW

    def test_lost_gpus_are_marked_and_cannot_be_booked(self, db):
        first, second = make_gpus(2)
        assert set_lost(gpu_ids=[first.pk], lost=True) == 1
        assert set_lost(gpu_ids=[first.pk], lost=True) == 0
        assert list(Gpu.objects.bookable()) == [second]


@pytest.mark.django_db(transaction=True)
def test_two_finders_at_once_open_one_alert():
    gpu = make_gpu()
    start = threading.Barrier(4)
    opened = []

    def find() -> None:
        start.wait()
        now = timezone.now()
        opened.append(open_alert(rule="intruder", gpu_id=gpu.pk, now=now))
        connections.close_all()

    threads = [threading.Thread(target=find) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(opened) == [False, False, False, True]
    assert Alert.objects.open().count() == 1
    assert connection.vendor in {"sqlite", "postgresql"}
