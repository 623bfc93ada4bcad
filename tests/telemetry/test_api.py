"""The JSON API of telemetry and the board, and the page of one Gpu."""

import json
import time

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from reservations.models import SitePolicy
from telemetry.alerts.service import open_alert
from telemetry.history.minute_store import record_minutes
from telemetry.inventory.queries import load_cluster
from telemetry.live import broadcast
from telemetry.models import Gpu, Node
from telemetry.protocol.frame import Frame, FrameRow, encode
from telemetry.protocol.gpu_state import GpuState
from telemetry.rules.rollup import MinuteTotals
from tests.factories import make_gpu, make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db
MINUTE = 60


def signed_in(user) -> Client:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def show(client, *rows: FrameRow, age_seconds: float = 0.0) -> None:
    """Publish a frame for the Gpus there are."""
    cluster = load_cluster()
    made = Frame(
        roster_id=cluster.roster_id, server_at=time.time() - age_seconds, rows=rows
    )
    client.set(broadcast.FRAME_LATEST, encode(made))
    client.set(broadcast.ROSTER, cluster.roster)


class TestGpus:
    def test_live_state_readings_and_holder(self, alice, carol, redis_client):
        gpu = make_gpu()
        make_reservation(alice, [gpu])
        show(redis_client, FrameRow(GpuState.BUSY, 93, 1024, 64, 287, None, 0.4))
        answer = signed_in(carol).get("/api/v1/gpus")
        (told,) = answer.json()["gpus"]
        assert (told["id"], told["state"], told["util_pct"]) == (gpu.pk, "busy", 93)
        assert (told["memory_used_bytes"], told["sm_clock_mhz"]) == (2**30, None)
        assert told["holder"]["user"] == "Alice"

    def test_without_names_carol_reads_groups_only(self, alice, carol):
        make_reservation(alice, [make_gpu()])
        SitePolicy.current()
        SitePolicy.objects.update(names_visible=False)
        (told,) = signed_in(carol).get("/api/v1/gpus").json()["gpus"]
        assert (told["holder"]["user"], told["holder"]["account"]) == (None, "Vision")

    @pytest.mark.parametrize("age_seconds", [None, 30.0])
    def test_what_is_old_or_absent_is_unknown_and_not_last_weeks(
        self, alice, redis_client, age_seconds
    ):
        make_gpu()
        if age_seconds:
            row = FrameRow(GpuState.BUSY, 93)
            show(redis_client, row, age_seconds=age_seconds)
        (told,) = signed_in(alice).get("/api/v1/gpus").json()["gpus"]
        assert (told["state"], told["util_pct"]) == ("unknown", None)

    def test_a_stranger_gets_nothing(self):
        assert Client().get("/api/v1/gpus").status_code == 401
        assert Client().get("/api/v1/nodes").status_code == 401

    def test_no_query_more_for_more_gpus(
        self, alice, redis_client, django_assert_max_num_queries
    ):
        make_gpus(30)
        client = signed_in(alice)
        client.get("/api/v1/gpus")
        with django_assert_max_num_queries(9):
            assert len(client.get("/api/v1/gpus").json()["gpus"]) == 30


def test_nodes_are_listed_with_what_they_have(alice):
    node = make_node("node-a", driver_version="570")
    make_gpus(3, node)
    Gpu.objects.filter(index=2).update(present=False)
    (told,) = signed_in(alice).get("/api/v1/nodes").json()["nodes"]
    assert (told["name"], told["gpus"], told["driver_version"]) == ("node-a", 2, "570")


def test_a_nodes_own_memory_and_disk_are_shown(alice):
    node = make_node("node-a")
    page = signed_in(alice).get(reverse("node", args=[node.name])).content.decode()
    assert page.count("unknown") >= 2
    Node.objects.update(
        ram_total_bytes=2048 * 2**30,
        ram_free_bytes=812 * 2**30,
        disk_free_bytes=None,
    )
    page = signed_in(alice).get(reverse("node", args=[node.name])).content.decode()
    assert "812 GiB of 2048 GiB free" in page
    (told,) = signed_in(alice).get("/api/v1/nodes").json()["nodes"]
    assert told["ram_free_bytes"] == 812 * 2**30
    assert told["disk_free_bytes"] is None


class TestHistory:
    def fill(self, gpu, minutes: dict[int, int]) -> int:
        """Store minutes (ago -> mean utilization); this minute's start."""
        now = int(time.time()) // MINUTE * MINUTE
        totals = {
            (gpu.pk, now - ago * MINUTE): MinuteTotals(
                n=60,
                util_n=60,
                util_sum_pct=60.0 * util,
                util_min_pct=util - 5,
                util_max_pct=util + 5,
            )
            for ago, util in minutes.items()
        }
        record_minutes(totals=totals)
        return now

    def test_bands_of_an_hour_with_holes_as_null(self, alice):
        gpu = make_gpu()
        now = self.fill(gpu, {10: 50, 9: 70, 5: 20})
        answer = signed_in(alice).get(f"/api/v1/gpus/{gpu.pk}/history?hours=1")
        told = answer.json()["series"]
        assert told["step_seconds"] == 60
        place = {at: i for i, at in enumerate(told["at"])}
        at = place[now - 10 * MINUTE]
        assert told["util_avg_pct"][at : at + 3] == [50, 70, None]
        assert told["util_min_pct"][at] == 45
        assert told["util_max_pct"][at] == 55
        assert told["power_avg_watts"][at] is None
        assert sum(told["n"]) == 180

    @pytest.mark.once
    def test_a_day_fits_the_charts_width(self, alice):
        gpu = make_gpu()
        self.fill(gpu, {ago: 40 for ago in range(1, 1440)})
        answer = signed_in(alice).get(f"/api/v1/gpus/{gpu.pk}/history")
        told = answer.json()["series"]
        assert len(told["at"]) <= 721
        assert told["step_seconds"] == 120
        assert set(told["util_avg_pct"][1:-1]) == {40}
        assert len(answer.content) < 60_000

    def test_a_mean_over_unequal_minutes_is_of_the_samples(self, alice):
        gpu = make_gpu()
        hour = int(time.time()) // 7200 * 7200 - 7200
        record_minutes(
            totals={
                (gpu.pk, hour): MinuteTotals(n=60, util_n=60, util_sum_pct=6000.0),
                (gpu.pk, hour + 60): MinuteTotals(n=20, util_n=20, util_sum_pct=0.0),
            }
        )
        url = f"/api/v1/gpus/{gpu.pk}/history?hours=8&points=4"
        told = signed_in(alice).get(url).json()["series"]
        assert [util for util in told["util_avg_pct"] if util is not None] == [75.0]

    @pytest.mark.parametrize(
        "query", ["hours=0", "hours=30000", "points=1001", "hours=x"]
    )
    def test_what_cannot_be_asked_names_the_field(self, alice, query):
        gpu = make_gpu()
        answer = signed_in(alice).get(f"/api/v1/gpus/{gpu.pk}/history?{query}")
        assert answer.status_code == 422
        assert query.partition("=")[0] in answer.json()["fields"]

    def test_an_unknown_gpu_is_not_found(self, alice):
        assert signed_in(alice).get("/api/v1/gpus/99/history").status_code == 404


class TestPage:
    def test_facts_alerts_and_data_for_the_script(self, alice):
        node = make_node("node-a", fast_links=[["GPU-node-a-0", "GPU-node-a-1"]])
        gpu, other = make_gpus(2, node)
        open_alert(rule="no sample", gpu_id=gpu.pk, now=timezone.now())
        answer = signed_in(alice).get(f"/gpus/{gpu.pk}/")
        page = answer.content.decode()
        assert answer.status_code == 200
        for words in ("node-a:0", gpu.uuid, "80 GiB", "No data", str(other)):
            assert words in page
        data = page.partition('id="gpu-data" type="application/json">')[2]
        told = json.loads(data.partition("<")[0])
        assert (told["gpu"], told["node"]) == (gpu.pk, "node-a")

    def test_names_of_machines_are_text_and_not_markup(self, alice):
        gpu = make_gpu(name="<script>alert(1)</script>")
        page = signed_in(alice).get(f"/gpus/{gpu.pk}/").content.decode()
        assert "<script>alert" not in page

    def test_a_stranger_is_sent_to_sign_in_and_an_unknown_gpu_is_not_found(self, alice):
        gpu = make_gpu()
        assert Client().get(f"/gpus/{gpu.pk}/").status_code == 302
        assert signed_in(alice).get("/gpus/999/").status_code == 404


class TestAdmin:
    @pytest.fixture
    def admin(self, omar) -> Client:
        return signed_in(omar)

    @pytest.mark.parametrize("model", ["node", "gpu", "pool", "alert"])
    def test_lists_and_rows_open(self, admin, model):
        gpu = make_gpu()
        open_alert(rule="intruder", gpu_id=gpu.pk, now=timezone.now())
        pks = {"node": gpu.node_id, "gpu": gpu.pk, "pool": gpu.pool_id}
        assert admin.get(f"/admin/telemetry/{model}/").status_code == 200
        if model in pks:
            url = f"/admin/telemetry/{model}/{pks[model]}/change/"
            assert admin.get(url).status_code == 200

    def test_maintenance_is_switched_and_logged(self, admin, omar):
        from django.contrib.admin.models import LogEntry

        gpus = make_gpus(2)
        data = {
            "action": "begin_maintenance",
            "_selected_action": [gpu.pk for gpu in gpus],
        }
        admin.post("/admin/telemetry/gpu/", data)
        assert Gpu.objects.filter(maintenance=True).count() == 2
        assert not Gpu.objects.bookable().exists()
        assert LogEntry.objects.filter(user=omar).count() == 2
        admin.post("/admin/telemetry/gpu/", {**data, "action": "end_maintenance"})
        assert Gpu.objects.bookable().count() == 2

    def test_facts_of_machines_are_not_typed_in(self, admin):
        for model in ("node", "gpu", "alert"):
            assert admin.get(f"/admin/telemetry/{model}/add/").status_code == 403

    def test_a_finding_can_be_closed_by_hand(self, admin):
        gpu = make_gpu()
        open_alert(rule="claimed elsewhere", gpu_id=gpu.pk, now=timezone.now())
        alert = gpu.alerts.get()
        admin.post(
            "/admin/telemetry/alert/",
            {"action": "close", "_selected_action": [alert.pk]},
        )
        alert.refresh_from_db()
        assert alert.closed_at is not None

    def test_a_student_does_not_get_in(self, alice):
        assert signed_in(alice).get("/admin/telemetry/gpu/").status_code == 302
