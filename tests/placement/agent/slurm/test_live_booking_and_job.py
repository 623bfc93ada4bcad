"""One booking and its jobs, from the calendar to the real Slurm 22.05 and back."""

import base64
import json
from datetime import timedelta
from pathlib import Path

import pytest
from celery import current_app
from django.utils import timezone

import gpuportal.celery
from placement.agent.command_handler import OrderDesk
from placement.agent.keeper import JobKeeper
from placement.jobs import service as jobs
from placement.jobs.nodes import log_store
from placement.jobs.nodes.event_intake import record_fact
from placement.jobs.tick import job_tick
from placement.models import Job
from reservations.booking.release import release
from reservations.booking.service import book
from reservations.models import LedgerEntry, User
from reservations.presence.engine_reconciliation import reconcile
from reservations.rules.window import grid_ceil
from reservations.store.booking_facts import site_policy
from telemetry.inventory.enrollment import enroll_node
from telemetry.models import Gpu
from telemetry.slurm.service import read_cluster
from telemetry.slurm.slurm_commands import SlurmCommands
from tests.placement import nodes
from tests.placement.nodes import until
from tests.telemetry.slurm.conftest import _cluster, cluster
from tests.telemetry.slurm.slurm_processes import SlurmProcesses

__all__ = ["_cluster", "cluster"]
assert current_app.main == gpuportal.celery.app.main
AGENT = "slurm-lab"


class Agent:
    """The worker on the host of Slurm, and the ticks of the portal."""

    def __init__(self, folder: Path, web_url: str, redis_url: str, client) -> None:
        _node, token = enroll_node(name=AGENT, simulated=False, now=timezone.now())
        self.settings = nodes.make_settings(
            folder, name=AGENT, web_url=web_url, redis_url=redis_url
        )
        self.settings.token_file.write_text(token)
        self.client = client
        self.keeper = JobKeeper(self.settings)
        self.desk = OrderDesk(self.settings, publish=lambda fact: None)
        self.read_to = "0"

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

        until(reached, what=f"job {job.pk} to be {state}")


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_booking_its_jobs_their_logs_a_stop_and_the_charge(
    *,
    live_server,
    redis_client,
    valkey_url,
    alice,
    tmp_path,
    settings,
    monkeypatch,
    cluster: SlurmProcesses,
) -> None:
    settings.SLURM_CLUSTER, settings.SLURM_BOOK = "lab", True
    settings.SLURM_SITE = "lab1"
    settings.SLURM_AGENT, settings.SLURM_CONF = AGENT, str(cluster.conf)
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    alice.unix_user = cluster.run("id", "-un").strip()
    alice.save()
    read_cluster("lab", SlurmCommands(conf=settings.SLURM_CONF))
    agent = Agent(tmp_path, live_server.url, valkey_url, redis_client)
    now = timezone.now()
    policy = site_policy()
    made = book(
        user=alice,
        membership=None,
        gpu_ids=[gpu.pk for gpu in Gpu.objects.filter(node__name="gp1")],
        start=now,
        end=grid_ceil(now + timedelta(hours=1), policy.grid_seconds),
        now=now,
    )

    # The tests run as one user, perhaps as root, and root runs nobody's jobs.
    User.objects.filter(pk=alice.pk).update(unix_user="")

    def launch(script: str) -> Job:
        return jobs.launch(
            user=alice,
            reservation_id=made.pk,
            name="train",
            kind="script",
            script=script,
            now=timezone.now(),
        )

    first = launch("#!/bin/sh\necho $SLURM_JOB_RESERVATION loss=0.5\n")
    agent.until(first, Job.State.DONE)
    until(lambda: agent.step() or log_store.size(first))
    assert log_store.last_lines(first, 1) == [f"gp_lab1_{made.pk} loss=0.5"]
    assert first.node.name == "gp1"

    second = launch("#!/bin/sh\necho on\nwhile :; do sleep 1; done\n")
    agent.until(second, Job.State.RUNNING)
    made.refresh_from_db()
    assert made.checked_in_at is not None
    jobs.stop(job_id=second.pk, user=alice, now=timezone.now())
    agent.until(second, Job.State.STOPPED)
    assert cluster.run("squeue", "--noheader") == ""

    release(reservation_id=made.pk, user=alice, now=timezone.now())
    assert reconcile(timezone.now() + timedelta(seconds=2)) == {"release": 1}
    assert "gp_" not in cluster.run("scontrol", "show", "reservations")
    charge = LedgerEntry.objects.get(reservation=made, kind="charge")
    assert charge.gpu_seconds > 0
