"""The remaining use of an ended Job: an Alert with its name, a message to the next
holder.
"""

import json
import os
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone

from gpuportal.alerts.text import facts_of, sentence
from placement.jobs.tick import gpu_release_check
from placement.jobs.tick.job_tick import tick
from placement.models import Job
from reservations.models import Notice
from reservations.rules.lifecycle import State
from telemetry.agent.simulated_probe import SimulatedProbe, write_claim
from telemetry.agent.simulated_processes import drop_claim
from telemetry.live import broadcast
from telemetry.models import Alert
from telemetry.protocol.codec import to_plain
from tests.factories import make_gpu, make_node, make_reservation
from tests.placement import nodes
from tests.placement.lab import GIB, send_frame

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture
def gpu(tmp_path):
    """A simulated Gpu, as its node and the database know it."""
    place = SimpleNamespace(sim_dir=tmp_path, name="node1")
    nodes.write_simulation(place, ("GPU-node1-0",))
    return make_gpu(make_node("node1"), uuid="GPU-node1-0", index=0)


@pytest.fixture
def job(alice, gpu):
    ran = make_reservation(
        alice, [gpu], start=NOW - timedelta(minutes=30), state=State.ACTIVE
    )
    return Job.objects.create(
        reservation=ran,
        owner=alice,
        node=gpu.node,
        name="try",
        kind="recipe",
        recipe="burn-in",
        attempt=1,
        state="done",
        gpu_ids=[gpu.pk],
        started_at=NOW - timedelta(minutes=5),
        ended_at=NOW - timedelta(seconds=10),
    )


@pytest.fixture
def tell(tmp_path, redis_client):
    """Sample the simulated node and publish the result, as ingest does."""
    probe = SimulatedProbe(tmp_path, "node1")
    probe.open()

    def send(used_mib=None, frames=gpu_release_check.FRAMES):
        probe.begin(time.time())
        reading = to_plain(probe.read_gpu("GPU-node1-0"))
        used = reading["memory_used_bytes"] // 2**20 if used_mib is None else used_mib
        for _ in range(frames):
            send_frame(redis_client, {0: used})
        detail = {
            "node": "node1",
            "at": time.time(),
            "load1": None,
            "gpus": {
                "GPU-node1-0": {key: reading[key] for key in ("processes", "throttle")}
            },
        }
        redis_client.set(broadcast.DETAIL + "node1", json.dumps(detail))

    return send


def after(seconds):
    return NOW + timedelta(seconds=seconds)


def claim(tmp_path, job):
    return write_claim(
        tmp_path,
        "node1",
        pid=os.getpid(),
        gpu="GPU-node1-0",
        memory_bytes=8 * GIB,
        util_pct=50.0,
        user="alice",
        job=job.pk,
    )


def test_a_process_of_an_ended_job_is_an_alert_until_it_is_gone(
    tmp_path, monkeypatch, gpu, job, tell, bob, redis_client
):
    monkeypatch.setattr(gpu_release_check, "FRESH_SECONDS", 1e6)
    claim(tmp_path, job)
    tell()
    assert gpu_release_check.update_alerts(after(5)) == 0, "it may still be letting go"
    assert tick(after(15))["still_held"] == 1
    alert = Alert.objects.get()
    assert (alert.gpu, alert.reservation_id) == (gpu, job.reservation_id)
    assert (alert.rule, alert.detail["job"]) == (gpu_release_check.HELD_RULE, job.pk)
    assert alert.detail["memory_bytes"] == 8 * GIB
    assert alert.detail["processes"][0]["pid"] == os.getpid()
    assert sentence(alert.rule) and ("Job", f"#{job.pk}") in facts_of(alert, people="")
    assert gpu_release_check.update_alerts(after(16)) == 0, "it stands already"
    # The Reservation ends, and the next one begins soon.
    type(job.reservation).objects.filter(pk=job.reservation_id).update(
        state=State.ENDED
    )
    job.reservation.allocations.update(live=False)
    following = make_reservation(bob, [gpu], start=after(3600))
    assert gpu_release_check.notify_next_holders(after(20)) == 0, "an hour is far away"
    at = after(3600 - gpu_release_check.NEXT_SECONDS)
    assert tick(at)["next_told"] == 1 and gpu_release_check.notify_next_holders(at) == 0
    notice = Notice.objects.get(user=bob)
    assert notice.reservation == following
    assert notice.kind == Notice.Kind.JOB_HELD
    assert f"{gpu} is not free yet" in notice.detail["text"]
    assert gpu_release_check.update_alerts(at) == 0
    redis_client.delete(broadcast.FRAME_LATEST)
    gpu_release_check.update_alerts(at)
    assert Alert.objects.open().exists(), "who sees nothing closes nothing"
    drop_claim(tmp_path, "node1", pid=os.getpid())
    tell()
    gpu_release_check.update_alerts(at)
    assert not Alert.objects.open().exists()


def test_memory_that_no_process_shows_is_the_last_jobs(
    monkeypatch, gpu, job, tell, alice
):
    monkeypatch.setattr(gpu_release_check, "FRESH_SECONDS", 1e6)
    tell(used_mib=8192, frames=gpu_release_check.FRAMES - 1)
    assert gpu_release_check.update_alerts(after(15)) == 0, "not long enough to be sure"
    tell(used_mib=8192, frames=1)
    Job.objects.filter(pk=job.pk).update(ended_at=after(-30))
    running = Job.objects.create(
        reservation=job.reservation,
        owner=alice,
        node=gpu.node,
        name="next",
        kind="recipe",
        recipe="burn-in",
        state="running",
        gpu_ids=[gpu.pk],
    )
    assert gpu_release_check.update_alerts(after(15)) == 0, (
        "it may be the running job's"
    )
    Job.objects.filter(pk=running.pk).update(state="failed", ended_at=after(-10))
    assert gpu_release_check.update_alerts(after(15)) == 1
    alert = Alert.objects.get()
    assert alert.detail["job"] == running.pk, "the last one that ran there"
    assert alert.detail["memory_bytes"] == 8 * GIB
    tell(used_mib=400)
    gpu_release_check.update_alerts(after(20))
    assert not Alert.objects.open().exists()
