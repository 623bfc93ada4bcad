"""kill -9 of every process of the site while Jobs are in every state.

One portal for all rows. Each row has a Job that is queued, one that starts, one that
runs, and ones that are moved and stopped but ignore the request. Then something is
killed.
"""

import re
import signal
import time
import uuid

import pytest

from placement.agent.process.process_tree import send
from telemetry.proc_stat import read_stat
from tests.faults.running_portal import ON_AND_ON, STUBBORN, RunningPortal
from tests.placement.nodes import until

pytestmark = pytest.mark.timeout(600)
"""A portal starts, and its parts start again, on a machine that does much else."""
ROWS = {
    "node worker": ["-Q node.sim-a"],
    "broker": ["valkey-server"],
    "web, worker, beat, ingest": [
        *("gpuportal.asgi:application", "-Q control"),
        *("celery -A gpuportal beat", "manage.py ingest"),
    ],
}


class Round:
    """Four Jobs, one in each state that a kill may find."""

    def __init__(self, running_portal: RunningPortal) -> None:
        self.portal = running_portal
        self.marks = {
            name: f"mark-{uuid.uuid4().hex}"
            for name in ("queued", "starting", "running", "moving", "stopping")
        }
        later = {"reservation": running_portal.known["later"]}
        self.queued = self.launch("queued", ON_AND_ON, **later)
        self.running = self.launch("running", ON_AND_ON)
        self.moving = self.launch("moving", STUBBORN)
        self.stopping = self.launch("stopping", STUBBORN)
        for number in (self.running, self.moving, self.stopping):
            running_portal.reaches(number, "running")
            until(lambda n=number: running_portal.log_of(n), what="its trap to be set")
        (self.process,) = self.leader(self.running)
        self.starting = self.launch("starting", ON_AND_ON)
        running_portal.stop(self.stopping)
        self.next = running_portal.move(self.moving)
        until(
            lambda: running_portal.folder(self.starting).exists(),
            what="the order to be taken",
        )

    def launch(self, name: str, script: str, **more: int) -> int:
        """Launch a Job whose processes have a mark."""
        mark = self.marks[name]
        return self.portal.launch(script, arguments=[mark], name=name, **more)

    def leader(self, number: int) -> set[int]:
        """The first process of a Job.

        A child of it has the same command line until it starts its own program.
        """
        script = self.portal.folder(number) / "work" / "script"
        found = self.portal.pids(str(script))
        known = filter(None, map(read_stat, found))
        return {item.pid for item in known if item.ppid not in found}

    def has_one_leader(self, number: int) -> None:
        """A Job runs once. Its process is still the shim's for a moment."""
        until(lambda: self.leader(number), what="its first process")
        assert len(self.leader(number)) == 1

    def is_right_afterwards(self) -> None:
        """Check that the promises hold and that nothing else runs."""
        running_portal = self.portal
        assert (
            running_portal.reaches(self.stopping, "stopped")["reason"]
            == "the test is over"
        )
        assert self.leader(self.stopping) == set()
        left = running_portal.reaches(self.moving, "stopped")
        assert left["reason"] == "moves to sim-a:7"
        goes_on = running_portal.reaches(self.next, "running")
        assert goes_on["started_at"] >= left["ended_at"]
        assert self.leader(self.moving) == set()
        self.has_one_leader(self.next)
        begun = running_portal.reaches(self.starting, "running")
        assert begun["attempt"] == 1
        self.has_one_leader(self.starting)
        assert running_portal.job(self.running)["state"] == "running"
        assert self.leader(self.running) == {self.process}
        waits = running_portal.job(self.queued)
        assert (waits["state"], waits["attempt"]) == ("queued", 0)
        # It ran all the time, and is still reported.
        size = len(running_portal.log_of(self.running))
        until(
            lambda: len(running_portal.log_of(self.running)) > size,
            what="more of its log",
        )

    def ends(self) -> None:
        """Check that every line is there, once and in order, and that nothing is
        left.
        """
        running_portal = self.portal
        for number in (self.starting, self.running, self.next, self.queued):
            running_portal.stop(number)
        for number in (self.starting, self.running, self.next):
            assert (
                running_portal.reaches(number, "stopped")["exit_signal"]
                == signal.SIGTERM
            )
            log = (running_portal.folder(number) / "log").read_bytes()
            until(
                lambda n=number, whole=log: running_portal.log_of(n) == whole,
                what="the log",
            )
            lines = re.findall(rb"line (\d+)", log)
            assert [int(line) for line in lines] == list(range(1, len(lines) + 1))
        assert running_portal.job(self.queued)["state"] == "stopped"
        assert not any(running_portal.pids(mark) for mark in self.marks.values())


@pytest.mark.parametrize("victim", ROWS)
def test_what_was_promised_holds_after_a_kill_of(running_portal, victim):
    jobs = Round(running_portal)
    doomed = {pid for part in ROWS[victim] for pid in running_portal.pids(part)}
    assert doomed
    for pid in doomed:
        # The supervisor may have killed the pool of a worker whose main process ended.
        send(pid, signal.SIGKILL)
    killed = time.monotonic()
    jobs.is_right_afterwards()
    jobs.ends()
    print(f"{victim}: all right after {time.monotonic() - killed:.1f} s")
