"""The rows that a reading of Slurm makes and changes."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command

from telemetry.inventory.enrollment import enroll_node, renew_token
from telemetry.inventory.queries import load_cluster
from telemetry.models import Gpu, Node, SlurmCluster, SlurmGpu
from telemetry.protocol.errors import NodeUnknown
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import SlurmGpuView, SlurmNodeView
from telemetry.slurm.service import gpu_uuid, read_cluster, record_view
from telemetry.slurm.slurm_commands import SlurmCommands, SlurmSilent

pytestmark = pytest.mark.django_db
NOW = datetime(2030, 1, 1, tzinfo=UTC)
UNTIL = int(NOW.timestamp()) + 600


def view(*gpus: SlurmGpuView, name: str = "gp1", reason: str = "") -> SlurmNodeView:
    return SlurmNodeView(name, gpus, reason)


def busy(index: int = 0, user: str = "ada", **more) -> SlurmGpuView:
    more = {"job_id": 7, "until": UNTIL} | more
    return SlurmGpuView(index, "a100", SlurmUse.BUSY, unix_user=user, **more)


FREE = SlurmGpuView(1, "a100", SlurmUse.FREE)


def record(*views: SlurmNodeView, now: datetime = NOW):
    return record_view("lab", views, version="22.05.8", now=now)


def test_a_reading_makes_nodes_and_gpus():
    changes = record(view(busy(), FREE))
    assert (changes.nodes, changes.gpus, changes.changed) == (1, 2, 2)
    node = Node.objects.get(name="gp1")
    assert (node.engine, node.accepts("")) == (Node.Engine.SLURM, False)
    first, second = Gpu.objects.order_by("index")
    assert (first.uuid, first.name, first.foreign) == ("slurm-lab-gp1-0", "a100", True)
    assert first.pool.gpu_class == "a100 (Slurm lab)"
    assert not Gpu.objects.bookable().exists()
    assert (first.slurm.use, first.slurm.unix_user, first.slurm.job_id) == (
        "busy",
        "ada",
        7,
    )
    assert first.slurm.until == NOW + timedelta(minutes=10)
    assert (second.slurm.use, second.slurm.until) == ("free", None)


def test_the_same_reading_changes_nothing(django_assert_max_num_queries):
    record(view(busy(), FREE))
    with django_assert_max_num_queries(12):
        changes = record(view(busy(), FREE), now=NOW + timedelta(seconds=15))
    assert changes.changed == 0
    assert SlurmCluster.objects.get().read_at == NOW + timedelta(seconds=15)


def test_many_changes_are_few_queries(django_assert_max_num_queries):
    nodes = [f"gp{n}" for n in range(40)]
    record(*[view(busy(0), busy(1), name=name) for name in nodes])
    with django_assert_max_num_queries(14):
        changes = record(*[view(busy(0, "bo"), busy(1), name=name) for name in nodes])
    assert changes.changed == 40


def test_a_changed_holder_is_one_change():
    record(view(busy(), FREE))
    assert record(view(busy(user="bo"), FREE)).changed == 1
    assert SlurmGpu.objects.get(gpu__index=0).unix_user == "bo"


def test_a_gpu_that_slurm_no_longer_lists_is_absent_and_comes_back():
    record(view(busy(), FREE))
    assert record(view(busy())).changed == 1
    assert not Gpu.objects.get(index=1).present
    assert record(view(busy())).changed == 0
    assert record(view(busy(), FREE)).changed == 1
    assert Gpu.objects.get(index=1).present


def test_a_gpu_that_was_replaced_has_its_new_type():
    record(view(FREE))
    assert record(view(replace(FREE, kind="h100"))).changed == 1
    gpu = Gpu.objects.get()
    assert (gpu.name, gpu.pool.gpu_class) == ("h100", "h100 (Slurm lab)")


def test_a_node_belongs_to_one_engine():
    enroll_node(name="gp1", simulated=False, now=NOW)
    changes = record(view(busy()), view(FREE, name="gp2"), view(FREE, name="a.b"))
    assert [name for name, _why in changes.skipped] == ["gp1", "a.b"]
    assert not Gpu.objects.filter(node__name="gp1").exists()
    assert SlurmCluster.objects.get().skipped[0][0] == "gp1"
    with pytest.raises(NodeUnknown):
        renew_token(name="gp2")


def test_a_retired_node_stays_retired():
    record(view(busy()))
    call_command("retire_node", "gp1")
    assert not Gpu.objects.shown().exists()
    changes = record(view(busy()))
    assert changes.skipped == [("gp1", "it is retired in the portal")]


def test_ingest_reads_no_stream_of_a_node_of_slurm():
    record(view(busy()))
    cluster = load_cluster()
    assert (cluster.nodes, dict(cluster.bound)) == ((), {})
    (gpu,) = cluster.gpus
    assert gpu.slurm is not None
    assert (gpu.slurm.use, gpu.slurm.read_at) == ("busy", NOW)


def test_a_failure_takes_nothing_away(tmp_path):
    record(view(busy()))
    # Without the commands of Slurm.
    commands = SlurmCommands(folder=str(tmp_path))
    changes = read_cluster("lab", commands)
    assert (changes.answered, changes.changed) == (False, 1)
    since = SlurmCluster.objects.get().failing_since
    assert read_cluster("lab", commands).changed == 0
    cluster = SlurmCluster.objects.get()
    assert (cluster.failing_since, cluster.read_at) == (since, NOW)
    assert cluster.failure == f"scontrol is not in {tmp_path}"
    assert SlurmGpu.objects.get().unix_user == "ada"
    assert record(view(busy())).changed == 1
    assert SlurmCluster.objects.get().failing_since is None


def test_all_commands_end_before_one_deadline(tmp_path):
    slow = tmp_path / "scontrol"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    deadline = time.monotonic() + 0.2
    commands = SlurmCommands(folder=str(tmp_path), deadline=deadline)
    with pytest.raises(SlurmSilent, match="scontrol: no answer in 0 s"):
        commands.delete_reservation("gp_lab1_1")
    slow.unlink()
    slow.write_text("")
    slow.chmod(0o700)
    with pytest.raises(SlurmSilent, match="no time is left"):
        commands.ping()


def test_texts_of_any_length_are_stored():
    long = replace(busy(), unix_user="u" * 999, account="\0" + "a" * 999)
    record(view(long, reason="r" * 999))
    assert len(SlurmGpu.objects.get().account) == 80


@pytest.mark.parametrize("node", ["gp_1", "n" * 90])
def test_an_identity_fits_the_column(node):
    found = gpu_uuid("lab", node, 0)
    assert len(found) <= 80
    assert "_" not in found
    assert found != gpu_uuid("lab", node, 1)
