"""The offers to the planner: live use, bookings, grids, names, the user's own."""

import json
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from placement.models import PlacementPolicy
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.errors import BadInput, WorkloadInvalid
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from placement.plans.service import (
    BOOKED,
    earliest_start,
    make_plans,
    offered,
    save_plan,
    soonest_plans,
)
from reservations.models import SitePolicy
from reservations.rules.booking_alerts import SQUATTER
from reservations.rules.lifecycle import State
from telemetry.live import broadcast
from telemetry.models import Alert, Gpu
from telemetry.rules.alert_rules import ECC, REMAP_PENDING, WEDGED
from tests.factories import make_reservation
from tests.placement.lab import GIB, MIB, send_frame, signed_in

pytestmark = pytest.mark.django_db


def offers(user, *, at=None, hours=4.0, **more):
    found = offered(user=user, at=at, hours=hours, now=timezone.now(), **more)
    return found, {offer.label: offer for offer in found.offers}


def test_now_counts_what_runs_now(alice, gpus, redis_client):
    send_frame(redis_client, {1: 30_000})
    found, by_label = offers(alice)
    assert not found.later
    assert by_label["node-a:1"].used_bytes == 30_000 * MIB
    assert by_label["node-a:1"].free_bytes == 80 * GIB - 30_000 * MIB
    assert by_label["node-a:0"].usable


def test_later_counts_bookings_and_not_what_runs_now(alice, bob, gpus, redis_client):
    send_frame(redis_client, {0: 70_000})
    start = timezone.now() + timedelta(days=1)
    make_reservation(bob, gpus[1:2], start, start + timedelta(hours=9))
    found, by_label = offers(alice, at=start + timedelta(hours=1))
    assert found.later
    assert by_label["node-a:0"].free_bytes == 80 * GIB
    assert by_label["node-a:1"].reason.startswith(f"{BOOKED} Bob until")
    assert by_label["node-a:1"].free_bytes == 0


@pytest.mark.once
def test_a_booking_that_begins_within_the_window_counts(alice, bob, gpus):
    soon = timezone.now() + timedelta(hours=2)
    make_reservation(bob, gpus[:1], soon, soon + timedelta(hours=1))
    assert not offers(alice)[1]["node-a:0"].usable
    assert " from " in offers(alice)[1]["node-a:0"].reason
    assert offers(alice, hours=1)[1]["node-a:0"].usable


@pytest.mark.once
def test_names_are_hidden_where_the_site_hides_them(alice, bob, omar, gpus):
    policy = SitePolicy.current()
    policy.names_visible = False
    policy.save()
    now = timezone.now()
    make_reservation(bob, gpus[:1], now, now + timedelta(hours=9), state=State.ACTIVE)
    assert "Bob" not in offers(alice)[1]["node-a:0"].reason
    assert "Vision" in offers(alice)[1]["node-a:0"].reason
    assert "Bob" in offers(omar)[1]["node-a:0"].reason


def test_ones_own_reservation_needs_no_booking(alice, gpus):
    now = timezone.now()
    mine = make_reservation(
        alice, gpus[:2], now, now + timedelta(hours=9), state=State.ACTIVE
    )
    found, by_label = offers(alice)
    assert found.own == {gpus[0].uuid: mine.pk, gpus[1].uuid: mine.pk}
    assert by_label["node-a:0"].usable


def test_a_part_of_the_window_in_ones_own_reservation_is_not_enough(alice, gpus):
    now = timezone.now()
    make_reservation(alice, gpus[:1], now, now + timedelta(hours=1), state=State.ACTIVE)
    found, by_label = offers(alice)
    assert not found.own
    assert "only partly in your reservation" in by_label["node-a:0"].reason


def test_a_chosen_reservation_offers_its_gpus_for_its_window(alice, bob, gpus):
    start = timezone.now() + timedelta(hours=5)
    mine = make_reservation(alice, gpus[4:], start, start + timedelta(hours=2))
    found, by_label = offers(alice, reservation_id=mine.pk)
    assert set(by_label) == {"node-b:0", "node-b:1"}
    assert (found.start, found.end) == (mine.start, mine.end)
    with pytest.raises(BadInput, match="not one of yours"):
        offers(bob, reservation_id=mine.pk)


def test_a_window_lies_on_the_calendars_grid(alice, gpus):
    grid = SitePolicy.current().grid_seconds
    at = timezone.now().replace(second=11, microsecond=5) + timedelta(days=1)
    found, _ = offers(alice, at=at, hours=1.01)
    assert found.start.timestamp() % grid == found.end.timestamp() % grid == 0
    assert found.start >= at
    begun, _ = offers(alice)
    assert begun.end.timestamp() % grid == 0


@pytest.mark.once
@pytest.mark.parametrize("hours", [0, -1, 337, float("nan"), float("inf")])
def test_hours_out_of_reach_are_refused(alice, gpus, hours):
    with pytest.raises(WorkloadInvalid):
        offers(alice, hours=hours)


def test_lost_and_closed_gpus_are_never_offered(alice, gpus):
    gpus[0].lost = True
    gpus[1].maintenance = True
    for gpu in gpus[:2]:
        gpu.save()
    _, by_label = offers(alice)
    assert by_label["node-a:0"].reason == "the driver lost it"
    assert by_label["node-a:1"].reason == "under maintenance"
    assert by_label["node-a:0"].free_bytes == by_label["node-a:1"].free_bytes == 0


@pytest.mark.once
def test_a_kept_plan_is_read_back_equal(alice, gpus):
    spec = well_known_spec("gpt2")
    found, _ = offers(alice)
    plans = make_plans(spec=spec, workload=Workload(), offers=found.offers)
    now = timezone.now()
    kept = save_plan(user=alice, spec=spec, plan=plans.plans[0], now=now)
    kept.refresh_from_db()
    assert Plan.from_json(kept.plan) == plans.plans[0]
    assert kept.title == "gpt2: One GPU"


def finding(gpu, rule):
    Alert.objects.create(
        rule=rule, gpu=gpu, opened_at=timezone.now(), last_seen_at=timezone.now()
    )


def test_a_gpu_whose_memory_fails_is_left_out_and_a_hot_one_is_slower(
    alice, gpus, redis_client
):
    finding(gpus[0], ECC)
    finding(gpus[1], REMAP_PENDING)
    hot = {
        "processes": [],
        "throttle": ["hw_thermal"],
        "memory_reserved_bytes": None,
    }
    detail = {"node": "node-a", "at": 0, "load1": None, "gpus": {gpus[2].uuid: hot}}
    redis_client.set(broadcast.DETAIL + "node-a", json.dumps(detail))
    gpus[2].sm_clock_max_mhz = 420
    gpus[2].save()
    _, by_label = offers(alice)

    assert "uncorrectable ECC" in by_label["node-a:0"].reason
    assert by_label["node-a:0"].free_bytes == 0
    assert by_label["node-a:1"].usable
    assert by_label["node-a:1"].health == ("row remap pending",)
    assert by_label["node-a:2"].speed_ratio == pytest.approx(0.5)
    assert by_label["node-a:3"].health == ()


def test_a_gpu_with_a_process_without_a_booking_is_offered_for_later_only(alice, gpus):
    """A job on it would wait until the process has left."""
    finding(gpus[0], SQUATTER)
    _, now = offers(alice)
    assert "process without a booking" in now["node-a:0"].reason
    assert not now["node-a:0"].usable and now["node-a:1"].usable
    _, later = offers(alice, at=timezone.now() + timedelta(hours=5))
    assert later["node-a:0"].usable


def test_a_finding_of_a_node_is_one_of_each_of_its_gpus(alice, gpus):
    at = timezone.now()
    Alert.objects.create(rule=WEDGED, node=gpus[0].node, opened_at=at, last_seen_at=at)
    _, by_label = offers(alice)

    assert not by_label["node-a:3"].usable
    assert by_label["node-b:0"].usable


def test_split_and_retired_gpus_are_never_offered_whole(alice, gpus):
    gpus[0].mig = True
    gpus[0].save()
    gpus[1].retired = True
    gpus[1].save()
    _, by_label = offers(alice)

    assert "instances" in by_label["node-a:0"].reason
    assert "node-a:1" not in by_label


def test_links_weights_and_the_network_are_offered(alice, gpus):
    node = gpus[0].node
    node.fast_links = [[gpus[0].uuid, gpus[1].uuid]]
    node.links = [[gpus[1].uuid, gpus[2].uuid, "pix"]]
    node.save()
    PlacementPolicy.objects.update_or_create(
        pk=1, defaults={"network_bytes_per_second": 1_250_000_000}
    )
    _, by_label = offers(alice)
    first, second, third = (by_label[f"node-a:{index}"] for index in range(3))

    assert first.link_group == second.link_group != ""
    assert (gpus[2].uuid, "pix") in second.links
    assert (gpus[1].uuid, "pix") in third.links
    assert first.network_bytes_per_second == 1.25e9
    assert first.weight == gpus[0].pool.weight


def test_the_nodes_own_memory_and_disk_are_offered(alice, gpus, redis_client):
    send_frame(redis_client, {})
    _, by_label = offers(alice)
    assert by_label["node-a:0"].host_free_bytes is None
    node = gpus[0].node
    node.ram_total_bytes, node.ram_free_bytes = 100 * GIB, 30 * GIB
    node.disk_free_bytes = 7 * GIB
    node.save()
    _, by_label = offers(alice)
    assert by_label["node-a:0"].host_free_bytes == 30 * GIB
    assert by_label["node-a:0"].disk_free_bytes == 7 * GIB
    _, by_label = offers(alice, at=timezone.now() + timedelta(hours=5))
    assert by_label["node-a:0"].host_free_bytes == 90 * GIB  # jobs of now are over


@pytest.mark.once
def test_the_soonest_plan_waits_for_the_first_gpus_that_come_free(alice, bob, gpus):
    now = timezone.now()
    make_reservation(bob, gpus, now, now + timedelta(hours=3))
    make_reservation(bob, gpus[:4], now + timedelta(hours=3), now + timedelta(hours=9))
    spec = well_known_spec("gpt2")
    soonest = soonest_plans(
        user=alice, spec=spec, workload=Workload(), at=None, hours=2, now=now
    )

    assert soonest.found.best.node == "node-b"
    assert 2.9 * 3600 < soonest.found.best.wait_seconds < 4.1 * 3600
    assert soonest.offered.start > now + timedelta(hours=2)


@pytest.mark.once
def test_with_gpus_free_now_the_soonest_plan_waits_for_nothing(alice, gpus):
    soonest = soonest_plans(
        user=alice,
        spec=well_known_spec("gpt2"),
        workload=Workload(),
        at=None,
        hours=2,
        now=timezone.now(),
    )

    assert soonest.found.best.wait_seconds == 0


@pytest.mark.once
def test_where_nothing_ever_fits_the_first_answer_stands(alice, bob, gpus):
    now = timezone.now()
    make_reservation(bob, gpus, now, now + timedelta(hours=3))
    soonest = soonest_plans(
        user=alice,
        spec=well_known_spec("llama-3.1-405b"),
        workload=Workload(),
        at=None,
        hours=2,
        now=now,
        limits=PlanLimits(offload=False),
    )

    assert soonest.found.plans == ()
    assert not soonest.offered.later


@pytest.mark.once
def test_the_earliest_start_of_a_plan_is_found_in_the_calendar(alice, bob, gpus):
    now = timezone.now()
    found, _ = offers(alice)
    plans = make_plans(
        spec=well_known_spec("gpt2"),
        workload=Workload(batch=32),
        offers=found.offers,
        objective="fastest",
    )
    wide = next(one for one in plans.plans if len(one.shards) == 4)
    at = now + timedelta(hours=1)
    free = earliest_start(plan=wide, at=at, hours=2, now=now)
    make_reservation(bob, gpus[:1], at, at + timedelta(hours=5))
    later = earliest_start(plan=wide, at=at, hours=2, now=now)

    assert free.same
    assert free.window.start <= at + timedelta(hours=1)
    assert later.window.start >= at + timedelta(hours=5)
    with pytest.raises(WorkloadInvalid):
        earliest_start(plan=wide, at=at, hours=0, now=now)


class TestTheApi:
    """POST /api/v1/plans and /api/v1/models."""

    def post(self, user, body):
        return signed_in(user).post(
            "/api/v1/plans", body, content_type="application/json"
        )

    @pytest.mark.once
    def test_a_lab_of_old_cards_plans_what_they_can_run(self, alice, gpus):
        Gpu.objects.update(name="Tesla T4")
        told = self.post(alice, {"model": "gpt2"}).json()
        used = told["workload"]
        assert (used["precision"], used["attention"]) == ("autocast_fp16", "efficient")
        assert told["plans"]
        asked = {"task": "infer", "attention": "math"}
        used = self.post(alice, {"model": "gpt2", "workload": asked}).json()["workload"]
        assert (used["precision"], used["attention"]) == ("fp16", "math")

    def test_plans_come_with_estimate_and_refusals(self, alice, gpus):
        workload = {"batch": 2, "sequence_length": 256}
        answer = self.post(alice, {"model": "gpt2", "workload": workload})
        body = answer.json()
        assert answer.status_code == 200
        assert body["spec"]["parameter_count"] == 124_439_808
        assert body["estimate"]["likely_bytes"] > GIB
        assert body["plans"][0]["strategy"] == "single"
        assert body["gpu_ids"][gpus[0].uuid] == gpus[0].pk
        assert {"strategy", "reason", "missing_bytes"} <= set(body["refusals"][0])
        assert datetime.fromisoformat(body["window"]["end"])

    @pytest.mark.once
    def test_a_config_is_parsed_as_an_upload_is(self, alice, gpus):
        config = {"model_type": "gpt2", "n_layer": 3}
        answer = self.post(alice, {"config": config, "at": "2020-01-01T00:00"})
        assert answer.json()["spec"]["layers"] == 3

    @pytest.mark.once
    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "model"),
            ({"model": "gpt2", "config": {}}, "model"),
            ({"model": "nosuch"}, "name"),
            ({"model_id": 10**30}, "upload"),
            ({"config": {"model_type": "nosuch"}}, "model_type"),
            ({"model": "gpt2", "workload": {"batch": -3}}, "batch"),
            ({"model": "gpt2", "workload": {"colour": 1}}, "colour"),
            ({"model": "gpt2", "workload": {"task": []}}, "task"),
            ({"model": "gpt2", "hours": 0}, "hours"),
            ({"model": "gpt2", "max_gpus": 0}, "max_gpus"),
            ({"model": "gpt2", "reservation": 10**25}, "reservation"),
            ({"model": "gpt2", "at": "9999-01-01T00:00"}, "at"),
            ({"model": "gpt2", "at": "soon"}, "at"),
        ],
    )
    def test_bad_input_is_a_problem_that_names_the_field(
        self, alice, gpus, body, field
    ):
        answer = self.post(alice, body)
        assert answer.status_code == 422, answer.content
        assert answer["Content-Type"] == "application/problem+json"
        assert list(answer.json()["fields"]) == [field]

    @pytest.mark.once
    def test_a_file_is_uploaded_and_planned_by_its_number(self, alice, gpus, tmp_path):
        path = tmp_path / "config.json"
        path.write_text('{"model_type": "gpt2"}')
        with path.open("rb") as file:
            made = signed_in(alice).post("/api/v1/models", {"file": file})
        assert made.status_code == 201, made.content
        answer = self.post(alice, {"model_id": made.json()["id"]})
        assert answer.json()["spec"]["family"] == "gpt2"
