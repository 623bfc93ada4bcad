"""A Slurm cluster for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.telemetry.slurm.live_cluster import LiveCluster, live_cluster


@pytest.fixture(scope="session")
def _cluster() -> Iterator[LiveCluster]:
    """Run one cluster for all tests. It starts in two seconds."""
    with live_cluster() as found:
        yield found


@pytest.fixture
def cluster(_cluster: LiveCluster) -> LiveCluster:
    """Give a test the cluster, idle and without jobs."""
    _cluster.settle()
    return _cluster
