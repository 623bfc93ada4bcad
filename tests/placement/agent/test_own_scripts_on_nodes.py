"""Users' own scripts over two nodes: each launcher really starts, connects and ends.

Two shims with separate folders, names and Gpus, as the portal sends them: the first has
the address of the rendezvous, the second connects to it. Importing torch takes most of
the time, so each launcher tests another part, and the ranks of torchrun and accelerate
are forks of a process that has imported it.
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from placement.agent.job_folder import JobFolder
from placement.agent.local_runner import ask
from placement.planner.launch.files import launch_files
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan as make_plans
from placement.planner.values.workload import Workload
from placement.protocol.job_lifecycle import JobState
from placement.protocol.job_parts import (
    LOST_PEERS,
    PartInfo,
    first_failed_part,
    reason_of,
)
from placement.protocol.launchers import FILES, Launcher
from placement.protocol.rendezvous import Meeting
from tests.placement.nodes import (
    Web,
    end_all_jobs,
    ended,
    make_settings,
    script_order,
    start,
    until,
)
from tests.placement.planner.made import make_offer

pytestmark = pytest.mark.pure

NAMES = ("blue", "red")
BIN = str(Path(sys.executable).parent)
TOKEN = "f" * 32
RANKS = """
import json, os, pathlib, signal, sys
import torch, torch.distributed as dist

def say(line):
    os.write(1, f"{line}\\n".encode())  # in one piece: the launcher writes there too

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
named = json.load(open(os.environ["GPUPORTAL_PLAN"]))
assert named == json.load(open("plan.json"))
local, node = os.environ["LOCAL_RANK"], os.environ["GPUPORTAL_NODE"]
found = f"sum {total.item()} by {named['strategy']}"
say(f"rank {rank} of {world} local {local} on {node} {found}")

def leave(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path("checkpoint").mkdir(exist_ok=True)
    pathlib.Path(f"checkpoint/rank-{rank}").write_text("saved")
    say("saved")
    sys.exit(0)

if "waits" in sys.argv:
    signal.signal(signal.SIGTERM, leave)
    say("waits")
    while True:
        signal.pause()
if "fails" in sys.argv and rank == 1:
    os._exit(3)  # at an orderly end gloo's threads may abort it, and then it is 6
dist.barrier()
dist.destroy_process_group()
"""


@dataclass
class Both:
    """One Job on blue and red."""

    folders: list[JobFolder]

    def logs(self) -> list[str]:
        return [folder.log.read_text() for folder in self.folders]

    def ends(self) -> list[dict]:
        return [ended(folder) for folder in self.folders]

    def reason(self) -> str:
        """Return the portal's reason from the reports of both."""
        parts = [
            PartInfo(
                number,
                NAMES[number],
                number,
                1,
                JobState.FAILED,
                status["reason"],
                status["last_lines"],
                status["ended_at"],
            )
            for number, status in enumerate(self.ends())
        ]
        return reason_of(first_failed_part(parts))


@pytest.fixture
def launched(tmp_path, fork_server):
    """Start RANKS on both nodes with a launcher, by a Plan over them."""
    web = Web(RANKS, names=NAMES)
    nodes = []
    for name in NAMES:
        (tmp_path / name).mkdir()
        home = make_settings(tmp_path / name, name=name, web_url=web.url)
        nodes.append(home)

    web.files = json.dumps(plan_files()).encode()

    def launch(launcher, *arguments):
        known = {
            "launcher": launcher,
            "environment_folder": BIN,
            "simulated": True,
            "files_sha256": hashlib.sha256(web.files).hexdigest(),
            "argv": arguments,
            "env": {"OMP_NUM_THREADS": "1", **fork_server.environ},
        }
        folders, address, port = [], "", 0
        for number, node in enumerate(nodes):
            met = Meeting(number, (1, 1), address, port, TOKEN)
            order = script_order(
                web,
                node=node.name,
                meeting=met,
                gpu_uuids=(f"GPU-{node.name}",),
                **known,
            )
            folders.append(folder := start(node, order))
            until(lambda folder=folder: folder.read("status"), what="its start")
            status = folder.read("status")
            if number == 0:
                address, port = status["meeting_address"], status["meeting_port"]
        return Both(folders)

    yield launch
    for node in nodes:
        end_all_jobs(node.node_dir)
    web.close()


def plan_files():
    """Return the files of a Plan with one Gpu on each node, as in a folder."""
    offers = [
        make_offer(
            0, node=name, uuid=f"GPU-{name}", network_bytes_per_second=1e9, free_gib=2
        )
        for name in NAMES
    ]
    spec = well_known_spec("gpt2")
    limits = PlanLimits(strategies=("ddp",))
    asked = Workload(precision="fp32")
    plans = make_plans(spec, asked, offers, limits=limits).plans
    plan = next(one for one in plans if one.strategy == "ddp" and one.spans_nodes)
    return {
        file.name: file.text
        for file in launch_files(plan, spec).files
        if file.name in FILES
    }


def told(number):
    """Return a rank's output after the rendezvous, with the Plan in its folder."""
    return f"rank {number} of 2 local 0 on {NAMES[number]} sum 3.0 by ddp"


def test_torchruns_ranks_meet_and_each_node_keeps_its_checkpoint_on_term(launched):
    both = launched(Launcher.TORCHRUN, "waits")
    until(lambda: all("waits" in log for log in both.logs()), what="the ranks")
    for folder in both.folders:
        assert ask(folder, {"reason": "enough", "lost": False, "grace_seconds": 20})
    for number, status in enumerate(both.ends()):
        assert status["stopped"] and status["reason"] == "enough", both.logs()
        lines = both.logs()[number].splitlines()
        own = [line for line in lines if line[:4] in ("rank", "wait", "save")]
        assert own == [told(number), "waits", "saved"]
        kept = both.folders[number].work / "checkpoint" / f"rank-{number}"
        assert kept.read_text() == "saved"


def test_accelerate_runs_by_the_plans_file_and_the_rank_that_fails_is_named(launched):
    both = launched(Launcher.ACCELERATE, "fails")
    broken, failed = both.ends()
    assert (broken["exit_code"], failed["exit_code"]) == (1, 1), both.logs()
    for number, log in enumerate(both.logs()):
        assert told(number) in log.splitlines(), log
    assert (broken["reason"], failed["reason"]) == (LOST_PEERS, ""), both.logs()
    assert both.reason() == "red: rank 1 ended with exit code 3"


def test_deepspeeds_launchers_start_with_the_plans_configuration(launched):
    both = launched(Launcher.DEEPSPEED, "fails")
    broken, failed = both.ends()
    assert (broken["exit_code"], failed["exit_code"]) == (1, 3), both.logs()
    for number, log in enumerate(both.logs()):
        assert told(number) in log.splitlines(), log
        config = f"{both.folders[number].work}/ds_config.json"
        assert f"'--deepspeed', '--deepspeed_config', '{config}'" in log
    assert both.reason() == "red: rank 1 ended with exit code 3"


def test_plain_python_is_one_rank_on_each_node(launched):
    both = launched(Launcher.PYTHON)
    assert [status["exit_code"] for status in both.ends()] == [0, 0], both.logs()
    assert both.logs() == [f"{told(0)}\n", f"{told(1)}\n"]
