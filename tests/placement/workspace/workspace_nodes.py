"""A node that runs workspaces: its worker, its streams, and the people's rows."""

import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.utils import timezone

from placement.access.frame_lists import NODE
from placement.agent.access.services import SERVICES
from placement.jobs import service as jobs
from placement.jobs.nodes import command_queue
from placement.jobs.tick import job_tick
from placement.models import Workspace
from placement.protocol import signing
from placement.workspace.service import open_workspace
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.pages import elsewhere
from tests.placement import nodes
from tests.placement.access.stream_nodes import streams_of
from tests.placement.lab import send_frame
from tests.placement.serving.kitchen import Kitchen, token_of

ENVIRONMENT = str(Path(sys.prefix))
"""The environment of the tests has jupyterlab."""


def require_tmux() -> None:
    """Skip the test if tmux is missing, but not in CI."""
    if shutil.which("tmux") is None:
        reason = "no tmux here: apt-get install tmux"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


class WorkspaceNode(Kitchen):
    """One node's worker without Celery, with its streams."""

    def __init__(self, settings, client, services=SERVICES):
        super().__init__(settings, client)
        self.stack = ExitStack()
        self.stack.enter_context(streams_of(settings, services))
        nodes.until(
            lambda: client.exists(NODE + settings.name), what="the node's streams"
        )

    def start(self, workspace: Workspace) -> None:
        """Bring the Job's order to the node and wait until it runs."""
        job_tick.tick(timezone.now())
        job = workspace.job
        job.refresh_from_db()
        payload = command_queue.start_order(job, now=timezone.now()).payload()
        assert self.desk.take(payload, signing.sign(payload))
        self.until_running(job)

    def end(self, workspace: Workspace) -> None:
        """Stop the Job as its owner does."""
        job = workspace.job
        jobs.stop(job_id=job.pk, user=job.owner, now=timezone.now())
        self.stop(job)

    def close(self) -> None:
        """Stop the worker."""
        self.stack.close()
        super().close()


def reserved_node(node, client, web_url, user) -> WorkspaceNode:
    """Run a node for a browser's test, with a User's active reservation of two Gpus."""
    row = make_node("node1")
    gpus = make_gpus(2, row)
    here = nodes.make_settings(
        node.node_dir.parent, redis_url=node.redis_url, web_url=web_url
    )
    token_of(row, here)
    nodes.write_simulation(here, tuple(gpu.uuid for gpu in gpus))
    send_frame(client)
    made = elsewhere(WorkspaceNode, here, client)
    made.held = make_reservation(user, gpus, state=State.ACTIVE)
    return made


def opened(user, reservation, environment=ENVIRONMENT, **more) -> Workspace:
    """Open a JupyterLab of a User."""
    return open_workspace(
        user=user,
        reservation_id=reservation.pk,
        app="jupyter-lab",
        environment_folder=environment,
        now=timezone.now(),
        **more,
    )
