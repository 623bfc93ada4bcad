"""``/metrics``: Prometheus's format, and the queries of NVIDIA's Grafana board."""

import json
import math
import os
import re
import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from redis import RedisError

from gpuportal import celery, ticks, work_counters
from gpuportal.backup import last_backup
from gpuportal.logs import process_usage
from placement.models import Job
from reservations.accounts import tasks
from reservations.accounts.api_tokens import create_token
from reservations.models import ApiToken, SitePolicy
from reservations.rules.lifecycle import State
from telemetry.inventory.queries import load_cluster
from telemetry.live import broadcast
from telemetry.models import Alert, Node
from telemetry.protocol.frame import Frame, FrameRow, encode
from telemetry.protocol.gpu_state import GpuState
from tests.factories import GIB, make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db(transaction=True)

CHOSEN = 'Hostname=~"$Hostname", gpu=~"$gpu"'
BOARD_QUERIES = [
    line.replace("CHOSEN", CHOSEN)
    for line in """
max(DCGM_FI_DEV_GPU_TEMP{CHOSEN}) by (Hostname, gpu, uuid)
avg(DCGM_FI_DEV_GPU_TEMP{CHOSEN})
max(DCGM_FI_DEV_POWER_USAGE{CHOSEN}) by (Hostname, gpu, uuid)
sum(max(DCGM_FI_DEV_POWER_USAGE{CHOSEN}) by (gpu))
max(DCGM_FI_DEV_SM_CLOCK{CHOSEN} * 1000000) by (Hostname, UUID, gpu)
max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{CHOSEN}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)
max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{CHOSEN}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)
max(DCGM_FI_DEV_FB_USED{CHOSEN}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)
label_values(DCGM_FI_DEV_FB_FREE, Hostname)
label_values(DCGM_FI_DEV_FB_FREE{Hostname=~"$Hostname"}, gpu)
DCGM_FI_DEV_GPU_UTIL{instance=~"${instance}", gpu=~"${gpu}"}
""".strip().splitlines()
]
"""What the panels and variables of grafana.com's board 12239 ask for: the version in
dcgm-exporter's repository, and in the last line the older one of its first release."""
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds to every scrape."""


def asked(query: str) -> tuple[str, set[str]]:
    """Return the metric of a query, and the labels that it needs."""
    metric = re.search(r"DCGM_\w+", query)
    assert metric is not None
    labels = set(re.findall(r"(\w+)=~", query))
    for group in re.findall(r"by \(([^)]*)\)", query):
        labels |= set(group.split(", "))
    values = re.fullmatch(r"label_values\(.*, (\w+)\)", query)
    return metric[0], (labels | ({values[1]} if values else set())) - OF_PROMETHEUS


def bearer(user, *scopes: str) -> dict:
    _, text = create_token(
        user=user, label="prom", scopes=scopes, days=9, now=timezone.now()
    )
    return {"HTTP_AUTHORIZATION": f"Bearer {text}"}


def told(client, gpus, rows, details=None, *, age_seconds: float = 0.0) -> None:
    """Put a frame, its roster and details where ingest would have put them."""
    cluster = load_cluster()
    at = time.time() - age_seconds
    client.set(broadcast.ROSTER, cluster.roster)
    client.set(
        broadcast.FRAME_LATEST, encode(Frame(cluster.roster_id, at, tuple(rows)))
    )
    detail = {"node": gpus[0].node.name, "at": at, "load1": 0.5, "gpus": details or {}}
    client.set(broadcast.DETAIL + gpus[0].node.name, json.dumps(detail))


BUSY = FrameRow(
    state=GpuState.BUSY,
    util_pct=93,
    memory_used_mib=61 * 1024,
    temperature_celsius=64,
    power_watts=287,
    sm_clock_mhz=1410,
    age_seconds=0.3,
)


def samples(answer) -> dict[str, list]:
    """Every sample of an answer by its metric's name."""
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(answer.content.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


@pytest.fixture
def lab(redis_client, time_machine):
    """Two Gpus of one node, of which only the first answers. Time is frozen."""
    time_machine.move_to(timezone.now(), tick=False)
    gpus = make_gpus(2, make_node("node-a", driver_version="570.86"))
    details = {
        gpus[0].uuid: {"memory_reserved_bytes": GIB // 2, "energy_joules": 12.5},
    }
    told(redis_client, gpus, [BUSY, FrameRow(state=GpuState.STALE)], details)
    return gpus


@pytest.mark.once
@pytest.mark.parametrize("query", BOARD_QUERIES)
def test_what_nvidias_board_asks_for_is_there(client, lab, alice, query):
    found = samples(client.get("/metrics", **bearer(alice, "metrics")))
    metric, labels = asked(query)
    assert found[metric], f"{metric} has no sample"
    for sample in found[metric]:
        assert labels <= sample.labels.keys()


@pytest.mark.once
def test_values_are_in_dcgms_units_and_the_booking_is_told(client, lab, alice):
    now = timezone.now()
    held = make_reservation(
        alice,
        [lab[0]],
        now - timedelta(hours=1),
        now + timedelta(hours=1),
        state=State.ACTIVE,
    )
    found = samples(client.get("/metrics", **bearer(alice, "metrics")))
    by_name = {name: rows[0].value for name, rows in found.items() if rows}
    assert by_name["DCGM_FI_DEV_GPU_UTIL"] == 93
    assert by_name["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] == 0.93
    assert by_name["DCGM_FI_DEV_FB_USED"] == 61 * 1024
    assert by_name["DCGM_FI_DEV_FB_FREE"] == (80 - 61) * 1024 - 512
    assert by_name["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == 12_500
    tags = found["DCGM_FI_DEV_GPU_UTIL"][0].labels
    assert (tags["holder"], tags["group"]) == ("Alice", "Vision")
    assert tags["reservation"] == str(held.pk)
    assert (tags["Hostname"], tags["gpu"], tags["UUID"]) == ("node-a", "0", lab[0].uuid)
    assert tags["DCGM_FI_DRIVER_VERSION"] == "570.86"


@pytest.mark.once
def test_what_nobody_read_is_a_gap_and_no_zero(client, lab, alice):
    found = samples(client.get("/metrics", **bearer(alice, "metrics")))
    assert [s.labels["gpu"] for s in found["DCGM_FI_DEV_GPU_UTIL"]] == ["0"]
    assert "DCGM_FI_DEV_MEMORY_TEMP" not in found
    assert math.isnan(found["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"][0].value)
    states = {s.labels["gpu"]: s.labels["state"] for s in found["gpuportal_gpu_state"]}
    assert states["1"] == "stale"


@pytest.mark.once
def test_an_old_frame_says_nothing_but_its_age(client, lab, alice, redis_client):
    told(redis_client, lab, [BUSY, BUSY], age_seconds=60)
    found = samples(client.get("/metrics", **bearer(alice, "metrics")))
    assert "DCGM_FI_DEV_GPU_UTIL" not in found
    assert 59 < found["gpuportal_frame_age_seconds"][0].value < 70


@pytest.mark.once
def test_names_follow_the_sites_privacy(client, lab, alice, omar):
    now = timezone.now()
    make_reservation(alice, [lab[0]], now, now + timedelta(hours=1))
    SitePolicy.objects.update_or_create(pk=1, defaults={"names_visible": False})
    # Also for the operator: a scrape is stored for years and read by everybody.
    found = samples(client.get("/metrics", **bearer(omar, "metrics")))
    tags = found["DCGM_FI_DEV_GPU_UTIL"][0].labels
    assert (tags["holder"], tags["group"]) == ("", "Vision")


@pytest.mark.once
def test_without_a_token_nothing_is_told(client, lab, alice):
    client.force_login(alice)
    answer = client.get("/metrics")
    assert answer.status_code == 401
    assert answer["Content-Type"] == "application/problem+json"
    assert "Bearer" in answer["WWW-Authenticate"]
    assert client.get("/metrics", HTTP_AUTHORIZATION="Bearer no").status_code == 401


def test_a_token_for_something_else_or_revoked_is_refused(client, lab, alice):
    refused = client.get("/metrics", **bearer(alice, "read"))
    assert refused.status_code == 403
    assert "metrics" in refused.json()["detail"]
    good = bearer(alice, "metrics")
    assert client.get("/metrics", **good).status_code == 200
    assert client.get("/api/v1/gpus", **good).status_code == 403
    ApiToken.objects.update(revoked_at=timezone.now())
    assert client.get("/metrics", **good).status_code == 401


@pytest.mark.once
def test_a_thousand_gpus_cost_the_same_queries(
    client, alice, redis_client, django_assert_max_num_queries
):
    token = bearer(alice, "metrics")
    node = make_node("node-a")
    gpus = make_gpus(40, node)
    told(redis_client, gpus, [BUSY] * 40)
    client.get("/metrics", **token)
    with django_assert_max_num_queries(7):
        answer = client.get("/metrics", **token)
    assert len(samples(answer)["DCGM_FI_DEV_GPU_UTIL"]) == 40


def test_a_split_cards_memory_is_counted_once(client, alice, redis_client):
    """The card and its instances share the memory: a sum over the node has it once."""
    node = make_node("split")
    card, part = make_gpus(2, node)
    card.mig = True
    card.save()
    part.mig_parent, part.mig_instance = card.uuid, 7
    part.name = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    part.save()
    cluster = load_cluster()
    rows = tuple(
        FrameRow(state=GpuState.MIG, memory_used_mib=500) for _ in cluster.gpus
    )
    broadcast.publish_roster(redis_client, cluster.roster)
    broadcast.publish_frame(
        redis_client, encode(Frame(cluster.roster_id, time.time(), rows))
    )
    text = client.get("/metrics", **bearer(alice, "metrics")).content.decode()
    families = {f.name: f for f in text_string_to_metric_families(text)}
    for name in ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"):
        (only,) = families[name].samples
        assert (only.labels["GPU_I_ID"], only.labels["GPU_I_PROFILE"]) == (
            "7",
            "1g.10gb",
        )


# --- the files for Prometheus and Grafana -----------------------------------------

MONITORING = Path(__file__).resolve().parents[3] / "deploy/monitoring"


def shipped_queries() -> list[str]:
    """Return the queries of the alert rules and of the dashboard."""
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    board = json.loads((MONITORING / "dashboard.json").read_text())
    return [
        *(rule["expr"] for group in rules["groups"] for rule in group["rules"]),
        *(one["expr"] for panel in board["panels"] for one in panel["targets"]),
    ]


@pytest.mark.once
def test_what_the_shipped_files_ask_for_is_there(
    client, lab, alice, redis_client, monkeypatch
):
    now = timezone.now()
    hour = timedelta(hours=1)
    held = make_reservation(alice, lab[:1], now - hour, now + hour, state=State.ACTIVE)
    Alert.objects.create(rule="hot", opened_at=now, last_seen_at=now, gpu=lab[0])
    Job.objects.create(reservation=held, owner=alice, name="a job", node=lab[0].node)
    last = last_backup.LastBackup(made_at=time.time(), verified_at=time.time())
    monkeypatch.setattr(last_backup, "read_last", lambda: last)
    Node.objects.update(last_seen_at=now - timedelta(seconds=7))
    ticks.begin()
    work_counters.write()
    redis_client.delete(work_counters.KEY)
    work_counters.count("request", "2xx", 0.25)
    work_counters.count("request", "2xx", 0.5)
    work_counters.count("request", "5xx", 1)
    work_counters.count("refused", "429", 1)
    process_usage.write("web")
    for state in ("SUCCESS", "FAILURE"):
        celery.note_begin(task_id="t")
        celery.count_task(task_id="t", task=tasks.invite, state=state)
    work_counters.write()
    redis_client.rpush("control", "one", "two")
    redis_client.rpush("control\x06\x163", "three")
    found = samples(client.get("/metrics", **bearer(alice, "metrics")))
    queries = shipped_queries()
    assert len(queries) > 20
    for query in queries:
        for name, labels in re.findall(r"((?:gpuportal|DCGM)_\w+)(?:\{(\w+))?", query):
            assert found[name], f"{name} has no sample"
            assert not labels or labels in found[name][0].labels
        # Prometheus itself adds the label of the instance.
        for group in set(re.findall(r"by \((\w+)\)", query)) - {"instance"}:
            name = re.search(r"(?:gpuportal|DCGM)_\w+", query)
            assert group in found[name[0]][0].labels
    requests = found["gpuportal_requests_total"]
    answered = {one.labels["status"]: one.value for one in requests}
    # A series that is there before its first increase: Prometheus counts it.
    assert answered == {"2xx": 2, "3xx": 0, "4xx": 0, "5xx": 1}
    refused = found["gpuportal_requests_refused_total"]
    answered = {one.labels["status"]: one.value for one in refused}
    assert answered == {"401": 0, "403": 0, "429": 1}
    took = found["gpuportal_request_seconds_total"]
    assert [one.value for one in took] == [0.75, 0, 0, 1]
    ends = {one.labels["state"]: one.value for one in found["gpuportal_tasks_total"]}
    assert ends == {"done": 1, "failed": 1}
    queues = {one.labels["queue"]: one.value for one in found["gpuportal_queue_length"]}
    assert queues == {"control": 3, "refine": 0, "node.node-a": 0}
    assert found["gpuportal_node_age_seconds"][0].value == pytest.approx(7, abs=0.1)
    assert found["gpuportal_tasks_late"][0].value == 0


@pytest.mark.once
def test_memory_and_processor_time_of_each_process_until_it_ends(
    client, lab, alice, redis_client, monkeypatch, time_machine
):
    redis_client.delete(process_usage.NAMES_KEY)
    monkeypatch.setattr(celery, "_process", ["worker"])
    started = []
    monkeypatch.setattr(process_usage, "start", started.append)
    monkeypatch.setattr(work_counters, "start", lambda: None)
    for name in ("control@atlas", "refine@atlas"):
        celery.note_name(sender=name)
        celery.write_counts()
    assert started == ["worker", "refine"]
    for process in ("web", *started):
        process_usage.write(process)
    found = samples(client.get("/metrics", **bearer(alice, "metrics")))
    memory = found["gpuportal_process_resident_memory_bytes"]
    assert {one.labels["process"] for one in memory} == {"web", "worker", "refine"}
    for one in memory:
        assert one.labels["pid"] == str(os.getpid()) and one.labels["host"]
        assert 10e6 < one.value < 64e9
    used = os.times().user + os.times().system
    for one in found["gpuportal_process_cpu_seconds_total"]:
        assert 0 < one.value <= used + 0.1
    assert found["gpuportal_process_open_fds"][0].value > 2
    # The broker forgets a process that does not write, and so do the names.
    gone = [key for key in redis_client.keys("portal.process *") if b"refine" in key]
    assert 0 < redis_client.ttl(gone[0]) <= process_usage.EXPIRE_SECONDS
    redis_client.delete(*gone)
    time_machine.shift(process_usage.EXPIRE_SECONDS + 1)
    process_usage.write("web")
    assert redis_client.zcard(process_usage.NAMES_KEY) == 1
    found = samples(client.get("/metrics", **bearer(alice, "metrics")))
    memory = found["gpuportal_process_resident_memory_bytes"]
    assert [one.labels["process"] for one in memory] == ["web"]


def test_a_broker_that_is_away_ends_no_process(monkeypatch, caplog):
    away = MagicMock()
    away.pipeline.side_effect = RedisError("away")
    monkeypatch.setattr(process_usage.ticks, "broker", lambda: away)
    caplog.set_level("INFO", "gpuportal.logs.process_usage")
    process_usage.write("web")
    assert "not stored: away" in caplog.text
