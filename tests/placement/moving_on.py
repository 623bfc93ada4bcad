"""A Job on blue whose Gpu breaks, so that it continues from its checkpoint on red."""

import re
import signal
from datetime import timedelta

import redis
from django.utils import timezone

from placement.agent.job_folder import RESULTS, JobFolder
from placement.agent.process import process_tree
from placement.jobs import service as jobs
from placement.models import Job, MoveDecision, PlacementPolicy
from placement.planner.model.well_known import well_known_spec
from placement.plans.service import save_plan
from placement.rebalance.rebalance_tick import rebalance_jobs
from placement.rules.rebalance_policy import RebalanceAction, RestartMode
from reservations.booking.service import book
from telemetry.alerts.service import open_alert
from telemetry.models import Gpu, Node
from telemetry.proc_stat import process_table
from telemetry.rules.alert_rules import LOST
from tests.factories import make_membership, make_user
from tests.placement.agent.two_nodes import TwoNodes
from tests.placement.lab import send_frame
from tests.placement.watched import plan_on

# A step is saved completely or not at all, by a new folder that takes the old one's
# name.
SCRIPT = """
n=$(cat checkpoint/step 2>/dev/null || echo 0)
echo "begins at $n $(cksum < checkpoint/weights 2>/dev/null)"
save() {
  rm -rf draft && mkdir draft && head -c %(size)d /dev/urandom > draft/weights &&
  echo "$n" > draft/step && rm -rf checkpoint && mv draft checkpoint &&
  echo "saved $n $(cksum < checkpoint/weights)"
}
trap 'n=$((n+7)); echo asked; %(asked)s save && exit 0; exit 3' TERM
n=$((n+1)); save
sleep 3600 &
wait
"""


class NearNodes(TwoNodes):
    """The same two nodes, with workers that start fast."""

    worker = ("-m", "tests.placement.agent.near_worker")
    tick_seconds = 0.6
    """Here the portal's own decisions are waited for, which only a tick takes."""

    def step(self) -> None:
        """Tick and process reports. Live workers are reported, as by their samples."""
        alive = [name for name, one in self.processes.items() if one.poll() is None]
        Node.objects.filter(name__in=alive).update(last_seen_at=timezone.now())
        super().step()

    def kill(self, name: str, job: Job | None = None) -> None:
        """SIGKILL a node's worker; with a Job, its shim and processes there too."""
        pids = [self.processes[name].pid]
        if job is not None:
            pids += [self.at(job).read("shim")["pid"], *self.processes_of(job)]
        for pid in pids:
            process_tree.send(pid, signal.SIGKILL)
        self.processes[name].wait()

    def at(self, job: Job) -> JobFolder:
        """The folder of a Job's first attempt on its node."""
        return JobFolder.of(self.node_dir(job.node.name) / "jobs", job.pk, 1, job.key)

    def processes_of(self, job: Job) -> list[int]:
        """Return a Job's processes, known by its folder, because numbers are reused."""
        entry = f"GPUPORTAL_RESULTS={self.at(job).work / RESULTS}"
        own = [item.pid for item in process_table() if not item.dead]
        return [pid for pid in own if process_tree.environ_holds(pid, entry)]

    def says(self, job: Job, word: str) -> str:
        """Continue until a line of a Job's log begins with a word. Return the rest of
        it.
        """

        def line() -> re.Match[str] | None:
            return re.search(rf"^{word} (.+)\n", self.log(job), re.MULTILINE)

        found: re.Match[str] = self.until(line, f"{word!r} of {job}")
        return found[1]


def runs_on_blue(lab: NearNodes, client: redis.Redis, **script: object) -> Job:
    """Let Alice train on blue, with a checkpoint of step 1. red is free.

    Args:
        script: ``size`` of its checkpoint in bytes; ``asked``: its additional actions
            when it is requested to end.
    """
    now = timezone.now()
    end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=3)
    PlacementPolicy.objects.update_or_create(
        pk=1, defaults={"when_in_trouble": RebalanceAction.DO, "look_again_seconds": 1}
    )
    alice = make_membership(make_user("alice"), "lab").user
    send_frame(client)
    gpus = list(Gpu.objects.filter(node__name="blue"))
    held = book(
        user=alice,
        membership=None,
        gpu_ids=[gpu.pk for gpu in gpus],
        start=now,
        end=end,
        now=now,
    )
    plan = save_plan(
        user=alice, spec=well_known_spec("gpt2"), plan=plan_on(gpus), now=now
    )
    job = jobs.launch(
        user=alice,
        reservation_id=held.pk,
        name="train",
        kind="script",
        script=SCRIPT % ({"size": 20_000, "asked": ""} | script),
        plan_id=plan.pk,
        restart=RestartMode.RESUMES,
        retries=2,
        now=now,
    )
    lab.until_state(job, "running")
    lab.says(job, "saved")
    return job


def moves(job: Job) -> tuple[MoveDecision, Job]:
    """Break a Job's Gpu. Return the resulting move, and the Job that is to continue."""
    now = timezone.now()
    (gpu,) = Gpu.objects.filter(node=job.node)
    Gpu.objects.filter(pk=gpu.pk).update(lost=True)
    open_alert(rule=LOST, gpu_id=gpu.pk, now=now)
    assert rebalance_jobs(now)["looked"] == 1
    assert rebalance_jobs(timezone.now())["carried_out"] == 1
    job.refresh_from_db()
    assert (job.state, job.reason[:14]) == ("moving", "moves to red:0")
    made = job.moves.get()
    assert made.next_job.state == "queued" and made.next_job.retries == 2
    return made, made.next_job
