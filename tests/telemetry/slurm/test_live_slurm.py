"""The real Slurm 22.05 of Debian: what its commands print, and how it fails."""

import pytest

from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import view_cluster
from telemetry.slurm.slurm_commands import SlurmCommands, SlurmSilent
from tests.telemetry.slurm.live_cluster import LiveCluster

FREE, BUSY, CLOSED = SlurmUse.FREE, SlurmUse.BUSY, SlurmUse.CLOSED


@pytest.mark.pure
def test_a_cluster_from_its_start_to_a_crash(cluster: LiveCluster) -> None:
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

    cluster.wait_for_saved_jobs()
    cluster.kill("slurmctld")
    with pytest.raises(SlurmSilent, match="DOWN"):
        slurm.ping()
    cluster.start_slurmctld()
    cluster.wait_until(lambda: len(slurm.jobs()) == 2)
    assert uses() == {"gp1": [BUSY, BUSY, FREE, FREE], "gp2": [BUSY, FREE]}
    cluster.run("scancel", str(one), str(two))
    cluster.wait_until(lambda: uses() == {"gp1": [FREE] * 4, "gp2": [FREE] * 2})
