"""Nodes, and a web of their own, for the tests of this floor."""

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuportal.node_settings import NodeSettings
from placement.agent.job_folder import job_folders
from tests.placement import nodes
from tests.placement.agent.runtime.fork_server import ForkServer


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """One process that has imported torch, for all tests that start ones that need
    it.
    """
    server = ForkServer(tmp_path_factory.mktemp("forks"))
    yield server
    server.close()


@pytest.fixture
def node(tmp_path: Path, valkey_url: str) -> Iterator[NodeSettings]:
    """Settings of a node; whatever still runs there is ended afterwards."""
    settings = nodes.make_settings(tmp_path, redis_url=valkey_url)
    yield settings
    nodes.end_all_jobs(settings.node_dir)


@pytest.fixture
def serve() -> Iterator[Callable[[str], nodes.Web]]:
    """Serve scripts from webs that are closed afterwards."""
    webs: list[nodes.Web] = []

    def make(script: str = "") -> nodes.Web:
        webs.append(nodes.Web(script))
        return webs[-1]

    yield make
    for web in webs:
        web.close()


@pytest.fixture
def marker() -> str:
    """A word that only this test's processes carry in their command lines."""
    return f"marker-{uuid.uuid4().hex}"


@pytest.fixture
def near(live_server, valkey_url, settings, monkeypatch) -> Iterator[Any]:
    """Two real nodes of which a Job moves from one to the other."""
    from tests.placement.moving_on import NearNodes

    settings.ALLOW_UNISOLATED_SCRIPTS = True
    # Readings are sent once.
    monkeypatch.setattr("placement.plans.available_gpus.FRESH_SECONDS", 1e6)
    with tempfile.TemporaryDirectory(prefix="gpm-") as folder:
        made = NearNodes(Path(folder), valkey_url, live_server.url)
        yield made
        made.close()


@pytest.fixture
def folders(node: NodeSettings) -> Callable[[], list[Any]]:
    """Look at the node's Job folders."""
    return lambda: list(job_folders(node.node_dir / "jobs"))
