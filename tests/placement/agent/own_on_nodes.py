"""A chapter of the story of two nodes: a user's own script, started by plain python.

Its ranks need no torch, so it costs next to nothing beside the trainings.
"""

import re
import sys
from pathlib import Path

from django.utils import timezone

from placement.agent.job_folder import RESULTS, JobFolder
from placement.agent.process import process_tree
from placement.jobs import service as jobs
from placement.jobs.nodes import log_store
from placement.models import Job, StoredPlan
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan as make_plans
from placement.planner.values.workload import Workload
from placement.plans.service import save_plan
from placement.protocol.launchers import Launcher
from reservations.models import Reservation, User
from telemetry.models import Gpu
from telemetry.proc_stat import process_table
from tests.placement.agent.two_nodes import TwoNodes
from tests.placement.lab import signed_in
from tests.placement.planner.made import make_offer

LINES = 3000
SCRIPT = f"""
import json, os, pathlib, signal, sys
rank, world = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
here = pathlib.Path("checkpoint")
kept = sorted(path.name for path in here.iterdir()) if here.is_dir() else []
plan = json.load(open(os.environ["GPUPORTAL_PLAN"]))

def leave(*_):
    here.mkdir(exist_ok=True)
    (here / f"rank-{{rank}}").write_text("saved")
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
for number in range({LINES}):
    print("line", number)
print("rank", rank, "of", world, "by", plan["strategy"], "kept", *kept, flush=True)
if kept and rank == 1:
    sys.exit(3)
while True:
    signal.pause()
"""


def plan_of_two(user: User) -> StoredPlan:
    """Keep a Plan of one Gpu on each node, the first on blue."""
    first = Gpu.objects.select_related("node").filter(index=0).order_by("node__name")
    offers = [
        make_offer(
            0,
            node=gpu.node.name,
            uuid=gpu.uuid,
            network_bytes_per_second=1e9,
            free_gib=3,
        )
        for gpu in first
    ]
    spec = well_known_spec("gpt2")
    limits = PlanLimits(strategies=("ddp",))
    asked = Workload(precision="fp32")
    plans = make_plans(spec, asked, offers, limits=limits).plans
    chosen = next(one for one in plans if one.strategy == "ddp" and one.spans_nodes)
    return save_plan(user=user, spec=spec, plan=chosen, now=timezone.now())


def own_script_stops_goes_on_and_fails(lab: TwoNodes, booking: Reservation) -> None:
    """Launch it, stop it, continue from both nodes' checkpoints, and let a rank
    fail.
    """
    alice = booking.user
    plan = plan_of_two(alice)

    def launched(**more: object) -> Job:
        return jobs.launch(
            user=alice,
            reservation_id=booking.pk,
            name="mine",
            kind="script",
            script=SCRIPT,
            launcher=Launcher.PYTHON,
            plan_id=plan.pk,
            environment_folder=str(Path(sys.executable).parent),
            now=timezone.now(),
            **more,
        )

    def came(job: Job) -> bool:
        texts = [stored(alice, job, part) for part in (0, 1)]
        return all("kept" in text for text in texts)

    first = launched()
    lab.until_state(first, "running")
    lab.until(lambda: came(first), "the logs of both")
    for part, node in enumerate(("blue", "red")):
        *lines, last = stored(alice, first, part).splitlines()
        assert lines == [f"line {number}" for number in range(LINES)]
        assert last == f"rank {part} of 2 by ddp kept"
        page = signed_in(alice).get(f"/jobs/{first.pk}/?part={part}").content.decode()
        assert re.search(rf'aria-current="page">{node} <', page)
    jobs.stop(job_id=first.pk, user=alice, now=timezone.now())
    lab.until_state(first, "stopped")
    assert first.exit_code == 0 and not left_of(lab, first)

    second = launched(resume_from=first.pk)
    lab.until_state(second, "failed")
    assert second.reason == "red (rank 1): exit code 3"
    assert not left_of(lab, second)
    states = dict(second.parts.values_list("node__name", "state"))
    assert states == {"blue": "stopped", "red": "failed"}
    lab.until(lambda: "saved" in stored(alice, second, 0), "all of blue's log")
    for part in (0, 1):
        text = stored(alice, second, part)
        assert f"rank {part} of 2 by ddp kept rank-0 rank-1" in text


def stored(user: User, job: Job, part: int) -> str:
    """Return the portal's log of one node, as the job's page requests it."""
    if not log_store.path_of(job, part=part).is_file():
        return ""
    address = (
        f"/api/v1/jobs/{job.pk}/log?part={part}&length={log_store.MOST_READ_BYTES}"
    )
    return str(signed_in(user).get(address).json()["data"])


def left_of(lab: TwoNodes, job: Job) -> list[int]:
    """Return the processes of a Job of this lab, known by their environment."""
    own = [
        f"GPUPORTAL_RESULTS={JobFolder.at(folder).work / RESULTS}"
        for folder in lab.folder.glob(f"*/node/jobs/{job.pk}-*")
    ]
    assert len(own) == 2
    return [
        item.pid
        for item in process_table()
        if not item.dead
        and any(process_tree.environ_holds(item.pid, entry) for entry in own)
    ]
