"""The browser fixtures of gpuportal, a running Job, and its node's output."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.utils import timezone

from placement.jobs import job_broadcast
from placement.jobs.nodes import log_store
from placement.models import Job, JobEvent
from placement.protocol.job_lifecycle import JobState
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.gpuportal.browser.conftest import (  # noqa: F401  (fixtures, by their names)
    axe,
    console,
    live_cluster,
    sign_in,
)
from tests.pages import elsewhere


@dataclass
class Voice:
    """A Job's output: to its open pages, and into the stored file."""

    job: Job
    offset: int = 0

    def says(self, text: str, *, stored: bool = True, told: bool = True) -> None:
        """Append text to the log; by default both ways, as a node does."""
        data = text.encode()
        if stored:
            log_store.append(self.job, attempt=1, offset=self.offset, data=data)
        if told:
            message = {
                "v": 1,
                "job": self.job.pk,
                "attempt": 1,
                "offset": self.offset,
                "bytes": len(data),
                "data": text,
            }
            assert elsewhere(job_broadcast.publish_log, self.job.node.name, message)
        self.offset += len(data)


@pytest.fixture
def running(live_cluster, alice) -> Job:  # noqa: F811
    """A Job of Alice's that runs on two Gpus of node-a."""
    now = timezone.now()
    held = make_reservation(
        alice, live_cluster.gpus[:2], now, now + timedelta(hours=3), state=State.ACTIVE
    )
    job = Job.objects.create(
        reservation=held,
        owner=alice,
        name="first run",
        kind=Job.Kind.RECIPE,
        recipe="burn-in",
        recipe_settings={"seconds": 60.0},
        node=live_cluster.gpus[0].node,
        state=JobState.RUNNING,
        attempt=1,
        started_at=now,
        seen_at=now,
    )
    for old, new in (("", "queued"), ("queued", "starting"), ("starting", "running")):
        JobEvent.objects.create(job=job, old=old, new=new, actor="node-a")
    return job


@pytest.fixture
def voice(running: Job) -> Voice:
    """What the running Job prints."""
    return Voice(running)


@pytest.fixture
def move(running: Job) -> Callable[..., None]:
    """Move the running Job on, as a fact of its node would."""

    def to(state: JobState, **fields: object) -> None:
        Job.objects.filter(pk=running.pk).update(state=state, **fields)
        JobEvent.objects.create(
            job=running, old=running.state, new=state, actor="node-a"
        )
        elsewhere(job_broadcast.publish_job, running.pk)

    return to
