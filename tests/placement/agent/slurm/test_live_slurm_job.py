"""Jobs of the portal in the real Slurm 22.05 of Debian."""

import secrets
import time
from dataclasses import replace

import pytest

from placement.agent.local_runner import LocalRunner
from placement.agent.process import process_tree
from placement.agent.slurm import slurm_client
from placement.protocol.commands import SlurmPlace
from placement.protocol.job_lifecycle import CANNOT_START
from tests.placement.nodes import ended, log_text, script_order, start, until
from tests.telemetry.slurm.slurm_processes import SlurmProcesses

PLACE = SlurmPlace(node="gp1", reservation="gp_lab1_17")


@pytest.fixture
def held(cluster: SlurmProcesses, monkeypatch) -> SlurmProcesses:
    """Hold node gp1 for the user of the tests, as a booking does."""
    monkeypatch.setenv(slurm_client.CONF, str(cluster.conf))
    user = cluster.run("id", "-un").strip()
    hold = (
        "ReservationName=gp_lab1_17",
        "Nodes=gp1",
        f"Users={user}",
        "Flags=MAGNETIC",
    )
    when = ("StartTime=now", "Duration=60")
    cluster.run("scontrol", "create", "reservation", *hold, *when)
    return cluster


def run(node, web, **changes):
    """Start a script on two of the GPUs of node gp1."""
    known = {"slurm": PLACE, "grace_seconds": 30.0, "key": secrets.token_hex(8)}
    changes = known | changes
    uuids = {"gpu_uuids": ("slurm-lab-gp1-0", "slurm-lab-gp1-1")}
    changes |= uuids | {"gpu_indexes": (0, 1)}
    return start(replace(node, web_url=web.url), script_order(web, **changes))


def states(cluster: SlurmProcesses) -> list[str]:
    """Return name and state of the jobs that are not over."""
    return cluster.run("squeue", "--noheader", "--format=%j %T %v").splitlines()


def test_a_stop_is_term_a_grace_and_a_cancel(node, serve, held) -> None:
    soft = serve("trap 'echo saved; exit 0' TERM\necho on\nwhile :; do sleep 1; done\n")
    now = time.time()
    folder = run(node, soft, deadline_at=now + 1200)
    until(lambda: "on" in log_text(folder))
    limit = ("squeue", "--noheader", "--format=%l")
    assert held.run(*limit) == "19:00\n"
    # The booking is made longer.
    folder.write("deadline", {"deadline_at": now + 1850, "issued_at": now})
    held.wait_until(lambda: held.run(*limit) == "30:00\n")
    assert states(held) == [f"gp-{folder.name} RUNNING gp_lab1_17"]
    LocalRunner(node).stop(folder, "asked to")
    status = ended(folder)
    assert "saved" in log_text(folder)
    assert (status["event"], status["exit_code"]) == ("exited", 0)
    assert (status["stopped"], status["reason"]) == (True, "asked to")

    hard = serve("trap '' TERM\necho on\nwhile :; do sleep 1; done\n")
    # It gets its grace before the end of the reservation.
    times = {"grace_seconds": 1.0, "deadline_at": time.time() + 1200}
    folder = run(node, hard, job=8, **times)
    until(lambda: "on\n" in log_text(folder))
    now = time.time()
    folder.write("deadline", {"deadline_at": now + 62, "issued_at": now})
    status = ended(folder)
    assert (status["stopped"], status["reason"]) == (True, "the reservation's end")
    assert status["ended_at"] < now + 62
    held.wait_until(lambda: states(held) == [])


def test_a_shim_that_is_killed_leaves_no_job(node, serve, held) -> None:
    folder = run(node, serve("echo on\nwhile :; do sleep 1; done\n"))
    until(lambda: "on" in log_text(folder))
    process_tree.send(folder.read("shim")["pid"], 9)
    runner = LocalRunner(node)
    until(lambda: not runner.alive(folder))
    runner.end_strays(folder)
    held.wait_until(lambda: states(held) == [])


def test_a_node_that_does_not_see_the_folder_is_told_in_the_log(
    node, serve, held
) -> None:
    drain = ("scontrol", "update", "NodeName=gp1")
    held.run(*drain, "State=DRAIN", "Reason=fans")
    folder = run(node, serve("echo never\n"))
    held.wait_until(lambda: any("PENDING" in one for one in states(held)))
    # The agent and the node are one host here, so the folder has to be away for both.
    hidden = folder.work.rename(folder.path / "hidden")
    held.run(*drain, "State=RESUME")
    held.wait_until(lambda: states(held) == [])
    hidden.rename(folder.work)
    status = ended(folder)
    assert "gp1 could not write into " in log_text(folder)
    assert status["exit_code"] == CANNOT_START


def test_a_refused_submission_is_told_in_the_log(node, serve, held) -> None:
    web = serve("echo never\n")
    folder = run(node, web, slurm=replace(PLACE, reservation="gp_lab1_99"))
    status = ended(folder)
    assert "gpuportal: Slurm refuses the job: " in log_text(folder)
    assert status["exit_code"] == CANNOT_START
