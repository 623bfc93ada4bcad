"""One running portal whose processes tests kill, and Jobs of it in every state."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpuportal.running import (
    READY,
    ROOT,
    Portal,
    environ_for,
    write_simulation,
)
from tests.placement.nodes import PATIENCE_SECONDS

GPUS = 8
GRACE_SECONDS = 2
SCRIPTS = {"ALLOW_UNISOLATED_SCRIPTS": "1"}
PREPARE = """
import json
from datetime import timedelta
import django
django.setup()
from django.utils import timezone
from reservations.rules.lifecycle import State
from reservations.models import SitePolicy
from reservations.accounts.api_tokens import create_token
from tests.factories import make_gpus, make_membership, make_node, make_reservation
from tests.factories import make_user
from telemetry.models import Node
now = timezone.now()
alice = make_user("alice")
make_membership(alice, "vision")
policy = SitePolicy.current()
policy.stop_grace_seconds = %(grace)d
policy.save()
node = make_node("sim-a", last_seen_at=None)
gpus = make_gpus(%(gpus)d, node)
hours = timedelta(hours=1)
open_ = make_reservation(
    alice, gpus, start=now, end=now + 4 * hours, state=State.ACTIVE, checked_in_at=now
)
later = make_reservation(alice, gpus, start=now + 5 * hours, end=now + 6 * hours)
_, token = create_token(
    user=alice, label="faults", scopes=["read", "book", "job"], days=1, now=now
)
print(json.dumps({"now": open_.pk, "later": later.pk, "token": token}), flush=True)

# Then it decides that Jobs go on elsewhere, as the control worker does.
import sys
from django.db import transaction
from placement.protocol.job_lifecycle import JobState
from placement.models import Job, MoveDecision
from placement.jobs.service import launch_in
from placement.jobs.job_transitions import move
landed = MoveDecision.objects.filter(state="moving").exclude(next_job__started_at=None)
for line in sys.stdin:
    now = timezone.now()
    landed.update(state="moved")
    with transaction.atomic(durable=True):
        job = Job.objects.select_related("node", "reservation").get(pk=int(line))
        told = {"stop_at": now, "ordered_at": None}
        assert move(job, JobState.MOVING, now=now, actor="portal",
                    reason="moves to sim-a:7", fields=told)
        again = launch_in(
            user=alice, reservation_id=open_.pk, name="goes on", kind=job.kind,
            script=%(script)r, arguments=job.arguments, gpu_count=1, now=now,
        )
        MoveDecision.objects.create(
            job=job, seen_at=now, cause="look", state="moving", reason="faster there",
            moved_at=now, next_job=again,
        )
    print(again.pk, flush=True)
"""
ON_AND_ON = 'n=0; while :; do n=$((n+1)); echo "line $n"; sleep 0.25; done\n'
STUBBORN = "trap '' TERM INT HUP\necho up\nwhile :; do sleep 0.1; done\n"


class RunningPortal:
    """A portal with one simulated node and Alice, who holds its Gpus now and later."""

    def __init__(self, var: Path) -> None:
        """Start it in a folder with a migrated database."""
        self.var = var
        parts = {"grace": GRACE_SECONDS, "gpus": GPUS, "script": ON_AND_ON}
        self.worker = subprocess.Popen(
            [sys.executable, "-c", PREPARE % parts],
            cwd=ROOT,
            env=environ_for(
                var, DJANGO_SETTINGS_MODULE="gpuportal.settings", **SCRIPTS
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.known = json.loads(self._told())
        write_simulation(var, "sim-a", GPUS)
        self.portal = Portal(var, "--no-demo", **SCRIPTS)
        try:
            # On a busy machine the start takes long.
            line = self.portal.until(READY, 150)
            self.address = line.partition(READY)[2].split()[0].rstrip("/")
        except BaseException:
            self.close()
            raise

    def _told(self) -> str:
        assert self.worker.stdout is not None
        return self.worker.stdout.readline()

    def move(self, number: int) -> int:
        """Move a running Job. Return the number of the Job that continues."""
        assert self.worker.stdin is not None
        self.worker.stdin.write(f"{number}\n")
        self.worker.stdin.flush()
        return int(self._told())

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Call the API as Alice. The call waits while the web is started again."""
        request = urllib.request.Request(
            f"{self.address}/api/v1/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.known['token']}"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.add_note(error.read().decode())
            raise

    def raw(self, path: str) -> bytes:
        """Fetch a page's bytes with Alice's token."""
        request = urllib.request.Request(f"{self.address}{path}")
        request.add_header("Authorization", f"Bearer {self.known['token']}")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return bytes(answer.read())

    def launch(
        self, script: str, *, arguments: Sequence[str] = (), name: str = "", **more: Any
    ) -> int:
        """Launch a script on one Gpu; return the Job's number."""
        body = {
            "reservation": self.known["now"],
            "name": name or "fault",
            "kind": "script",
            "script": script,
            "arguments": list(arguments),
            "gpus": 1,
        }
        return int(self.ask("POST", "jobs", body | more)["id"])

    def job(self, number: int) -> dict[str, Any]:
        """Return the state of a Job."""
        return dict(self.ask("GET", f"jobs/{number}"))

    def reaches(self, number: int, *states: str) -> dict[str, Any]:
        """Wait until a Job is in one of these states."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (job := self.job(number))["state"] not in states:
            assert time.monotonic() < deadline, (number, states, job)
            time.sleep(0.2)
        return job

    def stop(self, number: int) -> None:
        """Request a Job's end."""
        self.ask("POST", f"jobs/{number}/stop", {"reason": "the test is over"})

    def folder(self, number: int) -> Path:
        """The folder of a Job's first attempt on its node."""
        jobs = self.var / "node" / "sim-a" / "jobs"
        return next(jobs.glob(f"{number}-1-*"), jobs / f"{number}-1")

    def log_of(self, number: int) -> bytes:
        """Return the log that the portal has stored."""
        found = (self.var / "media" / "logs").glob(f"{number}-1-*.log")
        return b"".join(path.read_bytes() for path in found)

    def pids(self, part: str) -> set[int]:
        """Return the portal's processes whose command line has a part."""
        return {pid for pid, words in self.portal.left().items() if part in words}

    def close(self) -> float:
        """Stop the portal, and check that nothing is left. Return the seconds that it
        took.
        """
        began = time.monotonic()
        self.worker.communicate()
        self.portal.__exit__()
        left = self.portal.gone(60)
        assert left == {}, left
        return time.monotonic() - began


class Ended:
    """A log that is complete."""

    ended = True

    def __init__(self, folder):
        self.folder = folder

    def report(self, **_what):
        """Store nothing."""
