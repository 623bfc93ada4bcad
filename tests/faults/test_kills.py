"""kill -9 of every process of the site while Jobs are in every state.

One portal for all rows. Each row has a Job that is queued, one that starts, one that
runs and one that is being stopped and does not want to; then something is killed.
"""

import os
import re
import signal
import time
import uuid

import pytest

from tests.faults.lab import ON_AND_ON, STUBBORN, Lab
from tests.placement.nodes import until

ROWS = {
    "node worker": ["-Q node.sim-a"],
    "web": ["gpuportal.asgi:application"],
    "broker": ["valkey-server"],
    "control": ["-Q control", "celery -A gpuportal beat", "manage.py ingest"],
}


class Round:
    """Four Jobs, one in each state that a kill may meet."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.marks = {
            name: f"mark-{uuid.uuid4().hex}"
            for name in ("queued", "starting", "running", "stopping")
        }
        later = {"reservation": lab.known["later"]}
        self.queued = self.launch("queued", ON_AND_ON, **later)
        self.running = self.launch("running", ON_AND_ON)
        self.stopping = self.launch("stopping", STUBBORN)
        lab.reaches(self.running, "running")
        lab.reaches(self.stopping, "running")
        until(lambda: lab.log_of(self.stopping), what="its trap to be set")
        (self.process,) = self.leader(self.running)
        self.starting = self.launch("starting", ON_AND_ON)
        lab.stop(self.stopping)
        until(lambda: lab.folder(self.starting).exists(), 30, "the order to be taken")

    def launch(self, name: str, script: str, **more: int) -> int:
        """Launch one whose processes are known by a mark."""
        mark = self.marks[name]
        return self.lab.launch(script, arguments=[mark], name=name, **more)

    def leader(self, number: int) -> set[int]:
        """The first process of a Job."""
        return self.lab.pids(f"/{number}-1/work/script")

    def is_right_afterwards(self) -> None:
        """What was promised holds, and nothing else runs."""
        lab = self.lab
        assert lab.reaches(self.stopping, "stopped")["reason"] == "the test is over"
        assert self.leader(self.stopping) == set()
        begun = lab.reaches(self.starting, "running")
        assert begun["attempt"] == 1
        assert len(self.leader(self.starting)) == 1
        assert lab.job(self.running)["state"] == "running"
        assert self.leader(self.running) == {self.process}
        waits = lab.job(self.queued)
        assert (waits["state"], waits["attempt"]) == ("queued", 0)
        # It went on all the while, and goes on being heard.
        size = len(lab.log_of(self.running))
        until(lambda: len(lab.log_of(self.running)) > size, what="more of its log")

    def ends(self) -> None:
        """Every line is there, once and in order; nothing is left."""
        lab = self.lab
        for number in (self.starting, self.running, self.queued):
            lab.stop(number)
        for number in (self.starting, self.running):
            assert lab.reaches(number, "stopped")["exit_signal"] == signal.SIGTERM
            log = (lab.folder(number) / "log").read_bytes()
            until(lambda n=number, whole=log: lab.log_of(n) == whole, 20, "the log")
            lines = re.findall(rb"line (\d+)", log)
            assert [int(line) for line in lines] == list(range(1, len(lines) + 1))
        assert lab.job(self.queued)["state"] == "stopped"
        assert not any(lab.pids(mark) for mark in self.marks.values())


@pytest.mark.parametrize("victim", ROWS)
def test_what_was_promised_holds_after_a_kill_of(lab, victim):
    jobs = Round(lab)
    doomed = {pid for part in ROWS[victim] for pid in lab.pids(part)}
    assert doomed
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    jobs.is_right_afterwards()
    jobs.ends()
    print(f"{victim}: all right after {time.monotonic() - killed:.1f} s")
