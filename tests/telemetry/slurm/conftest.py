"""A Slurm cluster for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.telemetry.slurm.slurm_processes import SlurmProcesses, slurm_processes


@pytest.fixture(scope="session")
def _cluster() -> Iterator[SlurmProcesses]:
    """Run one cluster for all tests. It starts in two seconds."""
    with slurm_processes() as found:
        yield found


@pytest.fixture
def cluster(_cluster: SlurmProcesses) -> SlurmProcesses:
    """Give a test the cluster, idle and without jobs."""
    _cluster.settle()
    return _cluster
