"""A portal beside a live Slurm."""

import pytest

from tests.placement.agent.slurm.live_portal import LivePortal
from tests.telemetry.slurm.conftest import _cluster, cluster
from tests.telemetry.slurm.slurm_processes import SlurmProcesses

__all__ = ["_cluster", "cluster"]


@pytest.fixture
def portal(
    *,
    live_server,
    redis_client,
    valkey_url,
    alice,
    tmp_path,
    settings,
    monkeypatch,
    cluster: SlurmProcesses,
) -> LivePortal:
    """Show the cluster on the board. Alice is the user who runs it."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    return LivePortal(
        tmp_path,
        settings=settings,
        user=alice,
        cluster=cluster,
        web_url=live_server.url,
        redis_url=valkey_url,
        client=redis_client,
    )
