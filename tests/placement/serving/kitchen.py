"""A node that really serves, for tests: keeper, shim, server, tunnel."""

import json
import time

import redis
from django.utils import timezone

from gpuportal.node_settings import NodeSettings
from placement.agent.command_handler import OrderDesk
from placement.agent.keeper import JobKeeper
from placement.jobs.nodes import command_queue
from placement.jobs.nodes.event_intake import record_fact
from placement.jobs.tick import job_tick
from placement.models import Job
from placement.protocol import signing
from telemetry.models import Node
from tests.placement.nodes import PATIENCE_SECONDS


class Kitchen:
    """One node's worker without Celery: commands and facts are passed by hand."""

    def __init__(self, settings: NodeSettings, client: redis.Redis) -> None:
        self.settings, self.redis = settings, client
        self.desk = OrderDesk(settings, publish=lambda fact: None)
        self.keeper = JobKeeper(settings)
        self.seen = "0"
        self.keeper.start()

    def order(self, job: Job) -> None:
        """Send a Job's command as the tick does, and accept it here."""
        job_tick.tick(timezone.now())
        job.refresh_from_db()
        made = command_queue.start_order(job, now=timezone.now())
        assert made.gpu_uuids == (job.endpoint.gpu.uuid,), "one Gpu, its endpoint's"
        payload = made.payload()
        assert self.desk.take(payload, signing.sign(payload)), made

    def tell(self) -> None:
        """Bring the node's facts to the web, as ingest does."""
        stream = f"facts.{self.settings.name}"
        for _, entries in self.redis.xread({stream: self.seen}) or []:
            for key, fields in entries:
                self.seen = key
                fact = json.loads(fields[b"m"])
                record_fact(self.settings.name, fact, timezone.now())

    def until_running(self, job: Job, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the node reports that the Job runs."""
        end = time.monotonic() + seconds
        while job.state != "running":
            assert time.monotonic() < end, (job.state, job.reason)
            time.sleep(0.05)
            self.tell()
            job.refresh_from_db()

    def stop(self, job: Job) -> None:
        """Send the command that ends a Job, and wait for the result."""
        job.refresh_from_db()
        payload = command_queue.stop_order(job, now=timezone.now()).payload()
        assert self.desk.take(payload, signing.sign(payload))
        end = time.monotonic() + PATIENCE_SECONDS
        while job.state == "stopping":
            assert time.monotonic() < end, job.reason
            time.sleep(0.05)
            self.tell()
            job.refresh_from_db()
        assert job.state == "stopped", job.reason

    def close(self) -> None:
        """Stop the keeper; Jobs are ended by the node fixture."""
        self.keeper.stop()


def token_of(node: Node, settings: NodeSettings) -> None:
    """Give a node's row the token that its settings show."""
    text = node.new_token()
    node.save()
    settings.token_file.write_text(text)
