"""A portal whose agent submits jobs to a live Slurm."""

import base64
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from django.utils import timezone

from placement.agent.command_handler import OrderDesk
from placement.agent.keeper import JobKeeper
from placement.agent.slurm import slurm_job
from placement.jobs import service as jobs
from placement.jobs.nodes.event_intake import record_fact
from placement.jobs.tick import job_tick
from placement.models import Job
from reservations.booking.service import book
from reservations.models import Reservation, SitePolicy, User
from reservations.presence.engine_reconciliation import reconcile
from reservations.rules.window import grid_ceil
from reservations.store.booking_facts import site_policy
from telemetry.inventory.enrollment import enroll_node
from telemetry.models import Gpu
from telemetry.slurm.service import read_cluster
from telemetry.slurm.slurm_commands import SlurmCommands
from tests.placement import nodes
from tests.placement.nodes import until
from tests.telemetry.slurm.slurm_processes import SlurmProcesses

AGENT = "slurm-lab"
GRACE_SECONDS = 3
PAUSE_SECONDS = 1.5
"""Between two steps, at most. A step asks the database and Redis."""


class LivePortal:
    """The ticks of the portal, and the worker on the host of Slurm."""

    def __init__(
        self,
        folder: Path,
        *,
        settings,
        user: User,
        cluster: SlurmProcesses,
        web_url: str,
        redis_url: str,
        client,
    ) -> None:
        settings.SLURM_CLUSTER, settings.SLURM_BOOK = "lab", True
        settings.SLURM_SITE, settings.SLURM_AGENT = "lab1", AGENT
        settings.SLURM_CONF = str(cluster.conf)
        settings.ALLOW_UNISOLATED_SCRIPTS = True
        self.user, self.cluster, self.client = user, cluster, client
        self.unix_user = cluster.run("id", "-un").strip()
        self.set_unix_user(self.unix_user)
        self.slurm = SlurmCommands(conf=settings.SLURM_CONF)
        self.look()
        _node, token = enroll_node(name=AGENT, simulated=False, now=timezone.now())
        node = nodes.make_settings(
            folder, name=AGENT, web_url=web_url, redis_url=redis_url
        )
        node.token_file.write_text(token)
        self.keeper = JobKeeper(node)
        self.desk = OrderDesk(node, publish=lambda fact: None)
        self.read_to = "0"
        # A stop waits for it, and each wait costs steps.
        policy = SitePolicy.current()
        policy.stop_grace_seconds = GRACE_SECONDS
        policy.save()

    def look(self) -> bool:
        """Read Slurm for the board. Return whether it answers."""
        return read_cluster("lab", self.slurm).answered

    def set_unix_user(self, name: str) -> None:
        """Set the Unix user. Jobs need none, because the tests may run as root, and
        root runs nobody's jobs."""
        User.objects.filter(pk=self.user.pk).update(unix_user=name)
        self.user.refresh_from_db()

    def book(self, node: str, *, after_hours: int = 0) -> Reservation:
        """Book a node for an hour, from now or from so many hours later."""
        now, grid = timezone.now(), site_policy().grid_seconds
        self.set_unix_user(self.unix_user)
        try:
            return book(
                user=self.user,
                membership=None,
                gpu_ids=[gpu.pk for gpu in Gpu.objects.filter(node__name=node)],
                start=self.on_grid(after_hours) if after_hours else now,
                end=grid_ceil(now + timedelta(hours=after_hours + 1), grid),
                now=now,
            )
        finally:
            self.set_unix_user("")

    def on_grid(self, after_hours: int) -> datetime:
        """Return a time on the grid."""
        at = timezone.now() + timedelta(hours=after_hours)
        return grid_ceil(at, site_policy().grid_seconds)

    def reconcile(self) -> dict[str, int]:
        """Compare with what Slurm holds, at a time after all requests so far."""
        self.set_unix_user(self.unix_user)
        try:
            return reconcile(timezone.now() + timedelta(seconds=2))
        finally:
            self.set_unix_user("")

    def launch(
        self, made: Reservation, script: str, gpus: int | None = None, **more: object
    ) -> Job:
        """Start a script in a booking."""
        return jobs.launch(
            user=self.user,
            reservation_id=made.pk,
            name="train",
            kind="script",
            script=script,
            gpu_count=gpus,
            now=timezone.now(),
            **more,
        )

    def step(self) -> None:
        """Let each part work once."""
        job_tick.tick(timezone.now())
        while raw := self.client.rpop(f"node.{AGENT}"):
            task = json.loads(raw)
            body = task["body"]
            if task["properties"].get("body_encoding") == "base64":
                body = base64.b64decode(body)
            assert self.desk.take(**json.loads(body)[1])
        self.keeper.step()
        slurm_job.cancel_marked(self.keeper.runner.jobs)
        for kept in self.keeper.kept.values():
            self.keeper.uploader.piece(kept)
        stream = f"facts.{AGENT}"
        for key, fields in self.client.xrange(stream, min=f"({self.read_to}"):
            self.read_to = key.decode()
            record_fact(AGENT, json.loads(fields[b"m"]), timezone.now())

    def until(self, job: Job, state: str) -> None:
        """Work until a job has a state."""

        def reached() -> bool:
            self.step()
            job.refresh_from_db()
            return job.state == state

        until(reached, what=f"job {job.pk} to be {state}", pause_seconds=PAUSE_SECONDS)

    def works_until(self, condition: Callable[[], object], what: str) -> None:
        """Work until a condition holds."""
        until(
            lambda: self.step() or condition(), what=what, pause_seconds=PAUSE_SECONDS
        )

    def log_of(self, job: Job) -> str:
        """Return the log of a job's attempts, as the agent has it."""
        found = self.keeper.runner.jobs.glob(f"{job.pk}-*/log")
        return "".join(log.read_text() for log in found)
