"""Jobs over several nodes: the state from the parts, and the rendezvous."""

import base64
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from placement.agent.process import job_process, rank_rendezvous
from placement.agent.runtime import recipe_launch
from placement.protocol.commands import parse_order
from placement.protocol.events import parse_fact
from placement.protocol.job_lifecycle import JobState
from placement.protocol.job_parts import (
    LOST_PEERS,
    PartInfo,
    final_state,
    first_failed_part,
    lost_peers,
    reason_of,
)
from placement.protocol.launchers import (
    Launcher,
    LaunchPlace,
    script_command,
    why_not_on_nodes,
)
from placement.protocol.node_refusals import FactRefused, OrderRefused
from placement.protocol.rendezvous import Meeting, StartCheckpoint
from tests.placement.nodes import make_order

pytestmark = pytest.mark.pure

SECOND = Meeting(1, (1, 2), "10.0.0.1", 29500, "f" * 32)
FIRST = Meeting(0, (1, 2), "", 0, "f" * 32)
TWO = {"gpu_uuids": ("GPU-a", "GPU-b"), "gpu_indexes": (0, 1)}


def part(number, state, *lines, node="", **more):
    return PartInfo(
        number,
        node or f"lab-{number}",
        number * 2,
        2,
        JobState(state),
        last_lines=lines,
        **more,
    )


def test_the_whole_ends_as_the_worst_of_its_parts():
    done, failed, lost, stopped, runs = map(
        JobState, ("done", "failed", "lost", "stopped", "running")
    )
    assert final_state([done, runs]) is None
    assert final_state([done, done]) is done
    assert final_state([done, stopped]) is stopped
    assert final_state([stopped, failed]) is failed
    assert final_state([failed, lost]) is lost


def test_the_reason_names_the_node_and_rank_that_failed_first():
    broken = part(0, "failed", "gpuportal: rank 1 ended with exit code 1", ended_at=1.0)
    killed = part(1, "failed", "x", "gpuportal: rank 3 ended by SIGKILL", ended_at=2.0)
    gone = part(1, "lost", reason="the process that kept the job is gone")
    follows = part(0, "failed", "gpuportal: rank 0 ended by SIGABRT", ended_at=9.0)
    assert (
        reason_of(first_failed_part([broken, killed]))
        == "lab-1: rank 3 ended by SIGKILL"
    )
    assert first_failed_part([follows, killed]) is killed
    assert first_failed_part([broken, gone]) is gone
    assert reason_of(gone).startswith("lab-1 (ranks 2 to 3): the process that kept")
    assert first_failed_part([part(0, "stopped"), part(1, "done")]) is None
    assert recipe_launch.ending(-9) == "ended by SIGKILL"


def test_torchrun_kills_no_rank_before_the_sites_grace_is_over():
    def told(**changes):
        order = make_order(grace_seconds=299.5, **changes)
        known = job_process.environment(order, work=Path("/job"), identity=None)
        return known.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")

    script = {"recipe": None, "script_sha256": "0" * 64, "argv": ()}
    assert told() == told(launcher="torchrun", **script) == "301"
    assert told(launcher="accelerate", **script) == "301"
    assert told(**script) is None


TABLE = """Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_00:43:31
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : {} (pid: 30445)
  error_file: <N/A>"""
LAUNCH_PY = "[2026-11-22 00:43:57,203] [ERROR] [launch.py:259:sigkill_handler] ['-u']"
GLOO = "[/third_party/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:5"


def test_launchers_of_others_are_understood_and_lost_connections_are_what_follows():
    first = part(
        0, "failed", *TABLE.format(1).splitlines(), ended_at=1.0, reason=LOST_PEERS
    )
    second = part(1, "failed", *TABLE.format(-11).splitlines(), ended_at=9.0)
    assert reason_of(second) == "lab-1: rank 3 ended by SIGSEGV"
    code = part(1, "failed", *TABLE.format(2).splitlines(), ended_at=9.0)
    assert first_failed_part([first, code]) is code
    assert reason_of(code) == "lab-1: rank 3 ended with exit code 2"
    deep = part(1, "failed", f"{LAUNCH_PY} exits with return code = -9", "")
    assert reason_of(deep) == "lab-1: one of ranks 2 to 3 ended by SIGKILL"
    assert reason_of(part(1, "failed", "rank : 3", reason="exit code 2")) == (
        "lab-1 (ranks 2 to 3): exit code 2"
    )
    assert lost_peers(f"RuntimeError: {GLOO}") and lost_peers("x ncclRemoteError: y")
    assert not lost_peers("requests: Connection reset by peer")


def test_an_order_of_several_nodes_reads_back_and_others_stay_of_version_1():
    plain = make_order()
    assert json.loads(plain.payload())["v"] == 1
    assert "meeting" not in json.loads(plain.payload())
    spans = make_order(meeting=SECOND, **TWO)
    brings = make_order(checkpoints=(StartCheckpoint(1, 7, "0" * 64),))
    for order in (spans, brings, make_order(meeting=FIRST)):
        assert json.loads(order.payload())["v"] == 2
        assert parse_order(order.payload()) == order
    # An older node refuses a command whose uid it cannot check.
    knows = make_order(unix_user="ada", unix_uid=1815)
    assert json.loads(knows.payload())["v"] == 5
    assert parse_order(knows.payload()) == knows


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"node_rank": 2}, "node_rank"),
        ({"node_rank": True}, "node_rank"),
        ({"counts": [1]}, "2 to"),
        ({"counts": [0, 2]}, "processes"),
        ({"counts": "12"}, "counts"),
        ({"address": "-x"}, "address"),
        ({"address": ""}, "address"),
        ({"port": 0}, "port"),
        ({"port": 70_000}, "port"),
        ({"token": "short"}, "token"),
        ({"counts": [1, 3]}, "as many Gpus"),
        ({"more": 1}, "meeting.more: is not a known"),
    ],
)
def test_a_meeting_that_is_none_is_refused_by_field(changes, word):
    body = json.loads(make_order(meeting=SECOND, **TWO).payload())
    body["meeting"] = {**asdict(SECOND), "counts": [1, 2]} | changes
    with pytest.raises(OrderRefused, match=word):
        parse_order(json.dumps(body))


@pytest.mark.parametrize(
    "given",
    [
        {},
        [{}],
        [{"number": 0, "size_bytes": 0, "sha256": "0" * 64}],
        [{"number": 0, "size_bytes": 1, "sha256": "../x"}],
        [{"number": "0", "size_bytes": 1, "sha256": "0" * 64}],
    ],
)
def test_checkpoints_that_are_none_are_refused(given):
    body = json.loads(
        make_order(checkpoints=(StartCheckpoint(1, 7, "0" * 64),)).payload()
    )
    with pytest.raises(OrderRefused, match="checkpoints"):
        parse_order(json.dumps(body | {"checkpoints": given}))


def test_a_node_cannot_send_the_others_to_what_is_no_address():
    fact = {"v": 1, "kind": "job", "job": 1, "attempt": 1, "event": "started", "at": 1}
    good = parse_fact(fact | {"meeting_address": "lab-a", "meeting_port": 29500})
    assert (good.meeting_address, good.meeting_port) == ("lab-a", 29500)
    for bad in (
        {"meeting_address": "a b"},
        {"meeting_address": ["x"]},
        {"meeting_port": -1},
        {"meeting_port": "1"},
    ):
        with pytest.raises(FactRefused):
            parse_fact(fact | bad)


def test_the_first_node_says_where_to_meet_and_all_bind_to_the_way_there(monkeypatch):
    settled = rank_rendezvous.settled(
        make_order(meeting=FIRST), "http://127.0.0.1:8010"
    )
    told = rank_rendezvous.rendezvous_address(settled)
    assert told["meeting_address"] == "127.0.0.1" and told["meeting_port"] > 1023
    assert rank_rendezvous.rendezvous_address(make_order(meeting=SECOND, **TWO)) == {}
    facts = rank_rendezvous.environment(settled.meeting, "http://127.0.0.1:8010")
    assert facts["GLOO_SOCKET_IFNAME"] == "lo" and facts["NCCL_SOCKET_IFNAME"] == "=lo"
    assert facts["GPUPORTAL_PROCESSES"] == "1,2"
    assert "f" * 32 not in str(
        recipe_launch.torchrun_rendezvous({})
    ) and recipe_launch.torchrun_rendezvous(facts)
    port = told["meeting_port"]
    monkeypatch.setenv(rank_rendezvous.PORTS_VARIABLE, f"{port}-{port}")
    assert rank_rendezvous.free_port() == port
    for wrong in ("x-1", "9-8", "12"):
        monkeypatch.setenv(rank_rendezvous.PORTS_VARIABLE, wrong)
        with pytest.raises(OrderRefused, match="first-last"):
            rank_rendezvous.free_port()


def test_each_launcher_is_told_of_the_other_nodes_or_refuses_in_words():
    ranks = LaunchPlace(("GPU-a", "GPU-b"), False, "/job", (), 1, SECOND)
    torchrun = script_command(Launcher.TORCHRUN, "/s", [], ranks)
    assert "--nnodes=2" in torchrun and "--node-rank=1" in torchrun
    assert "--nproc-per-node=2" in torchrun and "--standalone" not in torchrun
    accelerate = script_command(Launcher.ACCELERATE, "/s", [], ranks)
    assert {"--num_machines=2", "--machine_rank=1", "--num_processes=3"} <= {
        *accelerate
    }
    # Nothing uses ssh, and the Plan's file names the kind, not an option.
    assert {"--multi_gpu", "--deepspeed_multinode_launcher=standard"} <= {*accelerate}
    known = script_command(
        Launcher.ACCELERATE, "/s", [], replace(ranks, files=("accelerate.json",))
    )
    assert "--config_file=/job/accelerate.json" in known and "--multi_gpu" not in known
    deepspeed = script_command(Launcher.DEEPSPEED, "/s", [], ranks)
    (world,) = [word for word in deepspeed if word.startswith("--world_info=")]
    # Rank 1 counts itself there as local rank 1 % 2, and 2 as 0.
    assert json.loads(base64.urlsafe_b64decode(world[13:])) == {
        "node0": [0],
        "node1": ["GPU-b", "GPU-a"],
    }
    assert "--node_rank=1" in deepspeed and "--master_addr=10.0.0.1" in deepspeed
    assert not any("f" * 32 in word for word in torchrun + accelerate + deepspeed)
    assert "1, 2" in why_not_on_nodes(Launcher.ACCELERATE, (1, 2))
    assert "one process" in why_not_on_nodes(Launcher.PYTHON, (1, 2))
    assert why_not_on_nodes(Launcher.PYTHON, (1, 1)) == ""
    assert why_not_on_nodes(Launcher.DEEPSPEED, (1, 2)) == ""
    assert why_not_on_nodes(Launcher.PYTHON, (2,)) == ""
