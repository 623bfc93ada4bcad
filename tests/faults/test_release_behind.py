"""A node whose worker is one release behind works with today's portal.

The code of the release's worker is in ``tests/releases`` (``record_node.py``), so no
history is needed.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from telemetry import paths
from tests.archives import unpack
from tests.faults.running_portal import ON_AND_ON, RunningPortal
from tests.gpuportal.running import ROOT, environ_for, manage, write_simulation
from tests.placement.nodes import until
from tests.releases.databases import FOLDER
from tests.releases.record_node import FILE

pytestmark = pytest.mark.timeout(600)
NAME = "old-a"
COUNTED = (
    'n=0; while [ ! -e "$1" ]; do n=$((n+1)); echo "line $n"; sleep 0.2; done; '
    'echo "after $n lines"; exit 7\n'
)
BOOK = """
import time
from datetime import timedelta
import django
django.setup()
from django.utils import timezone
from reservations.models import User
from reservations.rules.lifecycle import State
from telemetry.models import Gpu
from tests.factories import make_reservation
while not (gpus := list(Gpu.objects.filter(node__name="old-a"))):
    time.sleep(0.2)
now = timezone.now()
print(make_reservation(
    User.objects.get(username="alice"), gpus, start=now, end=now + timedelta(hours=4),
    state=State.ACTIVE, checked_in_at=now,
).pk)
"""
NEWEST = max(
    (path.parent.name for path in FOLDER.glob(f"*/{FILE}")),
    key=lambda version: [int(part) for part in version.split(".")],
)


class OldNode:
    """A simulated node of the portal, and the code that its worker runs."""

    def __init__(self, portal: RunningPortal, code: Path) -> None:
        self.portal, self.code = portal, code
        code.mkdir()
        unpack(FOLDER / NEWEST / FILE, code)
        done = manage(portal.var, "enroll_node", NAME, "--simulated")
        assert done.returncode == 0, done.stderr
        write_simulation(portal.var, NAME, 2)
        self.folder = portal.var / "node" / NAME
        self.folder.mkdir(parents=True)

    @contextmanager
    def worker(self, code: Path) -> Iterator[None]:
        """Run the worker with some code, as the supervisor would."""
        var, secret = self.portal.var, self.portal.var / "secret"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GPUPORTAL_VAR", str(var))
            address = paths.embedded_redis_url()
        with (var / "old-node.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "gpuportal.node"),
                    *("worker", "-Q", f"node.{NAME}", "-n", f"node-{NAME}@%h"),
                    *("--pool", "prefork", "-c", "1", "-l", "WARNING"),
                ],
                cwd=code,
                env={
                    "PATH": os.environ["PATH"],
                    "GPUPORTAL_NODE": NAME,
                    "GPUPORTAL_NODE_REDIS_URL": address,
                    "GPUPORTAL_BROKER_PLAIN": "1",
                    "GPUPORTAL_WEB_URL": self.portal.address,
                    "GPUPORTAL_NODE_TOKEN_FILE": str(secret / f"node-{NAME}.token"),
                    "GPUPORTAL_ORDER_KEY_FILE": str(secret / "order_key.pub"),
                    "GPUPORTAL_NODE_DIR": str(self.folder),
                    "GPUPORTAL_BACKEND": "simulated",
                    "GPUPORTAL_SIM_DIR": str(var / "sim"),
                    "GPUPORTAL_SUPERVISOR_PID": str(self.portal.portal.process.pid),
                    "GPUPORTAL_ALLOW_SCRIPTS": "1",
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(90)

    def book(self) -> int:
        """Let Alice hold its GPUs, beside those that she has."""
        done = subprocess.run(
            [sys.executable, "-c", BOOK],
            cwd=ROOT,
            env=environ_for(
                self.portal.var, DJANGO_SETTINGS_MODULE="gpuportal.settings"
            ),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def release(self) -> str:
        """Return the release that the portal knows of its worker."""
        with closing(sqlite3.connect(self.portal.var / "db.sqlite3")) as database:
            found = "SELECT release FROM telemetry_node WHERE name = ?"
            return str(database.execute(found, [NAME]).fetchone()[0])

    def text(self, job: int) -> str:
        """Return the log that the portal has."""
        return self.portal.log_of(job).decode()


def test_a_node_one_release_behind_runs_jobs_and_is_upgraded_under_them(
    running_portal: RunningPortal, tmp_path: Path
):
    portal, finish = running_portal, tmp_path / "finish"
    node = OldNode(portal, tmp_path / "code")
    with node.worker(node.code):
        booked = node.book()
        # That release does not report one.
        assert node.release() == ""
        stopped = portal.launch(ON_AND_ON, reservation=booked)
        kept = portal.launch(COUNTED, arguments=[str(finish)], reservation=booked)
        for job in (stopped, kept):
            portal.reaches(job, "running")
            until(lambda job=job: "line 3\n" in node.text(job), what="its log")
        portal.stop(stopped)
        assert portal.reaches(stopped, "stopped", "failed")["state"] == "stopped"

        # The test after an upgrade of the portal: a sample, and a signed command.
        tested = manage(portal.var, "upgrade", "--self-test", "--web", portal.address)
        assert tested.returncode == 0, tested.stdout + tested.stderr
        for part in ("samples", "commands"):
            assert f"{part}: {NAME}, sim-a: in order." in tested.stdout
    # Then the node itself is upgraded. The job goes on, and its shim is the old one.
    with node.worker(ROOT):
        lines = node.text(kept).count("line")
        until(lambda: node.text(kept).count("line") > lines + 5, what="more of its log")
        until(lambda: node.release() == paths.release(), what="its release")
        finish.touch()
        ended = portal.reaches(kept, "done", "failed", "stopped", "lost")
        assert (ended["state"], ended["exit_code"]) == ("failed", 7)
        until(lambda: "after " in node.text(kept), what="the end of its log")
        text = node.text(kept).splitlines()
        count = int(text[-1].split()[1])
        assert text == [
            *(f"line {n + 1}" for n in range(count)),
            f"after {count} lines",
        ]
