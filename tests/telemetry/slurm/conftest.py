"""A Slurm cluster for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.telemetry.slurm.live_cluster import LiveCluster, live_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[LiveCluster]:
    """Run one cluster for all tests. It starts in two seconds."""
    with live_cluster() as found:
        yield found
