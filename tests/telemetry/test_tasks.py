"""The tick of telemetry."""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from telemetry import tasks
from telemetry.alerts.service import open_alert
from telemetry.history.minute_store import record_minutes
from telemetry.live.broadcast import FRAME_LATEST
from telemetry.models import Alert, SampleMinute
from telemetry.protocol.frame import Frame, encode
from telemetry.rules.alert_rules import SILENT
from telemetry.rules.rollup import MinuteTotals
from tests.factories import make_gpu, make_gpus, make_node

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _keep_connection(monkeypatch):
    monkeypatch.setattr(tasks, "close_old_connections", lambda: None)


KEPT = ("hours_rolled", "summaries_filled", "minutes_deleted", "hours_deleted")
"""Steps that run whether ingest does or not."""


def show_frame(client, age_seconds: float = 0.0) -> None:
    made = Frame(roster_id=1, server_at=time.time() - age_seconds, rows=())
    client.set(FRAME_LATEST, encode(made))


def test_the_tick_closes_marks_and_prunes_and_may_run_twice(redis_client):
    show_frame(redis_client)
    now = timezone.now()
    quiet = make_node("node-a", last_seen_at=now - timedelta(minutes=20))
    make_gpus(2, quiet)
    gpu = make_gpu(make_node("node-b"))
    long_ago = now - timedelta(days=40)
    open_alert(rule="intruder", gpu_id=gpu.pk, now=now - timedelta(hours=1))
    minute = int(long_ago.timestamp()) // 60 * 60
    record_minutes(totals={(gpu.pk, minute): MinuteTotals(n=1)})
    done = tasks.tick()
    assert done == {
        "alerts_closed": 1,
        "nodes_silent": 1,
        "channels_judged": 0,
        "refusals_judged": 0,
        "xids_judged": 0,
        **dict.fromkeys(KEPT, 0),
        "hours_rolled": 1,
        "minutes_deleted": 1,
    }
    assert tasks.tick() == dict.fromkeys(done, 0)
    assert Alert.objects.open().filter(rule=SILENT).count() == 1
    assert not SampleMinute.objects.exists()


@pytest.mark.parametrize("age_seconds", [None, 60.0])
def test_while_ingest_is_down_no_node_is_blamed_and_nothing_is_closed(
    redis_client, age_seconds
):
    if age_seconds is not None:
        show_frame(redis_client, age_seconds)
    long_ago = timezone.now() - timedelta(hours=1)
    gpu = make_gpu(make_node("node-a", last_seen_at=long_ago))
    open_alert(rule="intruder", gpu_id=gpu.pk, now=long_ago)
    assert tasks.tick() == dict.fromkeys(KEPT, 0)
    assert Alert.objects.open().get().rule == "intruder"


def test_a_frame_that_is_none_counts_as_blind(redis_client):
    redis_client.set(FRAME_LATEST, b"garbage")
    assert not tasks.sees(time.time())


def test_a_step_that_fails_does_not_stop_the_next(redis_client, monkeypatch, caplog):
    show_frame(redis_client)

    def fails(**_kwargs):
        raise ZeroDivisionError("one bad row")

    monkeypatch.setattr(tasks, "close_unseen_alerts", fails)
    judged = ("nodes_silent", "channels_judged", "refusals_judged", "xids_judged")
    others = dict.fromkeys((*judged, *KEPT), 0)
    assert tasks.tick() == others
    assert "alerts_closed failed" in caplog.text
