"""From a node's messages to Alerts: one per cause, by themselves, with readings."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from telemetry.alerts.service import open_alert
from telemetry.models import Alert, TelemetryPolicy, XidCount
from telemetry.protocol.trouble import NodeTrouble, TroubleState
from telemetry.rules.alert_rules import RIGHTS, THERMAL, WEDGED
from tests.factories import make_gpu, make_node
from tests.telemetry.ingest.stepped import Stepped
from tests.telemetry.messages import reading, sample, send

pytestmark = pytest.mark.django_db


class Second:
    """A steady clock that a test moves on, and the ingest that runs by it."""

    def __init__(self, client) -> None:
        self.client = client
        self.skip = 0.0
        self.made = Stepped(
            client,
            steady=lambda: time.monotonic() + self.skip,
            ahead=lambda: self.skip,
        )

    def send(self, gpu, **more: object) -> None:
        """One second later a sample comes."""
        self.skip += 1
        at = time.time() + self.skip
        message = sample(reading(gpu.uuid, **more), at=at)
        send(self.client, "raw.node-a", message, at=at)
        self.made.round()


@pytest.fixture
def gpu():
    return make_gpu(make_node("node-a"))


def set_policy(**values: int) -> None:
    TelemetryPolicy.current()
    TelemetryPolicy.objects.update(**values)


def test_a_hot_card_is_one_alert_under_flapping_with_the_readings_that_made_it(
    gpu, redis_client
):
    set_policy(thermal_after_seconds=5, hardware_closes_after_seconds=4)
    second = Second(redis_client)
    for _ in range(3):
        for _ in range(8):
            second.send(gpu, throttle=["hw_thermal"], temperature_celsius=91)
        alert = Alert.objects.open().get()
        assert alert.rule == THERMAL
        for _ in range(6):
            second.send(gpu, temperature_celsius=60)
        assert not Alert.objects.open().exists()
    (only,) = Alert.objects.all()
    assert only.openings == 3
    assert {one["temperature_celsius"] for one in only.readings} == {91}
    assert 3 <= len(only.readings) <= 10
    assert only.severity == "warning"


def test_xids_of_a_sample_are_counted_and_open_their_alert(gpu, redis_client):
    second = Second(redis_client)
    second.send(gpu, xids=[{"code": 79, "at": time.time() - 1}])
    second.send(gpu)
    assert XidCount.objects.get().count == 1
    assert Alert.objects.open().get().rule == "critical XID"


@pytest.mark.once
def test_a_wedged_driver_is_one_alert_of_its_node_until_the_node_says_otherwise(
    gpu, redis_client
):
    make_gpu(gpu.node)
    second = Second(redis_client)
    for state in (TroubleState.WEDGED, TroubleState.OK):
        trouble = NodeTrouble("node-a", state, "state D for 30 s", time.time())
        redis_client.xadd("raw.node-a", {"m": trouble.to_message()})
        for _ in range(20):
            second.send(gpu)
        found = Alert.objects.get()
        assert (found.rule, found.place) == (WEDGED, "node-a")
        assert (found.closed_at is None) is (state is TroubleState.WEDGED)
    assert found.detail["reason"] == "state D for 30 s"


@pytest.mark.once
def test_missing_rights_are_a_finding_of_the_node_until_it_has_them(gpu, redis_client):
    second = Second(redis_client)
    why = "the driver does not let it see the processes on GPU 0"
    for state, reason in ((TroubleState.NO_RIGHTS, why), (TroubleState.OK, "")):
        trouble = NodeTrouble("node-a", state, reason, time.time())
        redis_client.xadd("raw.node-a", {"m": trouble.to_message()})
        for _ in range(20):
            second.send(gpu)
        found = Alert.objects.get(rule=RIGHTS)
        assert (found.place, found.detail) == ("node-a", {"reason": why})
        assert (found.closed_at is None) is (state is TroubleState.NO_RIGHTS)


def test_a_hot_card_stays_one_alert_over_a_restart_of_ingest(gpu, redis_client):
    set_policy(thermal_after_seconds=60)
    now = datetime.now(UTC)
    open_alert(rule=THERMAL, gpu_id=gpu.pk, now=now - timedelta(hours=1))
    second = Second(redis_client)
    for _ in range(70):
        second.send(gpu, throttle=["hw_thermal"])
    (only,) = Alert.objects.open()
    assert only.openings == 1
    assert json.dumps(only.readings) == "[]"
