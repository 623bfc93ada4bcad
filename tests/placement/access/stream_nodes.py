"""A node that takes streams, for tests: its thread, with services of the test's own."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from django.utils import timezone

from gpuportal.node_settings import NodeSettings
from placement.access.access_target import AccessTarget
from placement.agent.access.node_streams import NodeStreams
from placement.agent.access.services import SERVICES, Service


@contextmanager
def streams_of(
    settings: NodeSettings, services: Mapping[str, Service] = SERVICES
) -> Iterator[NodeStreams]:
    """Run a node's streams beside the block."""
    stop = threading.Event()
    streams = NodeStreams(settings, services)
    thread = threading.Thread(target=streams.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield streams
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive(), "the node's streams did not stop"


def target_at(node: str = "node1", user_pk: int = 1) -> AccessTarget:
    """Return a target that needs no rows."""
    until = timezone.now() + timedelta(hours=1)
    return AccessTarget(node, 7, user_pk, "alice", "", until)
