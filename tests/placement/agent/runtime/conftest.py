"""One process that has imported torch, for the tests of all recipes."""

from collections.abc import Iterator

import pytest

from tests.placement.agent.runtime.fork_server import ForkServer


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Start processes from it that need torch."""
    server = ForkServer(tmp_path_factory.mktemp("forks"))
    yield server
    server.close()
