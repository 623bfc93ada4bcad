"""The real Slurm 22.05 of Debian: what its commands print, and how it fails."""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from telemetry import tasks
from telemetry.ingest.loop import judge_bare
from telemetry.ingest.readings import frame_rows
from telemetry.inventory.queries import load_cluster
from telemetry.live.broadcast import CALENDAR_CHANGED
from telemetry.models import Gpu, Node, SlurmCluster, SlurmGpu
from telemetry.protocol.gpu_state import GpuState
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import view_cluster
from telemetry.slurm.slurm_commands import SlurmCommands
from tests.telemetry.slurm.slurm_processes import SlurmProcesses

FREE, BUSY, CLOSED = SlurmUse.FREE, SlurmUse.BUSY, SlurmUse.CLOSED


@pytest.mark.pure
def test_the_commands_of_a_cluster_are_read(cluster: SlurmProcesses) -> None:
    slurm = SlurmCommands(conf=str(cluster.conf))
    slurm.ping()
    version = slurm.version()

    def uses() -> dict[str, list[SlurmUse]]:
        found = view_cluster(
            slurm.nodes(version), slurm.jobs(), slurm.reservations(version), now=1e9
        )
        return {node.name: [gpu.use for gpu in node.gpus] for node in found}

    assert uses() == {"gp1": [FREE] * 4, "gp2": [FREE] * 2}
    two = cluster.submit("--gres=gpu:a100:2", "--time=20")
    one = cluster.submit("--gres=gpu:1", "--nodelist=gp2", "--time=20")
    cluster.wait_until(lambda: len(slurm.jobs()) == 2)
    assert uses() == {"gp1": [BUSY, BUSY, FREE, FREE], "gp2": [BUSY, FREE]}
    jobs = {job.job_id: job for job in slurm.jobs()}
    assert [share.gpus[0].indices for share in jobs[two].shares] == [(0, 1)]
    assert [share.gpus[0].kind for share in jobs[one].shares] == [""]
    assert jobs[two].user == cluster.run("id", "-un").strip()

    start = ("StartTime=now+60minutes", "Duration=60", "Users=root", "Nodes=gp2")
    cluster.run("scontrol", "create", "reservation", "ReservationName=r1", *start)
    (held,) = slurm.reservations(version)
    assert (held.name, held.nodes, held.users) == ("r1", ("gp2",), ("root",))
    assert held.end - held.start == 3600
    cluster.run("scontrol", "delete", "reservation", "r1")
    assert slurm.reservations(version) == []

    cluster.run("scontrol", "update", "NodeName=gp1", "State=DRAIN", "Reason=new fans")
    assert uses()["gp1"] == [BUSY, BUSY, CLOSED, CLOSED]
    cluster.run("scontrol", "update", "NodeName=gp1", "State=RESUME")

    settings = slurm.config()
    assert settings["ClusterName"] == "lab"
    assert settings["AccountingStorageType"] == "accounting_storage/none"

    cluster.run("scancel", str(one), str(two))
    cluster.wait_until(lambda: uses() == {"gp1": [FREE] * 4, "gp2": [FREE] * 2})


@pytest.mark.django_db(transaction=True)
def test_a_controller_is_killed_while_the_board_shows_its_gpus(
    cluster: SlurmProcesses, redis_client, settings, monkeypatch
) -> None:
    monkeypatch.setattr(tasks, "close_old_connections", lambda: None)
    assert tasks.read_slurm() == {}
    settings.SLURM_CLUSTER, settings.SLURM_CONF = "lab", str(cluster.conf)
    heard = redis_client.pubsub()
    heard.subscribe(CALENDAR_CHANGED)
    heard.get_message(timeout=5)
    job = cluster.submit("--gres=gpu:a100:2", "--nodelist=gp1", "--time=20")
    cluster.wait_until(lambda: "RUNNING" in cluster.run("squeue", "-ho", "%T"))

    assert tasks.read_slurm() == {"slurm_nodes": 2, "slurm_gpus_changed": 6}
    assert heard.get_message(timeout=5)
    assert Node.objects.filter(engine=Node.Engine.SLURM).count() == 2
    held = SlurmGpu.objects.get(gpu__node__name="gp1", gpu__index=0)
    assert (held.use, held.job_id) == ("busy", job)
    assert held.until is not None
    shown = {gpu.uuid: state for gpu, state in board_states()}
    assert shown["slurm-lab-gp1-0"] is GpuState.BUSY
    assert shown["slurm-lab-gp1-3"] is GpuState.FREE
    # One reader at a time.
    redis_client.set(tasks.SLURM_TURN, "1")
    assert tasks.read_slurm() == {}
    redis_client.delete(tasks.SLURM_TURN)

    cluster.wait_for_saved_jobs()
    cluster.kill("slurmctld")
    began = time.monotonic()
    assert tasks.read_slurm() == {"slurm_nodes": 0, "slurm_gpus_changed": 1}
    # Its clients would try for nine seconds.
    assert time.monotonic() - began < 5
    silent = SlurmCluster.objects.get()
    assert silent.failing_since is not None
    assert "DOWN" in silent.failure
    held.refresh_from_db()
    assert (held.use, held.job_id) == ("busy", job)
    assert Gpu.objects.filter(present=True).count() == 6
    later = timezone.now() + timedelta(minutes=5)
    assert {state for _gpu, state in board_states(later)} == {GpuState.STALE}

    cluster.start_slurmctld()
    cluster.wait_until(lambda: "RUNNING" in cluster.run("squeue", "-ho", "%T"))
    tasks.read_slurm()
    assert SlurmCluster.objects.get().failing_since is None
    held.refresh_from_db()
    assert (held.use, held.job_id) == ("busy", job)
    cluster.run("scancel", str(job))


def board_states(now=None):
    """Return the GPUs and their states in the live frame."""
    rows = frame_rows(
        load_cluster(), {}, judge_bare, now=now or timezone.now(), steady=0.0
    )
    return [(gpu, row.state) for gpu, row in rows]
