"""Two node workers on this machine as real processes, and a portal that they reach.

The test itself is worker, beat and ingest: it ticks, and reads the nodes' streams.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import redis
from django.utils import timezone

from gpuportal.celery import app
from placement.jobs.nodes.event_intake import record_fact
from placement.jobs.tick import job_tick
from placement.models import Job, StoredPlan
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan as make_plans
from placement.planner.values.workload import Workload
from placement.plans.service import save_plan
from placement.protocol.job_lifecycle import JobState
from placement.rules.log_text import numbers_of
from reservations.models import User
from telemetry.inventory.enrollment import enroll_node
from telemetry.models import Gpu, Node
from telemetry.proc_stat import process_table
from tests.factories import make_gpus
from tests.placement import nodes
from tests.placement.planner.made import make_offer

CODE = Path(__file__).resolve().parents[3]
NAMES = ("red", "blue")


class TwoNodes:
    """Node ``red`` with two Gpus and node ``blue`` with one, simulated, in a folder."""

    worker = (
        *("-m", "celery", "-A", "gpuportal.node", "worker", "-Q", "node.{name}"),
        *("-n", "node-{name}@%h", "-P", "prefork", "-c", "1"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    )

    tick_seconds = 3.0
    """Between ticks while nothing happens."""

    def __init__(self, folder: Path, redis_url: str, web_url: str) -> None:
        self.folder, self.redis_url, self.web_url = folder, redis_url, web_url
        self.redis = redis.Redis.from_url(redis_url)
        app.set_default()  # the orders go to the real broker
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environments: dict[str, dict[str, str]] = {}
        self.read: dict[str, str] = {}
        self.ticked = 0.0
        for name, count in zip(NAMES, (2, 1), strict=True):
            self.redis.delete(f"facts.{name}", f"log.{name}", f"node.{name}")
            self.read[f"facts.{name}"] = "0"
            node, token = enroll_node(name=name, simulated=True, now=timezone.now())
            make_gpus(count, node)
            self._settle(node, token)
            self.start(name)

    def _settle(self, node: Node, token: str) -> None:
        """Write a node's hardware and settings."""
        home = self.folder / node.name
        home.mkdir(exist_ok=True)
        settings = nodes.make_settings(home, name=node.name)
        settings.token_file.write_text(token)
        gpus = tuple(node.gpus.order_by("index").values_list("uuid", flat=True))
        nodes.write_simulation(settings, gpus)
        self.environments[node.name] = {
            "PATH": os.environ["PATH"],
            "GPUPORTAL_NODE": node.name,
            "GPUPORTAL_NODE_REDIS_URL": self.redis_url,
            "GPUPORTAL_WEB_URL": self.web_url,
            "GPUPORTAL_NODE_TOKEN_FILE": str(settings.token_file),
            "GPUPORTAL_ORDER_KEY_FILE": str(settings.order_key_file),
            "GPUPORTAL_NODE_DIR": str(settings.node_dir),
            "GPUPORTAL_BACKEND": "simulated",
            "GPUPORTAL_SIM_DIR": str(settings.sim_dir),
            "GPUPORTAL_ALLOW_SCRIPTS": "1",
        }

    def start(self, name: str, **variables: str) -> None:
        """Start a node's worker, also after a kill. It uses another place from now
        on.
        """
        self.environments[name] |= variables
        with (self.folder / f"{name}.log").open("ab") as diary:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *(word.format(name=name) for word in self.worker)],
                cwd=CODE,
                env=self.environments[name],
                stdout=diary,
                stderr=diary,
                start_new_session=True,
            )

    def node_dir(self, name: str) -> Path:
        """A node's own folder."""
        return Path(self.environments[name]["GPUPORTAL_NODE_DIR"])

    def step(self) -> None:
        """Process the nodes' reports, and tick where one changed something or it is
        time.

        A tick takes longer than all else that the test does while it waits.
        """
        reports = self.redis.xread(self.read, count=100)
        changed = False
        for stream, entries in reports or ():
            for number, entry in entries:
                self.read[stream.decode()] = number.decode()
                fact = json.loads(entry[b"m"])
                changed |= record_fact(stream.decode()[6:], fact, timezone.now())
        if changed or time.monotonic() - self.ticked > self.tick_seconds:
            self.ticked = time.monotonic()
            job_tick.tick(timezone.now())

    def until(self, condition, what: str, seconds: float = 150.0):
        """Continue until a condition is true, with a tick at once if it is not yet.

        Return its value.
        """
        self.ticked = 0.0
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited for {what}\n{self.told()}"
            self.step()
            time.sleep(0.25)
        return found

    def until_state(self, job: Job, state: str, seconds: float = 150.0) -> Job:
        """Continue until a Job is in a state."""

        def there() -> bool:
            job.refresh_from_db()
            live = JobState(job.state) in JobState.live()
            assert live or job.state == state, (job.state, job.reason, self.told())
            return job.state == state

        self.until(there, f"job {job.pk} {state}", seconds)
        return job

    def told(self) -> str:
        """Return all reports and logs, for a test that fails."""
        rows = [
            f"{job} {job.state} {job.reason} "
            f"{list(job.parts.values_list('node__name', 'state', 'reason'))}"
            for job in Job.objects.all()
        ]
        texts = [
            f"--- {path}\n{path.read_text(errors='replace')[-3000:]}"
            for pattern in ("*.log", "*/node/jobs/*/log", "*/node/jobs/*/shim.log")
            for path in sorted(self.folder.glob(pattern))
        ]
        return "\n".join([*rows, *texts])

    def losses(self, job: Job) -> dict[int, float]:
        """The losses in a Job's log on its first node, by step."""
        return losses_in(self.log(job))

    def log(self, job: Job) -> str:
        """Return a Job's log on its first node, as written so far."""
        path = self.node_dir(job.node.name) / "jobs" / f"{job.pk}-1-{job.key}" / "log"
        return path.read_text() if path.is_file() else ""

    def processes_of(self, job: Job) -> list[int]:
        """Return a Job's processes, known by its folders, because numbers are
        reused.
        """
        folders = [f"{self.node_dir(name)}/jobs/{job.pk}-" for name in NAMES]
        starts = tuple(f"GPUPORTAL_RESULTS={folder}".encode() for folder in folders)
        own = [one.pid for one in process_table() if not one.dead]
        return [
            pid for pid in own if any(e.startswith(starts) for e in entries_of(pid))
        ]

    def ranks_of(self, job: Job) -> dict[int, int]:
        """The processes that train, by rank."""
        found = {}
        for pid in self.processes_of(job):
            known = dict(entry.partition(b"=")[::2] for entry in entries_of(pid))
            if b"RANK" in known:
                found[int(known[b"RANK"])] = pid
        return found

    def close(self) -> None:
        """Stop the workers and all Jobs."""
        for name, process in self.processes.items():
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            nodes.end_all_jobs(self.node_dir(name))
        self.redis.close()


def entries_of(pid: int) -> list[bytes]:
    """Return a process's environment; empty if it has gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def losses_in(text: str) -> dict[int, float]:
    """Step -> loss of the lines that name both."""
    rows = filter(None, map(numbers_of, text.splitlines()))
    return {int(row["step"]): row["loss"] for row in rows if "loss" in row}


def staged_plan(user: User) -> StoredPlan:
    """Keep a Plan of three stages: one on blue, two on red."""
    offers = [
        make_offer(
            gpu.index,
            node=gpu.node.name,
            uuid=gpu.uuid,
            free_gib=2,
            network_bytes_per_second=1e9,
        )
        for gpu in Gpu.objects.select_related("node").order_by("-node__name", "index")
    ]
    spec = well_known_spec("gpt2")
    limits = PlanLimits(strategies=("pipeline",))
    made = make_plans(spec, Workload(precision="fp32"), offers, limits=limits)
    chosen = next(plan for plan in made.plans if len(plan.nodes) == 2)
    assert len(chosen.shards) == 3 and chosen.strategy == "pipeline"
    return save_plan(user=user, spec=spec, plan=chosen, now=timezone.now())
